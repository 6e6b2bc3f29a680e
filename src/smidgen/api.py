"""compile(): the pipeline on one screen."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from . import limits
from .device import Device
from .errors import MissingPart
from .fitting import encode_for, step_seconds
from .ladder import encode_ladder
from .lower import Entries, assemble, lower, lower_as, lowered, train_graph
from .native import checked_kernels, work_bytes
from .optimizers import Optimizer
from .options import (
    checked_aim,
    checked_budget,
    checked_device,
    checked_ladder,
    checked_options,
    checked_prices,
    with_deadline,
)
from .planned import encode, placed
from .planner.cost import prices_of
from .planner.measure import measured
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
    accumulate: bool = False,
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
    example's). `accumulate=True` adds the entries that take larger batches in parts. `spare_classes`: so many
    classes can be added later, with `job.add_class`; `class_names` are those of the known ones. `const="int8"`
    stores weights that do not learn as int8 wherever that loses nothing. `device`, a name of `smidgen devices`, makes
    its RAM and flash hard limits (and takes int8 if only that fits). `budget`, in bytes or as "256KB", is a hard limit
    of RAM: what does not fit is computed again instead of kept, or a step is taken in parts, at a price that the plan
    states; with `page_to`, a file, tensors may also leave RAM for a while. `objective`, "time" or "energy", is what
    shall be small; `deadline`, in seconds or as "2x" (of the step without a limit), how long a step may take; `effort`
    the seconds that are spent on looking for the optimum. `ladder`, more sizes like `budget`, adds the same step
    planned for each of them: `job.rung` and `job.fit(follow_memory=…)` switch among them; what is learned stays.
    `prices="measured"` times every kernel on this machine, once, instead of taking the same prices everywhere.
    `kernels` and `threads` are those of `smidgen.load`; the work memory of fast ones counts.
    """
    place_for, ram_bytes, rungs = checked_device(device), checked_budget(budget), checked_ladder(ladder)
    measure = checked_prices(prices, place_for)
    import_model = _importer()
    kernels, threads = checked_kernels("exact" if kernels is None and place_for else kernels, threads)
    work = work_bytes(kernels, threads)
    if ram_bytes is not None:
        place_for = limits.within(ram_bytes - work, place_for)
    options = checked_options(
        model, optimizer=optimizer, method=method, batch=batch, bn=bn, accumulate=accumulate, seed=seed,
        spare_classes=spare_classes, class_names=class_names, const=const,
    )  # fmt: skip
    imported = import_model(model, example, loss=loss, target=target, bn=options.bn)
    if place_for is None and not rungs:
        return Job(encode(lower_as(imported, options)), kernels=kernels, threads=threads)
    with measured(kernels, threads) if measure else contextlib.nullcontext(prices_of(place_for)) as priced:
        aim = checked_aim(objective, effort, page_to is not None, priced)
        aim = with_deadline(aim, deadline, lambda: step_seconds(lower_as(imported, options), aim))
        if rungs:
            made = encode_ladder(rungs, work, place_for, imported, options, aim)
        else:
            assert place_for is not None
            made = encode_for(place_for, imported, options, aim)
    return Job(made, kernels=kernels, threads=threads, page_to=page_to if made.page_bytes else None)


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


__all__ = ["Entries", "assemble", "build", "compile", "encode", "lower", "lowered", "placed", "train_graph"]
