"""A C project for a board: the runtime's sources, the program as a table in flash with its own list of kernels,
startup, linker script, memory protection, `main.c`, Makefile and CMakeLists. Everything that is written here is data
in C's clothes; what is code is copied from runtime/.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..devices.cores import core_of
from ..devices.device import Device
from ..devices.firmware_sources import (
    FLEET_HEADERS,
    FLEET_PORT_FILES,
    FLEET_SOURCES,
    MORE_HEADERS,
    MORE_SOURCES,
    PAGE_HEADERS,
    PAGE_SOURCES,
    PORT,
    PORT_FILES,
    ROW_SOURCES,
    RUNTIME_HEADERS,
    RUNTIME_SOURCES,
)  # fmt: skip
from ..devices.overhead import MESSAGE_BYTES, PAGER_BYTES, Limits, kernel_sources, limits, replay_shape, stack_bytes
from ..devices.room import Limit, Need, Overhead, assigned, check_slots
from ..errors import BadOption, BadProgram, CannotWrite, DoesNotFit
from ..ir import LR
from ..program.buffer import Buffer
from ..program.program import Program
from ..runtime.build import HERE, inplace_inputs, table_source
from ..train.classes import c_initializer
from ..train.replay import c_initializer as c_initializer_of_replay
from ..train.replay import sample_buffers
from ..train.settings import checked_batch
from .board_member import MEMBER_STACK_BYTES, Member, check_member
from .board_memory import regions, regions_source, standin

MANIFEST: Final = "firmware.json"
WORDS_A_LINE: Final = 8


@dataclass(frozen=True, slots=True)
class Firmware:
    """What was written. `boards`: the device, and the emulated board that stands in for it if that is another one."""

    folder: Path
    prefix: str
    device: str
    boards: tuple[str, ...]
    ram_bytes: int
    stack_bytes: int
    context_bytes: int
    program_bytes: int  # of the first one
    slot_bytes: int
    flash_bytes: int  # of all programs and both slots, besides the code

    def to_json(self) -> dict[str, Any]:
        return {
            "firmware": str(self.folder), "prefix": self.prefix, "device": self.device, "boards": list(self.boards),
            "ram_bytes": self.ram_bytes, "stack_bytes": self.stack_bytes, "context_bytes": self.context_bytes,
            "program_bytes": self.program_bytes, "slot_bytes": self.slot_bytes,
        }  # fmt: skip


def write_firmware(
    folder: Path | str, program: Program, device: Device, prefix: str = "net", member: Member | None = None
) -> Firmware:
    """Write the project into `folder`, which is new, empty, or a project of the same device: a program under another
    prefix is then added to it. With `member`, it answers a gateway, with the first program: serve.c in the place of
    main.c. An existing main.c is left as it is. The last two times device.slot_bytes of
    flash, whole sectors, are kept free for slots.h; the header says where."""
    folder = Path(folder)
    core = core_of(device)
    _check_prefix(prefix)
    _check_entries(program)
    programs = _programs(folder, device, prefix) | {prefix: program}
    first = next(iter(programs))
    own, all_programs = programs[first], list(programs.values())
    sizes = limits(all_programs)
    if member is not None:
        check_member(own)
    beside = 0 if member is None else member.ram_bytes(own)
    stack = stack_bytes(all_programs, core.name) + (0 if member is None else MEMBER_STACK_BYTES)
    emulated = standin(device)
    boards = [device] if emulated == device else [device, emulated]
    banks = _banks(device, own, sizes, stack, beside)
    check_slots(device, program)
    _check_flash(device, all_programs)
    files: dict[str, str] = {
        f"{prefix}_program.h": program_header(program, prefix, banks, device.slot_bytes, member),
        f"{prefix}_program.c": program_source(program, prefix),
        "smidgen_config.h": config_header(sizes),
        "kernels.c": kernels_source(all_programs, sizes),
        MANIFEST: json.dumps({"device": device.name, "boards": [b.name for b in boards], "programs": list(programs),
                              "machine": emulated.board, "clock_hz": device.clock_hz,
                              "ram_bytes": _ram(own, sizes, stack) + beside,
                              "stack_bytes": stack, "context_bytes": sizes.context_bytes,
                              "slot_bytes": device.slot_bytes}, indent=1) + "\n",
    }  # fmt: skip
    for board in boards:
        found = regions(board, core.protection)
        files[f"boards/{board.name}/memory.c"] = regions_source(found, board)
        files[f"boards/{board.name}/link.ld"] = _linker_script(board, stack, banks)
    kernels = sorted(kernel_sources(all_programs, core.name))
    headers = sorted(path.name for path in HERE.glob("kernels/*.h"))
    optional = (*(PAGE_SOURCES if sizes.pages else ()), *(ROW_SOURCES if sizes.streams else ()))
    serves = member is not None
    sources = (*RUNTIME_SOURCES, *MORE_SOURCES, *optional, *(FLEET_SOURCES if serves else ()))
    headers_too = (*(PAGE_HEADERS if sizes.pages else ()), *(FLEET_HEADERS if serves else ()))
    for name in (*sources, *RUNTIME_HEADERS, *MORE_HEADERS, *headers_too):
        files[f"smidgen/{name}"] = (HERE / name).read_text()
    for name in (*kernels, *headers):
        files[f"smidgen/kernels/{name}"] = (HERE / "kernels" / name).read_text()
    port = (*PORT_FILES, *(FLEET_PORT_FILES if serves else ()))
    for name in port:
        files[f"port/{name}"] = (PORT / name).read_text()
    library = [
        *(f"smidgen/{name}" for name in sources),
        *(f"smidgen/kernels/{name}" for name in kernels),
        "kernels.c",
        *(f"{name}_program.c" for name in programs),
    ]
    files |= _build_files(core.flags, library, [b.name for b in boards], port, "serve.c" if serves else "main.c")
    if serves and not (folder / "serve.c").exists():
        files["serve.c"] = with_prefix((PORT / "serve.c").read_text(), first)
    if not (folder / "main.c").exists():
        files["main.c"] = with_prefix((PORT / "main.c").read_text(), first)
    if "learn" in own.entries and not (folder / "stream.c").exists():
        files["stream.c"] = with_prefix((PORT / "stream.c").read_text(), first)
    _write(folder, files, {f"{prefix}.smg": program.to_bytes()})
    return Firmware(
        folder, prefix, device.name, tuple(b.name for b in boards), _ram(own, sizes, stack) + beside, stack,
        sizes.context_bytes, own.flash_bytes, device.slot_bytes, _flash(device, all_programs),
    )  # fmt: skip


# -- the program as C ----------------------------------------------------------------------------------------------


def bare_bytes(program: Program) -> bytes:
    """See Program.bare_bytes."""
    return program.bare_bytes()


def program_source(program: Program, prefix: str) -> str:
    words = [word for (word,) in struct.iter_unpack("<I", bare_bytes(program))]
    rows = [
        "    " + " ".join(f"0x{word:08x}," for word in words[i : i + WORDS_A_LINE])
        for i in range(0, len(words), WORDS_A_LINE)
    ]
    return "\n".join([
        f"/* The program file {prefix}.smg, without the part that only Python reads; it is used where it lies. */",
        f'#include "{prefix}_program.h"', "",
        f'__attribute__((section(".program"), aligned(64))) const uint32_t {prefix}_program[] = {{', *rows, "};", "",
    ])  # fmt: skip


def kernels_source(programs: Sequence[Program], sizes: Limits) -> str:
    """The kernels that are linked, and proof that the context is as large as planned."""
    table = table_source(_kernels(programs), inplace_inputs())
    proof = f'_Static_assert(sizeof(SmgContext) == {sizes.struct_bytes}, "the plan counts on another context");\n'
    if sizes.pages:
        proof += f'#include "blocks.h"\n_Static_assert(sizeof(SmgBlocks) + sizeof(SmgPager) == {PAGER_BYTES}, "");\n'
    return table + proof


def program_header(
    program: Program, prefix: str, banks: Mapping[str, str], slot_bytes: int = 0, member: Member | None = None
) -> str:
    upper = prefix.upper()
    infer = program.entry_buffers("infer")
    inputs = sample_buffers(program)
    lr = program.meta.get("state", {}).get(LR, {}).get("offset")
    numbers: list[tuple[str, object, str]] = [
        ("BATCH", program.batch, "the most samples of one call"),
        ("STEP_SAMPLES", checked_batch(None, program), "of a step as planned; more than of one call: see smg_grad"),
        ("ALIGN", program.align, "of state and arena"),
        ("STATE_BYTES", program.state_bytes, "what learns, and all that belongs to it"),
        ("ARENA_BYTES", program.arena_bytes, "holds nothing between calls, so several programs can share it; but "
         "see smg_grad"),
        ("TRAIN_INPUTS", len(inputs), ", ".join(map(_described, inputs))),
        ("INFER_BUFFERS", len(infer), ", ".join(map(_described, infer))),
        ("MOST_BUFFERS", max(len(e.buffers) for e in program.entries.values()), "of any entry point"),
    ]  # fmt: skip
    if program.page_bytes:
        numbers += [
            ("PAGE_BYTES", program.page_bytes, "storage to page to: see blocks.h"),
            ("PAGE_STATE_BYTES", program.page_state_bytes, "the first of them: state between steps"),
        ]
    classes = c_initializer(program)
    if classes:
        numbers.append(("CLASSES", classes, "an SmgClasses: see classes.h"))
    shape = replay_shape(program)
    if shape is not None:
        entry = "features" if "features" in program.entries else "train"
        numbers += [
            ("REPLAY", c_initializer_of_replay(shape), "an SmgReplay: see replay.h"),
            ("REPLAY_ENTRY", f'"{entry}"', "takes the inputs of new samples"),
            ("REPLAY_ROWS_BYTES", shape.rows_bytes(shape.fresh), f"of {shape.fresh} new samples"),
        ]
    if slot_bytes:
        numbers.append(
            ("SLOT_BYTES", slot_bytes, "of each of the two slots, the first one at board_slots: see slots.h")
        )
    numbers += [] if member is None else member.numbers(program)
    if lr is not None:
        numbers.append(("LR_AT", lr, "place of the learning rate, a float, in state"))
    for region in ("state", "arena"):
        where = f'__attribute__((section(".ram_{banks[region]}")))' if banks[region] != banks["stack"] else ""
        numbers.append((f"{region.upper()}_BANK", where, f"{region} is in {banks[region]}"))
    return "\n".join([
        f"/* What the program `{prefix}` needs and takes. n is the number of samples of a call. */",
        f"#ifndef {upper}_PROGRAM_H", f"#define {upper}_PROGRAM_H", "#include <stdint.h>", "",
        *(f"#define {upper}_{name} {value} /* {note} */".replace("  /*", " /*") for name, value, note in numbers),
        "", f"extern const uint32_t {prefix}_program[{len(bare_bytes(program)) // 4}];", "#endif", "",
    ])  # fmt: skip


def _described(buffer: Buffer) -> str:
    dims = ",".join(str(d) for d in buffer.dims)
    return f"{buffer.name} {buffer.dtype.value}[{dims}]".replace("*/", "* /")


def config_header(sizes: Limits) -> str:
    return "\n".join([
        "/* Limits of the runtime, which decide how large SmgContext is. A program that is loaded later, over the air,",
        " * may need larger ones; it is refused otherwise. */",
        f"#define SMG_MAX_KERNELS {sizes.kernels}", f"#define SMG_MAX_ENTRIES {sizes.entries}",
        f"#define SMG_MAX_WORDS {sizes.words}", f"#define SMG_MESSAGE_BYTES {MESSAGE_BYTES}", "#define SMG_RULES 0",
        f"#define SMG_PAGES {int(sizes.pages)}", f"#define SMG_ROWS {int(sizes.streams)}", "",
    ])  # fmt: skip


def with_prefix(text: str, prefix: str) -> str:
    return text.replace("net_program", f"{prefix}_program").replace("NET_", f"{prefix.upper()}_").replace(
        "program `net`", f"program `{prefix}`"
    )  # fmt: skip


# -- the board -----------------------------------------------------------------------------------------------------


def _linker_script(board: Device, stack: int, banks: Mapping[str, str]) -> str:
    names = [bank.name for bank in board.ram_banks]
    slot_bytes = board.slot_bytes
    code_bytes = board.flash_bytes - 2 * slot_bytes
    rows = [("FLASH (rx)", board.flash_origin, str(code_bytes))]
    if slot_bytes:
        rows.append(("SLOTS (r)", board.flash_origin + code_bytes, str(2 * slot_bytes)))
    for i, bank in enumerate(board.ram_banks):
        # A number that the linker is given can stand in for the size of the first bank.
        size = f"DEFINED(RAM_BYTES) ? RAM_BYTES : {bank.bytes}" if i == 0 else str(bank.bytes)
        rows.append((f"{_symbol(bank.name)} (rw)", bank.origin, size))
    memory = "\n".join(f"    {name} : ORIGIN = 0x{origin:08x}, LENGTH = {size}" for name, origin, size in rows)
    others = [name for name in names if name in banks.values() and name != names[0]]
    sections = "".join(f"    .ram_{n} (NOLOAD) : {{ *(.ram_{n}) }} > {_symbol(n)}\n" for n in others)
    if slot_bytes:
        sections += "    board_slots = ORIGIN(SLOTS);\n"
    text = (PORT / "link.ld.in").read_text()
    return _filled(text, DEVICE=board.title, MEMORY=memory, STACK=str(stack), FIRST=_symbol(names[0]), BANKS=sections)


def _symbol(bank: str) -> str:
    return bank.replace("-", "_")


def _build_files(
    flags: Sequence[str], library: Sequence[str], boards: Sequence[str], port_files: Sequence[str], main: str
) -> dict[str, str]:
    port = [f"port/{name}" for name in port_files if name.endswith(".c")]
    elves = " ".join(f"{board}.elf" for board in boards)
    make = _filled(
        (PORT / "Makefile.in").read_text(), CPU=" ".join(flags), SOURCES=" ".join([*library, *port]), ALL=elves,
        ELVES=" and ".join(f"{board}.elf" for board in boards), MAIN=main,
    )  # fmt: skip
    cmake = _filled(
        (PORT / "CMakeLists.txt.in").read_text(), CPU_LIST=" ".join(flags), LIBRARY="\n  " + "\n  ".join(library),
        PORT=" ".join(port), BOARDS=" ".join(boards), MAIN=main,
    )  # fmt: skip
    return {"Makefile": make, "CMakeLists.txt": cmake, "toolchain.cmake": (PORT / "toolchain.cmake").read_text()}


def _filled(text: str, **values: str) -> str:
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


# -- checks --------------------------------------------------------------------------------------------------------


def _ram(program: Program, sizes: Limits, stack: int) -> int:
    return program.state_bytes + program.arena_bytes + sizes.context_bytes + stack


def _banks(device: Device, program: Program, sizes: Limits, stack: int, beside: int = 0) -> dict[str, str]:
    """`beside`: for a gateway, in the bank of the context."""
    overhead = Overhead(sizes.context_bytes + beside, stack)
    need = Need(program.state_bytes, program.arena_bytes, overhead, program.flash_bytes)
    found = assigned(Limit.of_device(device), need)
    if found is None:
        have = " + ".join(f"{bank.bytes:,} ({bank.name})" for bank in device.ram_banks)
        raise DoesNotFit(
            f"needs {need.ram_bytes:,} bytes of RAM, {device.name} has {have}",
            why=f"state {program.state_bytes:,}, arena {program.arena_bytes:,}, context and stack "
            f"{sizes.context_bytes + stack:,}"
            + (f", rows, frames and recipe for a gateway {beside:,}" if beside else "")
            + "; each is in one bank",
            help="a smaller --batch, or a --method that learns less",
        )  # fmt: skip
    return found


def _flash(device: Device, programs: Sequence[Program]) -> int:
    """The tables and the slots; the linker adds the code."""
    return sum(len(bare_bytes(program)) for program in programs) + 2 * device.slot_bytes


def _check_flash(device: Device, programs: Sequence[Program]) -> None:
    """If the code is too much, the linker says so."""
    need, slots = _flash(device, programs), 2 * device.slot_bytes
    if device.flash_bytes and need > device.flash_bytes:
        raise DoesNotFit(
            f"needs {need:,} bytes of flash besides the code, {device.name} has {device.flash_bytes:,}",
            why=f"programs {need - slots:,}" + (f", two slots {slots:,}" if slots else ""),
            help="a --method that learns less, or --const int8" + (", or smaller slots" if slots else ""),
        )


def _kernels(programs: Sequence[Program]) -> list[str]:
    return sorted({name for program in programs for name in program.kernels})


def _check_prefix(prefix: str) -> None:
    if (
        not prefix.isidentifier()
        or not prefix.isascii()
        or not prefix[0].isalpha()
        or prefix.startswith(("smg", "board"))
    ):
        raise BadOption(f"'{prefix}' cannot be the start of names in C", help="--prefix net")


def _check_entries(program: Program) -> None:
    if not {"train", "infer"} <= set(program.entries):
        raise BadProgram("firmware needs the entry points train and infer", help="compile the model again")


def _programs(folder: Path, device: Device, prefix: str) -> dict[str, Program]:
    """Those that an existing project has. Slots are the project's: the headers of all programs say where they lie."""
    if not folder.exists() or not any(folder.iterdir()):
        return {}
    if not (folder / MANIFEST).exists():
        raise CannotWrite(f"'{folder}' is not empty, and not a firmware project", help="--firmware with a new folder")
    facts = manifest(folder)
    if facts["device"] != device.name:
        raise CannotWrite(f"'{folder}' is firmware for {facts['device']}", help="--firmware with a new folder")
    if facts["slot_bytes"] != device.slot_bytes and set(facts["programs"]) - {prefix}:
        kept = facts["slot_bytes"]
        raise BadOption(
            f"'{folder}' keeps two slots of {kept:,} bytes free, not {device.slot_bytes:,}", help=f"--slot-bytes {kept}"
        )
    return {name: Program.load(folder / f"{name}.smg") for name in facts["programs"]}


def manifest(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / MANIFEST).read_text())
        return {
            key: found[key]
            for key in ("device", "boards", "programs", "machine", "clock_hz", "ram_bytes", "stack_bytes", "slot_bytes")
        }
    except (OSError, ValueError, KeyError) as error:
        raise BadOption(f"'{folder}' is not a firmware project", help="smidgen build … --firmware FOLDER") from error


def _write(folder: Path, files: Mapping[str, str], binary: Mapping[str, bytes]) -> None:
    try:
        for name, data in {**{name: text.encode() for name, text in files.items()}, **binary}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    except OSError as error:
        raise CannotWrite(f"cannot write '{folder}'", why=error.strerror or str(error)) from error


__all__ = ["Firmware", "write_firmware"]
