"""What is said when a program does not fit its limit, or takes too long: where RAM is fullest, and other choices that
were tried. Help names only what was compiled and measured."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from ...devices.room import Limit, Need, assigned, fits, least_budget
from ...errors import DoesNotFit, SmidgenError
from ...program.plan import Plan
from ...program.timeline import tensor_text
from ...runtime.work import EXACT, Work
from ...terminal import bytes_text, seconds_text
from ..effort import Effort
from ..optimizers import SGD, Optimizer
from ..options import Memory

MOST_NAMED: Final = 3  # tensors in a message
MOST_TRIED: Final = 3  # choices that do not fit in a message
ANSWER_S: Final = 6.5  # of effort, after which no further choice is tried, so that an answer comes within ten seconds
TRYING_S: Final = 1.0  # of effort for other choices, however much was spent before
OTHER_METHODS: Final = ("last_layer", "bias")  # tried when a step takes too long
NEAR: Final = 1.02  # times what there is: figures of three digits are not enough
PARAMETERS: Final = "parameters"
WHEN: Final = {
    "infer": "inference", "evaluate": "evaluation", "apply": "update after the last micro-batch",
    "zero": "before the first micro-batch", "judge": "prediction of a stream",
    "observe": "statistics of a stream", "detect": "scores of a stream",
    "clear_scores": "before scoring", "score": "scoring of channels", "scores": "report of scores",
    "drift": "report of a stream", "restart": "calibration of a stream",
}  # fmt: skip
"""Entries other than a step, as users know them."""
_OF_MEMORY: Final = {f.name for f in fields(Memory)} - {"budget"}


@dataclass(frozen=True, slots=True)
class Option:
    """Other arguments of `compile`, and what they were found to need; if that is the question, what a step takes."""

    arguments: Mapping[str, Any]
    need: Need
    seconds: float | None = None

    def text(self, command_line: bool, limit: Limit | None = None, work: Work = EXACT) -> str:
        typed = " ".join(_typed(*one) for one in self.arguments.items())
        called = ", ".join(_called(*one) for one in self.arguments.items() if one[0] != "threads")
        card = " with an SD card" if "page_to" in self.arguments and limit is not None and limit.is_bare else ""
        device = None if limit is None else limit.device
        needs = f"needs {_up(least_budget(self.need, device, work))}"
        takes = needs if self.seconds is None else f"takes {seconds_text(self.seconds)}"
        return f"{typed if command_line else called}{card} {takes}"


def _typed(name: str, value: Any) -> str:
    """An argument as the command line has it; another optimizer is one without momentum."""
    if isinstance(value, SGD):
        return "--momentum 0"
    return "--optimizer sgd --momentum 0" if name == "optimizer" else f"--{name.replace('_', '-')} {value}"


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
    """What is needed, to the byte, and the less that there is; that too to the byte where the two are near."""
    there = bytes_text(has) if has < 1024 or needs > NEAR * has else f"{bytes_text(has)} ({has:,} bytes)"
    return _up(needs) if needs < 1024 else f"{_up(needs)} ({needs:,} bytes)", there


class OverLimit(DoesNotFit):
    """It does not fit the limit. `needs_bytes` is the smallest budget that is enough. `help` names only what was
    compiled and measured. `exact`: what fits if kernels take no memory of their own. `effort_s`: with so much,
    something that fits may be found; 0: that is known to be in vain, or not known. `tried`: how many choices were."""

    def __init__(
        self, what: str, *, at: str, why: str, options: Sequence[Option], limit: Limit, exact: Option | None = None,
        effort_s: float = 0.0, needs_bytes: int = 0, tried: int = 0,
    ) -> None:  # fmt: skip
        self.options, self.limit, self.exact, self.effort_s = tuple(options), limit, exact, effort_s
        self.needs_bytes, self.tried = needs_bytes, tried
        super().__init__(what, at=at, why=why, help=self._help(command_line=False))

    def in_command_line(self) -> DoesNotFit:
        """The same with options as they are typed."""
        return DoesNotFit(self.what, at=self.at, why=self.why, help=self._help(command_line=True))

    def _help(self, command_line: bool) -> str:
        limit, work = self.limit, self.limit.work
        good = [option.text(command_line, limit, work) for option in self.options if fits(limit, option.need)]
        good = [*([self.exact.text(command_line, limit)] if self.exact else []), *good]
        if good:
            return "; ".join(good)
        longer = f"--effort {self.effort_s:g}" if command_line else _called("effort", float(f"{self.effort_s:g}"))
        longer = f"{longer} searches longer; it has not been proven impossible" if self.effort_s else ""
        tried = sorted(self.options, key=lambda option: option.need.ram_bytes)
        count = max(len(tried), self.tried)
        said = "1 other choice was tried, it does not fit" if count == 1 else (
            f"{count} other choices were tried, none fits" if tried else "")  # fmt: skip
        return "; ".join(filter(None, [longer, said, *(option.text(command_line, limit, work) for option in tried)]))


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


UNIT_BYTES: Final = 1024  # whoever asks for less has left out the unit
Choices = Callable[[Limit, Effort], tuple[Sequence[Option], int]]
"""What else was tried for this limit with so much effort: what fits, or the nearest; and how many there were."""


def has_effort(answer: Effort) -> bool:
    """Half of the effort for an answer is for other choices."""
    return answer.left_s > ANSWER_S / 2


def _for_options(answer: Effort | None) -> Effort:
    return Effort.of(max(TRYING_S, ANSWER_S if answer is None else answer.left_s))


def over_limit(
    limit: Limit, plan: Plan, need: Need, optimizer: Optimizer, choices: Choices, answer: Effort | None = None,
    effort_s: float = 0.0,
) -> OverLimit:  # fmt: skip
    """The error, with the options that were tried in vain or not. `need` is that of the smallest program; `answer`: the
    effort for it, or what is left."""
    trying = _for_options(answer)
    if assigned(limit, need) is not None:
        return _over_flash(limit, plan, need)
    work = limit.work_bytes
    needs_bytes = least_budget(need, limit.device, limit.work) if not limit.is_rung else need.ram_bytes + work
    needs, has = _apart(needs_bytes, limit.ram_bytes + work)
    what = f"needs {needs} of RAM, {limit.name} has {_banks(limit) or has}"
    parts = _state_parts(plan, optimizer)
    state = [f"{name} {bytes_text(count)}" for name, count in parts.items()]
    rest = [f"context and stack {bytes_text(need.overhead.context_bytes + need.overhead.stack_bytes)}"]
    rest += [f"work memory of fast kernels {bytes_text(work)}"] if work else []
    at, live = _peak(plan)
    if need.state_bytes > max(bank.bytes for bank in limit.ram_banks):
        alone = " and ".join(name for name in parts if name in (PARAMETERS, _kept_by(optimizer))) or "the state"
        count = sum(parts.get(name, 0) for name in (PARAMETERS, _kept_by(optimizer))) or need.state_bytes
        what += f": {alone} alone are {bytes_text(count)}"
        arena = [f"activations and gradients {bytes_text(need.arena_bytes)}"] if need.arena_bytes else []
        at, why = "", ", ".join([*state, *arena, *rest])
    else:
        besides = ", ".join([*state, *rest])
        why = f"live there: {live}; besides {besides}" if live else besides
    if need.ram_bytes <= limit.ram_bytes:
        why = (f"neither the state of {bytes_text(need.state_bytes)} nor the arena of {bytes_text(need.arena_bytes)} "
               f"may be spread over banks; {why}")  # fmt: skip
    if limit.ram_bytes + work < UNIT_BYTES:
        asked = limit.ram_bytes + work
        why = f"the budget is {asked} bytes, as a number without a unit is; {asked}KB are kilobytes; {why}"
    one_thread = {"threads": 1} if limit.work_threads > 1 else {}
    is_small = work and need.ram_bytes <= limit.ram_bytes + work
    exact = Option({"kernels": "exact", **one_thread}, need) if is_small else None
    options, tried = choices(limit, trying)
    return OverLimit(
        what, at=at, why=why, options=options, limit=limit, exact=exact, effort_s=effort_s, needs_bytes=needs_bytes,
        tried=tried,
    )  # fmt: skip


def _over_flash(limit: Limit, plan: Plan, need: Need) -> OverLimit:
    flash, code, slots = need.flash_bytes, need.overhead.code_bytes, 2 * limit.slot_bytes
    parts = [f"initial state {bytes_text(plan.state_bytes)}"] if plan.state_bytes else []
    const = [s for s in plan.facts.stored if s.role == "const"]
    if const:
        parts.insert(0, f"constants {bytes_text(sum(s.bytes for s in const))}")
    parts += [f"code {bytes_text(code)}"] if code else []
    parts += [f"two slots {bytes_text(slots)}"] if slots else []
    needs, has = _up(flash + code + slots), bytes_text(limit.flash_bytes)
    if needs == has:
        needs, has = f"{flash + code + slots:,} bytes", f"{limit.flash_bytes:,}"
    name = limit.name if limit.device is None else limit.device.name
    what = f"needs {needs} of flash, {name} has {has}"
    return OverLimit(what, at="", why="in it: " + ", ".join(parts), options=(), limit=limit)


def _kept_by(optimizer: Optimizer) -> str:
    """What an optimizer keeps, as users know it."""
    return "momentum" if isinstance(optimizer, SGD) else f"{type(optimizer).__name__}'s averages"


def _state_parts(plan: Plan, optimizer: Optimizer) -> dict[str, int]:
    """What is in RAM between steps, and how many bytes of it."""
    names = {"param": PARAMETERS, "optim": _kept_by(optimizer), "stat": "statistics", "setting": "settings"}
    found = {name: sum(s.bytes for s in plan.facts.stored if s.role == role) for role, name in names.items()}
    found["settings"] -= plan.replay_bytes
    found["replay buffer"] = plan.replay_bytes
    return {name: count for name, count in found.items() if count}


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
    """RAM of a device in several pieces."""
    if len(limit.ram_banks) == 1 or limit.work_bytes or limit.device is None or limit.name != limit.device.name:
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
    named = [f"{tensor_text(span.tensor)} {bytes_text(span.bytes)}" for span in alive[:MOST_NAMED]]
    rest = alive[MOST_NAMED:]
    named += [f"{len(rest)} more {bytes_text(sum(s.bytes for s in rest))}"] if rest else []
    when = WHEN.get(entry, "") or ("" if moment.stage == "io" else f"{moment.stage} pass")
    when += " of one micro-batch" if entry == "grad" and when else ""
    return f"{moment.layer} ({when})" if when else moment.layer, ", ".join(named)
