"""compile(): the pipeline on one screen."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from . import limits
from .device import Device
from .effort import metered
from .errors import BadOption, MissingPart
from .fitting import as_parts, encode_for, in_time
from .found import step_seconds
from .ladder import encode_ladder
from .lower import Entries, Lowering, assemble, lower, lower_as, lowered, train_graph
from .native import Work, checked_kernels, checked_page_to
from .optimizers import Optimizer
from .options import (
    Options,
    checked_aim,
    checked_budget,
    checked_device,
    checked_effort,
    checked_ladder,
    checked_options,
    checked_prices,
    with_deadline,
)
from .planned import encode, placed, with_limits
from .planner.cost import prices_of
from .planner.measure import measured
from .planner.within import Aim
from .rungs import entry_at
from .sweeping import Largest, Sweep, Told, largest_batch
from .sweeping import sweep as sweep_all
from .trainer import Job

if TYPE_CHECKING:
    from .torch_import import Imported


def compile(
    model: Any,
    example: Any,
    *,
    loss: Any = "cross_entropy",
    target: Any = None,
    optimizer: Optimizer | None = None,
    method: str | Sequence[str] = "full",
    batch: int | None = None,
    bn: str = "frozen",
    accumulate: bool | None = None,
    seed: int = 0,
    spare_classes: int = 0,
    class_names: Sequence[str] = (),
    const: str = "f32",
    device: str | Device | None = None,
    budget: int | str | None = None,
    page_to: str | os.PathLike[str] | None = None,
    objective: str = "time",
    deadline: float | str | None = None,
    effort: float = 5.0,
    ladder: Sequence[int | str] = (),
    prices: str = "fixed",
    kernels: str | None = None,
    threads: int = 1,
) -> Job:
    """A training program for `model`, with every byte of its memory planned and proven.

    `example` is one input or a tuple of them, batch dimension first; `batch` the most samples of one step (default: the
    example's). `accumulate=True` adds the entries that take larger batches in parts, `False` leaves them away; by
    default fast kernels take a step in parts, `plan.batch` samples at a time, where that saves both RAM and time.
    `spare_classes`: so many classes can be added later, with `job.add_class`; `class_names` are those of the known
    ones. `const="int8"` stores weights that do not learn as int8 wherever that loses nothing. `device`, a name of
    `smidgen devices`, makes its RAM and flash hard limits (and takes int8 if only that fits). `budget`, in bytes or as
    "256KB", is a hard limit of RAM: what does not fit is computed again instead of kept, or a step is taken in parts,
    at a price that the plan states; with `page_to`, a file, tensors may also leave RAM for a while. `objective`, "time"
    or "energy", is what shall be small; `deadline`, in seconds or as "2x" (of the step without a limit), how long a
    step may take; `effort` the seconds that are spent on looking for the optimum. `ladder`, more sizes like `budget`,
    adds the same step planned for each of them: `job.rung` and `job.fit(follow_memory=…)` switch among them; what is
    learned stays. `prices="measured"` times every kernel on this machine, once, instead of taking the same prices
    everywhere. `kernels` and `threads` are those of `smidgen.load`; the work memory of fast ones counts.
    """
    rungs = checked_ladder(ladder)
    with _prepared(
        model, example, loss, target, device, budget, kernels, threads, page_to, objective, deadline, effort, prices,
        optimizer=optimizer, method=method, batch=batch, bn=bn, accumulate=accumulate, seed=seed,
        spare_classes=spare_classes, class_names=class_names, const=const,
    ) as task:  # fmt: skip
        in_parts = task.work.kernels == "fast" and device is None and accumulate is None
        aim = replace(task.aim, threads=task.work.threads if in_parts else 0, at_once=accumulate is False)
        if rungs:
            whole = replace(task.aim, at_once=aim.at_once, fills=False)
            made = encode_ladder(rungs, task.work, task.device, task.lowering, task.options, whole)
        elif task.device is not None:
            made = encode_for(task.device, task.lowering, task.options, aim)
        else:
            entries = in_time(task.lowering, task.options, aim)
            made = encode(as_parts(task.lowering, task.options, entries, aim))
    asked = {entry_at("train", number): count for number, count in enumerate(rungs, 1)}
    if task.limit_bytes is not None:
        asked["train"] = task.limit_bytes
    made = with_limits(made, asked, task.work)
    return Job(made, kernels=task.work.kernels, threads=task.work.threads, page_to=page_to if made.page_bytes else None)


def sweep(
    model: Any,
    example: Any,
    *,
    loss: Any = "cross_entropy",
    target: Any = None,
    optimizer: Optimizer | None = None,
    method: str | Sequence[str] = "full",
    batch: int | None = None,
    bn: str = "frozen",
    seed: int = 0,
    const: str = "f32",
    device: str | Device | None = None,
    budget: int | str | None = None,
    page: bool | None = False,
    objective: str = "time",
    effort: float = 1.0,
    prices: str = "fixed",
    kernels: str | None = None,
    threads: int = 1,
    told: Told = lambda done, total, what: None,
) -> Sweep:
    """Budget against predicted time: the points of each technique alone and of all of them together.

    Budgets are chosen from the smallest that is found to fit to that of the plan without one; `budget` is one more.
    `page` allows tensors to leave RAM (None: if the device has somewhere to page to), `effort` are seconds of search
    for each point, and `told(done, total, what)` is called before each budget. The rest is as in `compile`.
    """
    limit = checked_budget(budget)
    if page is None:
        page = device is not None and prices_of(checked_device(device)).page is not None
    with _prepared(
        model, example, loss, target, device, None, kernels, threads, "page" if page else None, objective, None, effort,
        prices, optimizer=optimizer, method=method, batch=batch, bn=bn, seed=seed, const=const,
    ) as task:  # fmt: skip
        return sweep_all(
            task.lowering, task.options, task.device, task.aim, task.work, [limit] if limit else [], told=told
        )


def max_batch(
    model: Any,
    example: Any,
    *,
    budget: int | str | None = None,
    device: str | Device | None = None,
    loss: Any = "cross_entropy",
    target: Any = None,
    optimizer: Optimizer | None = None,
    method: str | Sequence[str] = "full",
    bn: str = "frozen",
    seed: int = 0,
    const: str = "f32",
    page: bool = False,
    objective: str = "time",
    deadline: float | str | None = None,
    effort: float = 5.0,
    prices: str = "fixed",
    kernels: str | None = None,
    threads: int = 1,
    told: Told = lambda done, total, what: None,
) -> Largest:
    """The most samples whose step, taken at once, fits the budget or the device, and how many a second that makes."""
    if budget is None and device is None:
        raise BadOption("the largest batch within what?", help="budget='64MB', or device='stm32h743'")
    if isinstance(deadline, str) and "x" in deadline:
        raise BadOption(f"deadline={deadline!r} of which batch?", help="deadline=0.5, in seconds")
    with _prepared(
        model, example, loss, target, device, budget, kernels, threads, "page" if page else None, objective, deadline,
        effort, prices, optimizer=optimizer, method=method, bn=bn, seed=seed, const=const,
    ) as task:  # fmt: skip
        assert task.device is not None
        limit = checked_budget(budget)
        return largest_batch(task.device, task.lowering, task.options, task.aim, task.work, limit, told)


@dataclass(frozen=True, slots=True)
class _Task:
    """Checked arguments, and the model."""

    device: Device | None
    lowering: Lowering
    options: Options
    aim: Aim
    work: Work
    limit_bytes: int | None  # of RAM on this machine, or one like it


@contextlib.contextmanager
def _prepared(
    model: Any, example: Any, loss: Any, target: Any, device: Any, budget: Any, kernels: str | None, threads: int,
    page_to: Any, objective: str, deadline: Any, effort: float, prices: str, **rest: Any,
) -> Iterator[_Task]:  # fmt: skip
    """Prices that are measured meanwhile are remembered at the end."""
    place_for, ram_bytes = checked_device(device), checked_budget(budget)
    checked_page_to(page_to)
    measure = checked_prices(prices, place_for)
    import_model = _importer()
    work = Work(*checked_kernels("exact" if kernels is None and place_for else kernels, threads))
    if place_for is not None and not place_for.is_bare:
        ram_bytes = min(place_for.ram_bytes, place_for.ram_bytes if ram_bytes is None else ram_bytes)
    if ram_bytes is not None:
        place_for = limits.within(ram_bytes, place_for, ram_bytes - work.left(ram_bytes), work.threads)
    options = checked_options(model, **rest)
    lowering = Lowering(import_model(model, example, loss=loss, target=target, bn=options.bn))
    fixed = contextlib.nullcontext(prices_of(place_for))
    with (
        metered(checked_effort(effort)),
        measured(work.kernels, work.threads, page_to=page_to) if measure else fixed as priced,
    ):
        aim = checked_aim(objective, effort, page_to is not None, priced)
        aim = with_deadline(aim, deadline, lambda: step_seconds(lowering.entries(options), aim))
        aim = replace(aim, fills=budget is not None or deadline is not None)
        yield _Task(place_for, lowering, options, aim, work, ram_bytes)


def build(
    model: Any,
    example: Any,
    *,
    loss: Any = "cross_entropy",
    target: Any = None,
    optimizer: Optimizer | None = None,
    method: str | Sequence[str] = "full",
    batch: int | None = None,
    bn: str = "frozen",
    accumulate: bool = False,
    seed: int = 0,
) -> Entries:
    """The graphs of all entry points: `import_model`, then everything that does not need torch."""
    import_model = _importer()
    options = checked_options(
        model, optimizer=optimizer, method=method, batch=batch, bn=bn, accumulate=accumulate, seed=seed
    )
    return lower_as(import_model(model, example, loss=loss, target=target, bn=options.bn), options)


def _importer() -> Callable[..., Imported]:
    """Asked for first, so that a machine without torch says that and nothing else."""
    try:
        from .torch_import import import_model  # torch is needed here and nowhere else
    except ModuleNotFoundError as error:
        raise MissingPart("compiling needs PyTorch", why=str(error), help="pip install 'smidgen[compile]'") from error
    return import_model


__all__ = [
    "Entries", "assemble", "build", "compile", "encode", "lower", "lowered", "max_batch", "placed", "sweep",
    "train_graph",
]  # fmt: skip
