"""Sums of variables some of which are already known: a term is 0, 1 or a variable that is one of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Term = Any


def is_(term: Term, value: int) -> bool:
    return isinstance(term, int) and term == value


def any_(terms: Iterable[Term], value: int) -> bool:
    return any(is_(x, value) for x in terms)


def open_(terms: Iterable[Term]) -> list[Term]:
    """Those that are not decided yet."""
    return [x for x in terms if not isinstance(x, int)]


class Row:
    def __init__(self, constant: int) -> None:
        self.constant = constant
        self.terms: dict[int, int] = {}

    def add(self, size: int, term: Term) -> None:
        if isinstance(term, int):
            self.constant += size * term
        else:
            self.terms[term.index] = self.terms.get(term.index, 0) + size
