"""Arguments of `compile`, `sweep` and `max_batch`, checked before any work: each comes back as the type that the
pipeline expects. What belongs together is one small type."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..devices.device import Device, load_device
from ..errors import BadOption
from ..program.arguments import checked_seed, is_integer, is_number
from .optimizers import DEFAULT, SGD, Adam, AdamW, Optimizer
from .precision import Int8, checked_precision

HELP: Final = {
    "budget": "budget='256KB', '1.5MB' or 262144",
    "ladder": "memory=smidgen.Memory(ladder=['64MB', '32MB'])",
}
if TYPE_CHECKING:
    from ..methods import Method, Part

_TIMES = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(x|s|)")
_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([kKmMgG]?)(?:i?[bB]|bytes)?")


@dataclass(frozen=True, slots=True)
class Replay:
    """A buffer of `samples` that the job has learned from, in RAM and in whatever the state is saved to: each step
    learns from new samples and from some of these, so that new classes do not erase old ones. `where="page"` keeps
    them outside RAM, where `Memory(page_to=…)` says: a file, a memory card.

    `of` is what is kept: "features", what the frozen part of the network makes of a sample, so that old samples do not
    run it again, or "inputs". `precision` is that of their floats: "int8", with a scale for each sample, or "f32".
    `fresh` of the samples of a step are new, by default half of them, rounded up."""

    samples: int
    of: str = "features"
    precision: str = "int8"
    fresh: int | None = None
    where: str = "ram"


@dataclass(frozen=True, slots=True)
class Memory:
    """How a program is made to fit. All of it is optional.

    `budget`, in bytes or as "256KB", is a hard limit of RAM: results are recomputed instead of kept, or a step runs
    in micro-batches, at a price that the plan states; with `page_to`, a file, tensors may also leave RAM for a
    while. `objective`, "time" or "energy", is what should be small; `deadline`, in seconds or as "2x" (of the step
    without a limit), how long a step may take; `effort` the work spent on looking for the optimum, in seconds of a
    desktop computer (default 5, of a sweep 1): the same plan comes out on every machine. `ladder`, more sizes like
    `budget`, adds the same step planned for each of them: `job.rung` and `job.fit(follow_memory=…)` switch among
    them; what is learned stays. `accumulate=True` adds the entries that take larger batches in micro-batches,
    `False` omits them; by default fast kernels use them, `plan.batch` samples at a time, where that saves both RAM
    and time. `const="int8"` stores weights that do not learn as int8 wherever that loses nothing.
    `prices="measured"` times every kernel on this machine, once, instead of taking the same prices everywhere.
    `replay`, a `smidgen.Replay`, keeps samples that were learned, to learn them again beside new ones.
    `stream=False` runs every layer as a whole, also where rows of it would do. `whole_inputs=True` takes samples into
    the arena at once, for a source that cannot deliver their rows in order; what is made of them goes over them."""

    budget: int | str | None = None
    page_to: str | os.PathLike[str] | None = None
    objective: str = "time"
    deadline: float | str | None = None
    effort: float | None = None
    ladder: Sequence[int | str] = ()
    accumulate: bool | None = None
    const: str = "f32"
    prices: str = "fixed"
    replay: Replay | None = None
    stream: bool = True
    whole_inputs: bool = False


@dataclass(frozen=True, slots=True)
class Classes:
    """`spare`: so many classes can be added later, with `job.add_class`; `names` are those of the known ones."""

    spare: int = 0
    names: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Streaming:
    """What does not learn may run row by row, with exact or fast `kernels`: where it costs next to nothing, or for the
    least memory."""

    kernels: str
    whole_inputs: bool = False
    least: bool = False


@dataclass(frozen=True, slots=True)
class Options:
    optimizer: Optimizer
    method: str | tuple[Part, ...]
    batch: int | None  # None: the example's
    bn: str
    accumulate: bool
    seed: int
    spare_classes: int = 0
    class_names: tuple[str, ...] = ()
    const: str = "f32"  # or int8, where that loses nothing
    replay: Replay | None = None
    stream: Streaming | None = None
    precision: Int8 | None = None  # None: f32

    @property
    def least(self) -> Options:
        """For the least memory."""
        return replace(self, stream=self.stream and replace(self.stream, least=True))


def checked_options(
    model: Any,
    *,
    optimizer: Any = None,
    method: Any = "full",
    batch: Any = None,
    bn: Any = "frozen",
    seed: Any = 0,
    classes: Any = None,
    accumulate: Any = False,
    const: Any = "f32",
    replay: Any = None,
    stream: Any = False,
    whole_inputs: Any = False,
    kernels: str = "exact",
    precision: Any = "f32",
) -> Options:
    """Raises BadOption for the first argument that means nothing. torch is not needed to look at any of them."""
    _check_model(model)
    named, whole = checked_classes(classes), _checked_flag("whole_inputs", whole_inputs, True)
    int8 = checked_precision(precision)
    if int8 is not None and bn == "batch":
        raise BadOption("precision='int8' does not go with bn='batch'", why="norms become part of their layers",
                        help="bn='frozen'")  # fmt: skip
    return Options(
        optimizer=_checked_optimizer(optimizer),
        method=_checked_method(method),
        batch=_checked_batch(batch),
        bn=_checked_bn(bn),
        accumulate=_checked_accumulate(accumulate),
        seed=checked_seed(seed),
        spare_classes=_checked_spare(named.spare),
        class_names=_checked_names(named.names),
        const=_checked_const(const),
        replay=_checked_replay(replay, batch),
        stream=Streaming(kernels, whole) if _checked_flag("stream", stream, False) else None,
        precision=int8,
    )


def checked_device(device: Any) -> Device | None:
    if device is None or isinstance(device, Device):
        return device
    if not isinstance(device, str):
        raise BadOption(f"device={device!r} is not a device", help="device='stm32f746'; `smidgen devices` lists them")
    return load_device(device)


def checked_budget(budget: Any, name: str = "budget") -> int | None:
    """Bytes of RAM: a number of them, or a text with a unit of 1024."""
    if budget is None:
        return None
    count = 0.0
    if is_integer(budget):
        count = int(budget)
    elif isinstance(budget, str) and (found := _SIZE.fullmatch(budget.strip())):
        count = float(found[1]) * 1024 ** ("", "k", "m", "g").index(found[2].lower())
    if not 1 <= count < 2**63:
        raise BadOption(f"{name}={budget!r} is not a number of bytes", help=HELP[name])
    return int(count)


def checked_ladder(ladder: Any) -> tuple[int, ...]:
    """Bytes of RAM for each rung below the first, from large to small."""
    if isinstance(ladder, (str, bytes)) or not isinstance(ladder, Sequence):
        raise BadOption(f"ladder={ladder!r:.60} is not a list of sizes", help=HELP["ladder"])
    found = [count for rung in ladder if (count := checked_budget(rung, "ladder")) is not None]
    if len(set(found)) != len(ladder):
        raise BadOption(f"ladder={list(ladder)!r} has the same rung twice, or none", help=HELP["ladder"])
    return tuple(sorted(found, reverse=True))


def checked_prices(prices: Any, device: Any) -> bool:
    """Shall they be measured?"""
    if not isinstance(prices, str) or prices not in ("fixed", "measured"):
        raise BadOption(
            f"prices={prices!r:.60} is not understood", help="memory=smidgen.Memory(prices='measured'), or 'fixed'"
        )
    if prices == "measured" and device is not None:
        why = f"kernels are timed on this machine, which is no {getattr(device, 'name', device)}"
        raise BadOption("prices of a device cannot be measured", why=why, help="leave out prices, or device")
    return prices == "measured"


def checked_memory(memory: Any, budget: Any = None) -> Memory:
    """With the short form of a budget."""
    if memory is None:
        memory = Memory()
    if not isinstance(memory, Memory):
        raise BadOption(f"memory={memory!r:.60} is not understood", help="memory=smidgen.Memory(budget='256KB')")
    if memory.budget is not None and budget is not None:
        raise BadOption("the budget is given twice", help="budget='256KB', or memory=smidgen.Memory(budget='256KB')")
    return memory if budget is None else replace(memory, budget=budget)


def checked_classes(classes: Any) -> Classes:
    if classes is None:
        return Classes()
    if not isinstance(classes, Classes):
        raise BadOption(f"classes={classes!r:.60} is not understood", help="classes=smidgen.Classes(spare=4)")
    return classes


def checked_objective(objective: Any) -> str:
    if not isinstance(objective, str) or objective not in ("time", "energy"):
        help = "memory=smidgen.Memory(objective='time'), or 'energy'"
        raise BadOption(f"objective={objective!r:.60} is not understood", help=help)
    return objective


def checked_effort(effort: Any) -> float:
    if not is_number(effort) or not 0 <= effort < 1e6:
        raise BadOption(f"effort={effort!r} is not a number of seconds", help="memory=smidgen.Memory(effort=10)")
    return float(effort)


def checked_deadline(deadline: Any, usual: Callable[[], float]) -> float | None:
    """Seconds, or a text like "1.5x": so many times what a step takes without a limit of RAM."""
    if deadline is None:
        return None
    seconds = 0.0
    if is_number(deadline):
        seconds = float(deadline)
    elif isinstance(deadline, str) and (found := _TIMES.fullmatch(deadline.strip())):
        seconds = float(found[1]) * (usual() if found[2] == "x" else 1.0)
    if not 0 < seconds < 1e9:
        help = "memory=smidgen.Memory(deadline=0.5), in seconds, or deadline='2x'"
        raise BadOption(f"deadline={deadline!r} is not a time", help=help)
    return seconds


def _check_model(model: Any) -> None:
    if isinstance(model, type):
        name = model.__name__
        raise BadOption(f"the model is the class {name}, not a module made of it", help=f"{name}(…)")
    if not callable(getattr(model, "forward", None)) or not callable(getattr(model, "state_dict", None)):
        raise BadOption(f"the model is a {type(model).__name__}, not a torch.nn.Module", help="pass the module itself")


def _checked_optimizer(optimizer: Any) -> Optimizer:
    if optimizer is None:
        return DEFAULT
    if isinstance(optimizer, (SGD, Adam)):
        return optimizer
    raise BadOption(f"optimizer={_short(optimizer)} is not an optimizer of smidgen", help=_optimizer_like(optimizer))


def _short(optimizer: Any) -> str:
    """torch's optimizers print themselves on many lines."""
    if isinstance(optimizer, str):
        return repr(optimizer)
    kind = optimizer if isinstance(optimizer, type) else type(optimizer)
    return f"{kind.__module__}.{kind.__qualname__}"


def _optimizer_like(optimizer: Any) -> str:
    """How to write the one that was meant, with torch's own numbers if it is torch's."""
    kind = optimizer if isinstance(optimizer, type) else type(optimizer)
    name = optimizer if isinstance(optimizer, str) else kind.__name__
    known = {k.__name__.lower(): k.__name__ for k in (SGD, Adam, AdamW)}
    if name.lower() not in known:
        return "optimizer=smidgen.SGD(lr=0.01), smidgen.Adam(lr=0.001) or smidgen.AdamW(lr=0.001)"
    name = known[name.lower()]
    given = getattr(optimizer, "defaults", None)
    defaults: dict[str, Any] = given if isinstance(given, dict) else {}
    usual = {"lr": 0.01 if name == "SGD" else 0.001}
    told = {k: defaults[k] for k in ("lr", "momentum", "weight_decay") if is_number(defaults.get(k)) and defaults[k]}
    numbers = ", ".join(f"{k}={v:g}" for k, v in {**usual, **told}.items())
    return f"optimizer=smidgen.{name}({numbers})"


def _checked_method(method: Any) -> str | tuple[Part, ...]:
    from ..methods import Method, Update  # only a compiler needs methods

    def is_part(part: Any) -> bool:
        return isinstance(part, (str, Method, Update)) or (isinstance(part, type) and issubclass(part, Method))

    if isinstance(method, str):
        return method
    parts = [method] if is_part(method) else method
    if isinstance(parts, Sequence) and parts and all(map(is_part, parts)):
        return tuple(_made(part) if isinstance(part, type) else part for part in parts)
    raise BadOption(
        f"method={method!r} is not understood",
        why="it is a name, a method, or a list of methods, names of parameters and updates",
        help="method='full', or method=['head.*', 'norm.bias']",
    )


def _made(method: type[Method]) -> Method:
    """A class of a method stands for the method with its own settings."""
    try:
        return method()
    except TypeError as error:
        help = f"method={method.__name__}(…)"
        raise BadOption(f"method={method.__name__} needs arguments", why=str(error), help=help) from error


def _checked_batch(batch: Any) -> int | None:
    if batch is None:
        return None
    if not is_integer(batch) or not 1 <= batch < 2**31:
        raise BadOption(f"batch={batch!r} is not a number of samples", help="batch=8, for instance")
    return int(batch)


def _checked_bn(bn: Any) -> str:
    if isinstance(bn, str) and bn in ("frozen", "batch"):
        return bn
    raise BadOption(f"bn={bn!r} is not understood", help="bn='frozen' or bn='batch'")


def _checked_accumulate(accumulate: Any) -> bool:
    if accumulate is not None and not isinstance(accumulate, (bool, np.bool_)):
        raise BadOption(
            f"accumulate={accumulate!r} is not True or False", help="memory=smidgen.Memory(accumulate=True)"
        )
    return bool(accumulate)


def _checked_const(const: Any) -> str:
    if isinstance(const, str) and const in ("f32", "int8"):
        return const
    raise BadOption(f"const={const!r} is not understood", help="memory=smidgen.Memory(const='int8'), or 'f32'")


def _checked_flag(name: str, value: Any, example: bool) -> bool:
    if not isinstance(value, bool):
        raise BadOption(f"{name}={value!r:.60} is not understood", help=f"memory=smidgen.Memory({name}={example})")
    return value


def _checked_replay(replay: Any, batch: Any) -> Replay | None:
    help = "memory=smidgen.Memory(replay=smidgen.Replay(samples=200))"
    if replay is None:
        return None
    if not isinstance(replay, Replay):
        raise BadOption(f"replay={replay!r:.60} is not understood", help=help)
    if not is_integer(replay.samples) or not 1 <= replay.samples < 2**31:
        raise BadOption(f"{replay.samples!r:.60} is not a number of samples to keep", help=help)
    for name, known in (("of", ("features", "inputs")), ("precision", ("int8", "f32")), ("where", ("ram", "page"))):
        value = getattr(replay, name)
        if not isinstance(value, str) or value not in known:
            raise BadOption(
                f"Replay({name}={value!r:.60}) is not understood", help=f"{name}='{known[0]}', or '{known[1]}'"
            )
    if replay.fresh is not None and (not is_integer(replay.fresh) or not 1 <= replay.fresh < 2**31):
        raise BadOption(f"Replay(fresh={replay.fresh!r:.60}) is not a number of samples", help="fresh=1, for instance")
    if is_integer(batch) and batch == 1:
        raise _no_room()
    return replay


def check_step(replay: Replay | None, step: int) -> None:
    """Has a step of so many samples room for old ones?"""
    if replay is None:
        return
    if step == 1:
        raise _no_room()
    if replay.fresh is not None and replay.fresh >= step:
        why = f"a step has {step} samples, and all of them would be new"
        raise BadOption(f"Replay(fresh={replay.fresh}) leaves no room for old samples", why=why,
                        help=f"fresh={step - 1} at most, or a larger batch")  # fmt: skip


def check_where(replay: Replay | None, page_to: Any) -> None:
    """Is there a place for samples outside RAM?"""
    if replay is not None and replay.where == "page" and page_to is None:
        raise BadOption("Replay(where='page') has no place for samples", why="they live in pages",
                        help="memory=smidgen.Memory(page_to='page.bin', replay=…), or --page-to page.bin")  # fmt: skip


def _no_room() -> BadOption:
    return BadOption("replay needs steps of two samples or more", why="one of them is new, the others are old ones",
                     help="batch=2: each step learns one new sample and one old one")  # fmt: skip


def _checked_spare(spare: Any) -> int:
    if not is_integer(spare) or not 0 <= spare <= 1024:
        raise BadOption(
            f"{spare!r} is not a number of spare classes", why="0 to 1024", help="classes=smidgen.Classes(spare=4)"
        )
    return int(spare)


def _checked_names(names: Any) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(n, str) and n for n in names):
        raise BadOption(
            f"{names!r:.60} is not a list of class names", help="classes=smidgen.Classes(names=['cat', 'dog'])"
        )
    if len(set(names)) != len(names):
        raise BadOption("two classes have the same name", help="classes=smidgen.Classes(names=['cat', 'dog'])")
    return tuple(names)


__all__ = [
    "Classes", "Memory", "Options", "Replay", "check_step", "check_where", "checked_budget", "checked_classes",
    "checked_deadline", "checked_device",
    "checked_effort", "checked_ladder", "checked_memory", "checked_objective", "checked_options",
    "checked_prices", "checked_seed",
]  # fmt: skip
