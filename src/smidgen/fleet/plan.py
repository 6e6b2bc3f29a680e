"""One model on the devices of a fleet: what each can train of it, how that fits, and what it takes. Needs torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from .. import api
from ..devices.device import Device, device_names, load_device
from ..errors import BadOption, DoesNotFit, UnknownDevice, did_you_mean
from ..terminal import bytes_text, seconds_text
from ..train.job import Job
from .terms import Terms

SHORT: Final = {"pi1": "raspberry-pi-1", "pi4": "raspberry-pi-4b", "pizero2": "raspberry-pi-zero-2"}
TECHNIQUES: Final = {"recompute": "recompute", "page": "page", "page_state": "page state", "split": "micro-batches"}
UNITS: Final = ("B", "KB", "MB", "GB")
HEADINGS: Final = ("device", "learns", "numbers", "fits by", "RAM", "of", "step", "each way")


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """`method` is the one that was asked for, or the one that learns most of the model among those that fit. `why` says
    that none does."""

    device: str
    method: str = ""
    precision: str = ""
    techniques: tuple[str, ...] = ()
    ram_bytes: int = 0
    limit_bytes: int = 0
    flash_bytes: int = 0
    batch: int = 0
    step_samples: int = 0
    step_seconds: float = 0.0  # predicted; 0: not known
    step_joules: float = 0.0
    sent_bytes: int = 0  # each way, in each round
    version: str = ""
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def planned(name: str, given: Mapping[str, Any]) -> tuple[DevicePlan, Job | None]:
    """`name` is a device, or a number of bytes; `given` are the arguments of `smidgen.compile` but for the device."""
    asked, limit = _within(name, given)
    try:
        job = api.compile(**asked)
    except DoesNotFit as error:
        method = _best(asked)
        if method is None:
            return DevicePlan(name, limit_bytes=limit, why=error.what), None
        job = api.compile(**{**asked, "method": method})
    plan = job.plan
    kinds = {d.kind for d in plan.decisions}
    asked_for = given.get("precision", "f32")
    numbers = asked_for if isinstance(asked_for, str) else type(asked_for).__name__.lower()
    return DevicePlan(
        name, plan.method, numbers + (", constants int8" if "int8" in kinds else ""),
        tuple(text for kind, text in TECHNIQUES.items() if kind in kinds), plan.ram_bytes, limit, plan.flash_bytes,
        plan.batch, plan.step_samples or plan.batch, plan.step_seconds, plan.step_joules, Terms.of(job).sent_bytes,
        Terms.of(job).version,
    ), job  # fmt: skip


def _within(name: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Arguments of compile, and the RAM that there is."""
    memory = given["memory"]
    if name[:1].isdigit() and name.upper().endswith(UNITS):
        from ..compiler.options import checked_budget

        count = checked_budget(name)
        assert count is not None
        return {**given, "device": None, "memory": replace(memory, budget=count)}, count
    device = device_of(name)
    return {**given, "device": device}, device.ram_bytes if memory.budget is None else int(memory.budget)


def device_of(name: str) -> Device:
    """By its name, a short name, or its file."""
    try:
        return load_device(SHORT.get(name, name))
    except UnknownDevice as error:
        if name.endswith(".toml"):
            raise
        known = [*device_names(), *SHORT]
        help = f"{did_you_mean(name, known)}  (smidgen devices; or a number of bytes: 64KB)"
        raise UnknownDevice(f"there is no device '{name}'", help=help) from error


def _best(asked: Mapping[str, Any]) -> str | None:
    """The method that learns most of the model's own parameters, and fits; those that add others do not share them."""
    with api.prepared(**asked) as task:
        rows = api.compared(task).rows
    return next((row.method for row in rows if row.fits and not row.added_parameters), None)


def names_of(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or len({*names}) < len(names):
        raise BadOption(f"--devices '{text}' is no list of different devices", help="--devices pi4,stm32h743,64KB")
    return names


def advice(rows: Sequence[DevicePlan]) -> str:
    """Which strategies take such a fleet."""
    able = [row for row in rows if not row.why]
    if not able:
        return "no device can learn this model"
    if len({row.version for row in able}) == 1:
        return "all learn the same tensors: any strategy of Flower"
    if any(row.method == "full" for row in able):
        return "they learn different tensors: fleet.Elementwise()"
    return "they learn different tensors: fleet.Elementwise(), with a program at the server that learns them all"


def text_of(rows: Sequence[DevicePlan]) -> str:
    table = [list(HEADINGS)]
    for row in rows:
        step = seconds_text(row.step_seconds) if row.step_seconds else "-"
        fits = ", ".join(row.techniques) or "-"
        table.append(
            [row.device, row.method, row.precision, fits, bytes_text(row.ram_bytes), bytes_text(row.limit_bytes), step,
             bytes_text(row.sent_bytes)]
            if not row.why else [row.device, "nothing", "-", "-", "-", bytes_text(row.limit_bytes), "-", "-"]
        )  # fmt: skip
    widths = [max(len(line[k]) for line in table) for k in range(len(HEADINGS))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in table]
    notes = [f"{row.device}: {row.why}" for row in rows if row.why]
    return "\n".join([*lines, *notes, advice(rows)])


__all__ = ["DevicePlan", "advice", "device_of", "names_of", "planned", "text_of"]
