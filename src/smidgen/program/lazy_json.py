"""The description in a program file, piece by piece: decoded as a whole it would take many times its size in memory.

What is not written the way smidgen writes it is decoded as a whole, by whoever asked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

MARKS: Final = re.compile(rb'\[[^][{}"]*\]|"(?:[^"\\]|\\.)*"|[][{}]', re.DOTALL)  # plain lists and texts as a whole
TEXT: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
SCALAR: Final = re.compile(rb'[^][{}",:]+')
DEPTH: Final = {b"{": 1, b"[": 1, b"}": -1, b"]": -1}


class Unusual(Exception):
    """Not as smidgen writes it."""


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


DECODER: Final = json.JSONDecoder(parse_constant=_refuse)  # one for all: each refers to itself, and stays for long


def decoded(text: bytes) -> Any:
    """Raises ValueError or RecursionError."""
    return DECODER.decode(text.decode())


def whole(value: Any, below: int = 2**63, least: int = 0) -> int:
    """`value`, if it is an integer in range."""
    if type(value) is not int or not least <= value < below:
        raise ValueError(f"{value!r:.40} is not a number from {least} to {below - 1}")
    return value


def pieces(text: bytes) -> dict[str, bytes]:
    """Key → its value, still JSON, of an object without spaces between its parts."""
    found: dict[str, bytes] = {}
    at = 1
    while text[at - 1 : at] == (b"," if found else b"{"):
        key = TEXT.match(text, at)
        if key is None or text[key.end() : key.end() + 1] != b":":
            break
        end = _end(text, key.end() + 1)
        found[decoded(key.group())] = text[key.end() + 1 : end]
        at = end + 1
    if text[at - 1 :] != b"}" or not found:
        raise Unusual
    return found


def _end(text: bytes, start: int) -> int:
    """Behind the value that begins at `start`."""
    if text[start : start + 1] not in (b"{", b"["):
        plain = TEXT.match(text, start) or SCALAR.match(text, start)
        if plain is None:
            raise Unusual
        return plain.end()
    depth = 0
    for mark in MARKS.finditer(text, start):
        depth += DEPTH.get(mark.group(), 0)
        if not depth:
            return mark.end()
    raise Unusual


class Pieces(Mapping[str, Any]):
    """An object whose values are decoded each time they are asked for."""

    def __init__(self, text: bytes) -> None:
        self._values = pieces(text)

    def __getitem__(self, key: str) -> Any:
        return decoded(self._values[key])

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class Description(Mapping[str, Any]):
    """Of a mapped file. Most of it are facts of the plan, which are read from `whole` when somebody asks for the plan,
    and not kept; and where each tensor of the state lies, which is decoded tensor by tensor."""

    def __init__(self, whole: Callable[[], bytes]) -> None:
        """Raises ValueError or RecursionError; Unusual if it has to be read as a whole."""
        self._whole = whole
        self._rest: dict[str, Any] = {}
        for key, text in pieces(whole()).items():
            if key == "plan":
                self._rest[key] = {k: decoded(v) for k, v in pieces(text).items() if k != "facts"}
            else:
                self._rest[key] = Pieces(text) if key == "state" else decoded(text)

    @property
    def figures(self) -> Mapping[str, Any]:
        """The plan without its facts."""
        found: Mapping[str, Any] = self._rest["plan"]
        return found

    def __getitem__(self, key: str) -> Any:
        return decoded(pieces(self._whole())[key]) if key == "plan" and key in self._rest else self._rest[key]

    def __contains__(self, key: object) -> bool:
        return key in self._rest

    def __iter__(self) -> Iterator[str]:
        return iter(self._rest)

    def __len__(self) -> int:
        return len(self._rest)


__all__ = ["Description", "Pieces", "Unusual", "decoded", "pieces", "whole"]
