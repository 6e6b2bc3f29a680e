"""From an imported model to the graphs of all entry points: simplify → choose what learns → fold → autodiff → update.
Each stage is a function of graphs, checked after it ran."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import methods, ops
from ..errors import BadMethod, CannotQuantize, Internal, NotDifferentiable
from ..ir import Graph, Role
from ..methods import Method, Scored, Update, Wanted
from ..ops.build import Builder, fetch
from ..program.plan import Decision
from .entries import Entries, by_rows, checked, narrowed
from .graph.check import check
from .optimizers import DEFAULT, Optimizer, described
from .options import Options
from .passes.accumulators import totals
from .passes.additive import check_additive
from .passes.autodiff import autodiff
from .passes.calibrate import Calibration
from .passes.features import cut_features
from .passes.fold import Folds, frozen
from .passes.int16 import int16_gradients
from .passes.quantize import Report, check_learns, check_merges, quantized, with_fixed
from .passes.save_bits import save_bits
from .passes.scores import SCORE, Scoring, score_entries, watched
from .passes.shared import shared
from .passes.simplify import Sweeps, simplify_all
from .passes.slices import all_is_whole, axis_of_user, slice_gradients, with_slices
from .passes.spare_classes import Head, add_spare, check_head, with_names
from .passes.stored import read_slices
from .passes.stream import streams, track
from .passes.train_graph import lowered, train_graph
from .passes.update import apply_entry, grad_entry, zero_entry
from .planner.cheap import cheapened
from .planner.savings import precision_decisions, savings
from .replay import decision, shape_of, with_buffer

if TYPE_CHECKING:
    from ..devices.device import Device
    from ..runtime.replay import Shape
    from .imported import Imported
    from .options import Replay
    from .precision import Int8


def lower(
    imported: Imported,
    *,
    optimizer: Optimizer | None = None,
    method: Wanted = "full",
    batch: int,
    accumulate: bool = False,
    seed: int = 0,
    spare_classes: int = 0,
    class_names: tuple[str, ...] = (),
) -> Entries:
    """simplify → choose what learns → fold → autodiff → update."""
    options = Options(
        optimizer or DEFAULT, method if isinstance(method, str) else tuple(method), batch, "", accumulate, seed,
        spare_classes, class_names,
    )  # fmt: skip
    return Lowering(imported).entries(options)


class Lowering:
    """One model for many choices of options: what they have in common is done once. A method chooses once, for the
    options with which it is first asked for: other ways to fit them learn the same."""

    def __init__(
        self,
        imported: Imported,
        *,
        device: Device | None = None,
        data: Any = None,
        price: Callable[[Entries], int] | None = None,
    ) -> None:
        """`price` gives the bytes of RAM that entries take; `device` and `data` are for methods to look at."""
        self.imported = imported
        self._device, self._data, self._price = device, data, price
        self._simplified: dict[int, _Simplified] = {}  # by spare classes
        self._chosen: dict[Hashable, _Chosen] = {}
        self._learning: dict[Hashable, _Learning] = {}
        self._built: dict[Hashable, Built] = {}
        self._calibrations: dict[Hashable, Calibration] = {}

    def of(self, imported: Imported) -> Lowering:
        """The same for another model, or other weights."""
        return Lowering(imported, device=self._device, data=self._data, price=self._price)

    def forward(self, options: Options) -> Mapping[str, Graph]:
        """The graphs without gradients, as methods see them before they change them."""
        return self._model(options.spare_classes).forward

    def context(self, options: Options) -> methods.Context:
        """What methods are offered, with these options."""
        return self._context(self._model(options.spare_classes), options)

    def choose(self, options: Options) -> tuple[Update, ...]:
        """What learns."""
        return self._choice(options).updates

    def entries(self, options: Options) -> Entries:
        return self._entries(self._choice(options), options)

    def _choice(self, options: Options) -> _Chosen:
        spare, wanted = options.spare_classes, options.method
        # Methods are objects of anybody: they are told apart by identity, and kept so that no other one has theirs.
        parts = wanted if isinstance(wanted, str) else tuple(id(p) if isinstance(p, Method) else p for p in wanted)
        key = spare, parts
        if key not in self._chosen:
            model = _adapted(self._model(spare), wanted)
            context = self._context(model, options)
            updates = methods.choose(wanted, model.forward["train"], context)
            scored = methods.to_score(wanted, model.forward, context)
            self._chosen[key] = _Chosen(model, wanted, tuple(updates), *scored)
        return self._chosen[key]

    def _model(self, spare: int) -> _Simplified:
        if spare not in self._simplified:
            self._simplified[spare] = _simplified(self.imported, spare)
        return self._simplified[spare]

    def _context(self, model: _Simplified, options: Options) -> methods.Context:
        known: dict[tuple[Update, ...], int] = {}

        def memory(updates: Sequence[Update]) -> int:
            if self._price is None:
                raise Internal("a method asks for a price, but nobody gives one")
            what, help = "context.memory takes a list of updates", "context.memory([Update(name), …])"
            asked = methods.checked_updates(updates, what, "it was given", help)
            text = methods.text_of(asked)
            wanted = tuple(methods.settled(asked, model.forward["train"], context, text))
            if wanted not in known:
                chosen = _Chosen(model, text, wanted)
                known[wanted] = self._price(self._entries(chosen, options, keep=False))
            return known[wanted]

        def axis(param: str, stored: int) -> int | None:
            return axis_of_user(model.shapes[param], model.forward["train"].layouts.get(param, ()), stored)

        given = self._model(options.spare_classes).forward["train"]
        context = methods.Context(model.trainable, model.names, memory, axis, self._device, self._data, given)
        return context

    def _entries(self, chosen: _Chosen, options: Options, keep: bool = True) -> Entries:
        names, precision = options.class_names, options.precision
        key = (
            id(chosen.model), chosen.updates, methods.text_of(chosen.wanted), names, options.replay, chosen.scored,
            precision,
        )  # fmt: skip
        calibration = self.calibrated(options, chosen.model)
        learning = self._learning.get(key) or _learning(chosen, names, options.replay, precision, calibration)
        full = key, repr(options.optimizer), options.accumulate, options.seed
        built = self._built.get(full) or _built(learning, options.optimizer, options.accumulate, options.seed)
        if keep:
            self._learning[key], self._built[full] = learning, built
        entries = at_batch(built, options.batch or self.imported.batch)
        return narrowed(by_rows(entries, options.stream), options.const == "int8")

    def calibrated(self, options: Options, model: _Simplified) -> Calibration | None:
        """The ranges of the model's values, observed as they are needed."""
        if options.precision is None:
            return None
        key = id(model), options.precision.calibrate
        if key not in self._calibrations:
            self._calibrations[key] = Calibration(self._data, options.precision.calibrate)
        return self._calibrations[key]


@dataclass(frozen=True, slots=True)
class _Simplified:
    imported: Imported  # with spare classes
    head: Head | None
    forward: Mapping[str, Graph]
    sweeps: Sweeps
    added: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # parameters of a method → shape
    statistics: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # the same
    merges: tuple[methods.Merge | methods.Beside, ...] = ()
    folds: Folds = field(default_factory=Folds)
    is_changed: bool = False  # by a method

    @property
    def trainable(self) -> tuple[str, ...]:
        return (*(p.name for p in self.imported.parameters if p.requires_grad), *self.added)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of parameters in the user's layout."""
        return {p.name: tuple(p.shape) for p in self.imported.parameters} | dict(self.added)

    @property
    def names(self) -> dict[str, str]:
        """Every name of a parameter → the first name of the same tensor."""
        own = {alias: p.name for p in self.imported.parameters for alias in (p.name, *p.aliases)}
        return own | {name: name for name in self.added}


@dataclass(frozen=True, slots=True)
class _Chosen:
    """What learns, of which network."""

    model: _Simplified
    wanted: Wanted
    updates: tuple[Update, ...]
    scored: tuple[Scored, ...] = ()  # layers
    notes: tuple[str, ...] = ()  # of the method


@dataclass(frozen=True, slots=True)
class _Learning:
    """Forward and backward, whatever the optimizer and the batch."""

    model: _Simplified
    class_names: tuple[str, ...]
    method: str
    forward: Mapping[str, Graph]
    whole: Graph
    grads: Mapping[str, str]
    updates: tuple[Update, ...]
    replay: Replay | None = None
    learn: tuple[Graph, Mapping[str, str]] | None = None  # of a stream: the same with the model's outputs
    precision: Int8 | None = None
    report: Report | None = None  # of a network in int8
    scoring: Scoring | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Built:
    """All entry points, whatever the batch. `without` makes `train` without each technique that may have changed it, to
    say what it saves."""

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
    updates: tuple[Update, ...] = ()
    merges: tuple[methods.Merge | methods.Beside, ...] = ()
    replay: tuple[Replay, Shape] | None = None
    changed: Mapping[str, Graph] = field(default_factory=dict)
    added: tuple[str, ...] = ()
    report: Report | None = None
    scored: tuple[Scored, ...] = ()
    notes: tuple[str, ...] = ()


def _simplified(imported: Imported, spare_classes: int) -> _Simplified:
    imported, head = add_spare(imported, spare_classes) if spare_classes else (imported, None)
    captured = {"train": imported.train, "infer": imported.infer}
    if imported.evaluate is not None:
        captured["evaluate"] = imported.evaluate
    sweeps = Sweeps()
    forward = checked(shared(simplify_all(captured, {imported.loss}, sweeps)), "simplify")
    return _Simplified(imported, head, forward, sweeps)


def _adapted(model: _Simplified, wanted: Wanted) -> _Simplified:
    """The network as the methods change it, with the parameters that they add."""
    parts = methods.methods_of(wanted, model.names)
    stream = any(isinstance(part, Method) and part.streams for part in parts)
    given = {name: graph for name, graph in model.forward.items() if not stream or name != "train"}
    forward = methods.adapted(parts, given, model.imported.loss)
    if all(forward[name] is graph for name, graph in given.items()) and not stream:
        return model
    if stream:
        forward = shared(streams(forward, model.imported.loss))
    try:
        checked(forward, "adapt")
    except Internal as error:
        what = f"method '{methods.text_of(wanted)}' makes a network that is not valid"
        raise BadMethod(what, at="adapt", why=f"{error.what} {error.why}".strip()) from error
    before = {p.name for p in (*model.imported.parameters, *model.imported.buffers)}

    def added(role: Role) -> dict[str, tuple[int, ...]]:
        stored = [(t.name, graph) for graph in forward.values() for t in graph.of_role(role)]
        return {name: graph.data[name].shape for name, graph in stored if name in graph.data and name not in before}

    used = [part for part in parts if isinstance(part, Method)]
    merges = [m for part in used for m in part.merges(forward["train"])]
    head, rows = model.head, [name for part in used for name in part.rows(forward["train"])]
    return replace(
        model, forward=forward, added=added(Role.PARAM), statistics=added(Role.STAT), merges=tuple(merges),
        head=head and replace(head, rows=tuple(rows)), is_changed=True,
    )  # fmt: skip


def _learning(
    chosen: _Chosen, class_names: tuple[str, ...], replay: Replay | None = None, precision: Int8 | None = None,
    calibration: Calibration | None = None,
) -> _Learning:  # fmt: skip
    model, name = chosen.model, methods.text_of(chosen.wanted)
    imported = model.imported
    updates = all_is_whole(chosen.updates, model.shapes)
    given, outputs = dict(model.forward), frozenset[str]()
    if chosen.scored:
        given[SCORE], outputs = watched(given["evaluate"], imported.loss, chosen.scored)
    forward = with_slices(given, updates, model.shapes)
    wanted = [u.param for u in updates]
    learns = autodiff(forward["train"], imported.loss, wanted)[1]  # what the loss does not reach stays as it is
    if not learns:
        raise NotDifferentiable(
            "the loss does not depend on anything that learns", why=f"method '{name}' selects {', '.join(wanted)}"
        )
    methods.check_given(chosen.wanted, model.names, learns, "no gradient reaches it")
    if model.head is not None:
        check_head(model.head, learns, class_names)
    keep = {imported.loss, *outputs}
    folded = checked(simplify_all(frozen(forward, set(learns), model.folds), keep, model.sweeps), "fold")
    report = None
    if precision is not None and chosen.scored:
        raise CannotQuantize(
            f"method '{name}' cannot choose channels of a network in int8",
            why="they are scored by gradients in f32",
            help="precision='f32'; in int8 a scheme that is given: method='sparse_update:b2 w1:1/4'",
        )
    if precision is not None and calibration is not None:
        check_merges([m for m in model.merges if isinstance(m, methods.Merge)], name)
        done = quantized(folded, calibration, precision.head, precision.gradients)
        folded, report = checked(with_fixed(done.graphs, done.fixed), "quantize"), done.report
        learns = {name: grad for name, grad in learns.items() if name not in done.fixed}
        check_learns(learns, done.fixed, methods.text_of(chosen.wanted))
    b = Builder(folded["train"])
    fetch(b, imported.loss, "loss")
    sliced = not all(u.is_whole for u in updates)

    def differentiated(graph: Graph) -> tuple[Graph, Mapping[str, str]]:
        whole, grads = autodiff(graph, imported.loss, list(learns))
        check(whole, "autodiff")
        whole, grads = int16_gradients(slice_gradients(whole) if sliced else whole, grads, report)
        whole = track(read_slices(whole) if sliced else whole)
        check(whole, "slices")
        return whole, grads

    whole, grads = differentiated(b.graph())
    learn = differentiated(folded["learn"]) if "learn" in folded else None
    scoring = score_entries(folded.pop(SCORE), imported.loss, chosen.scored, sliced) if chosen.scored else None
    if sliced:
        folded = checked({name: read_slices(graph) for name, graph in folded.items()}, "slices")
    if replay is None:
        folded = {name: graph for name, graph in folded.items() if name != "judge"}
    elif replay.of == "features" and (parts := cut_features(whole, grads)) is not None:
        whole, folded = parts[0], folded | {"features": parts[1]}
        checked({"train": whole, "features": parts[1]}, "features")
    updates = tuple(u for u in updates if u.param in grads)
    return _Learning(
        model, class_names, name, folded, whole, grads, updates, replay, learn, precision, report, scoring,
        chosen.notes,
    )  # fmt: skip


def _built(learning: _Learning, optimizer: Optimizer, accumulate: bool, seed: int) -> Built:
    imported, model = learning.model.imported, learning.model
    if accumulate:
        check_additive(learning.whole, imported.loss)
    named, added = (*imported.parameters, *imported.buffers), {**model.added, **model.statistics}
    rounding = "stochastic" if learning.precision is None else learning.precision.rounding
    built = build(
        learning.whole, learning.forward["infer"], learning.grads, optimizer, learning.method,
        {p.name: tuple(p.aliases) for p in named} | dict.fromkeys(added, ()),
        {p.name: tuple(p.shape) for p in named} | added,
        accumulate, seed, learning.forward.get("evaluate"), (*(p.name for p in imported.parameters), *model.added),
        learning.forward.get("features"), rounding,
    )  # fmt: skip
    graphs = dict(built.graphs)
    if learning.learn is not None:
        graphs["learn"] = train_graph(*learning.learn, optimizer, seed, rounding)
        graphs |= {name: lowered(graph) for name, graph in learning.forward.items() if name not in graphs}
    if learning.scoring is not None:
        graphs |= learning.scoring.graphs
    merges = tuple(m for m in model.merges if m.learned <= set(learning.grads))
    kept = None if (wanted := learning.replay) is None else (wanted, shape_of(learning.whole, wanted, seed))
    return replace(
        built, graphs=checked(graphs, "update"), head=model.head, class_names=learning.class_names, added=tuple(added),
        updates=learning.updates, merges=merges, replay=kept, changed=model.forward if model.is_changed else {},
        report=learning.report,
        scored=() if learning.scoring is None else learning.scoring.layers, notes=learning.notes,
    )  # fmt: skip


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
    features: Graph | None = None,
    rounding: str = "stochastic",
) -> Built:
    """All entry points from the forward-and-backward graph and the graphs that do not learn: inference, without and
    with the loss, and features."""
    graphs = {"infer": lowered(infer), "train": train_graph(whole, grads, optimizer, seed, rounding)}
    if accumulate:
        sums = totals(whole, grads)
        graphs["zero"] = zero_entry(whole, sums)
        graphs["grad"] = lowered(grad_entry(save_bits(whole), sums, seed), learns=grads)
        graphs["apply"] = apply_entry(whole, grads, sums, optimizer, seed, rounding)
    others = {name: g for name, g in (("evaluate", evaluate), ("features", features)) if g is not None}
    graphs |= {name: lowered(graph) for name, graph in others.items()}
    without = {"fuse": partial(train_graph, whole, grads, optimizer, fuse=False)}
    if any(ops.get(node.op).bits and node.stage == "backward" for node in whole.nodes):
        without["bits"] = partial(train_graph, whole, grads, optimizer, bits=False)
    if any(map(ops.is_loop, graphs["train"].nodes)):
        without["loop"] = partial(train_graph, whole, grads, optimizer, loop=False)
    return Built(
        checked(graphs, "update"), without, method, tuple(grads), aliases, shapes, parameters or tuple(grads),
        described(optimizer), forward={"infer": infer, **others},
    )  # fmt: skip


def at_batch(built: Built, batch: int) -> Entries:
    """The entry points for steps of up to so many samples."""
    plain = {name: graph for name, graph in built.graphs.items() if name in ("train", "grad", SCORE)}
    again = {name: cheapened(graph, batch) for name, graph in plain.items()}
    graphs = {**built.graphs, **checked({name: graph for name, (graph, _) in again.items()}, "recompute")}
    decisions = tuple(decision for name, (_, decision) in again.items() if decision and name == "train")
    selected = (Decision("select", note, 0) for note in built.notes)
    decisions = (*precision_decisions(built.report), *decisions, *selected)
    if built.head is not None:
        graphs["train"] = with_names(graphs["train"], built.head)
        plain["train"] = with_names(plain["train"], built.head)
    if built.replay is not None:
        wanted, kept = built.replay
        decisions = (*decisions, decision(kept, graphs["train"], "features" in graphs, wanted))
        graphs["train"], plain["train"] = with_buffer(graphs["train"], kept), with_buffer(plain["train"], kept)
    return Entries(
        graphs, batch, built.method, built.learns, built.aliases, built.shapes, decisions, built.parameters,
        built.optimizer, head=built.head, class_names=built.class_names, plain=plain, forward=built.forward,
        updates=built.updates, merges=built.merges, replay=built.replay, changed=built.changed, added=built.added,
        scored=built.scored,
        explain=functools.cache(partial(savings, built.graphs, built.without, batch)),
    )  # fmt: skip
