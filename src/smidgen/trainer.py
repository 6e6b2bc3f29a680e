"""A Job: a program with its memory, ready to train and to predict. Needs numpy and the C runtime only."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from .errors import BadData, BadOption, BadProgram, CannotWrite, MissingPart, did_you_mean
from .ir import COUNTER, LR, Array, DType, Step, batch_axis
from .native import Machine, release_freed
from .options import is_integer, is_number
from .plan import Plan
from .program import Buffer, Program


class Job:
    """Made by `smidgen.compile` or `smidgen.load`. State (weights, optimizer, step) lives in the runtime's memory."""

    def __init__(self, program: Program, path: Path | None = None) -> None:
        """`path` is the file that `program` was read from, if there is one: its constants are then used in place."""
        self.program = program if path is None else _mapped(program, path)
        self.plan, self._tensors = _described(program)
        self._machine = Machine(program.to_bytes() if path is None else path)
        self._counted: dict[int, tuple[int, int]] = {}  # id of a batch counter → what load_into wrote, at which step

    # -- running -------------------------------------------------------------------------------------------

    def train_step(self, x: Any, y: Any) -> float:
        """Learn from one batch; returns its loss before the update. More samples than the plan's batch are
        taken in parts if the program was compiled with accumulate=True.

        A step that an error stops (a label that is no class, for instance) updates no parameter and no optimizer state,
        and is not counted; but with bn="batch", running statistics of layers before the error may have moved already.
        """
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
        """The model's output for any number of samples; a tuple if the model has several outputs.

        More samples than the plan's batch are taken in parts, so an output that is one for all samples is refused then.
        """
        inputs, n = self._inputs("infer", _listed(x))
        outs = [b for b in self.program.entry_buffers("infer") if b.direction == "output"]
        results = [np.empty(b.shape(n), b.dtype.numpy) for b in outs]
        if n <= self.program.batch:
            self._machine.run("infer", inputs, results, n, n)
        else:
            self._predict_in_parts(inputs, outs, results, n)
        return results[0] if len(results) == 1 else tuple(results)

    def _predict_in_parts(
        self, inputs: Sequence[Array], outs: Sequence[Buffer], results: Sequence[Array], n: int
    ) -> None:
        batch = self.program.batch
        parts = f"{n} samples given, the program takes {batch} at a time", f"give up to {batch} samples"
        for out in outs:
            if batch_axis(out.dims) is None:
                raise BadData(parts[0], why=f"'{out.name}' is one result for all of them", help=parts[1])
        for first in range(0, n, batch):
            part = [a[first : first + batch] for a in inputs]
            count = len(part[0])
            pieces = [np.empty(b.shape(count), b.dtype.numpy) for b in outs]
            self._machine.run("infer", part, pieces, count, count)
            mixed = self._mixed(part, outs, pieces, count)
            if mixed:
                raise BadData(parts[0], why=f"in '{mixed}' the rows of a sample are not together", help=parts[1])
            for out, piece, result in zip(outs, pieces, results, strict=True):
                _rows(result, out, first, count)[...] = piece

    def _mixed(self, part: Sequence[Array], outs: Sequence[Buffer], pieces: Sequence[Array], count: int) -> str | None:
        """The output with several rows a sample whose rows are not in the order of samples: joining parts would mix
        them up. The shape does not tell (n, k) from (k, n), both flattened, so the first sample runs alone."""
        several = [i for i, b in enumerate(outs) if b.per_sample != 1]
        if several and self.program.batch == 1:
            return outs[several[0]].name  # one sample at a time shows no order
        if not several or count == 1:  # one sample: the last part, and those before were looked at
            return None
        alone = [np.empty(b.shape(1), b.dtype.numpy) for b in outs]
        self._machine.run("infer", [a[:1] for a in part], alone, 1, 1)
        for i in several:
            if not np.allclose(_rows(pieces[i], outs[i], 0, 1), alone[i], rtol=1e-4, atol=1e-6, equal_nan=True):
                return outs[i].name
        return None

    def _inputs(self, entry: str, given: Sequence[Any]) -> tuple[list[Array], int]:
        wanted = [b for b in self.program.entry_buffers(entry) if b.direction == "input"]
        if len(given) != len(wanted):
            names = ", ".join(b.name for b in wanted)
            raise BadData(f"{len(given)} arrays given, {len(wanted)} wanted: {names}")
        arrays = [_as_buffer(value, buffer) for value, buffer in zip(given, wanted, strict=True)]
        counts = {b.name: a.shape[0] // b.per_sample for a, b in zip(arrays, wanted, strict=True)}
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
        help = "job.lr = 0.01, for instance"
        if not is_number(value):
            raise BadOption(f"learning rate {value!r} is not a number", help=help)
        if not 0 <= value < float("inf"):
            raise BadOption(f"learning rate {value} is not a finite number ≥ 0", help=help)
        if value > float(np.finfo(np.float32).max):
            raise BadOption(f"learning rate {value} does not fit single precision", help=help)
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
        """Set learned parameters and statistics; names that this program does not learn are ignored, but not all of
        them. Nothing is set unless everything fits."""
        _check_mapping(values, "load_state_dict", "job.load_state_dict(model.state_dict())")
        new: dict[str, Array] = {}
        for name, fact in self._tensors.items():
            if fact["role"] in ("param", "stat"):
                given = next((k for k in (name, *fact["aliases"]) if k in values), None)
                if given is not None:
                    new[name] = laid(_as_state(values[given], given, fact["shape"]), _steps(fact))
        if values and not new:
            why = f"it learns {', '.join(self.state_dict())}"
            raise BadData("nothing of what is given belongs to this program", why=why)
        for name, value in new.items():
            self._view(name)[...] = value

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
        """Set the optimizer's tensors, as `optimizer_state` gives them, and the number of updates done. Parameters
        that are not given keep theirs. Nothing is set unless everything fits."""
        example = "job.load_optimizer_state(other.optimizer_state(), other.step)"
        _check_mapping(values, "load_optimizer_state", example)
        if not is_integer(step) or not 0 <= step < 2**31:
            raise BadOption(f"step={step!r} is not a number of updates", help=example)
        new: dict[str, Array] = {}
        for name, fact in self._tensors.items():
            if fact["role"] == "optim" and fact["owner"] in values:
                owner, slots = self._tensors[fact["owner"]], values[fact["owner"]]
                if not isinstance(slots, Mapping) or fact["slot"] not in slots:
                    raise BadData(f"'{fact['owner']}' has no '{fact['slot']}' in the optimizer's state", help=example)
                new[name] = laid(_as_state(slots[fact["slot"]], name, owner["shape"]), _steps(owner))
        for name, value in new.items():
            self._view(name)[...] = value
        self._view(COUNTER)[1] = step

    def load_into(self, model: Any) -> None:
        """Copy what was learned into the PyTorch module; everything else in it is left as it is. A model that lacks
        one of the names, or has it in another shape, is refused before anything is copied.

        `num_batches_tracked` of layers whose running statistics the program updates grows by the steps done (since
        the last call, if there was one for this model).
        """
        try:
            import torch
        except ModuleNotFoundError as error:
            help = "pip install 'smidgen[compile]', or use job.state_dict()"
            raise MissingPart("load_into needs PyTorch", why=str(error), help=help) from error
        if not isinstance(model, torch.nn.Module):
            raise BadOption(f"load_into takes a torch.nn.Module, not a {type(model).__name__}", help="pass the module")
        own = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
        learned = self.state_dict()
        for name, value in learned.items():
            if name not in own:
                raise BadData(f"the model has no '{name}'", help=did_you_mean(name, own))
            if tuple(own[name].shape) != value.shape:
                raise BadData(f"'{name}' has shape {tuple(own[name].shape)} in the model, {value.shape} in the program")
        with torch.no_grad():
            for name, value in learned.items():
                own[name].copy_(torch.from_numpy(value))
            counters = {id(own[k]): own[k] for k in map(_counter_of, self._statistics()) if k in own}
            for counter in counters.values():
                self._count(counter)

    def _statistics(self) -> list[str]:
        """Names of running statistics that the program updates."""
        return [k for n, f in self._tensors.items() if f["role"] == "stat" for k in (n, *f["aliases"])]

    def _count(self, counter: Any) -> None:
        """Add the steps that this counter has not seen."""
        written, step = self._counted.get(id(counter), (-1, 0))
        old = int(counter)
        counter.fill_(old + self.step - (step if old == written else 0))
        self._counted[id(counter)] = int(counter), self.step

    @property
    def mapped_bytes(self) -> int:
        """What the runtime mapped for state and arena."""
        return self._machine.mapped_bytes

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the program with its present state; the file appears complete or not at all."""
        place = _path(path, 'job.save("model.smg")')
        help = "name a file, in a folder that exists and can be written to"
        try:
            if place.is_dir():
                raise CannotWrite(f"cannot write '{place}'", why="it is a folder", help=help)
            self.program.with_state(self._machine.state.tobytes()).save(place)
        except OSError as error:
            raise CannotWrite(f"cannot write '{place}'", why=error.strerror or str(error), help=help) from error

    def _view(self, name: str) -> Array:
        fact = self._tensors[name]
        kind = np.dtype({"f32": np.float32, "i32": np.int32, "u8": np.uint8}[fact["dtype"]])
        count = int(np.prod(fact["stored"], dtype=np.int64)) * kind.itemsize
        start = fact["offset"]
        return self._machine.state[start : start + count].view(kind).reshape(fact["stored"])


def load(path: str | os.PathLike[str]) -> Job:
    """A job from a program file; torch is not needed. Constants stay in the file, which is mapped: it may be replaced
    (as `save` does) while the job lives, but not written into."""
    place = _path(path, 'smidgen.load("model.smg")')
    try:
        before = _version(place)
        job = Job(Program.load(place), place)
        changed = _version(place) != before
        if changed:
            raise BadProgram("the file changed while it was read", help="load it again")
    except OSError as error:
        raise BadProgram(f"cannot read '{place}'", why=error.strerror or str(error)) from error
    except BadProgram as error:
        raise BadProgram(error.what, at=error.at or str(place), why=error.why, help=error.help) from error
    release_freed()  # reading the file took copies of it
    return job


def _path(path: Any, example: str) -> Path:
    if not isinstance(path, (str, os.PathLike)) or "\0" in str(path):
        raise BadOption(f"{path!r} is not a path", help=example)
    return Path(path)


def _version(path: Path) -> tuple[int, ...]:
    with path.open("rb") as file:
        facts = os.fstat(file.fileno())
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns


def _mapped(program: Program, path: Path) -> Program:
    """The same program with its constants, the file's last section, in the mapped file instead of in memory."""
    if not program.const:
        return program
    with path.open("rb") as file:
        view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    return replace(program, const=cast(bytes, view[len(view) - program.const_bytes :]))


def _described(program: Program) -> tuple[Plan, dict[str, dict[str, Any]]]:
    """The plan, and where each state tensor lies; the file's checksum does not say that they make sense."""
    try:
        facts = program.meta["state"]
        for name, fact in facts.items():
            count = int(np.prod(fact["stored"], dtype=np.int64)) * DType(fact["dtype"]).bytes
            if fact["offset"] % 4 or not 0 <= fact["offset"] <= program.state_bytes - count:
                raise BadProgram(f"'{name}' lies outside the program's state")
            owner = facts[fact["owner"]] if fact["role"] == "optim" else fact
            if owner["role"] in ("param", "stat"):
                laid(np.broadcast_to(np.float32(0), owner["shape"]), _steps(owner)).reshape(fact["stored"])
                list(owner["aliases"])
        return Plan.from_json(program.meta["plan"]), dict(facts)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise BadProgram("the program does not describe its plan and state", why=why) from error


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


def _rows(array: Array, buffer: Buffer, first: int, count: int) -> Array:
    """The part of a result that belongs to these samples."""
    axis = batch_axis(buffer.dims) or 0
    k = buffer.per_sample
    return array[(slice(None),) * axis + (slice(first * k, (first + count) * k),)]


def _counter_of(statistic: str) -> str:
    """The name that torch gives the counter beside a running statistic."""
    place, dot, _ = statistic.rpartition(".")
    return f"{place}{dot}num_batches_tracked"


def _check_mapping(values: Any, function: str, example: str) -> None:
    if not isinstance(values, Mapping):
        raise BadOption(f"{function} takes a mapping from names, not a {type(values).__name__}", help=example)


def _numpy(value: Any, name: str) -> Array:
    """A numpy array from numpy, torch or nested lists, without importing torch."""
    try:
        detach = getattr(value, "detach", None)
        if detach is None:
            return np.asarray(value)
        tensor = detach().cpu()
        if not str(tensor.layout).endswith("strided"):
            raise BadData(f"'{name}' is a sparse tensor", help="give its .to_dense()")
        if "float" in str(tensor.dtype) and str(tensor.dtype) not in ("torch.float32", "torch.float64"):
            tensor = tensor.float()  # numpy has no bfloat16
        return np.asarray(tensor.numpy())
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadData(f"'{name}' is not an array of numbers", why=str(error).partition("\n")[0]) from error


def _as_f32(array: Array, name: str) -> Array:
    if array.dtype == np.float32:
        return np.asarray(array, order="C")  # the same object if it fits: the machine knows its address
    with np.errstate(over="ignore"):
        single = np.asarray(array, np.float32, order="C")
    if array.dtype.kind == "f" and bool(np.any(np.isinf(single) & np.isfinite(array))):
        raise BadData(f"'{name}' holds a number that does not fit single precision")
    return single


def _as_state(value: Any, name: str, shape: Sequence[int]) -> Array:
    """A value for a tensor of this shape: never broadcast."""
    array = _numpy(value, name)
    if array.dtype.kind not in "fiub":
        raise BadData(f"'{name}' has dtype {array.dtype}, the program wants numbers")
    if array.shape != tuple(shape):
        raise BadData(f"'{name}' has shape {array.shape}, the program has {tuple(shape)}")
    return _as_f32(array, name)


def _as_buffer(value: Any, buffer: Buffer) -> Array:
    """The caller's array as the program reads it, or an error that says what is wrong."""
    array = _numpy(value, buffer.name)
    floating = buffer.dtype is DType.F32
    if array.dtype.kind not in ("fiub" if floating else "iub"):
        wanted = "numbers" if floating else "integers"
        raise BadData(f"'{buffer.name}' has dtype {array.dtype}, the program wants {wanted}")
    shape = buffer.shape(1)
    if array.ndim != len(shape) or array.shape[1:] != shape[1:] or (array.ndim and array.shape[0] % buffer.per_sample):
        want = ", ".join(str(d) for d in ("n" if buffer.per_sample == 1 else f"{buffer.per_sample}n", *shape[1:]))
        raise BadData(f"'{buffer.name}' has shape {array.shape}, the program wants ({want})")
    if floating:
        return _as_f32(array, buffer.name)
    if buffer.dtype is DType.U8 or not np.can_cast(array.dtype, np.int32):
        low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
        if not -(2**31) <= low <= high < 2**31:
            raise BadData(f"'{buffer.name}' holds an integer that does not fit 32 bits")
        if buffer.dtype is DType.U8 and not 0 <= low <= high <= 1:
            raise BadData(f"'{buffer.name}' holds {low if low < 0 else high}, the program wants booleans")
    return np.ascontiguousarray(array, dtype=buffer.dtype.numpy)
