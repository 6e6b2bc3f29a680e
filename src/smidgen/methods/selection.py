"""From what the user wrote as `method=` to the updates of a network. What cannot be honoured is refused, by name."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..errors import BadMethod, CannotSelect, CannotUpdate, NothingToTrain, UnknownMethod, did_you_mean
from ..ir import Array, Graph, Role
from .contract import Context, Method, Update
from .registry import all_methods, named
from .scored import Scored

Part = str | Method | Update
"""A name of a method, perhaps with its argument; a parameter or a pattern of names; a method; an update."""
Wanted = str | Sequence[Part]


def text_of(wanted: Wanted) -> str:
    """For people."""
    return wanted if isinstance(wanted, str) else ", ".join(str(part) for part in wanted)


def methods_of(wanted: Wanted, names: Iterable[str]) -> list[Part]:
    """With methods in place of their names. In a list, which may mix both, a parameter called `bias` is meant before
    the method of that name."""
    if isinstance(wanted, str):
        return [named(wanted) or wanted]
    known = set(names)
    return [named(p) or p if isinstance(p, str) and p not in known else p for p in wanted]


def to_score(
    wanted: Wanted, forward: Mapping[str, Graph], context: Context
) -> tuple[tuple[Scored, ...], tuple[str, ...]]:
    """Layers whose channels the methods want scored, and what the methods say of their choice."""
    used = [part for part in methods_of(wanted, context.aliases) if isinstance(part, Method)]
    evaluate = forward.get("evaluate")
    found: dict[Scored, None] = {}
    for part in used:
        found |= dict.fromkeys(part.scored(forward["train"] if evaluate is None else evaluate, context))
    if found and evaluate is None:
        raise CannotSelect(
            "the channels of this model cannot be scored",
            why="the loss does not take what it returns in evaluation mode",
            help="return the same in both modes, or give a loss that takes both",
        )
    return tuple(found), tuple(note for part in used for note in part.notes())


def open_parts(wanted: Wanted, names: Iterable[str]) -> list[int]:
    """Numbers of those parts whose scheme is to be searched."""
    return [i for i, part in enumerate(methods_of(wanted, names)) if isinstance(part, Method) and part.is_open]


def adapted(parts: Sequence[Part], graphs: Mapping[str, Graph], loss: str) -> dict[str, Graph]:
    """The forward graphs as every method changes them, in order; the same objects where none does."""
    found, before = dict(graphs), dict[type[Method], Method]()
    for method in sorted((part for part in parts if isinstance(part, Method)), key=lambda one: one.late):
        changed = {name: method.adapt(graph) for name, graph in found.items()}
        for name, graph in found.items():
            _check_adapted(method, graph, changed[name], loss)
        if any(changed[name] is not graph for name, graph in found.items()):
            _check_shared(method, changed.values())
            other = before.setdefault(type(method), method)
            if other is not method:
                what = f"'{other}' and '{method}' cannot both change the network"
                raise CannotUpdate(what, why="both add the same parameters to it", help="leave one of them out")
        found = changed
    return found


def choose(wanted: Wanted, graph: Graph, context: Context) -> list[Update]:
    """The updates of everything that is wanted, each parameter once and under its first name."""
    names = _names(graph, context)
    found: list[Update] = []
    for part in methods_of(wanted, names):
        if isinstance(part, Method):
            what = f"method '{part}' does not return a list of updates"
            found += checked_updates(part.choose(graph, context), what, "choose returned", "return [Update(name), …]")
        elif isinstance(part, Update):
            found.append(part)
        else:
            found += [Update(p) for p in _matching(part, names)]
    found = settled(found, graph, context, text_of(wanted))
    check_given(wanted, names, [u.param for u in found], "it has requires_grad=False, or the loss does not use it")
    return found


def settled(updates: Iterable[Update], graph: Graph, context: Context, text: str) -> list[Update]:
    """Each parameter once and under its first name; without those that cannot learn."""
    names = _names(graph, context)
    params = {t.name for t in graph.of_role(Role.PARAM)}
    return _kept(merged(_known(u, names) for u in updates), params, set(context.trainable), text)


def check_given(wanted: Wanted, names: Mapping[str, str], learns: Iterable[str], why: str) -> None:
    """What the user asks for one by one is refused if it cannot learn: nobody else would notice that it does not."""
    known = set(learns)
    for part in () if isinstance(wanted, str) else wanted:
        if isinstance(part, Update) and names.get(part.param, part.param) not in known:
            raise CannotUpdate(f"'{part.param}' cannot learn", why=why, help=f"leave Update('{part.param}') out")


def _names(graph: Graph, context: Context) -> dict[str, str]:
    """Every name of a parameter → the first name of the same tensor."""
    return {p: p for p in (*(t.name for t in graph.of_role(Role.PARAM)), *context.trainable)} | dict(context.aliases)


def merged(updates: Iterable[Update]) -> list[Update]:
    """Each parameter once: whole and whole is whole, slices of one axis are joined; anything else is refused."""
    found: dict[str, Update] = {}
    for update in updates:
        known = found.setdefault(update.param, update)
        if None not in (known.axis, update.axis) and known.axis != update.axis:
            raise CannotUpdate(
                f"'{update.param}' cannot learn in slices of two axes", why=f"{known} and {update}: a slice is of one",
                help=f"one of the two, or Update('{update.param}'), which trains both and all else of it",
            )  # fmt: skip
        if known.axis != update.axis:
            raise CannotUpdate(
                f"two updates of '{update.param}' contradict each other", why=f"{known} and {update}",
                help="train it whole, or one slice of it",
            )  # fmt: skip
        if update.indices is not None and known.indices is not None:
            found[update.param] = replace(known, indices=tuple({*known.indices, *update.indices}))
    return list(found.values())


def checked_updates(given: object, what: str, why: str, help: str) -> Sequence[Update]:
    """`given`, if it is a list of updates; else the error of a method that does not keep its contract."""
    if isinstance(given, Sequence) and not isinstance(given, str) and all(isinstance(u, Update) for u in given):
        return given
    raise BadMethod(what, why=f"{why} {given!r:.80}", help=help)


def _known(update: Update, names: Mapping[str, str]) -> Update:
    if update.param not in names:
        raise UnknownMethod(
            f"'{update.param}' is not a parameter of this model", help=did_you_mean(update.param, names)
        )
    return replace(update, param=names[update.param])


def _matching(pattern: str, names: Mapping[str, str]) -> list[str]:
    found = [first for name, first in names.items() if name == pattern or fnmatch.fnmatchcase(name, pattern)]
    if not found:
        raise UnknownMethod(
            f"'{pattern}' is neither a method nor a parameter of this model",
            help=did_you_mean(pattern, {*all_methods(), *names}),
        )
    return found


def _kept(found: Sequence[Update], used: set[str], trainable: set[str], method: str) -> list[Update]:
    kept = [u for u in found if u.param in used and u.param in trainable]
    if not kept:
        raise NothingToTrain(
            f"method '{method}' finds nothing to train in this model",
            why=_why_not(len(found), sum(u.param not in used for u in found)),
            help='method="full" trains every parameter with requires_grad=True',
        )
    return kept


def _why_not(selected: int, unused: int) -> str:
    reasons = ("with requires_grad=False", selected - unused), ("that the loss does not use", unused)
    said = [f"{count} {reason}" for reason, count in reasons if count]
    return f"it selects {', '.join(said)}" if said else "no parameter selected"


def _check_adapted(method: Method, before: Graph, after: object, loss: str) -> None:
    """The caller's buffers and the loss are what they were."""
    if not isinstance(after, Graph):
        raise BadMethod(f"method '{method}' does not return a graph", why=f"adapt returned {after!r:.80}")
    borders = [[str(g.tensors.get(n)) for n in (*g.inputs, *g.outputs)] for g in (before, after)]
    if borders[0] != borders[1]:
        raise BadMethod(f"method '{method}' changes inputs or outputs of the network", at="adapt")
    if loss in before.tensors and loss not in after.tensors:
        raise BadMethod(f"method '{method}' removes the loss '{loss}'", at="adapt")


def _check_shared(method: Method, graphs: Iterable[Graph]) -> None:
    """What is stored under one name is one tensor, whichever graph reads it."""
    seen: dict[str, Array] = {}
    for graph in graphs:
        for name in (t.name for t in graph.of_role(Role.PARAM, Role.STAT) if t.name in graph.data):
            value = graph.data[name]
            known = seen.setdefault(name, value)
            if known is not value and not np.array_equal(known, value, equal_nan=True):
                raise BadMethod(
                    f"method '{method}' stores two values as '{name}'", at="adapt",
                    why="training and inference share what is stored under one name",
                    help="start it from constants, or from a generator with a seed of its own",
                )  # fmt: skip


__all__ = [
    "Part", "Wanted", "adapted", "check_given", "checked_updates", "choose", "merged", "methods_of",
    "open_parts", "settled", "text_of",
]  # fmt: skip
