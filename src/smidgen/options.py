"""Arguments of `compile`, checked before any work: each comes back as the type that the pipeline expects."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from .arrays import is_integer, is_number
from .device import Device, load_device
from .errors import BadOption
from .optimizers import SGD, Adam, AdamW, Optimizer

SIZES: Final = {"budget": "'256KB', '1.5MB' or 262144", "ladder": "['64MB', '32MB']"}
if TYPE_CHECKING:
    from .planner.cost import Prices
    from .planner.within import Aim

_TIMES = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(x|s|)")
_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([kKmMgG]?)(?:i?[bB]|bytes)?")


@dataclass(frozen=True, slots=True)
class Options:
    optimizer: Optimizer
    method: str | tuple[str, ...]
    batch: int | None  # None: the example's
    bn: str
    accumulate: bool
    seed: int
    spare_classes: int = 0
    class_names: tuple[str, ...] = ()
    const: str = "f32"  # or int8, where that loses nothing


def checked_options(
    model: Any,
    *,
    optimizer: Any = None,
    method: Any = "full",
    batch: Any = None,
    bn: Any = "frozen",
    accumulate: Any = False,
    seed: Any = 0,
    spare_classes: Any = 0,
    class_names: Any = (),
    const: Any = "f32",
) -> Options:
    """Raises BadOption for the first argument that means nothing. torch is not needed to look at any of them."""
    _check_model(model)
    return Options(
        optimizer=_checked_optimizer(optimizer),
        method=_checked_method(method),
        batch=_checked_batch(batch),
        bn=_checked_bn(bn),
        accumulate=_checked_accumulate(accumulate),
        seed=checked_seed(seed),
        spare_classes=_checked_spare(spare_classes),
        class_names=_checked_names(class_names),
        const=_checked_const(const),
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
        raise BadOption(f"{name}={budget!r} is not a number of bytes", help=f"{name}={SIZES[name]}")
    return int(count)


def checked_ladder(ladder: Any) -> tuple[int, ...]:
    """Bytes of RAM for each rung below the first, from large to small."""
    if isinstance(ladder, str) or not isinstance(ladder, Sequence):
        raise BadOption(f"ladder={ladder!r} is not a list of sizes", help="ladder=['64MB', '32MB']")
    found = [count for rung in ladder if (count := checked_budget(rung, "ladder")) is not None]
    if len(set(found)) != len(ladder):
        raise BadOption(f"ladder={list(ladder)!r} has the same rung twice, or none", help="ladder=['64MB', '32MB']")
    return tuple(sorted(found, reverse=True))


def checked_prices(prices: Any, device: Any) -> bool:
    """Shall they be measured?"""
    if prices not in ("fixed", "measured"):
        raise BadOption(f"prices={prices!r} is not understood", help="prices='fixed' or prices='measured'")
    if prices == "measured" and device is not None:
        why = f"kernels are timed on this machine, which is no {getattr(device, 'name', device)}"
        raise BadOption("prices of a device cannot be measured", why=why, help="leave out prices, or device")
    return bool(prices == "measured")


def checked_aim(objective: Any, effort: Any, page: bool, prices: Prices) -> Aim:
    from .planner.within import Aim  # only a compiler needs a planner

    if objective not in ("time", "energy"):
        raise BadOption(f"objective={objective!r} is not understood", help="objective='time' or objective='energy'")
    return Aim(objective, None, checked_effort(effort), page, prices)


def checked_effort(effort: Any) -> float:
    if not is_number(effort) or not 0 <= effort < 1e6:
        raise BadOption(f"effort={effort!r} is not a number of seconds", help="effort=10")
    return float(effort)


def with_deadline(aim: Aim, deadline: Any, usual: Callable[[], float]) -> Aim:
    """Seconds, or a text like "1.5x": so many times what a step takes without a limit of RAM."""
    if deadline is None:
        return aim
    seconds = 0.0
    if is_number(deadline):
        seconds = float(deadline)
    elif isinstance(deadline, str) and (found := _TIMES.fullmatch(deadline.strip())):
        seconds = float(found[1]) * (usual() if found[2] == "x" else 1.0)
    if not 0 < seconds < 1e9:
        raise BadOption(f"deadline={deadline!r} is not a time", help="deadline=0.5 (seconds), or deadline='2x'")
    return replace(aim, deadline_s=seconds)


def checked_seed(seed: Any) -> int:
    if not is_integer(seed) or not 0 <= seed < 2**31:
        raise BadOption(f"seed={seed!r} is not a seed", why="it is an integer from 0 to 2**31 - 1", help="seed=0")
    return int(seed)


def _check_model(model: Any) -> None:
    if isinstance(model, type):
        name = model.__name__
        raise BadOption(f"the model is the class {name}, not a module made of it", help=f"{name}(…)")
    if not callable(getattr(model, "forward", None)) or not callable(getattr(model, "state_dict", None)):
        raise BadOption(f"the model is a {type(model).__name__}, not a torch.nn.Module", help="pass the module itself")


def _checked_optimizer(optimizer: Any) -> Optimizer:
    if optimizer is None:
        return SGD(lr=0.01)
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


def _checked_method(method: Any) -> str | tuple[str, ...]:
    if isinstance(method, str):
        return method
    if isinstance(method, Sequence) and method and all(isinstance(m, str) for m in method):
        return tuple(method)
    raise BadOption(
        f"method={method!r} is not understood", why="it is a name, or a list of names of methods and parameters",
        help="method='full', or method=['head.*', 'norm.bias']",
    )  # fmt: skip


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
        raise BadOption(f"accumulate={accumulate!r} is not True or False", help="accumulate=True")
    return bool(accumulate)


def _checked_const(const: Any) -> str:
    if isinstance(const, str) and const in ("f32", "int8"):
        return const
    raise BadOption(f"const={const!r} is not understood", help="const='f32' or const='int8'")


def _checked_spare(spare: Any) -> int:
    if not is_integer(spare) or not 0 <= spare <= 1024:
        raise BadOption(f"spare_classes={spare!r} is not a number of classes", why="0 to 1024", help="spare_classes=4")
    return int(spare)


def _checked_names(names: Any) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(n, str) and n for n in names):
        raise BadOption(f"class_names={names!r:.60} is not a list of names", help="class_names=['cat', 'dog']")
    if len(set(names)) != len(names):
        raise BadOption("two classes have the same name", help="class_names=['cat', 'dog']")
    return tuple(names)


__all__ = [
    "Options", "checked_aim", "checked_budget", "checked_device", "checked_effort", "checked_ladder", "checked_options",
    "checked_prices", "checked_seed", "with_deadline",
]  # fmt: skip
