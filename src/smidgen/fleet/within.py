"""Bytes into width or depth: what of a model a device can train within its budget, as planned. Needs torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from ..api import compile
from ..errors import BadOption, DoesNotFit
from ..terminal import bytes_text
from ..train.job import Job

WIDTHS: Final = (1.0, 0.5, 0.25, 0.125, 0.0625)  # of HeteroFL


def width_within(
    build: Callable[[float], Any],
    example: Any,
    budget_bytes: int,
    *,
    widths: Sequence[float] = WIDTHS,
    **options: Any,
) -> tuple[float, Job]:
    """The widest network whose plain step fits, and its program. `build(width)` makes the network with that share of
    its channels, the first ones of the widest network's. `options` are those of `smidgen.compile`."""
    if "budget" in options or not widths:
        raise BadOption("a width is found for a budget", help="width_within(build, x, 64_000, widths=(1.0, 0.5))")
    least = 0
    for width in sorted(widths, reverse=True):
        job = compile(build(width), example, **{"kernels": "exact", **options})
        least = job.plan.ram_bytes
        if least <= budget_bytes:
            return width, job
    raise DoesNotFit(
        f"the narrowest network needs {bytes_text(least)} of RAM, the device has {bytes_text(budget_bytes)}",
        help=f"widths={(*sorted(widths, reverse=True), min(widths) / 2)}, or Planned: smidgen.compile(…, budget=…)",
    )


def blocks_within(
    model: Any, example: Any, budget_bytes: int, *, head: Sequence[str], **options: Any
) -> list[tuple[tuple[str, ...], Job]]:
    """The fewest blocks of layers, in the order of the model, of which each fits the budget together with `head`, names
    of parameters that learn with every block: the classifier, and norms. The plain step of a block fits; a layer whose
    own does not is a block that is made to fit. Of each, what learns and its program, for
    BlockClient."""
    names = [name for name, _ in model.named_parameters()]
    if unknown := [name for name in head if name not in names]:
        raise BadOption(f"the model has no parameter '{unknown[0]}'", help=f"head={tuple(names[-2:])}")
    layers: dict[str, list[str]] = {}
    for name in names:
        if name not in head:
            layers.setdefault(name.rpartition(".")[0], []).append(name)
    waiting = list(layers)
    found: list[tuple[tuple[str, ...], Job]] = []

    def tried(count: int, **within: Any) -> tuple[tuple[str, ...], Job]:
        learns = (*(name for layer in waiting[:count] for name in layers[layer]), *head)
        return learns, compile(model, example, **{"kernels": "exact", **options, "method": list(learns), **within})

    while waiting:
        fits = tried(1)
        if fits[1].plan.ram_bytes > budget_bytes:
            try:
                fits = tried(1, budget=budget_bytes)
            except DoesNotFit as error:
                raise DoesNotFit(
                    f"'{waiting[0]}' with the head does not fit {bytes_text(budget_bytes)} of RAM",
                    why=error.what,
                    help="a smaller batch=, or the whole model in a plan for the device: smidgen.compile(…, budget=…)",
                ) from error
        plain = fits[1].plan.ram_bytes <= budget_bytes and not fits[1].plan.limits
        least, most = 1, len(waiting) if plain else 1  # `least` layers fit
        while least < most:
            middle = (least + most + 1) // 2
            next_one = tried(middle)
            if next_one[1].plan.ram_bytes <= budget_bytes:
                least, fits = middle, next_one
            else:
                most = middle - 1
        found.append(fits)
        del waiting[:least]
    return found


__all__ = ["WIDTHS", "blocks_within", "width_within"]
