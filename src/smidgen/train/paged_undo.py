"""The state before the step at hand, of programs that page: in a file beside the pages, since RAM is for the plan. Only
what can be brought back is kept: from the first write of state in PAGE on, a step cannot be undone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

from ..errors import CannotWrite
from ..ir import Array
from ..program.instructions import Instruction
from ..program.program import Program
from ..runtime.library import kernel_needs, kernel_signature
from .snapshots import Reserved

ALIGN = 16  # gaps between tensors are shorter: fewer calls
STEP = ("train", "grad", "apply")  # the entries of which a step may consist
WRITTEN = "ou"  # in a kernel's signature


def writes_page_state(program: Program, step: Instruction) -> bool:
    return _has_page_state(program, step, "P")


def reads_page_state(program: Program, step: Instruction) -> bool:
    return _has_page_state(program, step, "p")


def _has_page_state(program: Program, step: Instruction, kind: str) -> bool:
    """Is an operand of that kind in the kernel's signature state in PAGE? Kernels that page have fixed operands."""
    if not any(operand.region == "page" for operand in step.operands):
        return False
    pairs = zip(kernel_signature(step.kernel), step.operands, strict=False)
    return any(letter == kind and operand.offset < program.page_state_bytes for letter, operand in pairs)


def undone(program: Program) -> list[tuple[int, int]]:
    """From where to where a step changes STATE before it writes state in PAGE, in order, what is adjacent joined."""
    found: list[tuple[int, int]] = []
    for start, end in sorted({span for entry in program.entries for span in _changed(program, entry)}):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def _changed(program: Program, entry: str) -> Iterator[tuple[int, int]]:
    code = program.entry_code(entry) if entry.partition("@")[0] in STEP else ()  # a rung's, too
    for step in takewhile(lambda step: not writes_page_state(program, step), code):
        if step.is_loop or not any(operand.region == "state" for operand in step.operands):
            continue
        kinds = kernel_signature(step.kernel)
        needs = kernel_needs(step.kernel, step.params_at(1), len(step.operands), (1, 1, 0)) or ()
        for kind, operand, need in zip(kinds, step.operands, needs, strict=False):
            if kind in WRITTEN and operand.region == "state":
                yield operand.offset, -(-(operand.offset + need) // ALIGN) * ALIGN


class Undo:
    """All of the file is reserved here."""

    def __init__(self, page_to: str | os.PathLike[str], program: Program) -> None:
        self._spans = [(start, min(end, program.state_bytes)) for start, end in undone(program)]
        count = max((end for _, end in self._spans), default=0)
        try:
            self._reserved = Reserved(Path(page_to).resolve().parent, count)
        except OSError as error:
            raise CannotWrite(
                f"the state before a step, {count:,} bytes, cannot be kept beside '{page_to}'",
                why=error.strerror or str(error), help='page_to="page.bin" on a disk with more room',
            ) from error  # fmt: skip

    def keep(self, state: Array) -> None:
        """Raises OSError; the step has not begun then."""
        for start, end in self._spans:
            self._reserved.write(state.data[start:end], start)

    def bring_back(self, state: Array) -> None:
        """Raises OSError; the state may then hold a part of it."""
        for start, end in self._spans:
            self._reserved.read(state.data[start:end], start)


__all__ = ["Undo", "reads_page_state", "undone", "writes_page_state"]
