"""`smidgen verify`: the parity and memory proof for one model, gathered into a verdict that people can read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from .. import api, ops
from ..compiler.assemble import encode
from ..compiler.entries import Entries
from ..compiler.inputs import Bytes
from ..compiler.optimizers import SGD, Adam, Optimizer
from ..compiler.torch_import.aten.source import line_of_error
from ..errors import BadModelSource, BadOption
from ..ir import Array
from ..program.arrays import laid
from ..program.plan import Plan
from ..train.job import Job
from . import parity
from .plan_text import plan_json
from .torch_graph import TorchGraph, from_bytes

STEPS, FREE_STEPS = 10, 20
SAME = 1e-3  # of the largest prediction, in float32
MEANING = {
    "a": f"float64 interpreter = torch, {STEPS} free steps",
    "b": f"f32 gradients = torch, {STEPS} steps from its state",
    "c": f"f32 distance to torch-f64 over torch-f32's, {FREE_STEPS} steps",
}


@dataclass(frozen=True, slots=True)
class Proof:
    model: str
    plan: Plan
    verdicts: tuple[parity.Verdict, ...]
    mapped_bytes: int  # what the runtime asked the system for, for state and arena
    goes_home: bool  # what was learned, loaded back, predicts the same; everything else in the model is untouched
    replayed: tuple[str, ...]  # entries that the verifier replayed; it raises if it finds anything

    @property
    def memory_exact(self) -> bool:
        return self.mapped_bytes + self.plan.context_bytes + self.plan.stack_bytes == self.plan.ram_bytes

    @property
    def passed(self) -> bool:
        return all(v.passed for v in self.verdicts) and self.memory_exact and self.goes_home

    def to_json(self) -> dict[str, Any]:
        rows = [{**asdict(v), "passed": v.passed} for v in self.verdicts]
        return {
            "model": self.model, "passed": self.passed, "parity": rows, "ram_bytes": self.plan.ram_bytes,
            "mapped_bytes": self.mapped_bytes, "goes_home": self.goes_home, "replayed": list(self.replayed),
            "plan": plan_json(self.plan),
        }  # fmt: skip

    def to_text(self) -> str:
        def row(name: str, figure: str, ok: bool) -> str:
            return f"  {'pass' if ok else 'FAIL'}  {name:<60} {figure}"

        plan = self.plan
        lines = [
            f"{'PASS' if self.passed else 'FAIL'}  {self.model}: {len(plan.learns)} tensors learn ({plan.method}), "
            f"batch {plan.batch}, RAM {plan.ram_bytes:,} bytes"
        ]
        for v in self.verdicts:
            lines.append(row(MEANING[v.rule], f"{v.worst:.2g} (limit {v.limit:g})  {v.where}", v.passed))
        lines.append(row("loaded back: same predictions, the rest untouched to the bit", "", self.goes_home))
        entries = ", ".join(self.replayed)
        lines.append(row("no live byte overwritten", f"{entries} replayed, 1 and {plan.batch} samples", bool(entries)))
        parts = f"{plan.state_bytes:,} state + {plan.arena_bytes:,} arena + {plan.context_bytes:,} context + "
        lines.append(row("RAM planned = RAM asked for", parts + f"{plan.stack_bytes:,} stack", self.memory_exact))
        return "\n".join(lines)


def prove(
    model: torch.nn.Module,
    name: str,
    examples: Callable[[], list[Any]],
    rng: np.random.Generator,
    *,
    loss: str,
    method: str,
    optimizer: str,
    lr: float | None,
    bn: str,
    progress: Callable[[str], None] | None = None,
) -> Proof:
    """`examples` draws the inputs of one batch; targets are drawn from `rng` in between. The model is put into
    evaluation mode."""
    for module in model.modules():
        # Dropout draws differ between any two systems, so the proof runs without it. (What torch.export captured
        # refuses eval().)
        module.training = False
    batches = []
    for _ in range(FREE_STEPS):
        xs = examples()
        batches.append((xs, _target(model, [x.numbers if isinstance(x, Bytes) else x for x in xs], loss, rng)))
    lr = (0.01 if optimizer == "sgd" else 1e-3) if lr is None else lr
    made: Optimizer = SGD(lr, momentum=0.9) if optimizer == "sgd" else Adam(lr)
    return prove_model(model, name, batches, loss, method, made, bn, progress)


def prove_model(
    model: torch.nn.Module,
    name: str,
    batches: parity.Batches,
    loss: Any,
    method: str,
    optimizer: Optimizer,
    bn: str,
    progress: Callable[[str], None] | None = None,
) -> Proof:
    """Inputs of batches are arrays, or Bytes."""
    tell = progress or (lambda text: None)
    example = tuple(batches[0][0])
    tell("compiling …")
    entries = api.build(
        model, example, loss=loss, target=batches[0][1], optimizer=optimizer, method=method, bn=bn,
        batch=len(batches[0][1]),
    )  # fmt: skip
    batches = [([x.checked if isinstance(x, Bytes) else x for x in xs], y) for xs, y in batches]
    model = taking_bytes(model, example)
    twin, masks = torch_twin(model, entries, bn), parity.masks_of(entries)
    entries = away_from_zero(entries, twin)
    program = encode(entries)

    def reference(dtype: torch.dtype) -> parity.Reference:
        return parity.Reference(twin, loss, optimizer, entries.learns, bn, dtype, masks)

    tell(MEANING["a"] + " …")
    a = parity.free_run(entries, reference, batches[:STEPS])
    parity.check_finite(reference(torch.float32), batches)
    tell(MEANING["b"] + " …")
    b = parity.restarted(Job(program, kernels="exact"), reference(torch.float64), optimizer, batches[:STEPS])
    tell(MEANING["c"] + " …")
    c, _, job = parity.distance(program, reference, batches)
    home = goes_home(job, model, batches[0][0], entries)
    return Proof(name, job.plan, (a, b, c), job.mapped_bytes, home, tuple(program.entries))


def taking_bytes(model: torch.nn.Module, example: Sequence[Any]) -> torch.nn.Module:
    """The model, or a copy that makes numbers of bytes, where the example has some."""
    stands = [x.stands if isinstance(x, Bytes) else None for x in example]
    if not any(stands):
        return model

    def numbers(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        kinds = (p.dtype for p in module.parameters() if p.is_floating_point())
        dtype = next(kinds, torch.float32)
        return tuple(from_bytes(x.to(dtype), *s, min(1, x.ndim - 1)) if s and x.dtype is torch.uint8 else x
                     for s, x in zip(stands, inputs, strict=True))  # fmt: skip

    copied = parity.copied(model)
    copied.register_forward_pre_hook(numbers)
    return copied


def torch_twin(model: torch.nn.Module, entries: Entries, bn: str = "frozen") -> torch.nn.Module:
    """What trains, in torch: the user's model, or the network that the method made of it."""
    if not entries.changed:
        return model
    if bn != "frozen":
        raise BadOption(
            f"'{entries.method}' cannot be compared with PyTorch with batch statistics",
            why="it changes the network, and PyTorch's side is then made of the graph of inference", help="bn='frozen'",
        )  # fmt: skip
    return TorchGraph(entries.changed["infer"], entries.shapes)


def away_from_zero(entries: Entries, twin: torch.nn.Module) -> Entries:
    """Started from other numbers, on both sides, where a method starts a tensor that it added at zero: what it is
    multiplied with would have no gradient there."""
    if not entries.changed:
        return entries
    moved: dict[str, Array] = {}
    rng = np.random.default_rng(0)
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            if name in entries.learns and parameter.ndim and not parameter.any():
                size = 0.3 / np.prod(parameter.shape[1:])  # a product with it stays small beside the layer's own
                moved[name] = (size * rng.standard_normal(tuple(parameter.shape))).astype(np.float32)
                parameter.copy_(torch.from_numpy(moved[name]))
    graphs = {}
    for key, graph in entries.graphs.items():
        own = {n: laid(v, graph.layouts.get(n, ())) for n, v in moved.items() if n in graph.data}
        graphs[key] = graph.with_(data={**graph.data, **own})
    return replace(entries, graphs=graphs)


def goes_home(job: Job, model: torch.nn.Module, inputs: Sequence[Array], entries: Entries) -> bool:
    """What was learned, loaded into the model, makes it predict as the job does, so the frozen rest of the job is the
    model's own; and loading it touched nothing else, not even one bit. What a method added and cannot merge is loaded
    into the network that it made."""
    learned, merges = job.state_dict(), entries.merges
    added = {*learned} - {*model.state_dict(), *(n for m in merges for n in m.learned)}
    if added:
        trained = parity.copied(torch_twin(model, entries)).float()
        with torch.no_grad():
            for name, tensor in (*trained.named_parameters(), *trained.named_buffers()):
                if name in learned:
                    tensor.copy_(torch.from_numpy(learned[name]))
        return beside_untouched(job, model, entries) and _predicts(job, trained, inputs)
    trained = parity.copied(model).eval()
    job.load_into(trained)
    changed = {*learned, *(m.into for m in merges), *(k for k in model.state_dict() if k.endswith("batches_tracked"))}
    before, after = model.state_dict(), trained.state_dict()
    untouched = all(same_bits(before[k], after[k]) for k in before if k not in changed)
    return untouched and beside_untouched(job, model, entries) and _predicts(job, trained, inputs)


def beside_untouched(job: Job, model: torch.nn.Module, entries: Entries) -> bool:
    """Where a part of a parameter learns, the rest of it has the model's bits."""
    before, after = model.state_dict(), job.state_dict()
    masks = parity.masks_of(entries)
    return all(same_bits(before[k].numpy()[~mask], after[k][~mask]) for k, mask in masks.items())


def same_bits(a: torch.Tensor | Array, b: torch.Tensor | Array) -> bool:
    left, right = np.asarray(a), np.asarray(b)
    return (left.shape, left.dtype, left.tobytes()) == (right.shape, right.dtype, right.tobytes())


def _predicts(job: Job, model: torch.nn.Module, inputs: Sequence[Array]) -> bool:
    """As the job does, where both give one tensor."""
    with torch.no_grad():
        want = model(*[torch.from_numpy(x) for x in inputs])
    got = job.predict(tuple(inputs))
    if isinstance(want, torch.Tensor) and isinstance(got, np.ndarray):
        return bool(np.abs(got - want.numpy()).max() / max(1e-6, float(want.abs().max())) < SAME)
    return True


def _target(model: torch.nn.Module, xs: Sequence[Array], loss: str, rng: np.random.Generator) -> Array:
    """A random target that fits the model's output."""
    try:
        with torch.no_grad():
            out = model(*[torch.from_numpy(x) for x in xs])
    except Exception as error:  # whatever the user's code or torch raises
        shapes, why = ", ".join("x".join(map(str, x.shape)) for x in xs), str(error).partition("\n")[0]
        raise BadModelSource(
            f"the model does not take {shapes}", at=line_of_error(error), why=why,
            help="--input 8x3x32x32, batch first; once for each input of the model",
        ) from error  # fmt: skip
    if not isinstance(out, torch.Tensor):
        raise BadOption(f"the model returns a {type(out).__name__}", help="verify needs a model with one output tensor")
    record = ops.losses()[loss].loss if loss in ops.losses() else None
    if record is not None and record.target == "classes":
        return rng.integers(0, out.shape[1], (out.shape[0], *out.shape[2:])).astype(np.int64)
    if record is not None and record.target == "yes_no":
        return rng.integers(0, 2, tuple(out.shape)).astype(np.float32)
    return rng.standard_normal(tuple(out.shape)).astype(np.float32)
