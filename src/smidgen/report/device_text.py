"""Devices as text, for `smidgen devices`."""

from __future__ import annotations

from collections.abc import Sequence

from ..compiler.planner.core_rates import rates_of
from ..devices.device import KINDS, Device
from ..terminal import bytes_text, count_text
from .arena_picture import wrapped


def devices_text(devices: Sequence[Device]) -> str:
    """One line each, by kind."""
    head = ("name", "core", "clock", "RAM", "flash", "stand-in")
    rows = [row for kind in KINDS for row in ((kind,), *(_row(d) for d in devices if d.kind == kind))]
    widths = [max(len(row[i]) for row in (head, *rows) if len(row) > 1) for i in range(len(head))]
    lines = []
    for row in (head, *rows):
        if len(row) == 1:
            lines += ["", row[0]]
            continue
        cells = [c.rjust(w) if 2 <= i <= 4 else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append(f"  {'  '.join(cells)}".rstrip())
    return "\n".join([*lines, "", "`smidgen devices NAME` has the banks, and the source of each figure"])


def _row(d: Device) -> tuple[str, ...]:
    ram = " + ".join(bytes_text(bank.bytes) for bank in d.ram_banks)
    return d.name, d.core, f"{count_text(d.clock_hz)}Hz", ram, _flash(d), d.board or d.target


def _flash(d: Device) -> str:
    return bytes_text(d.flash_bytes) if d.flash_bytes else "any"


def device_text(d: Device, width: int = 100) -> str:
    """Every figure with its source."""
    lines = [f"{d.name}: {d.title}"]

    def add(name: str, figure: str, source: str) -> None:
        first, *rest = wrapped(source, width - 38) or [""]
        lines.append(f"  {name:<9} {figure:>24}  {first}".rstrip())
        lines.extend(" " * 38 + line for line in rest)

    add("core", d.core + (f", {d.fpu}" if d.fpu and d.fpu != "auto" else ""), "")
    add("clock", f"{count_text(d.clock_hz)}Hz", d.sources["clock"])
    for bank in d.ram_banks:
        place = f" at 0x{bank.origin:08x}" if d.is_bare else ""
        add(bank.name, bytes_text(bank.bytes) + place, d.sources[bank.name])
    place = f" at 0x{d.flash_origin:08x}" if d.is_bare and d.flash_bytes else ""
    add("flash", _flash(d) + place, d.sources.get("flash", ""))
    add("align", f"{d.align} bytes", "")
    if d.speed:
        rates = (d.clock_hz / d.speed.cycles_per_mac, int(d.clock_hz / d.speed.cycles_per_byte))
        add("speed", f"{count_text(rates[0])}MAC/s, {bytes_text(rates[1])}/s", d.sources["speed"])
    elif counted := rates_of(d):
        add("speed", "by kernel", counted.source)
    if d.watts:
        add("power", f"{d.watts:g} W", d.sources["power"])
    if d.page:
        add("page", f"{bytes_text(int(d.page.out_bytes_per_s))}/s out", d.sources["page"])
        add("", f"{bytes_text(int(d.page.in_bytes_per_s))}/s in", f"{d.page.watts:g} W")
    if d.board:
        add("stand-in", d.board, "a machine of qemu-system-arm")
    if d.target:
        add("target", d.target, "smidgen build --target")
    for note in d.notes:
        first, *rest = wrapped(note, width - 8)
        lines += [f"  note  {first}", *(" " * 8 + line for line in rest)]
    return "\n".join(lines)
