"""From an imported model to the graphs of all entry points: simplify → choose what learns → fold → autodiff → update.
Each stage is a function of graphs, checked after it ran."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING

from .. import methods, ops
from ..errors import NotDifferentiable
from ..ir import Graph, dead_removed, unnamed_removed
from ..program.plan import Decision
from .graph.build import Builder, fetch
from .graph.check import check
from .optimizers import SGD, Optimizer
from .options import Options
from .passes.accumulators import totals
from .passes.additive import check_additive
from .passes.autodiff import autodiff
from .passes.drop_unread import lean
from .passes.feed_late import feed_late
from .passes.fold import fold_batch_norm, freeze
from .passes.narrow import narrow
from .passes.sample_loop import sample_loop
from .passes.save_bits import save_bits
from .passes.simplify import simplify_all
from .passes.spare_classes import Head, add_spare, check_head, with_names
from .passes.update import apply_entry, grad_entry, train_entry, zero_entry
from .place import arena
from .planner.cheap import cheapened

if TYPE_CHECKING:
    from .torch_import.capture import Imported


@dataclass(frozen=True, slots=True)
class Entries:
    """All entry points as graphs, before they are placed."""

    graphs: Mapping[str, Graph]
    batch: int
    method: str
    learns: tuple[str, ...]
    aliases: Mapping[str, tuple[str, ...]]
    shapes: Mapping[str, tuple[int, ...]]  # of parameters and statistics in the user's layout
    decisions: tuple[Decision, ...]
    parameters: tuple[str, ...] = ()  # of the user's model, learning or not
    optimizer: str = ""  # for people
    head: Head | None = None  # with spare classes
    class_names: tuple[str, ...] = ()
    plain: Mapping[str, Graph] = field(default_factory=dict)  # entries in which nothing is computed again
    forward: Mapping[str, Graph] = field(default_factory=dict)  # entries that do not learn, before they were lowered
    const: str = "f32"
    step_samples: int = 0  # of a step that is taken in parts; 0: up to `batch`, at once


def lower_as(imported: Imported, options: Options) -> Entries:
    return Lowering(imported).entries(options)


def lower(
    imported: Imported,
    *,
    optimizer: Optimizer | None = None,
    method: str | Sequence[str] = "full",
    batch: int,
    accumulate: bool = False,
    seed: int = 0,
    spare_classes: int = 0,
    class_names: tuple[str, ...] = (),
) -> Entries:
    """simplify → choose what learns → fold → autodiff → update."""
    learning = _learning(_simplified(imported, spare_classes), method, class_names)
    return at_batch(_built(learning, optimizer or SGD(lr=0.01), accumulate, seed), batch)


class Lowering:
    """One model for many choices of options: what they have in common is done once."""

    def __init__(self, imported: Imported) -> None:
        self.imported = imported
        self._simplified: dict[int, _Simplified] = {}  # by spare classes
        self._learning: dict[str, _Learning] = {}
        self._built: dict[str, Built] = {}

    def entries(self, options: Options, explained: bool = True) -> Entries:
        """Unless explained, without the decisions that lowering takes anyway."""
        spare, names = options.spare_classes, options.class_names
        if spare not in self._simplified:
            self._simplified[spare] = _simplified(self.imported, spare)
        key = repr((spare, options.method, names))
        if key not in self._learning:
            self._learning[key] = _learning(self._simplified[spare], options.method, names)
        full = repr((key, options.optimizer, options.accumulate, options.seed))
        if full not in self._built:
            self._built[full] = _built(self._learning[key], options.optimizer, options.accumulate, options.seed)
        entries = at_batch(self._built[full], options.batch or self.imported.batch, explained)
        return narrowed(entries) if options.const == "int8" else entries


@dataclass(frozen=True, slots=True)
class _Simplified:
    imported: Imported  # with spare classes
    head: Head | None
    forward: Mapping[str, Graph]


@dataclass(frozen=True, slots=True)
class _Learning:
    """Forward and backward, whatever the optimizer and the batch."""

    imported: Imported
    head: Head | None
    class_names: tuple[str, ...]
    method: str
    forward: Mapping[str, Graph]
    whole: Graph
    grads: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Built:
    """All entry points, whatever the batch. `without` makes `train` without each technique, to say what it saves."""

    graphs: Mapping[str, Graph]
    without: Mapping[str, Callable[[], Graph]]
    method: str
    learns: tuple[str, ...]
    aliases: Mapping[str, tuple[str, ...]]
    shapes: Mapping[str, tuple[int, ...]]
    parameters: tuple[str, ...]
    optimizer: str
    head: Head | None = None
    class_names: tuple[str, ...] = ()
    forward: Mapping[str, Graph] = field(default_factory=dict)


def _simplified(imported: Imported, spare_classes: int) -> _Simplified:
    head = None
    if spare_classes:
        imported, head = add_spare(imported, spare_classes)
    captured = {"train": imported.train, "infer": imported.infer}
    if imported.evaluate is not None:
        captured["evaluate"] = imported.evaluate
    return _Simplified(imported, head, checked(simplify_all(captured, {imported.loss}), "simplify"))


def _learning(model: _Simplified, method: str | Sequence[str], class_names: tuple[str, ...]) -> _Learning:
    imported, forward = model.imported, model.forward
    trainable = [p.name for p in imported.parameters if p.requires_grad]
    known = {alias: p.name for p in imported.parameters for alias in (p.name, *p.aliases)}
    chosen = [u.param for u in methods.choose(method, forward["train"], trainable, known)]
    learns = autodiff(forward["train"], imported.loss, chosen)[1]  # what the loss does not reach stays as it is
    if not learns:
        raise NotDifferentiable(
            "the loss does not depend on anything that learns", why=f"method '{method}' selects {', '.join(chosen)}"
        )
    if model.head is not None:
        check_head(model.head, learns, class_names)
    folded = checked(simplify_all(_frozen(forward, set(learns)), {imported.loss}), "fold")
    b = Builder(folded["train"])
    fetch(b, imported.loss, "loss")
    whole, grads = autodiff(b.graph(), imported.loss, list(learns))
    check(whole, "autodiff")
    name = method if isinstance(method, str) else ", ".join(method)
    return _Learning(imported, model.head, class_names, name, folded, whole, grads)


def _built(model: _Learning, optimizer: Optimizer, accumulate: bool, seed: int) -> Built:
    imported = model.imported
    if accumulate:
        check_additive(model.whole, imported.loss)
    named = (*imported.parameters, *imported.buffers)
    built = build(
        model.whole, model.forward["infer"], model.grads, optimizer, model.method,
        {p.name: tuple(p.aliases) for p in named},
        {p.name: tuple(p.shape) for p in named},
        accumulate, seed, model.forward.get("evaluate"), tuple(p.name for p in imported.parameters),
    )  # fmt: skip
    return replace(built, head=model.head, class_names=model.class_names)


def assemble(
    whole: Graph,
    infer: Graph,
    grads: Mapping[str, str],
    optimizer: Optimizer,
    batch: int,
    method: str,
    aliases: Mapping[str, tuple[str, ...]],
    shapes: Mapping[str, tuple[int, ...]],
    accumulate: bool,
    seed: int,
    evaluate: Graph | None = None,
    parameters: tuple[str, ...] = (),
) -> Entries:
    """All entry points from the forward-and-backward graph and the graphs of inference, without and with the loss."""
    built = build(whole, infer, grads, optimizer, method, aliases, shapes, accumulate, seed, evaluate, parameters)
    return at_batch(built, batch)


def build(
    whole: Graph,
    infer: Graph,
    grads: Mapping[str, str],
    optimizer: Optimizer,
    method: str,
    aliases: Mapping[str, tuple[str, ...]],
    shapes: Mapping[str, tuple[int, ...]],
    accumulate: bool,
    seed: int,
    evaluate: Graph | None = None,
    parameters: tuple[str, ...] = (),
) -> Built:
    graphs = {"infer": lowered(infer), "train": train_graph(whole, grads, optimizer, seed)}
    if accumulate:
        sums = totals(whole, grads)
        graphs["zero"] = zero_entry(whole, sums)
        graphs["grad"] = lowered(grad_entry(save_bits(whole), sums, seed), learns=grads)
        graphs["apply"] = apply_entry(whole, grads, sums, optimizer, seed)
    if evaluate is not None:
        graphs["evaluate"] = lowered(evaluate)
    without = {
        "fuse": partial(train_graph, whole, grads, optimizer, fuse=False),
        "bits": partial(train_graph, whole, grads, optimizer, bits=False),
        "loop": partial(train_graph, whole, grads, optimizer, loop=False),
    }
    return Built(
        checked(graphs, "update"), without, method, tuple(grads), aliases, shapes, parameters or tuple(grads),
        _described(optimizer), forward={"infer": infer, **({} if evaluate is None else {"evaluate": evaluate})},
    )  # fmt: skip


def at_batch(built: Built, batch: int, explained: bool = True) -> Entries:
    """The entry points for steps of up to so many samples."""
    plain = {name: graph for name, graph in built.graphs.items() if name in ("train", "grad")}
    again = {name: cheapened(graph, batch) for name, graph in plain.items()}
    graphs = {**built.graphs, **checked({name: graph for name, (graph, _) in again.items()}, "recompute")}
    decisions = _decisions(built, batch) if explained else ()
    decisions += tuple(decision for name, (_, decision) in again.items() if decision and name == "train")
    if built.head is not None:
        graphs["train"] = with_names(graphs["train"], built.head)
        plain["train"] = with_names(plain["train"], built.head)
    return Entries(
        graphs, batch, built.method, built.learns, built.aliases, built.shapes, decisions, built.parameters,
        built.optimizer, head=built.head, class_names=built.class_names, plain=plain, forward=built.forward,
    )  # fmt: skip


def train_graph(
    whole: Graph, grads: Mapping[str, str], optimizer: Optimizer, seed: int = 0,
    *, bits: bool = True, fuse: bool = True, loop: bool = True,
) -> Graph:  # fmt: skip
    """The `train` entry; the switches exist so that each technique's saving can be measured."""
    graph = save_bits(whole) if bits else whole
    return lowered(train_entry(graph, grads, optimizer, seed, fuse), loop)


def lowered(graph: Graph, loop: bool = True, learns: Collection[str] = ()) -> Graph:
    """Without dead code and unread results, what does not learn in a loop over samples, inputs fetched late."""
    graph = lean(dead_removed(graph))
    return unnamed_removed(feed_late(sample_loop(graph, learns) if loop else graph))


def narrowed(entries: Entries) -> Entries:
    """With constants in int8 where that loses nothing."""
    graphs, saved = narrow(entries.graphs)
    if not saved:
        return entries
    why = f"constants are int8 with scales: {saved:,} bytes of flash less, the same bits"
    return decided(replace(entries, graphs=checked(graphs, "narrow"), const="int8"), "int8", why, 0)


def checked(graphs: Mapping[str, Graph], after: str) -> dict[str, Graph]:
    for graph in graphs.values():
        check(graph, after)
    return dict(graphs)


def _frozen(graphs: Mapping[str, Graph], learn: set[str]) -> dict[str, Graph]:
    """What neither learns nor is measured becomes constant; norms over constants are folded into their layer."""
    keeping = [node for g in graphs.values() for node in g.nodes if ops.get(node.op).statistics == "keeps"]
    measured = {i for node in keeping for i in node.ins}
    return {name: fold_batch_norm(freeze(g, learn, measured)) for name, g in graphs.items()}


def _decisions(built: Built, batch: int) -> tuple[Decision, ...]:
    """What each technique of the `train` entry saves in the end: the largest entry without it, minus the largest."""
    bounds = {name: arena.lower_bound(graph, batch) for name, graph in built.graphs.items()}
    why = {
        "fuse": "weight gradients go into the optimizer tile by tile",
        "bits": "thresholds keep one bit an element for the backward pass",
        "loop": "what does not learn runs sample by sample",
    }
    tried = []
    for what, made in built.without.items():
        most = max({**bounds, "train": arena.lower_bound(made(), batch)}.values())
        tried.append(Decision(what, why[what], most - max(bounds.values())))
    return tuple(d for d in tried if d.saves_bytes > 0)


def _described(optimizer: Optimizer) -> str:
    """`SGD(momentum=0.9)`: what is not usual, without the learning rate, which can change."""
    given = [(f.name, getattr(optimizer, f.name), f.default) for f in fields(optimizer) if f.name != "lr"]
    text = ", ".join(f"{name}={value}" for name, value, usual in given if value != usual)
    return f"{type(optimizer).__name__}({text})" if text else type(optimizer).__name__


def decided(entries: Entries, what: str, why: str, saves_bytes: int) -> Entries:
    return replace(entries, decisions=(*entries.decisions, Decision(what, why, saves_bytes)))
