"""Which optimizer, with which numbers. Defaults and meaning are torch.optim's; lr can change between steps.

`op` is the op that updates one parameter, `attrs` its attributes, `slots` the state it keeps for each parameter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np

from ..errors import BadOption, did_you_mean


def _number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def _single(value: float) -> float:
    """As the runtime has it."""
    try:
        with np.errstate(over="ignore"):
            return float(np.float32(value))
    except OverflowError:  # an integer beyond all floats
        return math.inf


def _check(holds: bool, optimizer: object, option: str, why: str, help: str) -> None:
    if not holds:
        value = getattr(optimizer, option)
        raise BadOption(f"{option}={value!r} is not valid", at=type(optimizer).__name__, why=why, help=help)


def _check_common(optimizer: SGD | Adam | AdamW, lr: str) -> None:
    """What all have: lr, weight_decay, clip_norm. `lr` is an example of a usual learning rate."""
    for option, usual in (("lr", lr), ("weight_decay", "weight_decay=1e-4")):
        value = getattr(optimizer, option)
        fits = _number(value) and math.isfinite(_single(value)) and value >= 0
        _check(fits, optimizer, option, "it is a finite number in single precision, not negative", usual)
    clip = optimizer.clip_norm
    fits = clip is None or (_number(clip) and 0 < _single(clip) < math.inf)
    _check(fits, optimizer, "clip_norm", "it is the largest allowed norm of all gradients", "clip_norm=1.0, or None")


@dataclass(frozen=True)
class SGD:
    """w ← w - lr·g, with momentum: m ← momentum·m + g, w ← w - lr·m. `clip_norm` limits the norm of all gradients."""

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        _check_common(self, "lr=0.01")
        fits = _number(self.momentum) and 0 <= _single(self.momentum) < 1
        _check(fits, self, "momentum", "it is a share of the last step, at least 0 and below 1", "momentum=0.9")
        _check(isinstance(self.nesterov, bool), self, "nesterov", "it is True or False", "nesterov=True")
        fits = self.momentum > 0 or not self.nesterov
        _check(fits, self, "nesterov", "it looks ahead along the momentum, which is 0", "momentum=0.9, nesterov=True")

    @property
    def op(self) -> str:
        return "momentum" if self.momentum else "sgd"

    @property
    def attrs(self) -> Mapping[str, Any]:
        if not self.momentum:
            return {"weight_decay": float(self.weight_decay)}
        numbers = {"momentum": float(self.momentum), "weight_decay": float(self.weight_decay)}
        return {**numbers, "nesterov": self.nesterov}

    @property
    def slots(self) -> tuple[str, ...]:
        return ("momentum",) if self.momentum else ()

    @property
    def needs_counter(self) -> bool:
        return False


@dataclass(frozen=True)
class Adam:
    """Adam; weight decay is added to the gradient."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        _check_common(self, "lr=1e-3")
        betas: Any = self.betas
        pair = isinstance(betas, (tuple, list)) and len(betas) == 2
        pair = pair and all(_number(b) and 0 <= _single(b) < 1 for b in betas)
        _check(pair, self, "betas", "they are two shares, at least 0 and below 1", "betas=(0.9, 0.999)")
        # The runtime divides by it: 0 would turn a weight without gradient into NaN.
        fits = _number(self.eps) and 0 < _single(self.eps) < math.inf
        _check(fits, self, "eps", "it is added to a divisor, so it is above 0 in single precision", "eps=1e-8")

    @property
    def op(self) -> str:
        return "adam"

    @property
    def attrs(self) -> Mapping[str, Any]:
        return {
            "beta1": float(self.betas[0]), "beta2": float(self.betas[1]), "epsilon": float(self.eps),
            "weight_decay": float(self.weight_decay), "decoupled": isinstance(self, AdamW),
        }  # fmt: skip

    @property
    def slots(self) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")

    @property
    def needs_counter(self) -> bool:
        return True


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay: each weight is multiplied by 1 - lr·weight_decay."""

    weight_decay: float = 1e-2


Optimizer = SGD | Adam
"""AdamW is an Adam."""


DEFAULT: Final = SGD(lr=0.01, momentum=0.9)
"""Where nobody names an optimizer, in Python and on the command line."""


def by_name(
    name: str,
    *,
    lr: float | None = None,
    momentum: float | None = None,
    weight_decay: float | None = None,
    clip_norm: float | None = None,
) -> Optimizer:
    """The optimizer that a command line names; what is not given has its usual value, that of DEFAULT for sgd."""
    kinds = {"sgd": SGD, "adam": Adam, "adamw": AdamW}
    if name not in kinds:
        raise BadOption(f"no optimizer named '{name}'", help=did_you_mean(name, kinds))
    if name != "sgd" and momentum is not None:
        raise BadOption(f"{name} has no momentum", help="--optimizer sgd --momentum 0.9")
    usual: dict[str, Any] = {"lr": DEFAULT.lr, "momentum": DEFAULT.momentum} if name == "sgd" else {}
    given = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "clip_norm": clip_norm}
    made: Optimizer = kinds[name](**{**usual, **{k: v for k, v in given.items() if v is not None}})
    return made


def described(optimizer: Optimizer) -> str:
    """`SGD(momentum=0.9)`: what is not usual, without the learning rate, which can change."""
    given = [(f.name, getattr(optimizer, f.name), f.default) for f in fields(optimizer) if f.name != "lr"]
    text = ", ".join(f"{name}={value}" for name, value, usual in given if value != usual)
    return f"{type(optimizer).__name__}({text})" if text else type(optimizer).__name__


__all__ = ["DEFAULT", "SGD", "Adam", "AdamW", "Optimizer", "by_name", "described"]
