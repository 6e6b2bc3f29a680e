"""compile(): the pipeline on one screen. Each stage is a function of graphs, checked after it ran."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from . import limits, methods, place, verify
from .build import Builder, fetch
from .check import check
from .device import Device
from .encode import encode as encode_program
from .errors import MissingPart, NotDifferentiable, SmidgenError
from .ir import Graph, Role, dead_removed, unnamed_removed
from .layout import Layout, Slot
from .native import checked_kernels
from .optimizers import SGD, Optimizer
from .options import Options, checked_device, checked_options
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
from .plan import Cost, Decision, Plan, Traffic
from .program import Program
from .timeline import facts_of, traffic
from .trainer import Job
from .training_facts import run_facts

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
    spare_classes: int = 0,
    class_names: Sequence[str] = (),
    const: str = "f32",
    device: str | Device | None = None,
    kernels: str | None = None,
    threads: int = 1,
) -> Job:
    """A training program for `model`, with every byte of its memory planned and proven.

    `example` is one input or a tuple of them, batch dimension first; `batch` the most samples of one step (default: the
    example's). `accumulate=True` adds the entries that take larger batches in parts. `spare_classes`: so many
    classes can be added later, with `job.add_class`; `class_names` are those of the known ones. `const="int8"`
    stores weights that do not learn as int8 wherever that loses nothing. `device`, a name of `smidgen devices`, makes
    its RAM and flash hard limits (and takes int8 if only that fits). `kernels` and `threads` are those of
    `smidgen.load`.
    """
    place_for = checked_device(device)
    import_model = _importer()
    kernels, threads = checked_kernels("exact" if kernels is None and place_for else kernels, threads)
    options = checked_options(
        model, optimizer=optimizer, method=method, batch=batch, bn=bn, accumulate=accumulate, seed=seed,
        spare_classes=spare_classes, class_names=class_names, const=const,
    )  # fmt: skip
    imported = import_model(model, example, loss=loss, target=target, bn=options.bn)
    entries = _lowered(imported, options)
    made = encode(entries) if place_for is None else encode_for(place_for, entries, imported, options)
    return Job(made, kernels=kernels, threads=threads)


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
    import_model = _importer()
    options = checked_options(
        model, optimizer=optimizer, method=method, batch=batch, bn=bn, accumulate=accumulate, seed=seed
    )
    return _lowered(import_model(model, example, loss=loss, target=target, bn=options.bn), options)


def _importer() -> Callable[..., Imported]:
    """Asked for first, so that a machine without torch says that and nothing else."""
    try:
        from .torch_import import import_model  # torch is needed here and nowhere else
    except ModuleNotFoundError as error:
        raise MissingPart("compiling needs PyTorch", why=str(error), help="pip install 'smidgen[compile]'") from error
    return import_model


def _lowered(imported: Imported, options: Options) -> Entries:
    entries = lower(
        imported, optimizer=options.optimizer, method=options.method, batch=options.batch or imported.batch,
        accumulate=options.accumulate, seed=options.seed, spare_classes=options.spare_classes,
        class_names=options.class_names,
    )  # fmt: skip
    return narrowed(entries) if options.const == "int8" else entries


def narrowed(entries: Entries) -> Entries:
    """With constants in int8 where that loses nothing."""
    graphs, saved = narrow(entries.graphs)
    if not saved:
        return entries
    why = f"constants are int8 with scales: {saved:,} bytes of flash less, the same bits"
    return _decided(replace(entries, graphs=_checked(graphs, "narrow")), "int8", why, 0)


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
    forward = _checked(simplify_all(captured, keep), "simplify")
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
    forward = _checked(simplify_all(_frozen(forward, set(learns)), keep), "fold")

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
    return replace(entries, graphs=graphs, head=head, class_names=class_names)


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
        graphs["grad"] = lowered(grad_entry(save_bits(whole), grads, seed))
        graphs["apply"] = apply_entry(whole, grads, optimizer, seed)
    if evaluate is not None:
        graphs["evaluate"] = lowered(evaluate)
    decisions = _decisions(graphs, whole, grads, optimizer, batch)
    checked = _checked(graphs, "update")
    return Entries(
        checked, batch, method, tuple(grads), aliases, shapes, decisions, parameters or tuple(grads),
        _described(optimizer),
    )  # fmt: skip


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


def placed(entries: Entries, align: int) -> tuple[dict[str, Layout], dict[str, Slot]]:
    stored, const_bytes, state_bytes = place.place_state(entries.graphs.values(), align)
    layouts = {
        name: place.place(graph, entries.batch, stored, const_bytes, state_bytes, align)
        for name, graph in entries.graphs.items()
    }
    return layouts, stored


def encode_for(device: Device, entries: Entries, imported: Imported, options: Options) -> Program:
    """The program, if it fits the device; else an error that says what would."""

    def price(other: Mapping[str, Any]) -> limits.Need | None:
        changed = {name: value for name, value in other.items() if name != "momentum"}
        if "momentum" in other:
            changed["optimizer"] = replace(options.optimizer, momentum=other["momentum"])
        try:
            trial = _lowered(imported, replace(options, **changed))
            layouts, _ = placed(trial, device.align)
        except SmidgenError:
            return None
        kept = {name: g for name, g in trial.graphs.items() if name != "evaluate" or not _is_dear(layouts)}
        return limits.need_of(device, encode_program({n: (g, layouts[n]) for n, g in kept.items()}, trial.batch, {}))

    made = encode(entries, device)
    need = limits.need_of(device, made)
    if limits.over_flash(device, need) and options.const == "f32":
        options = replace(options, const="int8")
        made = encode(narrowed(entries), device)
        need = limits.need_of(device, made)
    plan = Plan.from_json(made.meta["plan"])
    if not limits.fits(device, need):
        raise limits.over_limit(device, plan, need, price)
    return made


def encode(entries: Entries, device: Device | None = None) -> Program:
    """place → encode → verify: the program, with its plan and parameter map inside."""
    layouts, stored = placed(entries, place.ALIGN if device is None else device.align)
    raised = _raised_by_evaluate(layouts)
    if _is_dear(layouts):
        rest = {name: graph for name, graph in entries.graphs.items() if name != "evaluate"}
        without = _decided(replace(entries, graphs=rest), "no evaluate", "job.evaluate gives no loss", raised)
        return encode(without, device)
    if raised > 0:
        entries = _decided(entries, "evaluate", f"job.evaluate gives the loss, for {raised} bytes more", 0)
    planned = {name: (graph, layouts[name]) for name, graph in entries.graphs.items()}
    bare = encode_program(planned, entries.batch, {})
    facts = facts_of(entries.graphs, layouts, entries.batch)
    overhead = limits.device_overhead(device, bare)
    plan = Plan(
        state_bytes=bare.state_bytes,
        arena_bytes=bare.arena_bytes,
        context_bytes=overhead.context_bytes,
        stack_bytes=overhead.stack_bytes,
        flash_bytes=bare.flash_bytes,
        lower_bound_bytes=max(layout.lower_bound_bytes for layout in layouts.values()),
        arena_by_entry={name: layout.arena_bytes for name, layout in layouts.items()},
        cost=Cost({name: sum(m.macs for m in t.moments) for name, t in facts.entries.items()}),
        decisions=entries.decisions,
        method=entries.method,
        learns=entries.learns,
        batch=entries.batch,
        model_tensors=len(entries.parameters),
        model_parameters=_elements(entries, entries.parameters),
        learned_parameters=_elements(entries, entries.learns),
        optimizer=entries.optimizer,
        facts=facts,
        device="" if device is None else device.name,
        banks={} if device is None else limits.assigned(device, limits.need_of(device, bare)) or {},
        page_bytes=bare.page_bytes,
        page_state_bytes=bare.page_state_bytes,
        paged={n: Traffic(*traffic(g, entries.batch)) for n, g in entries.graphs.items()} if bare.page_bytes else {},
    )
    meta = {"plan": plan.to_json(), "state": _state_map(entries, stored), **run_facts(entries.graphs)}
    if entries.head is not None:
        meta["classes"] = entries.head.to_json(entries.class_names)
    done = encode_program(planned, entries.batch, meta)
    verify.verify(done, entries.graphs, layouts)
    return done


def _decided(entries: Entries, what: str, why: str, saves_bytes: int) -> Entries:
    return replace(entries, decisions=(*entries.decisions, Decision(what, why, saves_bytes)))


def _raised_by_evaluate(layouts: Mapping[str, Layout]) -> int:
    """Bytes by which `evaluate` alone would make the arena larger."""
    sizes = {name: layout.arena_bytes for name, layout in layouts.items()}
    own = sizes.pop("evaluate", 0)
    return own - max(sizes.values(), default=own)


def _is_dear(layouts: Mapping[str, Layout]) -> bool:
    """Would `evaluate` alone raise RAM by more than 1 %?"""
    all_of_them = layouts.values()
    return _raised_by_evaluate(layouts) * 100 > max(n.state_bytes for n in all_of_them) + max(
        n.arena_bytes for n in all_of_them
    )


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


def _described(optimizer: Optimizer) -> str:
    """`SGD(momentum=0.9)`: what is not usual, without the learning rate, which can change."""
    given = [(f.name, getattr(optimizer, f.name), f.default) for f in fields(optimizer) if f.name != "lr"]
    text = ", ".join(f"{name}={value}" for name, value, usual in given if value != usual)
    return f"{type(optimizer).__name__}({text})" if text else type(optimizer).__name__


def _elements(entries: Entries, names: Sequence[str]) -> int:
    return sum(math.prod(entries.shapes[name]) for name in names)


def _state_map(entries: Entries, stored: Mapping[str, Slot]) -> dict[str, Any]:
    """State tensor → where it is, what it is, and how to get back to the user's layout."""
    facts: dict[str, Any] = {}
    for graph in entries.graphs.values():
        for tensor in graph.tensors.values():
            slot = stored.get(tensor.name)
            if slot is None or slot.region == "const" or tensor.name in facts:
                continue
            fact: dict[str, Any] = {
                "role": tensor.role.value, "dtype": tensor.dtype.value, "offset": slot.offset,
                "stored": list(tensor.shape),
            }  # fmt: skip
            if tensor.paged:
                fact["region"] = "page"
            if tensor.role in (Role.PARAM, Role.STAT):
                fact["shape"] = list(entries.shapes[tensor.name])
                fact["aliases"] = list(entries.aliases[tensor.name])
                fact["steps"] = [[kind, list(arg)] for kind, arg in graph.layouts.get(tensor.name, ())]
            if tensor.role is Role.OPTIM:
                fact["owner"], fact["slot"] = tensor.name.rsplit(":", 1)
            facts[tensor.name] = fact
    return facts
