"""Kernels and threads that a program may have: a limit of RAM that its plan was made for holds wherever it is loaded.

The RAM of a board is no limit for a host that runs the same program. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import DoesNotFit
from ..program.lazy_json import whole
from ..program.program import Program
from ..program.rungs import Rung, rungs_of
from ..runtime.work import Work, asked_kernels, checked_kernels


def allowed(program: Program, kernels: Any, threads: Any) -> Work:
    """What was asked for, or OverPlan if that takes more RAM than the program is for. If nothing was asked for, exact
    kernels where fast ones take too much."""
    limits = limits_of(program.figures)
    asked = Work(*checked_kernels(kernels, threads))
    over = _over(program, limits, asked)
    if over is None:
        return asked
    exact = Work("exact", 1)
    if kernels is None and not asked_kernels() and asked.threads == 1 and _over(program, limits, exact) is None:
        return exact
    raise OverPlan(program, limits, asked, over)


def limits_of(figures: Mapping[str, Any]) -> dict[str, int]:
    """Entry that trains → the RAM that a job which follows it may take. ValueError or AttributeError for nonsense."""
    return {str(entry): whole(count) for entry, count in figures.get("limits", {}).items()}


def rungs(program: Program, work_bytes: int) -> tuple[Rung, ...]:
    """From the description alone: the facts for pictures are many, and not needed."""
    plan = program.figures
    arenas = {str(entry): int(count) for entry, count in plan["arena_by_entry"].items()}
    other = sum(int(plan[f"{part}_bytes"]) for part in ("state", "context", "stack"))
    if min(arenas.values(), default=0) < 0:
        raise ValueError("a negative arena size")
    return rungs_of(program.entries, arenas, other + work_bytes)


def _over(program: Program, limits: Mapping[str, int], work: Work) -> Rung | None:
    """The first plan of the program that takes more than it is for."""
    if not limits:
        return None
    taken = rungs(program, work.beside(program.state_bytes + program.arena_bytes))
    return next((rung for rung in taken if rung.ram_bytes > limits.get(rung.name, rung.ram_bytes)), None)


class OverPlan(DoesNotFit):
    """More kernels or threads than the plan has RAM for. `help` names only what was found to fit."""

    def __init__(self, program: Program, limits: Mapping[str, int], asked: Work, over: Rung) -> None:
        from ..terminal import bytes_text  # a program that fits does without

        figures = program.figures
        planned = Work(str(figures.get("kernels", "exact")), whole(figures.get("threads", 1), least=1))
        fewer = [Work(asked.kernels, count) for count in range(asked.threads - 1, 0, -1)]
        fits = [work for work in (*fewer, Work("exact", 1)) if _over(program, limits, work) is None]
        self._good = [*fits[:1], *(fits[-1:] if len(fits) > 1 else [])]
        self._asked = asked
        rung = over.name.partition("@")[2]
        whose = f"rung {rung} of the program" if rung else "the program"
        work_bytes = asked.beside(program.state_bytes + program.arena_bytes)
        super().__init__(
            f"needs {bytes_text(over.ram_bytes)} of RAM with {_text(asked)}, {whose} is for "
            f"{bytes_text(limits[over.name])}",
            why=f"it was planned for {_text(planned)}; these take {bytes_text(work_bytes)} of work memory",
            help="; ".join([*map(_called, self._good), f"or compile with {_called(asked)}"]),
        )

    def in_command_line(self) -> DoesNotFit:
        """The same with options as they are typed."""
        help = [*map(_typed, self._good), f"or build with {_typed(self._asked)}"]
        return DoesNotFit(self.what, at=self.at, why=self.why, help="; ".join(help))


def _text(work: Work) -> str:
    if work.kernels == "exact":
        return "exact kernels"
    return f"{work.kernels} kernels on {work.threads} thread{'s' if work.threads > 1 else ''}"


def _called(work: Work) -> str:
    """As `compile` and `load` take it."""
    return f"kernels='{work.kernels}{f':{work.threads}' if work.threads > 1 else ''}'"


def _typed(work: Work) -> str:
    return f"--kernels {work.kernels}{f' --threads {work.threads}' if work.threads > 1 else ''}"


__all__ = ["OverPlan", "allowed", "limits_of", "rungs"]
