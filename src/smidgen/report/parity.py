"""Does a program train as PyTorch does? Three comparisons for any model, the same for tests and `smidgen verify`.

(a) float64: the interpreter and torch, free-running; (b) float32: the C runtime restarted from torch's state before
every step, gradients as the update saw them; (c) float32: the C runtime free-running, its distance to torch-f64
against torch-f32's own.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from ..compiler.entries import Entries
from ..compiler.graph import interp
from ..compiler.optimizers import SGD, Adam, AdamW, Optimizer
from ..compiler.torch_import.translate import LOSSES
from ..errors import BadOption
from ..ir import Array, Graph
from ..program.arrays import unlaid
from ..program.program import Program
from ..train.job import Job
from .in_double import InDouble, OfSingle

Batches = Sequence[tuple[Sequence[Array], Array]]

A_LIMIT, B_LIMIT, C_LIMIT = 1e-9, 1e-4, 4.0

# A gradient this much smaller than the network's largest is zero but for rounding (a bias in front of a norm with
# batch statistics). It has no digits to compare: it must stay small, and Adam, which turns any noise into a step, may
# move the parameter a little.
ZERO_F64, ZERO_F64_LIMIT = 1e-12, 1e-6
ZERO_F32, ZERO_F32_LIMIT = 1e-6, 1e-5

# A value within rounding of a threshold (relu, max-pooling) may fall on either side, which changes gradients by more
# than any rounding does; torch-f32 differs from torch-f64 in the same way. Such a miss goes away when the inputs of
# both sides are moved a little, a wrong kernel does not: each tensor has this many tries.
TRIES = 8
# Some gradients have no four digits in float32 (sixty norms in a row with statistics of four values each). Where we
# miss the limit in all tries, we may still be as far off as in (c) from what torch-f32 reaches; the verdict says so.
F32_SLACK = C_LIMIT
NUDGE, MOST_NUDGED = 1e-6, 1e-3
ROUNDING_F64 = 2e-16


def copied(model: nn.Module) -> nn.Module:
    """A deep copy, without the graph of what a forward pass left behind (the weight of weight_norm)."""
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, torch.Tensor) and not value.is_leaf:
                setattr(module, name, value.detach())
    return copy.deepcopy(model)


class Reference:
    """The same training in PyTorch: same loss, optimizer, learning parameters and batch-norm mode. `masks` are true at
    what learns of a parameter of which a part learns."""

    def __init__(
        self, model: nn.Module, loss: Any, optimizer: Optimizer, learns: Sequence[str], bn: str, dtype: torch.dtype,
        masks: Mapping[str, Array] | None = None,
    ) -> None:  # fmt: skip
        self.model = copied(model).to(dtype)
        self.dtype, self.loss, self.steps = dtype, _torch_loss(loss), 0
        self.in_double = False  # also what the model computes in float32
        for module in self.model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.train(bn == "batch")
                module.register_forward_pre_hook(_in_order)
                module.register_forward_hook(_gradient_in_order)
        self.params = dict(self.model.named_parameters())
        for name, p in self.params.items():
            p.requires_grad_(name in learns)
        self.learns = list(learns)
        self.masks = {name: torch.from_numpy(mask) for name, mask in (masks or {}).items()}
        self.clip, self.decay = optimizer.clip_norm, optimizer.weight_decay
        self.decoupled = isinstance(optimizer, AdamW)
        self.optimizer = _torch_optimizer(optimizer, [self.params[p] for p in learns])

    def step(self, inputs: Sequence[Array], target: Array) -> float:
        loss = self._backward(inputs, target)
        before = {p: self.params[p].detach().clone() for p in self.masks}
        self.optimizer.step()
        with torch.no_grad():  # weight decay, and momentum of it, would move the rest
            for p, mask in self.masks.items():
                self.params[p].copy_(torch.where(mask, self.params[p], before[p]))
        self.steps += 1
        return loss

    def gradients(self, inputs: Sequence[Array], target: Array) -> tuple[dict[str, Array], dict[str, float]]:
        """As the update would see them, and the largest magnitude of each before weight decay; changes nothing."""
        statistics = [b.clone() for b in self.model.buffers()]
        self._backward(inputs, target)
        with torch.no_grad():
            for buffer, before in zip(self.model.buffers(), statistics, strict=True):
                buffer.copy_(before)
        return self._seen()

    def _seen(self) -> tuple[dict[str, Array], dict[str, float]]:
        found = {p: self.params[p].grad.numpy().astype(np.float64) for p in self.learns}
        sizes = {p: _largest(g) for p, g in found.items()}
        if not self.decoupled:
            found = {p: self.part(p, g + self.decay * self.params[p].detach().numpy()) for p, g in found.items()}
        return found, sizes

    def part(self, param: str, value: Array) -> Array:
        """Zero beside what learns."""
        return np.where(self.masks[param].numpy(), value, 0) if param in self.masks else value

    def _backward(self, inputs: Sequence[Array], target: Array) -> float:
        self.optimizer.zero_grad()
        wide = OfSingle() if self.dtype is torch.float64 else contextlib.nullcontext()
        with InDouble() if self.in_double else wide:
            loss = self.loss(self.model(*[self._tensor(x) for x in inputs]), self._tensor(target))
        loss.backward()
        for p, mask in self.masks.items():
            self.params[p].grad.mul_(mask)
        if self.clip is not None:
            nn.utils.clip_grad_norm_([self.params[p] for p in self.learns], self.clip)
        return float(loss.detach())

    def _tensor(self, value: Array) -> torch.Tensor:
        t = torch.from_numpy(np.ascontiguousarray(value))
        return t.to(self.dtype) if t.is_floating_point() else t

    def single(self) -> Reference:
        """The same network in the same state in torch-f32, for gradients only."""
        twin = copy.copy(self)
        twin.model, twin.dtype = copied(self.model).float(), torch.float32
        twin.params = dict(twin.model.named_parameters())
        twin.optimizer = torch.optim.SGD([twin.params[p] for p in self.learns], lr=0.0)
        return twin

    def values(self) -> dict[str, Array]:
        """Learning parameters and all running statistics."""
        found = {p: self.params[p].detach().numpy().astype(np.float64) for p in self.learns}
        for name, buffer in self.model.named_buffers():
            if buffer.is_floating_point():
                found[name] = buffer.detach().numpy().astype(np.float64)
        return found

    def slots(self) -> dict[str, dict[str, Array]]:
        """Optimizer state per parameter, under smidgen's names."""
        names = {"momentum_buffer": "momentum", "exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}
        found: dict[str, dict[str, Array]] = {}
        for p in self.learns:
            state = self.optimizer.state.get(self.params[p], {})
            found[p] = {ours: state[key].numpy().astype(np.float64) for key, ours in names.items()
                        if key in state and state[key] is not None}  # fmt: skip
        return found

    def round_to_f32(self) -> None:
        """So that a float32 program can start from exactly this state."""
        with torch.no_grad():
            for t in [*self.model.parameters(), *self.model.buffers()]:
                if t.is_floating_point():
                    t.copy_(t.float())
            for state in self.optimizer.state.values():
                for value in state.values():
                    if isinstance(value, torch.Tensor) and value.is_floating_point() and value.ndim:
                        value.copy_(value.float())


@dataclass(frozen=True, slots=True)
class Verdict:
    """One comparison: the worst figure, its limit, and where it was found."""

    rule: str
    worst: float
    limit: float
    where: str
    beyond: int = 0  # gradients that miss the limit of (b) and are judged by torch-f32's own error

    @property
    def passed(self) -> bool:
        return bool(self.worst <= self.limit)


def masks_of(entries: Entries) -> dict[str, Array]:
    """Of each parameter of which a part learns: where."""
    found: dict[str, Array] = {}
    for update in entries.updates:
        if update.axis is not None and update.indices is not None:
            mask = found.setdefault(update.param, np.zeros(entries.shapes[update.param], bool))
            mask[(slice(None),) * update.axis + (list(update.indices),)] = True
    return found


def check_finite(single: Reference, batches: Batches) -> None:
    """Raise if torch's own training in float32 has no numbers any more: nothing could be compared with it."""
    for k, (inputs, target) in enumerate(batches):
        loss = single.step(inputs, target)
        if not all(np.isfinite(x).all() for x in (np.array(loss), *single.values().values())):
            raise BadOption(
                f"PyTorch's own training has no numbers any more after {k + 1} steps: there is nothing to compare with",
                why="its loss or its parameters are infinite or NaN",
                help=f"a lower learning rate: --lr {single.optimizer.param_groups[0]['lr'] / 10:g}",
            )


def free_run(entries: Entries, reference: Callable[[torch.dtype], Reference], batches: Batches) -> Verdict:
    """(a) Interpreter = torch-f64, after every step."""
    graph = entries.graphs["train"]
    state = interp.initial_state(graph)
    exact, others = reference(torch.float64), list[Reference]()
    rng = np.random.default_rng(0)
    worst = Verdict("a", 0.0, A_LIMIT, "")
    sizes: dict[str, float] = {}  # largest gradient so far
    for k, (inputs, target) in enumerate(batches):
        feeds = dict(zip(graph.inputs, [*inputs, target], strict=True))
        outputs, state = interp.advance(graph, state, feeds, n=len(target))
        loss = exact.step(inputs, target)
        sizes = {p: max(sizes.get(p, 0.0), _largest(exact.params[p].grad.numpy())) for p in exact.learns}
        found = {"loss": relative(outputs["loss"], np.array(loss)), **state_errors(graph, state, exact, sizes)}
        limits = dict.fromkeys(found, A_LIMIT)
        if max(found.values()) > A_LIMIT:
            # How far does torch-f64 move if its inputs move by one rounding, or without the float32 in it? No program
            # can agree better than that.
            others = others or _others(reference)
            for xs, y in batches[others[0].steps : k + 1]:
                others[0].step([nudge(_double(x), rng, ROUNDING_F64) for x in xs], y)
                if len(others) == 1:
                    continue
                try:
                    others[-1].step(xs, y)
                except RuntimeError:  # it cannot be run in double precision all the way
                    others = others[:1]
            there = [other.values() for other in others]
            own = [relative(t[n], want) for t in there for n, want in exact.values().items() if n in found]
            moves = C_LIMIT * max(own, default=0.0)
            limits = dict.fromkeys(found, max(A_LIMIT, moves) if np.isfinite(moves) else A_LIMIT)
        name = max(found, key=lambda key: found[key] / limits[key])
        if not found[name] / limits[name] <= worst.worst / worst.limit:
            note = f"; torch-f64 moves by {limits[name] / C_LIMIT:.1e}" if limits[name] > A_LIMIT else ""
            worst = Verdict("a", found[name], limits[name], f"{name}, step {k + 1}{note}")
    return worst


def _others(reference: Callable[[torch.dtype], Reference]) -> list[Reference]:
    """To be run with other inputs; and in double precision all the way."""
    moved, wide = reference(torch.float64), reference(torch.float64)
    wide.in_double = True
    return [moved, wide]


def distance(
    program: Program, reference: Callable[[torch.dtype], Reference], batches: Batches
) -> tuple[Verdict, list[float], Job]:
    """(c) The C runtime's distance to torch-f64 over torch-f32's own; with its losses, and the trained job."""
    rng = np.random.default_rng(0)
    best: tuple[Verdict, list[float], Job] | None = None
    for attempt in range(TRIES):
        moved = batches if attempt == 0 else [([nudge(x, rng, nudge_of(attempt)) for x in xs], y) for xs, y in batches]
        job, exact, single = Job(program, kernels="exact"), reference(torch.float64), reference(torch.float32)
        losses = []
        for inputs, target in moved:
            losses.append(job.train_step(tuple(inputs), target))
            exact.step(inputs, target)
            single.step(inputs, target)
        want, theirs, ours = exact.values(), single.values(), job.state_dict()
        mine = _distance({n: ours[n] for n in want if n in ours}, want)
        other = _distance({n: theirs[n] for n in want if n in ours}, want)
        ratio = _finite(mine / other) if other > 0 else (0.0 if mine == 0 else float("inf"))
        where = f"ours {mine:.2e}, torch-f32 {other:.2e}" + (f"; {attempt} nudges" if attempt else "")
        if best is None or ratio < best[0].worst:
            best = Verdict("c", ratio, C_LIMIT, where), losses, job
        if ratio <= C_LIMIT:
            break
    assert best is not None
    return best


def state_errors(
    graph: Graph, state: Mapping[str, Array], reference: Reference, sizes: Mapping[str, float]
) -> dict[str, float]:
    """Norm-relative difference of everything that changes."""
    found = {}
    values = reference.values()
    usual = max((float(np.sqrt(np.mean(values[p] ** 2))) for p in reference.learns if values[p].size), default=0.0)
    for name, want in values.items():
        if name in state:
            got = unlaid(state[name], want.shape, graph.layouts.get(name, ()))  # zero beside what learns
            want = reference.part(name, want)
            zero = sizes.get(name, 1.0) <= ZERO_F64 * max(sizes.values())
            # One that starts at zero and stays there (the bias of attention's keys) holds nothing but rounding.
            error = relative(got, want, usual * float(np.sqrt(want.size)) if zero else 0.0)
            found[name] = error * (A_LIMIT / ZERO_F64_LIMIT if zero else 1.0)
    return found


def restarted(job: Job, reference: Reference, optimizer: Optimizer, batches: Batches, tries: int = TRIES) -> Verdict:
    """(b) Every gradient as the update saw it, from the same float32 state in every step."""
    worst, nudged, beyond = Verdict("b", 0.0, B_LIMIT, ""), 0, 0
    rng = np.random.default_rng(0)
    reference.round_to_f32()
    for k, (inputs, target) in enumerate(batches):
        before, slots = reference.values(), reference.slots()
        # The average that the gradient is read back from starts at zero: it does not change the gradient, but a large
        # one would swallow the digits of a small gradient.
        zeros = {p: {s: np.zeros_like(before[p]) for s in optimizer.slots} for p in reference.learns}
        start = {p: {**zeros[p], **{s: v for s, v in slots[p].items() if s == "exp_avg_sq"}} for p in reference.learns}
        errors: dict[str, list[float]] = {p: [] for p in reference.learns}  # of each try
        theirs: dict[str, list[float]] = {p: [] for p in reference.learns}  # of torch-f32
        for attempt in range(tries):
            moved = inputs if attempt == 0 else [nudge(x, rng, nudge_of(attempt)) for x in inputs]
            job.load_state_dict(before)
            job.load_optimizer_state(start, k)
            job.train_step(tuple(moved), target)
            ours = seen_gradients(optimizer, before, start, job.state_dict(), job.optimizer_state())
            wanted = reference.gradients(moved, target)
            _note(errors, gradient_errors(ours, *wanted))
            if max(min(tries) for tries in errors.values()) <= B_LIMIT:
                break
            nudged += 1
            _note(theirs, gradient_errors(reference.single().gradients(moved, target)[0], *wanted))
        for name, found_errors in errors.items():
            error, limit = judged_gradient(found_errors, theirs[name])
            beyond += error > B_LIMIT
            note = f"; torch-f32 {limit / F32_SLACK:.1e}" if limit > B_LIMIT else ""
            found = Verdict("b", error, limit, f"{name}, step {k + 1}{note}")
            # A miss says more than any error within its limit, and a larger error more than a smaller one.
            worst = max(worst, found, key=lambda v: (not v.passed, v.worst))
        reference.step(inputs, target)
        reference.round_to_f32()
    notes = [f"{beyond} gradients beyond {B_LIMIT:g}"] * bool(beyond) + [f"{nudged} nudges"] * bool(nudged)
    return replace(worst, where="; ".join([worst.where, *notes]), beyond=beyond)


def judged_gradient(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """The error of one gradient and its limit, from all tries of ours and of torch-f32.

    The best try counts, because a value at a threshold spoils the others. In a network where torch-f32 usually misses
    the limit, too, almost every try has such values on both sides: whose best one has fewer is luck, and the usual try
    says more, the median.
    """
    best = min(ours)
    if best <= B_LIMIT:
        return best, B_LIMIT
    other = min(theirs, default=np.inf)
    limit = max(B_LIMIT, F32_SLACK * other) if np.isfinite(other) else B_LIMIT
    usual = float(np.median(theirs)) if theirs else 0.0
    if best <= limit or not B_LIMIT < usual < np.inf:
        return best, limit
    return float(np.median(ours)), F32_SLACK * usual


def _note(tries: Mapping[str, list[float]], errors: Mapping[str, float]) -> None:
    for name, error in errors.items():
        tries[name].append(error)


def gradient_errors(
    ours: Mapping[str, Array], theirs: Mapping[str, Array], sizes: Mapping[str, float]
) -> dict[str, float]:
    """Largest difference of each tensor, relative to its largest magnitude."""
    largest = max(sizes.values())
    found = {}
    for name, want in theirs.items():
        scale = _largest(want)
        if sizes[name] <= ZERO_F32 * largest:
            scale = largest * ZERO_F32_LIMIT / B_LIMIT
        found[name] = _finite(_largest(ours[name] - want) / max(scale, 1e-300))
    return found


def seen_gradients(
    optimizer: Optimizer,
    w0: Mapping[str, Array],
    s0: Mapping[str, Mapping[str, Array]],
    w1: Mapping[str, Array],
    s1: Mapping[str, Mapping[str, Array]],
) -> dict[str, Array]:
    """The gradient (with weight decay) that took one state to the next."""
    found: dict[str, Array] = {}
    for p in s0:
        if isinstance(optimizer, SGD) and optimizer.momentum:
            found[p] = s1[p]["momentum"].astype(np.float64) - optimizer.momentum * s0[p]["momentum"]
        elif isinstance(optimizer, Adam | AdamW):
            beta1 = optimizer.betas[0]
            found[p] = (s1[p]["exp_avg"].astype(np.float64) - beta1 * s0[p]["exp_avg"]) / (1 - beta1)
        else:
            found[p] = (w0[p] - w1[p].astype(np.float64)) / optimizer.lr
    return found


def _largest(values: Array) -> float:
    return float(np.abs(values).max(initial=0.0))


def nudge_of(attempt: int) -> float:
    """Twice as much in every try: a value that is very near its threshold needs more than the usual one."""
    return min(NUDGE * 2.0 ** (attempt - 1), MOST_NUDGED)


def nudge(x: Array, rng: np.random.Generator, by: float = NUDGE) -> Array:
    """The same input moved by a few units in the last place; integers stay."""
    return (x * (1 + by * rng.standard_normal(x.shape))).astype(x.dtype) if x.dtype.kind == "f" else x


def _double(x: Array) -> Array:
    return np.asarray(x, np.float64) if x.dtype.kind == "f" else x


def relative(got: Array, want: Array, least: float = 0.0) -> float:
    """Norm of the difference over that of what is wanted, or over `least` if that is more."""
    return _finite(np.linalg.norm(got - want) / max(float(np.linalg.norm(want)), least, 1e-12))


def _finite(error: Any) -> float:
    """What is no number is as far off as can be: no comparison may lose it."""
    return float(error) if np.isfinite(error) else float("inf")


def _distance(values: Mapping[str, Array], exact: Mapping[str, Array]) -> float:
    far = sum(float(((values[n].astype(np.float64) - exact[n]) ** 2).sum()) for n in values)
    size = sum(float((exact[n] ** 2).sum()) for n in values)
    return float(np.sqrt(far / size))


def _in_order(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(x.contiguous() for x in inputs)


def _gradient_in_order(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
    """Of one sample whose gradient has another order of memory, torch 2.13 gets a norm's gradients wrong."""
    if output.requires_grad:
        output.register_hook(torch.Tensor.contiguous)


def _torch_loss(loss: Any) -> Any:
    return LOSSES[loss] if isinstance(loss, str) else loss


def _torch_optimizer(optimizer: Optimizer, params: list[nn.Parameter]) -> torch.optim.Optimizer:
    if isinstance(optimizer, SGD):
        return torch.optim.SGD(params, lr=optimizer.lr, momentum=optimizer.momentum,
                               weight_decay=optimizer.weight_decay, nesterov=optimizer.nesterov)  # fmt: skip
    kind = getattr(torch.optim, type(optimizer).__name__)
    made: torch.optim.Optimizer = kind(params, lr=optimizer.lr, betas=optimizer.betas,
                                       eps=optimizer.eps, weight_decay=optimizer.weight_decay)  # fmt: skip
    return made
