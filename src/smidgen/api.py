"""compile(): the pipeline on one screen. Each stage is a function of graphs, checked after it ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import methods, native, place, program, verify
from .build import Builder, fetch
from .check import check
from .errors import MissingPart, NotDifferentiable
from .ir import Graph, Role, dead_removed, unnamed_removed
from .layout import Slot
from .optimizers import SGD, Optimizer
from .options import checked_options
from .passes.additive import check_additive
from .passes.autodiff import autodiff
from .passes.fold import fold_batch_norm, freeze
from .passes.lean import lean
from .passes.order import feed_late
from .passes.sample_loop import sample_loop
from .passes.save_bits import save_bits
from .passes.simplify import simplify_all
from .passes.update import apply_entry, grad_entry, train_entry, zero_entry
from .plan import Decision, Plan, cost_of
from .program import Program
from .trainer import Job

if TYPE_CHECKING:
    from .torch_import import Imported


def compile(
    model: Any,
    example: Any,
    *,
    loss: Any = "cross_entropy",
    target: Any = None,
    optimizer: Optimizer | None = None,
    method: str | Sequence[str] = "full",
    batch: int | None = None,
    bn: str = "frozen",
    accumulate: bool = False,
    seed: int = 0,
) -> Job:
    """A training program for `model`, with every byte of its memory planned and proven.

    `example` is one input or a tuple of them, batch dimension first; `batch` the most samples of one step (default: the
    example's). `accumulate=True` adds the entries that take larger batches in parts.
    """
    entries = build(
        model, example, loss=loss, target=target, optimizer=optimizer, method=method, batch=batch, bn=bn,
        accumulate=accumulate, seed=seed,
    )  # fmt: skip
    return Job(encode(entries))


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


def build(
    model: Any,
    example: Any,
    *,
    loss: Any = "cross_entropy",
    target: Any = None,
    optimizer: Optimizer | None = None,
    method: str | Sequence[str] = "full",
    batch: int | None = None,
    bn: str = "frozen",
    accumulate: bool = False,
    seed: int = 0,
) -> Entries:
    """The graphs of all entry points: `import_model`, then everything that does not need torch."""
    try:
        from .torch_import import import_model  # torch is needed here and nowhere else
    except ModuleNotFoundError as error:
        raise MissingPart("compiling needs PyTorch", why=str(error), help="pip install 'smidgen[compile]'") from error

    options = checked_options(
        model, optimizer=optimizer, method=method, batch=batch, bn=bn, accumulate=accumulate, seed=seed
    )
    imported = import_model(model, example, loss=loss, target=target, bn=options.bn)
    return lower(
        imported, optimizer=options.optimizer, method=options.method, batch=options.batch or imported.batch,
        accumulate=options.accumulate, seed=options.seed,
    )  # fmt: skip


def lower(
    imported: Imported,
    *,
    optimizer: Optimizer | None = None,
    method: str | Sequence[str] = "full",
    batch: int,
    accumulate: bool = False,
    seed: int = 0,
) -> Entries:
    """simplify → choose what learns → fold → autodiff → update."""
    optimizer = optimizer or SGD(lr=0.01)
    keep = {imported.loss}
    forward = _checked(simplify_all({"train": imported.train, "infer": imported.infer}, keep), "simplify")
    trainable = [p.name for p in imported.parameters if p.requires_grad]
    known = {alias: p.name for p in imported.parameters for alias in (p.name, *p.aliases)}
    chosen = [u.param for u in methods.choose(method, forward["train"], trainable, known)]
    learns = autodiff(forward["train"], imported.loss, chosen)[1]  # what the loss does not reach stays as it is
    if not learns:
        raise NotDifferentiable(
            "the loss does not depend on anything that learns", why=f"method '{method}' selects {', '.join(chosen)}"
        )
    forward = _checked(simplify_all(_frozen(forward, set(learns)), keep), "fold")

    b = Builder(forward["train"])
    fetch(b, imported.loss, "loss")
    whole, grads = autodiff(b.graph(), imported.loss, list(learns))
    check(whole, "autodiff")
    if accumulate:
        check_additive(whole, imported.loss)
    named = (*imported.parameters, *imported.buffers)
    return assemble(
        whole, forward["infer"], grads, optimizer, batch,
        method if isinstance(method, str) else ", ".join(method),
        {p.name: tuple(p.aliases) for p in named},
        {p.name: tuple(p.shape) for p in named},
        accumulate, seed,
    )  # fmt: skip


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
) -> Entries:
    """All entry points from the forward-and-backward graph and the inference graph."""
    graphs = {"infer": lowered(infer), "train": train_graph(whole, grads, optimizer, seed)}
    if accumulate:
        graphs["zero"] = zero_entry(whole, grads)
        graphs["grad"] = lowered(grad_entry(save_bits(whole), grads, seed))
        graphs["apply"] = apply_entry(whole, grads, optimizer, seed)
    decisions = _decisions(graphs, whole, grads, optimizer, batch)
    return Entries(_checked(graphs, "update"), batch, method, tuple(grads), aliases, shapes, decisions)


def train_graph(
    whole: Graph, grads: Mapping[str, str], optimizer: Optimizer, seed: int = 0,
    *, bits: bool = True, fuse: bool = True, loop: bool = True,
) -> Graph:  # fmt: skip
    """The `train` entry; the switches exist so that each technique's saving can be measured."""
    graph = save_bits(whole) if bits else whole
    return lowered(train_entry(graph, grads, optimizer, seed, fuse), loop)


def lowered(graph: Graph, loop: bool = True) -> Graph:
    """Without dead code and unread results, what does not learn in a loop over samples, inputs fetched late."""
    graph = lean(dead_removed(graph))
    return unnamed_removed(feed_late(sample_loop(graph) if loop else graph))


def encode(entries: Entries) -> Program:
    """place → encode → verify: the program, with its plan and parameter map inside."""
    stored, const_bytes, state_bytes = place.place_state(entries.graphs.values())
    layouts = {
        name: place.place(graph, entries.batch, stored, const_bytes, state_bytes)
        for name, graph in entries.graphs.items()
    }
    planned = {name: (graph, layouts[name]) for name, graph in entries.graphs.items()}
    bare = program.encode(planned, entries.batch, {})
    plan = Plan(
        state_bytes=bare.state_bytes,
        arena_bytes=bare.arena_bytes,
        context_bytes=native.context_bytes(),
        stack_bytes=native.stack_bytes(),
        flash_bytes=bare.flash_bytes,
        lower_bound_bytes=max(layout.lower_bound_bytes for layout in layouts.values()),
        arena_by_entry={name: layout.arena_bytes for name, layout in layouts.items()},
        cost=cost_of(entries.graphs, entries.batch),
        decisions=entries.decisions,
        method=entries.method,
        learns=entries.learns,
        batch=entries.batch,
    )
    done = program.encode(planned, entries.batch, {"plan": plan.to_json(), "state": _state_map(entries, stored)})
    verify.verify(done, entries.graphs, layouts)
    return done


def _checked(graphs: Mapping[str, Graph], after: str) -> dict[str, Graph]:
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


def _state_map(entries: Entries, stored: Mapping[str, Slot]) -> dict[str, Any]:
    """State tensor → where it is, what it is, and how to get back to the user's layout."""
    facts: dict[str, Any] = {}
    for graph in entries.graphs.values():
        for tensor in graph.tensors.values():
            slot = stored.get(tensor.name)
            if slot is None or slot.region != "state" or tensor.name in facts:
                continue
            fact: dict[str, Any] = {
                "role": tensor.role.value, "dtype": tensor.dtype.value, "offset": slot.offset,
                "stored": list(tensor.shape),
            }  # fmt: skip
            if tensor.role in (Role.PARAM, Role.STAT):
                fact["shape"] = list(entries.shapes[tensor.name])
                fact["aliases"] = list(entries.aliases[tensor.name])
                fact["steps"] = [[kind, list(arg)] for kind, arg in graph.layouts.get(tensor.name, ())]
            if tensor.role is Role.OPTIM:
                fact["owner"], fact["slot"] = tensor.name.rsplit(":", 1)
            facts[tensor.name] = fact
    return facts
