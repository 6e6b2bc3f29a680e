"""A device's RAM and flash as hard limits: what a program needs there, in which banks it lies, and what to say when it
does not fit. STATE is whole in one bank and so is ARENA; context and stack are in the first one."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from . import native
from .device import Bank, Device
from .effort import Effort
from .errors import BadOption, DoesNotFit, SmidgenError
from .firmware import budget
from .firmware.cores import core_of, is_ported
from .optimizers import SGD, Optimizer
from .place import ALIGN
from .plan import Plan
from .program import REGION_BYTES, Program
from .terminal import bytes_text, seconds_text

MOST_NAMED: Final = 3  # tensors in a message
ANSWER_S: Final = 6.5  # of effort, after which no further choice is tried, so that an answer comes within ten seconds
TRYING_S: Final = 1.0  # of effort for other choices, however much was spent before
OTHER_METHODS: Final = ("last_layer", "bias")  # tried when a plan does not fit
BUDGET: Final = "the budget"  # stands for a device of just that much RAM
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
        return Overhead(budget.limits([program]).context_bytes, budget.stack_bytes([program], core))
    if device is not None and device.is_bare:
        return Overhead(CONTEXT_BYTES_32, native.stack_bytes())
    return host_overhead()


def host_overhead() -> Overhead:
    return Overhead(native.context_bytes(), native.stack_bytes())


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

    def with_work(self, work: native.Work) -> int:
        """RAM, with what the kernels take beside the program."""
        return self.ram_bytes + work.beside(self.state_bytes + self.arena_bytes)


def need_of(device: Device, program: Program) -> Need:
    return Need(program.state_bytes, program.arena_bytes, device_overhead(device, program), program.flash_bytes)


def assigned(device: Device, need: Need) -> dict[str, str] | None:
    """Region → bank, or None if no assignment fits. One bank if that is possible, the first of them; else the
    assignment that leaves the most room in its fullest bank."""
    first = need.overhead.context_bytes + need.overhead.stack_bytes
    best: tuple[tuple[int, int], dict[str, str]] | None = None
    for state in range(len(device.ram_banks)):
        for arena in range(len(device.ram_banks)):
            used = [0] * len(device.ram_banks)
            used[0] += first
            used[state] += need.state_bytes
            used[arena] += need.arena_bytes
            free = [bank.bytes - count for bank, count in zip(device.ram_banks, used, strict=True)]
            if min(free) < 0:
                continue
            banks = len({0, state, arena})
            rank = (-banks, -state - arena if banks == 1 else min(free[i] for i in {0, state, arena}))
            if best is None or rank > best[0]:
                names = [device.ram_banks[i].name for i in (0, state, arena)]
                best = rank, dict(zip(("stack", "state", "arena"), names, strict=True))
    return None if best is None else best[1]


def arena_room(device: Device, need: Need) -> int:
    """The largest arena that would fit beside the rest; negative if not even the rest fits."""
    first = need.overhead.context_bytes + need.overhead.stack_bytes
    rooms = []
    for state in range(len(device.ram_banks)):
        free = [bank.bytes for bank in device.ram_banks]
        free[0] -= first
        free[state] -= need.state_bytes
        rooms.append(max(free) if min(free) >= 0 else min(free))
    return max(rooms)


def within(budget_bytes: int, device: Device | None, work_bytes: int = 0, threads: int = 1) -> Device:
    """The device with no more RAM than the budget, taken from its last banks; without a device, that much RAM. Of a
    budget so much goes to the kernels' work memory; less than nothing may be left."""
    left = budget_bytes - work_bytes
    if device is None:
        bank = Bank("RAM", 0, left)
        return Device(BUDGET, BUDGET, "linux", "", (bank,), flash_bytes=0, flash_origin=0, clock_hz=0, align=ALIGN,
                      work_bytes=work_bytes, work_threads=threads)  # fmt: skip
    banks: list[Bank] = []
    for bank in device.ram_banks:
        if left > 0 or not banks:
            banks.append(replace(bank, bytes=min(bank.bytes, left)))
            left -= bank.bytes
    return replace(device, ram_banks=tuple(banks), work_bytes=work_bytes, work_threads=threads)


def over_flash(device: Device, need: Need) -> bool:
    whole = need.flash_bytes + need.overhead.code_bytes + 2 * device.slot_bytes
    return bool(device.flash_bytes) and whole > device.flash_bytes


def with_slots(device: Device | None, slot_bytes: int) -> Device | None:
    """The device with so much flash kept free for each of two slots."""
    if slot_bytes < 0:
        raise BadOption(f"--slot-bytes {slot_bytes} is not a number of bytes", help="--slot-bytes 131072")
    if slot_bytes and (device is None or not device.flash_bytes):
        raise BadOption(
            "slots in the flash of which device?", help="--device stm32f746, for instance (smidgen devices)"
        )
    return device if device is None else replace(device, slot_bytes=slot_bytes)


def check_slots(device: Device, program: Program) -> None:
    """Does a slot hold what the program saves?"""
    least = SLOT_HEADER_BYTES + -(-program.saved_bytes // SLOT_UNIT) * SLOT_UNIT
    if 0 < device.slot_bytes < least:
        raise BadOption(f"a slot of {device.slot_bytes:,} bytes is too small", why=f"state and header take {least:,}")


def fits(device: Device, need: Need) -> bool:
    return assigned(device, need) is not None and not over_flash(device, need) and not beyond(need)


def beyond(need: Need) -> str:
    """What is said of regions that no program can address, however much RAM there is; else nothing."""
    for region, size in (("STATE", need.state_bytes), ("ARENA", need.arena_bytes)):
        if size > REGION_BYTES:
            return f"{region} needs {size} bytes, a program can address {REGION_BYTES}"
    return ""


# -- what is said when it does not fit ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Option:
    """Other arguments of `compile`, and what they were found to need; if that is the question, what a step takes."""

    arguments: Mapping[str, Any]
    need: Need
    seconds: float | None = None

    def text(self, command_line: bool, work_bytes: int = 0) -> str:
        typed = " ".join(_typed(*one) for one in self.arguments.items())
        called = ", ".join(f"{name}={_called(value)}" for name, value in self.arguments.items())
        needs = f"needs {_up(self.need.ram_bytes + work_bytes)}"
        takes = needs if self.seconds is None else f"takes {seconds_text(self.seconds)}"
        return f"{typed if command_line else called} {takes}"


def _typed(name: str, value: Any) -> str:
    """An argument as the command line has it; another optimizer is one without momentum."""
    return "--momentum 0" if name == "optimizer" else f"--{name.replace('_', '-')} {value}"


def _called(value: Any) -> str:
    """A value as Python has it; an optimizer as its constructor is called, without what is usual."""
    if not isinstance(value, Optimizer):
        return repr(value)
    given = {f.name: getattr(value, f.name) for f in fields(value) if getattr(value, f.name) != f.default}
    return f"smidgen.{type(value).__name__}({', '.join(f'{name}={one}' for name, one in given.items())})"


def _up(count: int) -> str:
    """As a budget this is enough."""
    return bytes_text(count, math.ceil)


def _apart(needs: int, has: int) -> tuple[str, str]:
    """What is needed and the less that there is, in figures that differ."""
    if _up(needs) != bytes_text(has):
        return _up(needs), bytes_text(has)
    return f"{needs:,} bytes", f"{has:,}"


class OverLimit(DoesNotFit):
    """It does not fit the device. `help` names only what was compiled and measured. `exact`: what fits if kernels take
    no memory of their own. `effort_s`: with so much, something that fits may be found; 0: that is known to be in vain,
    or not known."""

    def __init__(
        self, what: str, *, at: str, why: str, options: Sequence[Option], device: Device, exact: Option | None = None,
        effort_s: float = 0.0,
    ) -> None:  # fmt: skip
        self.options, self.device, self.exact, self.effort_s = tuple(options), device, exact, effort_s
        super().__init__(what, at=at, why=why, help=self._help(command_line=False))

    def in_command_line(self) -> DoesNotFit:
        """The same with options as they are typed."""
        return DoesNotFit(self.what, at=self.at, why=self.why, help=self._help(command_line=True))

    def _help(self, command_line: bool) -> str:
        work = self.device.work_bytes
        good = [option.text(command_line, work) for option in self.options if fits(self.device, option.need)]
        good = [*([self.exact.text(command_line, 0)] if self.exact else []), *good]
        if good:
            return "; ".join(good)
        longer = f"--effort {self.effort_s:g}" if command_line else f"effort={self.effort_s:g}"
        longer = f"{longer} looks further: nothing says that it cannot fit" if self.effort_s else ""
        tried = sorted(self.options, key=lambda option: option.need.ram_bytes)
        said = "1 other choice was tried, it does not fit" if len(tried) == 1 else (
            f"{len(tried)} other choices were tried, none fits" if tried else "")  # fmt: skip
        return "; ".join(filter(None, [longer, said, *(option.text(command_line, work) for option in tried)]))


class TooLate(OverLimit):
    """A step takes longer than the deadline. `later_s`: a deadline that what was found meets; `more_bytes`: RAM that
    would do; 0: neither is known."""

    def __init__(
        self, what: str, *, why: str, options: Sequence[Option], device: Device, deadline_s: float, later_s: float,
        more_bytes: int,
    ) -> None:  # fmt: skip
        self.deadline_s, self.later_s, self.more_bytes = deadline_s, later_s, more_bytes
        super().__init__(what, at="", why=why, options=options, device=device)

    def _help(self, command_line: bool) -> str:
        digits = 2 - math.floor(math.log10(self.later_s)) if self.later_s else 0
        later = f"{math.ceil(self.later_s * 10**digits) / 10**digits:.12g}"
        said = [f"--deadline {later}" if command_line else f"deadline={later}"] if self.later_s else []
        more = _up(self.more_bytes).replace(" ", "")
        said += [f"--budget {more}" if command_line else f"budget='{more}'"] if self.more_bytes else []
        good = [one.text(command_line) for one in self.options if self._is_good(one)]
        tried = [one.text(command_line) for one in self.options if not good]
        return "; ".join([*said, *good, *(["in vain: " + ", ".join(tried)] if tried else [])])

    def _is_good(self, one: Option) -> bool:
        return fits(self.device, one.need) and one.seconds is not None and one.seconds <= self.deadline_s


Price = Callable[[Mapping[str, Any]], Need | None]
"""What the program would need with these arguments instead; None if it cannot be compiled."""


def has_effort(answer: Effort) -> bool:
    """Half of the effort for an answer is for other choices."""
    return answer.left_s > ANSWER_S / 2


def _for_options(answer: Effort | None) -> Effort:
    return Effort.of(max(TRYING_S, ANSWER_S if answer is None else answer.left_s))


def over_limit(
    device: Device, plan: Plan, need: Need, optimizer: Optimizer, price: Price, answer: Effort | None = None,
    effort_s: float = 0.0,
) -> OverLimit:  # fmt: skip
    """The error, with the options that were tried in vain or not. `answer`: the effort for it, or what is left."""
    trying = _for_options(answer)
    flash, code, slots = need.flash_bytes, need.overhead.code_bytes, 2 * device.slot_bytes
    if assigned(device, need) is not None:
        parts = [f"initial state {bytes_text(plan.state_bytes)}"] if plan.state_bytes else []
        const = [s for s in plan.facts.stored if s.role == "const"]
        if const:
            parts.insert(0, f"constants {bytes_text(sum(s.bytes for s in const))}")
        parts += [f"code {bytes_text(code)}"] if code else []
        parts += [f"two slots {bytes_text(slots)}"] if slots else []
        needs, has = _apart(flash + code + slots, device.flash_bytes)
        what = f"needs {needs} of flash, {device.name} has {has}"
        return OverLimit(what, at="", why="in it: " + ", ".join(parts), options=(), device=device)
    at, live = _peak(plan)
    rest = f"state {bytes_text(need.state_bytes)}, context and stack " + bytes_text(
        need.overhead.context_bytes + need.overhead.stack_bytes
    )
    work = device.work_bytes
    rest += f", work memory of fast kernels {bytes_text(work)}" if work else ""
    why = f"live there: {live}; besides {rest}" if live else rest
    needs, has = _apart(need.ram_bytes + work, device.ram_bytes + work)
    what = f"needs {needs} of RAM, {device.name} has {_banks(device) or has}"
    if need.ram_bytes <= device.ram_bytes:
        why = (f"neither the state of {bytes_text(need.state_bytes)} nor the arena of {bytes_text(need.arena_bytes)} "
               f"may be spread over banks; {why}")  # fmt: skip
    one_thread = {"threads": 1} if device.work_threads > 1 else {}
    is_small = work and need.ram_bytes <= device.ram_bytes + work
    exact = Option({"kernels": "exact", **one_thread}, need) if is_small else None
    options = list(_tried(device, plan, optimizer, price, trying))
    return OverLimit(what, at=at, why=why, options=options, device=device, exact=exact, effort_s=effort_s)


def too_late(
    device: Device, samples: int, method: str, why: str, deadline_s: float,
    price: Callable[[Mapping[str, Any]], Option], *, found_s: float = 0.0, least_s: float = 0.0, more_bytes: int = 0,
    answer: Effort | None = None,
) -> TooLate:  # fmt: skip
    """The error, with what fewer samples and other methods take. What was found takes `found_s`, or it is known
    without looking that nothing takes less than `least_s`."""
    trying = _for_options(answer)
    takes = f"a step takes about {seconds_text(found_s)}" if found_s else (
        f"a step that fits takes at least {seconds_text(least_s)}")  # fmt: skip
    what = f"{takes}, the deadline is {seconds_text(deadline_s)}"
    tried: list[Option] = []
    choices: list[dict[str, Any]] = [{"batch": samples >> k} for k in range(1, samples.bit_length())]
    for choice in [*choices, *({"method": name} for name in OTHER_METHODS if name != method)]:
        done = any(one.seconds is not None and one.seconds <= deadline_s and "batch" in one.arguments for one in tried)
        if not trying.is_spent and not (done and "batch" in choice):
            with contextlib.suppress(SmidgenError):
                tried.append(price(choice))
    return TooLate(
        what, why=why, options=tried, device=device, deadline_s=deadline_s, later_s=found_s, more_bytes=more_bytes
    )


def _banks(device: Device) -> str:
    """RAM in several pieces."""
    if len(device.ram_banks) == 1 or device.work_bytes:
        return ""
    return " + ".join(f"{bytes_text(bank.bytes)} ({bank.name})" for bank in device.ram_banks)


def _peak(plan: Plan) -> tuple[str, str]:
    """Where the arena is fullest, and the largest tensors there."""
    if not plan.facts.entries:
        return "", ""
    entry = max(plan.facts.entries, key=lambda e: (plan.arena_by_entry[e], e == "train"))
    timeline = plan.facts.entries[entry]
    at, _ = timeline.peak()
    if not timeline.moments:
        return "", ""
    moment, alive = timeline.moments[at], timeline.alive(at)
    named = [f"{span.tensor} {bytes_text(span.bytes)}" for span in alive[:MOST_NAMED]]
    rest = alive[MOST_NAMED:]
    named += [f"{len(rest)} more {bytes_text(sum(s.bytes for s in rest))}"] if rest else []
    stage = "" if moment.stage == "io" else f"{moment.stage}, "
    return f"{moment.layer} ({stage}step {at + 1} of {len(timeline.moments)} of {entry})", ", ".join(named)


def _tried(device: Device, plan: Plan, optimizer: Optimizer, price: Price, trying: Effort) -> Iterator[Option]:
    """Fewer samples, until it fits; the same without momentum; pages; other methods, and those with one sample. If not
    even one sample fits, nothing between is tried; nor is anything more when the effort is spent."""

    def priced(**arguments: Any) -> Iterator[Option]:
        need = None if trying.is_spent else price(arguments)
        if need is not None:
            yield Option(arguments, need)

    samples = plan.step_samples
    plain = replace(optimizer, momentum=0.0, nesterov=False) if isinstance(optimizer, SGD) else optimizer
    for extra in ({}, {"optimizer": plain}) if plain != optimizer else ({},):
        batch = samples if extra else samples // 2
        least = list(priced(**extra, batch=1)) if samples > 1 else []
        while batch > 1 and any(fits(device, option.need) for option in least):
            found = list(priced(**extra, **({} if batch == samples else {"batch": batch})))
            yield from found
            batch //= 2
            least = [] if any(fits(device, option.need) for option in found) else least
        yield from priced(**extra) if extra and samples == 1 else least
    yield from priced(page_to="page.bin")
    for method in OTHER_METHODS:
        if method == plan.method:
            continue
        found = list(priced(method=method))
        yield from found
        if found and samples > 1 and not fits(device, found[0].need):
            yield from priced(method=method, batch=1)
