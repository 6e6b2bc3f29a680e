"""From an imported model to the graphs of all entry points: simplify → choose what learns → fold → autodiff → update.
Each stage is a function of graphs, checked after it ran."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

from . import methods, place
from .build import Builder, fetch
from .check import check
from .errors import NotDifferentiable
from .ir import Graph, dead_removed, unnamed_removed
from .optimizers import SGD, Optimizer
from .options import Options
from .passes.additive import check_additive
from .passes.autodiff import autodiff
from .passes.fold import fold_batch_norm, freeze
from .passes.lean import lean
from .passes.narrow import narrow
from .passes.order import feed_late
from .passes.sample_loop import sample_loop
from .passes.save_bits import save_bits
from .passes.simplify import simplify_all
from .passes.spare import Head, add_spare, check_head, with_names
from .passes.update import apply_entry, grad_entry, train_entry, zero_entry
from .plan import Decision
from .planner.cheap import cheapened

if TYPE_CHECKING:
    from .torch_import import Imported


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
    const: str = "f32"
    step_samples: int = 0  # of a step that is taken in parts; 0: up to `batch`, at once


def lower_as(imported: Imported, options: Options) -> Entries:
    entries = lower(
        imported, optimizer=options.optimizer, method=options.method, batch=options.batch or imported.batch,
        accumulate=options.accumulate, seed=options.seed, spare_classes=options.spare_classes,
        class_names=options.class_names,
    )  # fmt: skip
    return narrowed(entries) if options.const == "int8" else entries


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
    optimizer = optimizer or SGD(lr=0.01)
    head = None
    if spare_classes:
        imported, head = add_spare(imported, spare_classes)
    keep = {imported.loss}
    captured = {"train": imported.train, "infer": imported.infer}
    if imported.evaluate is not None:
        captured["evaluate"] = imported.evaluate
    forward = checked(simplify_all(captured, keep), "simplify")
    trainable = [p.name for p in imported.parameters if p.requires_grad]
    known = {alias: p.name for p in imported.parameters for alias in (p.name, *p.aliases)}
    chosen = [u.param for u in methods.choose(method, forward["train"], trainable, known)]
    learns = autodiff(forward["train"], imported.loss, chosen)[1]  # what the loss does not reach stays as it is
    if not learns:
        raise NotDifferentiable(
            "the loss does not depend on anything that learns", why=f"method '{method}' selects {', '.join(chosen)}"
        )
    if head is not None:
        check_head(head, learns, class_names)
    forward = checked(simplify_all(_frozen(forward, set(learns)), keep), "fold")

    b = Builder(forward["train"])
    fetch(b, imported.loss, "loss")
    whole, grads = autodiff(b.graph(), imported.loss, list(learns))
    check(whole, "autodiff")
    if accumulate:
        check_additive(whole, imported.loss)
    named = (*imported.parameters, *imported.buffers)
    entries = assemble(
        whole, forward["infer"], grads, optimizer, batch,
        method if isinstance(method, str) else ", ".join(method),
        {p.name: tuple(p.aliases) for p in named},
        {p.name: tuple(p.shape) for p in named},
        accumulate, seed, forward.get("evaluate"), tuple(p.name for p in imported.parameters),
    )  # fmt: skip
    if head is None:
        return entries
    graphs = {**entries.graphs, "train": with_names(entries.graphs["train"], head)}
    plain = {**entries.plain, "train": with_names(entries.plain["train"], head)}
    return replace(entries, graphs=graphs, plain=plain, head=head, class_names=class_names)


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
    graphs = {"infer": lowered(infer), "train": train_graph(whole, grads, optimizer, seed)}
    if accumulate:
        graphs["zero"] = zero_entry(whole, grads)
        graphs["grad"] = lowered(grad_entry(save_bits(whole), grads, seed), learns=grads)
        graphs["apply"] = apply_entry(whole, grads, optimizer, seed)
    if evaluate is not None:
        graphs["evaluate"] = lowered(evaluate)
    decisions = _decisions(graphs, whole, grads, optimizer, batch)
    sound = checked(graphs, "update")
    plain = {name: graph for name, graph in sound.items() if name in ("train", "grad")}
    again = {name: cheapened(graph, batch) for name, graph in plain.items()}
    sound |= checked({name: graph for name, (graph, _) in again.items()}, "recompute")
    decisions += tuple(decision for name, (_, decision) in again.items() if decision and name == "train")
    return Entries(
        sound, batch, method, tuple(grads), aliases, shapes, decisions, parameters or tuple(grads),
        _described(optimizer), plain=plain,
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
    measured = {i for g in graphs.values() for node in g.nodes if node.op == "running_stats" for i in node.ins}
    return {name: fold_batch_norm(freeze(g, learn, measured)) for name, g in graphs.items()}


def _decisions(
    graphs: Mapping[str, Graph], whole: Graph, grads: Mapping[str, str], optimizer: Optimizer, batch: int
) -> tuple[Decision, ...]:
    """What each technique of the `train` entry saves in the end: the largest entry without it, minus the largest."""
    bounds = {name: place.lower_bound(graph, batch) for name, graph in graphs.items()}

    def saved(**switch: bool) -> int:
        without = place.lower_bound(train_graph(whole, grads, optimizer, **switch), batch)
        return max({**bounds, "train": without}.values()) - max(bounds.values())

    tried = [
        Decision("fuse", "weight gradients go into the optimizer tile by tile", saved(fuse=False)),
        Decision("bits", "thresholds keep one bit an element for the backward pass", saved(bits=False)),
        Decision("loop", "what does not learn runs sample by sample", saved(loop=False)),
    ]
    return tuple(d for d in tried if d.saves_bytes > 0)


def _described(optimizer: Optimizer) -> str:
    """`SGD(momentum=0.9)`: what is not usual, without the learning rate, which can change."""
    given = [(f.name, getattr(optimizer, f.name), f.default) for f in fields(optimizer) if f.name != "lr"]
    text = ", ".join(f"{name}={value}" for name, value, usual in given if value != usual)
    return f"{type(optimizer).__name__}({text})" if text else type(optimizer).__name__


def decided(entries: Entries, what: str, why: str, saves_bytes: int) -> Entries:
    return replace(entries, decisions=(*entries.decisions, Decision(what, why, saves_bytes)))
