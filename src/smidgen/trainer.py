"""A Job: a program with its memory, ready to train and to predict. Needs numpy and the C runtime only."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .errors import BadData, BadOption
from .ir import COUNTER, LR, Array, Step
from .native import Machine
from .plan import Plan
from .program import Buffer, Program


class Job:
    """Made by `smidgen.compile` or `smidgen.load`. State (weights, optimizer, step) lives in the runtime's memory."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.plan = Plan.from_json(program.meta["plan"])
        self._machine = Machine(program.to_bytes())
        self._tensors: dict[str, dict[str, Any]] = program.meta["state"]

    # -- running -------------------------------------------------------------------------------------------

    def train_step(self, x: Any, y: Any) -> float:
        """Learn from one batch; returns its loss before the update. More samples than the plan's batch are
        taken in parts if the program was compiled with accumulate=True."""
        inputs, n = self._inputs("train", [*_listed(x), y])
        if n > self.program.batch:
            return self._train_in_parts(inputs, n)
        loss = np.zeros((), np.float32)
        self._machine.run("train", inputs, [loss], n, n)
        return float(loss)

    def _train_in_parts(self, inputs: Sequence[Array], n: int) -> float:
        if "grad" not in self.program.entries:
            raise BadData(
                f"{n} samples given, the program takes at most {self.program.batch} at a time",
                help=f"give up to {self.program.batch} samples, or compile with accumulate=True",
            )
        self._machine.run("zero", [], [], 1, 1)
        total = 0.0
        for first in range(0, n, self.program.batch):
            part = [a[first : first + self.program.batch] for a in inputs]
            loss = np.zeros((), np.float32)
            self._machine.run("grad", part, [loss], len(part[0]), n, first)
            total += float(loss)
        self._machine.run("apply", [], [], 1, 1)
        return total

    def predict(self, x: Any) -> Any:
        """The model's output for any number of samples; a tuple if the model has several outputs."""
        inputs, n = self._inputs("infer", _listed(x))
        outs = [b for b in self.program.entry_buffers("infer") if b.direction == "output"]
        results = [np.empty(b.shape(n), b.dtype.numpy) for b in outs]
        for first in range(0, n, self.program.batch):
            part = slice(first, first + self.program.batch)
            pieces = [r[part] for r in results]
            self._machine.run("infer", [a[part] for a in inputs], pieces, len(inputs[0][part]), len(inputs[0][part]))
        return results[0] if len(results) == 1 else tuple(results)

    def _inputs(self, entry: str, given: Sequence[Any]) -> tuple[list[Array], int]:
        wanted = [b for b in self.program.entry_buffers(entry) if b.direction == "input"]
        if len(given) != len(wanted):
            names = ", ".join(b.name for b in wanted)
            raise BadData(f"{len(given)} arrays given, {len(wanted)} wanted: {names}")
        arrays = [_as_buffer(value, buffer) for value, buffer in zip(given, wanted, strict=True)]
        counts = {b.name: len(a) // b.per_sample for a, b in zip(arrays, wanted, strict=True)}
        n = next(iter(counts.values()))
        if len(set(counts.values())) != 1:
            said = ", ".join(f"{k} {v}" for k, v in counts.items())
            raise BadData("inputs have different numbers of samples", why=said)
        if n < 1:
            raise BadData("no samples given", help="give at least one sample")
        return arrays, n

    # -- state ---------------------------------------------------------------------------------------------

    @property
    def lr(self) -> float:
        return float(self._view(LR)[()])

    @lr.setter
    def lr(self, value: float) -> None:
        if not np.isfinite(value) or value < 0:
            raise BadOption(f"learning rate {value} is not a number ≥ 0")
        self._view(LR)[...] = value

    @property
    def step(self) -> int:
        """Updates done so far."""
        return int(self._view(COUNTER)[1])

    def state_dict(self) -> dict[str, Array]:
        """What was learned (and running statistics that changed), under the model's own names and layout."""
        found: dict[str, Array] = {}
        for name, fact in self._tensors.items():
            if fact["role"] in ("param", "stat"):
                value = unlaid(self._view(name), fact["shape"], _steps(fact)).copy()
                found |= dict.fromkeys((name, *fact["aliases"]), value)
        return found

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Set learned parameters and statistics; names that this program does not learn are ignored."""
        for name, fact in self._tensors.items():
            if fact["role"] in ("param", "stat") and name in values:
                value = np.asarray(_numpy(values[name]), np.float32)
                if list(value.shape) != fact["shape"]:
                    raise BadData(f"'{name}' has shape {value.shape}, the model has {tuple(fact['shape'])}")
                self._view(name)[...] = laid(value, _steps(fact))

    def optimizer_state(self) -> dict[str, dict[str, Array]]:
        """Per parameter: the optimizer's tensors (momentum; exp_avg, exp_avg_sq) in the model's own layout."""
        found: dict[str, dict[str, Array]] = {}
        for name, fact in self._tensors.items():
            if fact["role"] == "optim":
                owner = self._tensors[fact["owner"]]
                value = unlaid(self._view(name), owner["shape"], _steps(owner)).copy()
                found.setdefault(fact["owner"], {})[fact["slot"]] = value
        return found

    def load_optimizer_state(self, values: Mapping[str, Mapping[str, Any]], step: int) -> None:
        for name, fact in self._tensors.items():
            if fact["role"] == "optim" and fact["owner"] in values:
                owner = self._tensors[fact["owner"]]
                value = np.asarray(_numpy(values[fact["owner"]][fact["slot"]]), np.float32)
                self._view(name)[...] = laid(value, _steps(owner))
        self._view(COUNTER)[1] = step

    def load_into(self, model: Any) -> None:
        """Copy what was learned into the PyTorch module; everything else in it is left as it is."""
        import torch

        own = model.state_dict(keep_vars=True)
        with torch.no_grad():
            for name, value in self.state_dict().items():
                own[name].copy_(torch.from_numpy(value))

    @property
    def mapped_bytes(self) -> int:
        """What the runtime mapped for state and arena."""
        return self._machine.mapped_bytes

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the program with its present state; the file appears complete or not at all."""
        self.program.with_state(self._machine.state.tobytes()).save(path)

    def _view(self, name: str) -> Array:
        fact = self._tensors[name]
        kind = np.dtype({"f32": np.float32, "i32": np.int32, "u8": np.uint8}[fact["dtype"]])
        count = int(np.prod(fact["stored"], dtype=np.int64)) * kind.itemsize
        start = fact["offset"]
        return self._machine.state[start : start + count].view(kind).reshape(fact["stored"])


def load(path: str | os.PathLike[str]) -> Job:
    """A job from a program file; torch is not needed."""
    return Job(Program.load(path))


def laid(value: Array, steps: Sequence[Step]) -> Array:
    """From the user's layout to the stored one."""
    for kind, arg in steps:
        value = value.reshape(arg) if kind == "reshape" else np.transpose(value, arg)
    return value


def unlaid(value: Array, shape: Sequence[int], steps: Sequence[Step]) -> Array:
    """From the stored layout back to the user's."""
    shapes = [tuple(shape)]
    for kind, arg in steps:
        shapes.append(tuple(arg) if kind == "reshape" else tuple(shapes[-1][a] for a in arg))
    for (kind, arg), before in zip(reversed(list(steps)), reversed(shapes[:-1]), strict=True):
        value = value.reshape(before) if kind == "reshape" else np.transpose(value, np.argsort(arg))
    return np.ascontiguousarray(value).reshape(tuple(shape))


def _steps(fact: Mapping[str, Any]) -> list[Step]:
    return [(kind, tuple(arg)) for kind, arg in fact["steps"]]


def _listed(x: Any) -> list[Any]:
    return list(x) if isinstance(x, (tuple, list)) else [x]


def _numpy(value: Any) -> Array:
    """A numpy array from numpy, torch or nested lists, without importing torch."""
    detach = getattr(value, "detach", None)
    return np.asarray(detach().cpu().numpy() if detach is not None else value)


def _as_buffer(value: Any, buffer: Buffer) -> Array:
    """The caller's array as the program reads it, or an error that says what is wrong."""
    array = _numpy(value)
    floating = buffer.dtype.value == "f32"
    if array.dtype.kind not in ("fiub" if floating else "iub"):
        wanted = "numbers" if floating else "integers"
        raise BadData(f"'{buffer.name}' has dtype {array.dtype}, the program wants {wanted}")
    shape = buffer.shape(1)
    if array.ndim != len(shape) or array.shape[1:] != shape[1:] or (array.ndim and array.shape[0] % buffer.per_sample):
        want = ", ".join(str(d) for d in ("n" if buffer.per_sample == 1 else f"{buffer.per_sample}n", *shape[1:]))
        raise BadData(f"'{buffer.name}' has shape {array.shape}, the program wants ({want})")
    if not floating and array.dtype.itemsize > 4 and array.size and np.abs(array).max() > 2**31 - 1:
        raise BadData(f"'{buffer.name}' holds an integer that does not fit 32 bits")
    return np.ascontiguousarray(array, dtype=buffer.dtype.numpy)
