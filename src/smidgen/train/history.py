"""What `fit` returns: one record per epoch, and how the run ended. Also the form in which checkpoints keep it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..terminal import bytes_text, count_text, seconds_text

JsonDict = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Epoch:
    """`loss` is the mean over the epoch's samples, each before its step; `eval` what was measured after it."""

    epoch: int  # counted from 1
    loss: float
    eval: Mapping[str, float] | None
    lr: float  # of the last step
    seconds: float  # of training, without `eval`
    samples: int

    def to_json(self) -> JsonDict:
        """As the command line prints it; numbers that are not finite become null."""
        measured = None if self.eval is None else {k: _finite(v) for k, v in self.eval.items()}
        return {
            "epoch": self.epoch, "loss": _finite(self.loss), "eval": measured, "lr": self.lr, "seconds": self.seconds,
            "samples": self.samples, "samples_per_s": self.samples / self.seconds if self.seconds else None,
        }  # fmt: skip

    def __str__(self) -> str:
        return "  ".join(f"{name} {value}" for name, value in self._cells().items())

    def _cells(self) -> dict[str, str]:
        cells = {"epoch": str(self.epoch), "loss": f"{self.loss:.4g}"}
        if self.eval is not None:
            cells |= metrics_cells(self.eval)
        cells["samples/s"] = count_text(self.samples / self.seconds) if self.seconds else "-"
        return cells | {"time": seconds_text(self.seconds)}


@dataclass(frozen=True, slots=True)
class Switch:
    """To another plan of a ladder, after `step` steps of the run."""

    step: int
    rung: int
    ram_bytes: int
    why: str

    def to_json(self) -> JsonDict:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class History:
    """`stopped` is done, patience (nothing got better for so long) or interrupted (Ctrl-C)."""

    epochs: tuple[Epoch, ...]  # those that were finished
    steps: int
    samples: int
    seconds: float
    stopped: str
    best_epoch: int | None = None  # with the lowest eval loss, or training loss if nothing was measured
    restored: bool = False  # the job is back in the state after `best_epoch`
    switches: tuple[Switch, ...] = ()  # among the plans of a ladder, with follow_memory

    @property
    def last(self) -> Epoch | None:
        """The last epoch that was finished."""
        return self.epochs[-1] if self.epochs else None

    def to_json(self) -> JsonDict:
        """Numbers that are not finite become null."""
        return {
            "epochs": [e.to_json() for e in self.epochs], "steps": self.steps, "samples": self.samples,
            "seconds": self.seconds, "stopped": self.stopped, "best_epoch": self.best_epoch, "restored": self.restored,
            "switches": [s.to_json() for s in self.switches],
        }  # fmt: skip

    def __str__(self) -> str:
        rows = [e._cells() for e in self.epochs]
        names = list(dict.fromkeys(name for row in rows for name in row))
        table = [names, *([row.get(name, "") for name in names] for row in rows)] if rows else []
        widths = [max(len(line[k]) for line in table) for k in range(len(names))]
        lines = ["  ".join(f"{cell:>{w}}" for cell, w in zip(line, widths, strict=True)) for line in table]
        return "\n".join([*lines, self._ending()])

    def _ending(self) -> str:
        why = {
            "done": "done",
            "patience": "stopped: nothing got better any more",
            "interrupted": "stopped by Ctrl-C",
        }[self.stopped]
        back = f"; back in the state after epoch {self.best_epoch}" if self.restored else ""
        took = f"{why}{back}; {self.steps} steps, {self.samples} samples, {seconds_text(self.seconds)}"
        if not self.switches:
            return took
        count = "1 switch" if len(self.switches) == 1 else f"{len(self.switches)} switches"
        return f"{took}; {count} of plans, down to {bytes_text(min(s.ram_bytes for s in self.switches))}"


def metrics_cells(measured: Mapping[str, float]) -> dict[str, str]:
    """Names and values of an evaluation, for people."""
    cells = {"eval loss": f"{measured['loss']:.4g}"} if "loss" in measured else {}
    return cells | ({"accuracy": f"{measured['accuracy']:.1%}"} if "accuracy" in measured else {})


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


# -- where a run stands ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Best:
    epoch: int
    loss: float
    state: bytes | memoryview | None = None  # kept if `fit` has patience


@dataclass(frozen=True, slots=True)
class Position:
    """Everything about a run that is not in STATE. `stopped` is empty while it goes on."""

    step: int = 0  # of this epoch
    steps: int = 0  # of the run
    samples: int = 0  # of the run
    epoch_samples: int = 0
    loss_sum: float = 0.0  # of loss × samples, in this epoch
    seconds: float = 0.0  # of this epoch
    lr: float = 0.0
    epochs: tuple[Epoch, ...] = ()
    best: Best | None = None
    stopped: str = ""
    restored: bool = False
    switches: tuple[Switch, ...] = ()

    def history(self, stopped: str) -> History:
        seconds = sum(e.seconds for e in self.epochs) + self.seconds
        best = None if self.best is None else self.best.epoch
        return History(self.epochs, self.steps, self.samples, seconds, stopped, best, self.restored, self.switches)

    def to_json(self) -> JsonDict:
        """Without the best state, which is stored as bytes."""
        whole = ("step", "steps", "samples", "epoch_samples", "loss_sum", "seconds", "lr", "stopped", "restored")
        best = None if self.best is None else {"epoch": self.best.epoch, "loss": self.best.loss}
        parts = ("epoch", "loss", "lr", "seconds", "samples")
        epochs = [{k: getattr(e, k) for k in parts} | {"eval": e.eval and dict(e.eval)} for e in self.epochs]
        switches = [s.to_json() for s in self.switches]
        return {k: getattr(self, k) for k in whole} | {"best": best, "epochs": epochs, "switches": switches}

    @staticmethod
    def from_json(data: Mapping[str, Any], best_state: bytes | memoryview | None) -> Position:
        """Raises TypeError, KeyError, ValueError or OverflowError for what `to_json` does not write."""
        best = None
        if data["best"] is not None:
            best = Best(_count(data["best"]["epoch"]), _number(data["best"]["loss"]), best_state)
        elif best_state is not None:
            raise ValueError("a best state without its epoch")
        epochs = tuple(
            Epoch(
                _count(e["epoch"]), _number(e["loss"]),
                None if e["eval"] is None else {str(k): _number(v) for k, v in e["eval"].items()},
                _finite_number(e["lr"]), _finite_number(e["seconds"]), _count(e["samples"]),
            )
            for e in data["epochs"]
        )  # fmt: skip
        if data["stopped"] not in ("", "done", "patience") or [e.epoch for e in epochs] != list(
            range(1, len(epochs) + 1)
        ):
            raise ValueError("epochs out of order")
        if best is not None and not 1 <= best.epoch <= len(epochs):
            raise ValueError("the best epoch is none of them")
        switches = tuple(
            Switch(_count(s["step"]), _count(s["rung"]), _count(s["ram_bytes"]), str(s["why"]))
            for s in data.get("switches", ())  # older files have none
        )
        step, steps, samples = _count(data["step"]), _count(data["steps"]), _count(data["epoch_samples"])
        if step > min(steps, samples) or (samples and not step):
            raise ValueError("steps and samples of the epoch do not fit")
        return Position(
            step, steps, _count(data["samples"]), samples, _finite_number(data["loss_sum"]),
            _finite_number(data["seconds"]), _finite_number(data["lr"]), epochs, best, data["stopped"],
            bool(data["restored"]), switches,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Run:
    """A run and where it stands; `step` is that of the job there."""

    settings: Mapping[str, Any]
    position: Position
    step: int


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


def _number(value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise ValueError(f"{value!r} is no number")
    return float(value)


def _finite_number(value: Any) -> float:
    if not math.isfinite(_number(value)):
        raise ValueError(f"{value!r} is not finite")
    return float(value)


__all__ = ["Best", "Epoch", "History", "Position", "Run", "Switch", "metrics_cells"]
