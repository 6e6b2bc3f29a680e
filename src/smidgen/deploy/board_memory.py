"""Addresses on the emulated board that stands in for a device, and the words for the memory protection unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..devices.cores import Protection
from ..devices.device import Bank, Device, load_device
from ..errors import BadOption

PERIPHERALS = (0x4000_0000, 0x2000_0000)  # address and bytes, on every Cortex-M
SERIAL = {"mps2-an385": 0x4000_4000, "mps2-an386": 0x4000_4000, "mps2-an500": 0x4000_4000}
"""Board → address of its first CMSDK UART, with interrupt 0: QEMU, hw/arm/mps2.c, and Arm's application notes."""
MOST_REGIONS = 8  # of every memory protection unit that we know


def standin(device: Device) -> Device:
    """The same sizes at the addresses of the emulated board; the device itself if it is one."""
    if device.kind == "emulated":
        return device
    if not device.board:
        raise BadOption(f"no emulated board stands in for {device.name}", help="--device mps2-an500, for instance")
    board = load_device(device.board)
    moved: list[Bank] = []
    free = list(board.ram_banks)
    for bank in device.ram_banks:
        at = next((i for i, room in enumerate(free) if room.bytes >= bank.bytes), None)
        if at is None:
            raise BadOption(f"{board.name} has less RAM than {device.name}", help="--device with a board of its own")
        moved.append(replace(bank, origin=free[at].origin))
        free[at] = replace(free[at], origin=free[at].origin + bank.bytes, bytes=free[at].bytes - bank.bytes)
    flash = min(device.flash_bytes, board.flash_bytes)
    return replace(device, name=board.name, ram_banks=tuple(moved), flash_origin=board.flash_origin, flash_bytes=flash)


# -- the memory protection unit ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Region:
    """The two words of a region, and what they mean."""

    base: int
    attributes: int
    note: str


def regions(device: Device, protection: Protection) -> list[Region]:
    """Flash can be read and run, RAM read and written, peripherals as well; all else faults."""
    if protection == "none":
        return []
    make = _v7 if protection == "v7" else _v8
    found = make(device.flash_origin, device.flash_bytes, "flash", f"flash: {device.flash_bytes:,} bytes, read-only")
    for bank in device.ram_banks:
        found += make(bank.origin, bank.bytes, "ram", f"{bank.name}: {bank.bytes:,} bytes, not run")
    found += make(*PERIPHERALS, "peripherals", "peripherals")
    if len(found) > MOST_REGIONS:
        raise BadOption(f"{device.name} has memory that {MOST_REGIONS} regions cannot describe")
    return found


V7_ATTRIBUTES = {
    "flash": 6 << 24 | 1 << 17,
    "ram": 1 << 28 | 3 << 24 | 1 << 17,
    "peripherals": 1 << 28 | 3 << 24 | 1 << 16,
}


def _v7(origin: int, count: int, kind: str, note: str) -> list[Region]:
    """Regions are powers of two at multiples of themselves; from 256 bytes on, each eighth can be left out. The largest
    useful one is taken until all is covered: each brings three more bits of the size."""
    found: list[Region] = []
    at, left = origin, -(-count // 32) * 32
    while left:
        size, skipped, used = max((_v7_fit(at, left, power) for power in range(5, 33)), key=lambda f: f[2] * f[0])
        eighth = size // 8
        off = 0 if size < 256 else sum(1 << i for i in range(8) if not skipped <= i < skipped + used)
        base = at // size * size
        attributes = V7_ATTRIBUTES[kind] | off << 8 | (size.bit_length() - 2) << 1 | 1
        found.append(Region(base, attributes, note))
        taken = size if size < 256 else used * eighth
        at, left, note = at + taken, left - taken, "… and what is left"
    return found


def _v7_fit(at: int, left: int, power: int) -> tuple[int, int, int]:
    """(size, eighths before, eighths used) of a region of 2**power bytes that begins to cover at `at`; size 0: none."""
    size = 1 << power
    if size < 256:
        return (size, 0, 8) if at % size == 0 and left >= size else (0, 0, 0)
    eighth = size // 8
    if at % eighth:
        return 0, 0, 0
    skipped = at % size // eighth
    return size, skipped, min(8 - skipped, left // eighth)


def _v8(origin: int, count: int, kind: str, note: str) -> list[Region]:
    access = {"flash": 3 << 1, "ram": 1 << 1 | 1, "peripherals": 1 << 1 | 1}[kind]
    attribute = 2 if kind == "peripherals" else 1
    last = origin + -(-count // 32) * 32 - 32
    return [Region(origin | access, last | attribute << 1 | 1, note)]


def regions_source(found: Sequence[Region], device: Device) -> str:
    lines = [
        f"/* What the memory protection unit of {device.name} allows; everything else faults. */",
        '#include "board.h"',
        "",
        "const BoardRegion board_regions[] = {",
        *[f"    {{0x{r.base:08x}u, 0x{r.attributes:08x}u}}, /* {r.note} */" for r in found],
        *(["    {0, 0}, /* this core has no such unit */"] if not found else []),
        "};",
        f"const int board_region_count = {len(found)};",
        "extern const uint32_t board_serial; /* serial.h */",
        f"const uint32_t board_serial = 0x{SERIAL.get(device.name, 0):08x}u;",
        "",
    ]
    return "\n".join(lines)


def covered(found: Sequence[Region], protection: Protection) -> list[tuple[int, int]]:
    """(first, end) of every piece that regions allow, as the hardware reads the words. For tests."""
    pieces: list[tuple[int, int]] = []
    for r in found:
        if protection == "v8":
            pieces.append((r.base & ~31, (r.attributes & ~31) + 32))
            continue
        size = 2 << (r.attributes >> 1 & 31)
        parts = [(r.base, r.base + size)] if size < 256 else [
            (r.base + i * size // 8, r.base + (i + 1) * size // 8) for i in range(8) if not r.attributes >> (8 + i) & 1
        ]  # fmt: skip
        pieces += parts
    return pieces
