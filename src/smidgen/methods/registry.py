"""What a method is, and how the rest of smidgen finds one by name.

A method looks at the forward graph and says which parameters learn. It knows nothing of planning or code.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
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


def choose(
    method: str | Sequence[str], graph: Graph, trainable: Sequence[str], known: Mapping[str, str] | None = None
) -> list[Update]:
    """Updates for a method name, `name:k`, names and globs of parameters, or a list of these; only `trainable` ones
    learn. `known` gives every name of a parameter, used or not, and the first name of the same tensor."""
    params = [t.name for t in graph.of_role(Role.PARAM)]
    names = {**{p: p for p in (*params, *trainable)}, **(known or {})}
    wanted = [method] if isinstance(method, str) else list(method)
    found: list[Update] = []
    for text in wanted:
        name, _, count = text.partition(":")
        # In a list, which may mix both, a parameter called `bias` is meant before the method of that name.
        if name in _METHODS and (isinstance(method, str) or text not in names):
            found += _METHODS[name].choose(graph, _count(_METHODS[name], text, count))
        else:
            found += [Update(p) for p in _matching(text, names)]
    return _kept(found, set(params), set(trainable), ", ".join(wanted))


def _count(method: Method, text: str, count: str) -> int | None:
    if not count:
        return None
    if not method.takes_count or not count.isdigit() or int(count) < 1:
        raise BadOption(f"method '{text}' is not understood", help="a count goes with 'last', as in 'last:3'")
    return int(count)


def _matching(pattern: str, names: Mapping[str, str]) -> list[str]:
    found = [first for name, first in names.items() if name == pattern or fnmatch.fnmatchcase(name, pattern)]
    if not found:
        raise UnknownMethod(
            f"'{pattern}' is neither a method nor a parameter of this model",
            help=did_you_mean(pattern, {*_METHODS, *names}),
        )
    return found


def _kept(found: Sequence[Update], used: set[str], trainable: set[str], method: str) -> list[Update]:
    unique = {u.param: u for u in found}
    kept = [u for u in unique.values() if u.param in used and u.param in trainable]
    if not kept:
        raise NothingToTrain(
            f"method '{method}' finds nothing to train in this model",
            why=_why_not(len(unique), sum(p not in used for p in unique)),
            help='method="full" trains every parameter with requires_grad=True',
        )
    return kept


def _why_not(selected: int, unused: int) -> str:
    reasons = ("with requires_grad=False", selected - unused), ("that the loss does not use", unused)
    said = [f"{count} {reason}" for reason, count in reasons if count]
    return f"it selects {', '.join(said)}" if said else "no parameter selected"
