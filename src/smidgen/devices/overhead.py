"""RAM of a program on a core, to the byte: the context as the firmware's own limits make it, and the deepest stack.

The stack of every kernel and of the way to it is in stack.json, which tools/measure_stack.py writes from the compiler's
call graphs (stack.py); a test holds it to the sources. A kernel that is not in it yet is measured when it is needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import Internal
from ..ir import Batch
from ..program.instructions import EACH, FORGETS, Instruction, StreamTable
from ..program.program import Program
from ..runtime.replay import Shape
from . import stack

TABLE = Path(__file__).parent / "stack.json"
MESSAGE_BYTES = 120
PAGER_BYTES = 536 + 20  # SmgBlocks and SmgPager with 32-bit pointers; the build asserts it
SPARE = 16  # bytes of stack: frames differ a little between versions of a compiler


@dataclass(frozen=True, slots=True)
class Limits:
    """What smidgen_config.h says: the sizes inside the context."""

    kernels: int
    entries: int
    words: int  # parameters of one instruction, if some grow with the batch or a stream sets some
    pages: bool = False
    streams: bool = False
    rows_bytes: int = 0  # of the new samples of a step with replay

    @property
    def struct_bytes(self) -> int:
        """sizeof(SmgContext) with 32-bit pointers; the build asserts it."""
        fields = 4 * 4 + 2 * self.kernels + 4 * self.entries + 4 * self.words + 2 * 4 + 8 + MESSAGE_BYTES
        return fields + (2 * 4 if self.pages else 0)

    @property
    def context_bytes(self) -> int:
        """With the pager to a block device, if a program pages, and the new samples of a step, if one replays."""
        return self.struct_bytes + (PAGER_BYTES if self.pages else 0) + self.rows_bytes


def limits(programs: Sequence[Program]) -> Limits:
    """Room for each of the programs, one at a time; an odd number of kernels would leave a gap."""
    blocks = [b for p in programs for b in p.blocks if any(isinstance(w, Batch) for w in b)]
    blocks += [i.params for p in programs for i in windows(p)]
    kernels = max(len(p.kernels) for p in programs)
    rows = [shape.rows_bytes(shape.fresh) for p in programs if (shape := replay_shape(p)) is not None]
    return Limits(
        kernels + kernels % 2, max(len(p.entries) for p in programs), max(map(len, blocks), default=1), pages(programs),
        streams(programs), max(rows, default=0),
    )  # fmt: skip


def replay_shape(program: Program) -> Shape | None:
    said = program.meta.get("replay")
    return None if said is None else Shape.from_json(said)


def pages(programs: Sequence[Program]) -> bool:
    return any(p.page_bytes for p in programs)


def streams(programs: Sequence[Program]) -> bool:
    return any(i.is_stream for p in programs for e in p.entries.values() for i in e.code)


def windows(program: Program) -> Iterator[Instruction]:
    """Instructions of streams that are told how many rows there are."""
    for entry in program.entries.values():
        for at, head in enumerate(entry.code):
            table = StreamTable.of(head.table, head.body) if head.is_stream else None
            if table is not None:
                body = entry.code[at + 1 : at + 1 + head.body]
                yield from (step for step, rule in zip(body, table.rules, strict=True) if rule[0] & ~FORGETS != EACH)


@cache
def table() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(TABLE.read_text())
    return found


def _facts(programs: Sequence[Program], core: str) -> tuple[dict[str, Any], dict[str, list[str]], set[str]]:
    """Stack use of the core, the source files of each kernel, and the kernels of the programs."""
    kernels = {name for p in programs for name in p.kernels}
    facts, sources = table()["cores"][core], table()["sources"]
    new = sorted(kernels - set(facts["kernels"]))
    if new:
        facts, sources = stack.measured_now(core)
        unknown = [name for name in new if name not in facts["kernels"]]
        if unknown:
            raise Internal(f"kernel '{unknown[0]}' is not in the runtime's sources")
    return facts, sources, kernels


def kernel_sources(programs: Sequence[Program], core: str) -> set[str]:
    """Files in runtime/kernels that the programs' kernels need."""
    _, sources, kernels = _facts(programs, core)
    return {name for kernel in kernels for name in sources[kernel]}


def stack_bytes(programs: Sequence[Program], core: str) -> int:
    """The deepest of: opening and everything outside kernels; checking a kernel's parameters; running a kernel."""
    facts, _, kernels = _facts(programs, core)
    way = stack.way_of(pages(programs), any("replay" in p.meta for p in programs), streams(programs))
    ways = facts[way] if way else facts
    run = max((facts["kernels"][name][0] for name in kernels), default=0)
    check = max((facts["kernels"][name][1] for name in kernels), default=0)
    deepest = max(ways["fixed"], ways["run"] + run, ways["check"] + check)
    align = max(16, *(p.align for p in programs))
    return -(-(int(deepest) + SPARE) // align) * align


__all__ = ["Limits", "kernel_sources", "limits", "replay_shape", "stack_bytes", "table"]
