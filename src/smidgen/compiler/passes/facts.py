"""What is found out node by node, with who wrote and who read each fact: what may change if one of them does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping
from typing import Any, Generic, TypeVar, overload

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
Default = TypeVar("Default")
Write = tuple["Facts[Any, Any]", Hashable, Any]


class Facts(Generic[K, V]):
    """A mapping as the node at position `at` sees it: what later nodes wrote is not there yet.

    A fact is written by one node, which has looked for it before. That a fact is missing is read like any other.
    """

    __slots__ = ("at", "readers", "values", "writes")

    def __init__(self, given: Mapping[K, V]) -> None:
        self.values: dict[K, tuple[int, V]] = {key: (-1, value) for key, value in given.items()}
        self.readers: defaultdict[K, set[int]] = defaultdict(set)  # also of earlier attempts: twice does no harm
        self.at = -1
        self.writes: list[Write] = []  # of the node at hand

    def __getitem__(self, key: K) -> V:
        self.readers[key].add(self.at)
        at, value = self.values[key]
        if at > self.at:
            raise KeyError(key)
        return value

    def __contains__(self, key: K) -> bool:
        self.readers[key].add(self.at)
        found = self.values.get(key)
        return found is not None and found[0] <= self.at

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: Default) -> V | Default: ...
    def get(self, key: K, default: Any = None) -> Any:
        self.readers[key].add(self.at)
        found = self.values.get(key)
        return default if found is None or found[0] > self.at else found[1]

    def __setitem__(self, key: K, value: V) -> None:
        self.readers[key].add(self.at)
        self.values[key] = self.at, value
        self.writes.append((self, key, value))

    def put(self, key: K, value: V, at: int) -> None:
        """Without being the node at hand."""
        self.values[key] = at, value

    def drop(self, key: K, at: int) -> None:
        """Unless another node wrote it since."""
        if key in self.values and self.values[key][0] == at:
            del self.values[key]
