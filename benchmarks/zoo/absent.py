"""Stands in for torchvision, which is not installed: packages import it for data sets and pictures, and models use
nothing of it. Every name exists and can be a base class, an argument or a key; nothing of it computes."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

ABSENT = ("torchvision",)


class _Name(type):
    """A class whose attributes are classes of the same kind."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _named(name)


def _named(name: str) -> Any:
    return _Name(name, (), {"__init__": lambda self, *args, **given: None})


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _named(name)
        setattr(self, name, made)
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        if name.partition(".")[0] in ABSENT:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        made = _Module(spec.name)
        made.__version__ = "0.0"  # type: ignore[attr-defined]
        return made

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def stand_in() -> None:
    """After everything that is installed, so that a real torchvision is taken if there is one."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())


__all__ = ["stand_in"]
