"""Methods by name. Importing a file of this package registers its methods; a name is given once."""

from __future__ import annotations

import re
from typing import TypeVar

from ..errors import BadMethod, BadOption
from .contract import Method

M = TypeVar("M", bound=type[Method])
_METHODS: dict[str, type[Method]] = {}
_NAME = re.compile(r"[a-z][a-z0-9_+-]*")


def register(method: M) -> M:
    """Class decorator: the method can be asked for by its name."""
    if not _NAME.fullmatch(method.name) or not method.doc:
        raise BadMethod(
            f"the method {method.__name__} has no name or no doc",
            why=f"name is {method.name!r}, doc is {method.doc!r}",
            help="a name of small letters, digits, _, - and +; one line that says what learns",
        )
    if method.name in _METHODS:
        raise BadMethod(f"method '{method.name}' is registered twice", help="give one of them another name")
    _METHODS[method.name] = method
    return method


def all_methods() -> dict[str, type[Method]]:
    """Name → class of every method that can be asked for by name."""
    return dict(_METHODS)


def named(text: str) -> Method | None:
    """The method that `name` or `name:argument` means; None if there is no such name."""
    name, _, argument = text.partition(":")
    if name not in _METHODS:
        return None
    kind = _METHODS[name]
    try:
        return kind.of(argument)
    except ValueError:
        takes = f"{name}:{kind.argument}" if kind.argument else name
        raise BadOption(f"method '{text}' is not understood", help=f"{takes}: {kind.doc}") from None


__all__ = ["all_methods", "named", "register"]
