"""What is said when a program does not fit its limit, or takes too long: where RAM is fullest, and other choices that
were tried. Help names only what was compiled and measured."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from ...devices.room import Limit, Need, assigned, fits
from ...errors import DoesNotFit, SmidgenError
from ...program.plan import Plan
from ...terminal import bytes_text, seconds_text
from ..effort import Effort
from ..optimizers import SGD, Optimizer
from ..options import Memory

MOST_NAMED: Final = 3  # tensors in a message
ANSWER_S: Final = 6.5  # of effort, after which no further choice is tried, so that an answer comes within ten seconds
TRYING_S: Final = 1.0  # of effort for other choices, however much was spent before
OTHER_METHODS: Final = ("last_layer", "bias")  # tried when a plan does not fit
_OF_MEMORY: Final = {f.name for f in fields(Memory)} - {"budget"}


@dataclass(frozen=True, slots=True)
class Option:
    """Other arguments of `compile`, and what they were found to need; if that is the question, what a step takes."""

    arguments: Mapping[str, Any]
    need: Need
    seconds: float | None = None

    def text(self, command_line: bool, work_bytes: int = 0) -> str:
        typed = " ".join(_typed(*one) for one in self.arguments.items())
        called = ", ".join(_called(*one) for one in self.arguments.items() if one[0] != "threads")
        needs = f"needs {_up(self.need.ram_bytes + work_bytes)}"
        takes = needs if self.seconds is None else f"takes {seconds_text(self.seconds)}"
        return f"{typed if command_line else called} {takes}"


def _typed(name: str, value: Any) -> str:
    """An argument as the command line has it; another optimizer is one without momentum."""
    return "--momentum 0" if name == "optimizer" else f"--{name.replace('_', '-')} {value}"


def _called(name: str, value: Any) -> str:
    """An argument as Python has it; an optimizer as its constructor is called, without what is usual."""
    if name in _OF_MEMORY:
        return f"memory=smidgen.Memory({name}={value!r})"
    if not isinstance(value, Optimizer):
        return f"{name}={value!r}"
    given = {f.name: getattr(value, f.name) for f in fields(value) if getattr(value, f.name) != f.default}
    return f"{name}=smidgen.{type(value).__name__}({', '.join(f'{key}={one}' for key, one in given.items())})"


def _up(count: int) -> str:
    """As a budget this is enough."""
    return bytes_text(count, math.ceil)


def _apart(needs: int, has: int) -> tuple[str, str]:
    """What is needed and the less that there is, in figures that differ."""
    if _up(needs) != bytes_text(has):
        return _up(needs), bytes_text(has)
    return f"{needs:,} bytes", f"{has:,}"


class OverLimit(DoesNotFit):
    """It does not fit the limit. `help` names only what was compiled and measured. `exact`: what fits if kernels take
    no memory of their own. `effort_s`: with so much, something that fits may be found; 0: that is known to be in vain,
    or not known."""

    def __init__(
        self, what: str, *, at: str, why: str, options: Sequence[Option], limit: Limit, exact: Option | None = None,
        effort_s: float = 0.0,
    ) -> None:  # fmt: skip
        self.options, self.limit, self.exact, self.effort_s = tuple(options), limit, exact, effort_s
        super().__init__(what, at=at, why=why, help=self._help(command_line=False))

    def in_command_line(self) -> DoesNotFit:
        """The same with options as they are typed."""
        return DoesNotFit(self.what, at=self.at, why=self.why, help=self._help(command_line=True))

    def _help(self, command_line: bool) -> str:
        work = self.limit.work_bytes
        good = [option.text(command_line, work) for option in self.options if fits(self.limit, option.need)]
        good = [*([self.exact.text(command_line, 0)] if self.exact else []), *good]
        if good:
            return "; ".join(good)
        longer = f"--effort {self.effort_s:g}" if command_line else _called("effort", float(f"{self.effort_s:g}"))
        longer = f"{longer} searches longer; it has not been proven impossible" if self.effort_s else ""
        tried = sorted(self.options, key=lambda option: option.need.ram_bytes)
        said = "1 other choice was tried, it does not fit" if len(tried) == 1 else (
            f"{len(tried)} other choices were tried, none fits" if tried else "")  # fmt: skip
        return "; ".join(filter(None, [longer, said, *(option.text(command_line, work) for option in tried)]))


class TooLate(OverLimit):
    """A step takes longer than the deadline. `later_s`: a deadline that what was found meets; `more_bytes`: RAM that
    would do; 0: neither is known."""

    def __init__(
        self, what: str, *, why: str, options: Sequence[Option], limit: Limit, deadline_s: float, later_s: float,
        more_bytes: int,
    ) -> None:  # fmt: skip
        self.deadline_s, self.later_s, self.more_bytes = deadline_s, later_s, more_bytes
        super().__init__(what, at="", why=why, options=options, limit=limit)

    def _help(self, command_line: bool) -> str:
        digits = 2 - math.floor(math.log10(self.later_s)) if self.later_s else 0
        later = f"{math.ceil(self.later_s * 10**digits) / 10**digits:.12g}"
        typed = f"--deadline {later}" if command_line else f"memory=smidgen.Memory(deadline={later})"
        said = [typed] if self.later_s else []
        more = _up(self.more_bytes).replace(" ", "")
        said += [f"--budget {more}" if command_line else f"budget='{more}'"] if self.more_bytes else []
        good = [one.text(command_line) for one in self.options if self._is_good(one)]
        tried = [one.text(command_line) for one in self.options if not good]
        return "; ".join([*said, *good, *(["also tried, still too slow: " + ", ".join(tried)] if tried else [])])

    def _is_good(self, one: Option) -> bool:
        return fits(self.limit, one.need) and one.seconds is not None and one.seconds <= self.deadline_s


Price = Callable[[Mapping[str, Any]], Need | None]
"""What the program would need with these arguments instead; None if it cannot be compiled."""


def has_effort(answer: Effort) -> bool:
    """Half of the effort for an answer is for other choices."""
    return answer.left_s > ANSWER_S / 2


def _for_options(answer: Effort | None) -> Effort:
    return Effort.of(max(TRYING_S, ANSWER_S if answer is None else answer.left_s))


def over_limit(
    limit: Limit, plan: Plan, need: Need, optimizer: Optimizer, price: Price, answer: Effort | None = None,
    effort_s: float = 0.0,
) -> OverLimit:  # fmt: skip
    """The error, with the options that were tried in vain or not. `answer`: the effort for it, or what is left."""
    trying = _for_options(answer)
    flash, code, slots = need.flash_bytes, need.overhead.code_bytes, 2 * limit.slot_bytes
    if assigned(limit, need) is not None:
        parts = [f"initial state {bytes_text(plan.state_bytes)}"] if plan.state_bytes else []
        const = [s for s in plan.facts.stored if s.role == "const"]
        if const:
            parts.insert(0, f"constants {bytes_text(sum(s.bytes for s in const))}")
        parts += [f"code {bytes_text(code)}"] if code else []
        parts += [f"two slots {bytes_text(slots)}"] if slots else []
        needs, has = _apart(flash + code + slots, limit.flash_bytes)
        what = f"needs {needs} of flash, {limit.name} has {has}"
        return OverLimit(what, at="", why="in it: " + ", ".join(parts), options=(), limit=limit)
    at, live = _peak(plan)
    rest = f"state {bytes_text(need.state_bytes)}, context and stack " + bytes_text(
        need.overhead.context_bytes + need.overhead.stack_bytes
    )
    work = limit.work_bytes
    rest += f", work memory of fast kernels {bytes_text(work)}" if work else ""
    why = f"live there: {live}; besides {rest}" if live else rest
    needs, has = _apart(need.ram_bytes + work, limit.ram_bytes + work)
    what = f"needs {needs} of RAM, {limit.name} has {_banks(limit) or has}"
    if need.ram_bytes <= limit.ram_bytes:
        why = (f"neither the state of {bytes_text(need.state_bytes)} nor the arena of {bytes_text(need.arena_bytes)} "
               f"may be spread over banks; {why}")  # fmt: skip
    one_thread = {"threads": 1} if limit.work_threads > 1 else {}
    is_small = work and need.ram_bytes <= limit.ram_bytes + work
    exact = Option({"kernels": "exact", **one_thread}, need) if is_small else None
    options = list(_tried(limit, plan, optimizer, price, trying))
    return OverLimit(what, at=at, why=why, options=options, limit=limit, exact=exact, effort_s=effort_s)


def too_late(
    limit: Limit, samples: int, method: str, why: str, deadline_s: float,
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
        what, why=why, options=tried, limit=limit, deadline_s=deadline_s, later_s=found_s, more_bytes=more_bytes
    )


def _banks(limit: Limit) -> str:
    """RAM in several pieces."""
    if len(limit.ram_banks) == 1 or limit.work_bytes:
        return ""
    return " + ".join(f"{bytes_text(bank.bytes)} ({bank.name})" for bank in limit.ram_banks)


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


def _tried(limit: Limit, plan: Plan, optimizer: Optimizer, price: Price, trying: Effort) -> Iterator[Option]:
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
        while batch > 1 and any(fits(limit, option.need) for option in least):
            found = list(priced(**extra, **({} if batch == samples else {"batch": batch})))
            yield from found
            batch //= 2
            least = [] if any(fits(limit, option.need) for option in found) else least
        yield from priced(**extra) if extra and samples == 1 else least
    yield from priced(page_to="page.bin")
    for method in OTHER_METHODS:
        if method == plan.method:
            continue
        found = list(priced(method=method))
        yield from found
        if found and samples > 1 and not fits(limit, found[0].need):
            yield from priced(method=method, batch=1)
