"""What is in a program file, for `smidgen inspect`: entry points, kernels, sections, what learns. Needs no torch."""

from __future__ import annotations

import os
import struct
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from ..errors import BadProgram
from ..ir import COUNTER, LR
from ..program.buffer import Buffer
from ..program.plan import Plan
from ..program.program import Program
from ..program.writer import HEADER, SECTIONS, VERSION
from ..runtime.machine import check_program
from ..terminal import bytes_text, count_text, paint
from ..train.state import State, checked_facts
from .arena_picture import arena_picture, cut, printable, wrapped
from .plan_text import LEAST_WIDTH, answer, largest_entry, ordered, plan_json

MOST_TENSORS: Final = 40


def checked_program(path: str) -> tuple[Program, Plan]:
    """As `load` would take it; nothing is run, so a program that pages needs no pages."""
    from ..train.load import load

    program = Program.open(path)
    if not program.page_bytes:
        program = load(path, kernels="exact").program
    check_program(path)
    return program, described(program)[0]


def described(program: Program) -> tuple[Plan, Mapping[str, Mapping[str, Any]]]:
    """Plan and map of the state; a file's checksum does not say that they make sense."""
    try:
        return Plan.from_json(program.meta["plan"]), checked_facts(program)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        why = f"{type(error).__name__}: {error}"
        raise BadProgram("the program does not describe its plan and state", why=why) from error


def inspect_json(program: Program, path: str | os.PathLike[str] = "") -> dict[str, Any]:
    """Everything that `inspect_text` shows. Keys: docs/howto/read_a_plan.md."""
    plan, facts = described(program)
    memory = np.zeros(program.state_bytes, np.uint8)
    memory[: len(program.state)] = np.frombuffer(program.state, np.uint8)
    state = State(memory, facts)  # settings only, which are never in PAGE
    data = program.to_bytes()
    learns = {name: i for i, name in enumerate(plan.learns)}
    return {
        "program": os.fspath(path),
        "format_version": VERSION,
        "checksum": "ok",  # or it would not have been loaded
        "file_bytes": len(data),
        "batch": program.batch,
        "method": plan.method,
        "optimizer": plan.optimizer,
        "lr": state.lr if LR in facts else None,
        "steps": state.step if COUNTER in facts else None,
        "seed": state.seed if COUNTER in facts else None,
        "entries": {
            name: {
                "inputs": [_buffer(b) for b in program.entry_buffers(name) if b.direction == "input"],
                "outputs": [_buffer(b) for b in program.entry_buffers(name) if b.direction == "output"],
                "instructions": len(program.entry_code(name)),
                "macs": plan.cost.macs.get(name),
                "arena_bytes": plan.arena_by_entry.get(name),
            }
            for name in ordered(program.entries)
        },
        "regions": {
            "const_bytes": program.const_bytes, "state_bytes": program.state_bytes, "arena_bytes": program.arena_bytes,
        },
        "sections": _sections(data),
        "kernels": dict(Counter(i.kernel for e in program.entries.values() for i in e.code if i.kernel).most_common()),
        "state": [
            {"name": name, "role": fact["role"], "shape": list(fact.get("shape", fact["stored"])),
             "dtype": fact["dtype"], "learns": name in learns}
            for name, fact in sorted(facts.items(), key=lambda f: (learns.get(f[0], len(learns)), f[0]))
        ],
        "plan": plan_json(plan),
    }  # fmt: skip


def _buffer(buffer: Buffer) -> dict[str, Any]:
    stands = {"scale": buffer.scale, "offset": buffer.offset} if buffer.is_scaled else {}
    return {"name": buffer.name, "dtype": buffer.dtype.value, "shape": [str(d) if not isinstance(d, int) else d
                                                                        for d in buffer.dims], **stands}  # fmt: skip


def _stands(scale: float, offset: float) -> str:
    """What bytes stand for, where it is the same for all channels."""
    return ", bytes" if (scale, offset) == (1, 0) else f", bytes q for {scale:.6g}·q{offset:+.6g}"


def _sections(data: bytes) -> dict[str, int]:
    sizes = [struct.unpack_from("<2I", data, HEADER.size + 8 * i)[1] for i in range(len(SECTIONS))]
    return dict(zip(SECTIONS, sizes, strict=True))


def inspect_text(program: Program, path: str | os.PathLike[str] = "", *, colour: bool = False, width: int = 100) -> str:
    """What is in a program file, with the picture of its arena."""
    plan, _ = described(program)
    width, found = max(LEAST_WIDTH, width), inspect_json(program, path)

    def title(text: str) -> str:
        return paint(text, "bold", colour=colour)

    head = f"{title(printable(found['program']))}  " if found["program"] else ""
    head += f"smidgen program, format {VERSION}, {len(program.to_bytes()):,} bytes, checksum ok"
    parts = [head, answer(plan, colour=colour, width=width), "\n".join(wrapped(_training(found), width))]
    parts.append("\n".join([title("entry points"), *_entries(found, width)]))
    parts.append("\n".join([title("learns"), *_learned(found)]))
    sections = [f"{name} {count:,}" for name, count in found["sections"].items()]
    kernels = [f"{printable(name)} ×{count}" for name, count in found["kernels"].items()]
    parts.append("\n".join([title("sections") + "  in bytes; meta stays on the host", *_wrapped(sections, width)]))
    parts.append("\n".join([title("kernels") + f"  {len(kernels)}, and how often", *_wrapped(kernels, width)]))
    entry = largest_entry(plan)
    if entry:
        picture = arena_picture(plan.facts.entries[entry], plan.arena_by_entry[entry], width=width, colour=colour)
        parts.append(f"{title('arena')}  {printable(entry)}: {plan.arena_by_entry[entry]:,} bytes\n\n{picture}")
    return "\n\n".join(parts)


def _training(found: dict[str, Any]) -> str:
    text = printable(found["optimizer"]) or "optimizer not recorded"
    if found["lr"] is not None:
        text += f", lr {found['lr']:g}"
    if found["steps"] is not None:
        text += f"; {found['steps']:,} steps done, seed {found['seed']}"
    return f"trains with {text}; takes 1 to {found['batch']} samples at a time"


def _entries(found: dict[str, Any], width: int) -> list[str]:
    lines = []
    room = max(map(len, found["entries"]))
    for name, entry in found["entries"].items():
        figures = [f"{entry['instructions']:,} instructions"]
        figures += [f"{count_text(entry['macs'])} MACs"] if entry["macs"] else []
        figures += [f"arena {bytes_text(entry['arena_bytes'])}"] if entry["arena_bytes"] is not None else []
        lines.append(f"  {printable(name):<{room}}  {', '.join(figures)}")
        for way, arrow in (("inputs", "←"), ("outputs", "→")):
            for b in entry[way]:
                shape = "×".join(str(d) for d in b["shape"]) or "one number"
                shape += _stands(b["scale"], b["offset"]) if "scale" in b else ""
                lines.append(f"  {'':<{room}}  {arrow} {cut(printable(b['name']), width - 40)}  {b['dtype']} {shape}")
    return lines


def _learned(found: dict[str, Any]) -> list[str]:
    rows = [t for t in found["state"] if t["role"] in ("param", "stat")]
    shown = rows[:MOST_TENSORS]
    room = min(60, max((len(t["name"]) for t in shown), default=0))
    lines = [
        f"  {cut(printable(t['name']), room):<{room}}  {'×'.join(map(str, t['shape'])) or 'one number'}"
        + ("  running statistic" if t["role"] == "stat" else "")
        for t in shown
    ]
    return [*lines, f"  and {len(rows) - len(shown)} more; --json lists all"] if len(rows) > len(shown) else lines


def _wrapped(items: list[str], width: int) -> list[str]:
    text = ", ".join(item.replace(" ", "\0") for item in items)  # a name and its number stay together
    return [f"  {line}".replace("\0", " ") for line in wrapped(text, width - 4)]
