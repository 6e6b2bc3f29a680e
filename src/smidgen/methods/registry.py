"""What a method is, and how the rest of smidgen finds one by name.

A method looks at the forward graph and says which parameters learn. It knows nothing of planning or code.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..errors import BadOption, Internal, NothingToTrain, UnknownMethod, did_you_mean
from ..ir import Graph, Role


@dataclass(frozen=True, slots=True)
class Update:
    """One parameter that learns: whole, or only `indices` along `axis`."""

    param: str
    axis: int | None = None
    indices: tuple[int, ...] = ()


Choose = Callable[[Graph, int | None], Sequence[Update]]


@dataclass(frozen=True, slots=True)
class Method:
    name: str
    doc: str
    choose: Choose  # (forward graph, k of `name:k`) → updates
    takes_count: bool = False


_METHODS: dict[str, Method] = {}


def register(name: str, doc: str, choose: Choose, takes_count: bool = False) -> None:
    if name in _METHODS:
        raise Internal(f"method '{name}' is registered twice")
    _METHODS[name] = Method(name, doc, choose, takes_count)


def all_methods() -> dict[str, Method]:
    return dict(_METHODS)


def choose(method: str | Sequence[str], graph: Graph, trainable: Sequence[str]) -> list[Update]:
    """Updates for a method name, `name:k`, or names and globs of parameters; only `trainable` ones learn."""
    allowed = {p for p in trainable if p in graph.tensors and graph[p].role is Role.PARAM}
    if isinstance(method, str):
        name, _, count = method.partition(":")
        if name in _METHODS:
            found = _METHODS[name].choose(graph, _count(_METHODS[name], method, count))
            return _kept(found, allowed, method)
    wanted = [method] if isinstance(method, str) else list(method)
    found = [Update(p) for pattern in wanted for p in _matching(pattern, graph)]
    return _kept(found, allowed, ", ".join(wanted))


def _count(method: Method, text: str, count: str) -> int | None:
    if not count:
        return None
    if not method.takes_count or not count.isdigit() or int(count) < 1:
        raise BadOption(f"method '{text}' is not understood", help="a count goes with 'last', as in 'last:3'")
    return int(count)


def _matching(pattern: str, graph: Graph) -> list[str]:
    params = [t.name for t in graph.of_role(Role.PARAM)]
    found = [p for p in params if p == pattern or fnmatch.fnmatchcase(p, pattern)]
    if not found:
        raise UnknownMethod(
            f"'{pattern}' is neither a method nor a parameter of this model",
            help=did_you_mean(pattern, [*_METHODS, *params]),
        )
    return found


def _kept(found: Sequence[Update], allowed: set[str], method: str) -> list[Update]:
    unique = {u.param: u for u in found if u.param in allowed}
    if not unique:
        raise NothingToTrain(
            f"method '{method}' finds nothing to train in this model",
            why=f"{len(found)} parameters selected, all with requires_grad=False" if found else "no parameter selected",
            help='method="full" trains every parameter with requires_grad=True',
        )
    return list(unique.values())
