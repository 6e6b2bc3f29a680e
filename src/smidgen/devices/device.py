"""Devices: RAM as a list of banks, flash, clock, core, speed and power, each figure with its source. The figures live
in devices/*.toml; a figure without a source is refused when the file is read."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Final

from ..errors import Internal, UnknownDevice, did_you_mean

FOLDER: Final = Path(__file__).parent
KINDS: Final = ("microcontroller", "linux", "emulated")
TABLES: Final = ("clock", "flash", "speed", "power", "page")  # of a file, each with a source


@dataclass(frozen=True, slots=True)
class Bank:
    """Memory without a gap; nothing that is placed in it reaches into another bank."""

    name: str
    origin: int  # address; 0 under an operating system
    bytes: int


@dataclass(frozen=True, slots=True)
class Speed:
    """What smidgen's kernels take of the core's time."""

    cycles_per_mac: float  # multiply-accumulate of f32
    cycles_per_byte: float  # read or written
    cycles_per_call: float  # of one instruction of a program, whatever it does


@dataclass(frozen=True, slots=True)
class Paging:
    """Storage to page to. One transfer at a time, while nothing is computed."""

    out_s: float  # of one transfer, whatever its size
    out_bytes_per_s: float
    in_s: float
    in_bytes_per_s: float
    watts: float

    def out_seconds(self, count: int) -> float:
        return self.out_s + count / self.out_bytes_per_s

    def in_seconds(self, count: int) -> float:
        return self.in_s + count / self.in_bytes_per_s


@dataclass(frozen=True, slots=True)
class Device:
    name: str
    title: str
    kind: str  # one of KINDS
    core: str  # as -mcpu names it
    ram_banks: tuple[Bank, ...]  # the first one also takes context and stack
    flash_bytes: int  # 0: no limit (a card of any size)
    flash_origin: int
    clock_hz: int
    align: int  # of slots, in bytes
    fpu: str = ""  # as -mfpu names it; empty: none
    board: str = ""  # the QEMU machine that stands in
    target: str = ""  # of `smidgen build --target`, under an operating system
    speed: Speed | None = None  # None: that of its core, or estimated from the clock
    watts: float = 0.0  # while it computes; 0: not known
    page: Paging | None = None  # None: not known where it would page to
    sources: Mapping[str, str] = field(default_factory=dict)  # a table's or a bank's name → where it is written
    notes: tuple[str, ...] = ()
    slot_bytes: int = 0  # flash kept free for each of two slots of saved state: the user's choice, in no file

    @property
    def ram_bytes(self) -> int:
        """Of all banks together; what must be in one piece has to fit one of them."""
        return sum(bank.bytes for bank in self.ram_banks)

    @property
    def is_bare(self) -> bool:
        """Without an operating system."""
        return self.kind != "linux"

    def to_json(self) -> dict[str, Any]:
        facts = {name: value for name, value in asdict(self).items() if name != "slot_bytes"}
        return {**facts, "ram_bytes": self.ram_bytes}


def device_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


@cache
def load_device(name: str) -> Device:
    """A device by its name, or by the path of a .toml file of the same form."""
    if name.endswith(".toml"):
        return _own(Path(name))
    if name not in device_names():
        help = f"{did_you_mean(name, device_names())}  (smidgen devices)"
        raise UnknownDevice(f"there is no device '{name}'", help=help)
    try:
        return parsed(name, (FOLDER / f"{name}.toml").read_text())
    except (KeyError, TypeError, ValueError) as error:  # TOMLDecodeError is a ValueError
        raise Internal(f"devices/{name}.toml cannot be used", why=f"{type(error).__name__}: {error}") from error


def _own(path: Path) -> Device:
    try:
        return parsed(path.stem, path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnknownDevice(f"cannot read '{path}'", why=error.strerror or str(error)) from error
    except KeyError as error:
        raise UnknownDevice(f"'{path}' does not describe a device", why=f"{error} is missing") from error
    except (TypeError, ValueError) as error:
        raise UnknownDevice(f"'{path}' does not describe a device", why=str(error)) from error


def parsed(name: str, text: str) -> Device:
    """The device that a file describes. ValueError, KeyError or TypeError unless it is complete and makes sense."""
    data = tomllib.loads(text)
    known = {"title", "kind", "core", "fpu", "align", "board", "target", "notes", *TABLES, "ram"}
    _no_others(data, known)
    banks = tuple(Bank(_text(b["name"]), _count(b["origin"], 0), _count(b["bytes"])) for b in data["ram"])
    if not banks or len({b.name for b in banks}) < len(banks) or {b.name for b in banks} & set(TABLES):
        raise ValueError("banks need names of their own")
    flash = data.get("flash")
    sources: dict[str, str] = {n: _text(data[n]["source"]) for n in TABLES if n in data or n == "clock"}
    sources |= {b["name"]: _text(b["source"]) for b in data["ram"]}
    device = Device(
        name=name,
        title=_text(data["title"]),
        kind=data["kind"],
        core=_text(data["core"]),
        ram_banks=banks,
        flash_bytes=0 if flash is None else _count(flash["bytes"]),
        flash_origin=0 if flash is None else _count(flash["origin"], 0),
        clock_hz=_count(data["clock"]["hz"]),
        align=data["align"],
        fpu=data.get("fpu", ""),
        board=data.get("board", ""),
        target=data.get("target", ""),
        speed=_speed(data),
        watts=_watts(data),
        page=_paging(data["page"]) if "page" in data else None,
        sources=sources,
        notes=tuple(_text(note) for note in data.get("notes", [])),
    )
    if device.kind not in KINDS or device.align not in (4, 8, 16, 32, 64):
        raise ValueError("kind or align is not one that smidgen knows")
    if device.is_bare and any(a.origin < b.origin + b.bytes and b.origin < a.origin + a.bytes
                              for a in banks for b in banks if a is not b):  # fmt: skip
        raise ValueError("two banks overlap")
    return device


def _speed(data: Mapping[str, Any]) -> Speed | None:
    """With the power, always: where seconds are known, joules are asked for."""
    if "speed" not in data:
        return None
    speed, _ = data["speed"], data["power"]
    _no_others(speed, {"cycles_per_mac", "cycles_per_byte", "cycles_per_call", "source"})
    mac, byte, call = (_figure(speed[f"cycles_per_{what}"]) for what in ("mac", "byte", "call"))
    return Speed(mac, byte, call)


def _watts(data: Mapping[str, Any]) -> float:
    if "power" not in data:
        return 0.0
    _no_others(data["power"], {"watts", "source"})
    return _figure(data["power"]["watts"])


def _paging(table: Mapping[str, Any]) -> Paging:
    names = [f.name for f in fields(Paging)]
    _no_others(table, {*names, "source"})
    return Paging(**{name: _figure(table[name]) for name in names})


def _no_others(table: Mapping[str, Any], known: set[str]) -> None:
    if set(table) - known:
        raise ValueError(f"unknown key '{min(set(table) - known)}'")


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a text is missing")
    return value


def _count(value: Any, least: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{value!r} is not a number of bytes, an address or a frequency")
    return value


def _figure(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError(f"{value!r} is not a number of cycles, seconds, bytes a second or watts: it is above 0")
    return float(value)
