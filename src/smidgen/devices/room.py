"""RAM and flash as hard limits, of a device or a byte budget: what a program needs there, and in which banks it lies.
STATE is whole in one bank and so is ARENA; context and stack are in the first one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from ..errors import BadOption
from ..ir import ALIGN
from ..program.program import Program
from ..program.reader import REGION_BYTES
from ..runtime import library
from ..runtime.work import Work
from . import overhead
from .cores import core_of, is_ported
from .device import Bank, Device

SLOT_HEADER_BYTES: Final = 32  # slots.h
SLOT_UNIT: Final = 32  # the most that a flash writes at a time
CONTEXT_BYTES_32: Final = 1048  # sizeof(SmgContext) where pointers have four bytes


@dataclass(frozen=True, slots=True)
class Overhead:
    """What the runtime itself takes on a device."""

    context_bytes: int
    stack_bytes: int
    code_bytes: int = 0  # of flash; 0: not known before the firmware is linked


def device_overhead(device: Device | None, program: Program) -> Overhead:
    """Context, stack and code of the runtime on `device`, or on this machine."""
    if device is not None and is_ported(device):
        core = core_of(device).name
        return Overhead(overhead.limits([program]).context_bytes, overhead.stack_bytes([program], core))
    if device is not None and device.is_bare:
        return Overhead(CONTEXT_BYTES_32, library.stack_bytes())
    return host_overhead()


def host_overhead() -> Overhead:
    return Overhead(library.context_bytes(), library.stack_bytes())


@dataclass(frozen=True, slots=True)
class Need:
    """What a program takes of a device."""

    state_bytes: int
    arena_bytes: int
    overhead: Overhead
    flash_bytes: int  # without code

    @property
    def ram_bytes(self) -> int:
        return self.state_bytes + self.arena_bytes + self.overhead.context_bytes + self.overhead.stack_bytes

    def with_work(self, work: Work) -> int:
        """RAM, with what the kernels take beside the program."""
        return self.ram_bytes + work.beside(self.state_bytes + self.arena_bytes)


@dataclass(frozen=True, slots=True)
class Limit:
    """What a program may take: the RAM and flash of a device, a byte budget, or both. `work_bytes` of the RAM are kept
    for the work memory of fast kernels; the banks are what is left of it."""

    name: str  # as errors say it
    ram_banks: tuple[Bank, ...]
    device: Device | None = None  # None: a budget of this machine
    work_bytes: int = 0
    work_threads: int = 1
    is_rung: bool = False  # of a ladder: its work memory is that of the largest rung

    @staticmethod
    def of_device(device: Device) -> Limit:
        return Limit(device.name, device.ram_banks, device)

    @staticmethod
    def of_budget(ram_bytes: int, device: Device | None = None, work_bytes: int = 0, threads: int = 1) -> Limit:
        """A number of bytes, on a device taken from its last banks. Work memory may take more than there is."""
        left = ram_bytes - work_bytes
        if device is None:
            return Limit("the budget", (Bank("RAM", 0, left),), None, work_bytes, threads)
        banks: list[Bank] = []
        for bank in device.ram_banks:
            if left > 0 or not banks:
                banks.append(replace(bank, bytes=min(bank.bytes, left)))
                left -= bank.bytes
        name = device.name if ram_bytes >= device.ram_bytes else "the budget"
        return Limit(name, tuple(banks), device, work_bytes, threads)

    @staticmethod
    def nothing(device: Device | None) -> Limit:
        """One byte: whatever is made for it is as small as it comes."""
        return Limit.of_budget(1, device)

    @property
    def work(self) -> Work:
        """The kernels that it is for."""
        return Work("fast" if self.work_bytes else "exact", self.work_threads)

    @property
    def ram_bytes(self) -> int:
        """Of all banks together; what must be in one piece has to fit one of them."""
        return sum(bank.bytes for bank in self.ram_banks)

    @property
    def flash_bytes(self) -> int:
        """0: no limit."""
        return 0 if self.device is None else self.device.flash_bytes

    @property
    def slot_bytes(self) -> int:
        return 0 if self.device is None else self.device.slot_bytes

    @property
    def align(self) -> int:
        return ALIGN if self.device is None else self.device.align

    @property
    def is_bare(self) -> bool:
        """Without an operating system."""
        return self.device is not None and self.device.is_bare


def need_of(device: Device | None, program: Program) -> Need:
    return Need(program.state_bytes, program.arena_bytes, device_overhead(device, program), program.flash_bytes)


def assigned(limit: Limit, need: Need) -> dict[str, str] | None:
    """Region → bank, or None if no assignment fits. One bank if that is possible, the first of them; else the
    assignment that leaves the most room in its fullest bank."""
    first = need.overhead.context_bytes + need.overhead.stack_bytes
    best: tuple[tuple[int, int], dict[str, str]] | None = None
    for state in range(len(limit.ram_banks)):
        for arena in range(len(limit.ram_banks)):
            used = [0] * len(limit.ram_banks)
            used[0] += first
            used[state] += need.state_bytes
            used[arena] += need.arena_bytes
            free = [bank.bytes - count for bank, count in zip(limit.ram_banks, used, strict=True)]
            if min(free) < 0:
                continue
            banks = len({0, state, arena})
            rank = (-banks, -state - arena if banks == 1 else min(free[i] for i in {0, state, arena}))
            if best is None or rank > best[0]:
                names = [limit.ram_banks[i].name for i in (0, state, arena)]
                best = rank, dict(zip(("stack", "state", "arena"), names, strict=True))
    return None if best is None else best[1]


def arena_room(limit: Limit, need: Need) -> int:
    """The largest arena that would fit beside the rest; negative if not even the rest fits."""
    first = need.overhead.context_bytes + need.overhead.stack_bytes
    rooms = []
    for state in range(len(limit.ram_banks)):
        free = [bank.bytes for bank in limit.ram_banks]
        free[0] -= first
        free[state] -= need.state_bytes
        rooms.append(max(free) if min(free) >= 0 else min(free))
    return max(rooms)


def least_budget(need: Need, device: Device | None, work: Work) -> int:
    """The smallest budget that holds it, with the work memory of these kernels. On a device with several banks that may
    be more than the sum of its parts; what the device cannot hold at all needs the sum."""
    if device is None or len(device.ram_banks) == 1:
        return work.budget_for(need.ram_bytes)
    low, high = need.ram_bytes, device.ram_bytes
    if assigned(Limit.of_budget(high, device), need) is None:
        return work.budget_for(low)
    while low < high:
        middle = (low + high) // 2
        if assigned(Limit.of_budget(middle, device), need) is None:
            low = middle + 1
        else:
            high = middle
    return work.budget_for(high)


def over_flash(limit: Limit, need: Need) -> bool:
    whole = need.flash_bytes + need.overhead.code_bytes + 2 * limit.slot_bytes
    return bool(limit.flash_bytes) and whole > limit.flash_bytes


def with_slots(device: Device | None, slot_bytes: int) -> Device | None:
    """The device with so much flash kept free for each of two slots."""
    if slot_bytes < 0:
        raise BadOption(f"--slot-bytes {slot_bytes} is not a number of bytes", help="--slot-bytes 131072")
    if slot_bytes and (device is None or not device.flash_bytes):
        raise BadOption("--slot-bytes needs --device", help="--device stm32f746, for instance (smidgen devices)")
    return device if device is None else replace(device, slot_bytes=slot_bytes)


def check_slots(device: Device, program: Program) -> None:
    """Does a slot hold what the program saves?"""
    least = SLOT_HEADER_BYTES + -(-program.saved_bytes // SLOT_UNIT) * SLOT_UNIT
    if 0 < device.slot_bytes < least:
        raise BadOption(f"a slot of {device.slot_bytes:,} bytes is too small", why=f"state and header take {least:,}")


def fits(limit: Limit, need: Need) -> bool:
    return assigned(limit, need) is not None and not over_flash(limit, need) and not beyond(need)


def beyond(need: Need) -> str:
    """What is said of regions that no program can address, however much RAM there is; else nothing."""
    for region, size in (("STATE", need.state_bytes), ("ARENA", need.arena_bytes)):
        if size > REGION_BYTES:
            return f"{region} needs {size} bytes, a program can address {REGION_BYTES}"
    return ""
