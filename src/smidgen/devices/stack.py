"""The stack of every kernel and of the runtime on a core, and which source files a kernel needs, as arm-none-eabi-gcc
compiles them.

Frames and calls are the compiler's own (-fcallgraph-info=su); those of its library are read from the machine code.
Calls through pointers are listed here, and one that is not listed is an error.
"""

from __future__ import annotations

import concurrent.futures
import functools
import itertools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..devices.cores import CORES
from ..errors import Internal, MissingPart
from ..runtime.build import HERE, table_source
from .firmware_sources import (
    COMPILER_FLAGS,
    PAGE_SOURCES,
    PORT,
    PORT_FILES,
    REPLAY_SOURCES,
    ROW_SOURCES,
    RUNTIME_SOURCES,
)

CROSS = "arm-none-eabi-"
# Function → what it calls through a pointer. The calls in vm.c and check.c are those of kernels, which depend on the
# program: whoever asks adds them up.
POINTERS = {
    "transfer": ("read_input", "write_output", "watched_read", "watched_write", "read_source"),
    "watched_read": ("read_input", "read_rows"),
    "read_source": ("read_input",),
    "copy_rows": ("read_input",),
    "stage": ("read_input",),  # with copy_rows in it
    "smg_replay_step": ("read_input",),
    "write_piece": ("write_blocks",),
    "put_bytes": ("write_blocks",),  # with write_piece in it, as the next two may have
    "put_int8": ("write_blocks",),
    "smg_put_sample": ("write_blocks",),
    "read_piece": ("read_blocks",),
    "get_bytes": ("read_blocks",),
    "check_part": ("read_blocks",),
    "smg_check_sample": ("read_blocks",),
    "smg_replay_read": ("read_blocks",),
    "watched_write": ("write_output",),
    "smg_sink_end": ("smg_sink_end_store", "smg_sink_end_sgd", "smg_sink_end_momentum", "smg_sink_end_adam"),
    "conv2d": ("conv", "smg_depthwise"),
    "conv2d_dx": ("conv_dx", "smg_depthwise_dx"),
    "conv2d_dw": ("conv_dw", "smg_depthwise_dw"),
    "qconv": ("conv", "smg_qdepthwise"),
    "qconv2d_i8_run": ("conv", "smg_qdepthwise"),  # with qconv in it
    "qconv2d_put_i8_run": ("conv", "smg_qdepthwise"),
    "qconv2d_dw": ("conv_dw_int8", "smg_depthwise_dw_int8"),
    "conv2d_dw_rows_f32_run": ("conv_dw_rows", "smg_depthwise_dw_rows"),
    "page_out_run": ("write_blocks",),
    "page_in_run": ("read_blocks",),
    "page_start_run": ("read_blocks",),
    "page_wait_run": (),  # a block device has nothing to wait for
    "read_blocks": ("read_card",),
    "write_blocks": ("read_card", "write_card"),
    "write_initial": ("write_blocks",),
    "smg_reset_pages": ("write_blocks",),
    "smg_stop_pages": (),
    "main": ("read_blocks",),
}
ONLY_REPLAY = {"read_rows", "read_source"}  # where there is none, nobody points to them
# The same of pointers that only kernels have which call STORED: those whose weights are not whole and in f32.
STORED = "stored_of"
READERS = ("weights_widen", "weights_copy_put", "weights_widen_put", "weights_widen_put8")
STORED_POINTERS = {
    "conv": ("weights_rows_stored",),
    "dot_rows": ("weights_rows_stored",),
    "conv_dx": ("weights_panel_stored",),
    "linear_dx": ("weights_panel_stored",),
    "tile_dx": ("weights_panel_stored",),
    "weights_panel": ("weights_panel_stored",),
    "smg_depthwise": ("weights_taps_stored",),
    "smg_depthwise_dx": ("weights_taps_stored",),
    "weights_taps": ("weights_taps_stored",),
    "weights_rows_stored": READERS,
    "weights_panel_stored": READERS,
    "weights_taps_stored": READERS,
}
# And of those that call ROUNDED: whose weights learn in integers.
ROUNDED = "smg_rounded_to"
ROUNDED_POINTERS = {
    "smg_sink_end": tuple(
        f"smg_rounded_end_{optimizer}_{kind}" for optimizer in ("qsgd", "qmomentum", "qadam") for kind in ("i8", "i32")
    ),
}
MARKED = {STORED: STORED_POINTERS, ROUNDED: ROUNDED_POINTERS}
Marks = frozenset[str]
NONE: Marks = frozenset()
ANY_PROGRAM = """
#define NET_ALIGN 16
#define NET_STATE_BYTES 1024
#define NET_ARENA_BYTES 1024
#define NET_STATE_BANK
#define NET_ARENA_BANK
#define NET_MOST_BUFFERS 4
#define NET_TRAIN_INPUTS 2
#define NET_INFER_BUFFERS 2
extern const unsigned net_program[64];
"""
PAGING = """
#define NET_PAGE_BYTES 512
#define NET_PAGE_STATE_BYTES 512
"""
REPLAYING = """
#define NET_REPLAY {0, 4, 2, 1, 2, 0, -100, 0, 0, 2, {{4, 1}, {4, 2}}}
#define NET_REPLAY_ENTRY "features"
#define NET_REPLAY_ROWS_BYTES 20
"""
SYMBOLS = ("stack", "stack_top", "data_source", "data", "data_end", "bss", "bss_end")  # of the linker script
ANY_BOARD = (
    '#include "board.h"\n'
    + "".join(f"uint32_t board_{name}[4];\n" for name in SYMBOLS)
    + "const BoardRegion board_regions[1];\nconst int board_region_count = 1;\nconst unsigned net_program[64];\n"
)


class Code:
    """All functions of a build: frames in bytes, calls, and the file that each is in."""

    def __init__(self, objects: Iterable[Path], linked: Path) -> None:
        self.frames: dict[str, int] = {}
        self.calls: dict[str, set[str]] = {}
        self.marked_calls: dict[str, dict[str, set[str]]] = {mark: {} for mark in MARKED}
        self.files: dict[str, str] = {}
        self.by_name: dict[str, set[str]] = {}
        self.call_kernels: dict[str, set[str]] = {"vm": set(), "check": set()}
        self._depths: dict[tuple[str, Marks], int] = {}
        for path in objects:
            self._read_graph(path)
        self._read_machine_code(linked)

    def _read_graph(self, path: Path) -> None:
        text = path.with_suffix(".ci").read_text()
        own: dict[str, str] = {}  # functions of this file
        for title, label in re.findall(r'node: \{ title: "([^"]*)" label: "([^"]*)"', text):
            found = re.search(r"(\d+) bytes \((\w+)", label)
            if not found:
                continue
            if found[2] not in ("static", "dynamic,bounded"):
                raise Internal(f"{title} has a frame of no fixed size")
            self.frames[title] = int(found[1])
            self.files[title] = path.stem
            self.by_name.setdefault(_bare(title), set()).add(title)
            own[_bare(title)] = title
        for source, target in re.findall(r'edge: \{ sourcename: "([^"]*)" targetname: "([^"]*)"', text):
            if target != "__indirect_call":
                self.calls.setdefault(source, set()).add(target)
                continue
            name = _bare(source)
            if path.stem in self.call_kernels:
                self.call_kernels[path.stem].add(source)
                continue
            if not any(name in table for table in (POINTERS, *MARKED.values())):
                raise Internal(f"{source} calls through a pointer: say in POINTERS what")
            marked = [(MARKED[mark], calls) for mark, calls in self.marked_calls.items()]
            for table, calls in ((POINTERS, self.calls), *marked):
                calls.setdefault(source, set()).update(own.get(c, f"*{c}") for c in table.get(name, ()))

    def _read_machine_code(self, linked: Path) -> None:
        """Functions that no graph describes: the compiler's library, which pushes and little else."""
        text = _run("objdump", "-d", linked)
        for name, body in re.findall(r"^[0-9a-f]+ <([^>]+)>:\n(.*?)(?=\n\n|\Z)", text, re.MULTILINE | re.DOTALL):
            if name in self.frames or name in self.by_name:
                continue
            frame = 0
            for line in body.splitlines():
                frame += _pushed(line)
                target = re.search(r"\sb(?:l|lx)?(?:\.[nw])?\s+[0-9a-f]+ <([^>+]+)>", line)
                if target and target[1] != name:
                    self.calls.setdefault(name, set()).add(target[1])
            self.frames[name] = frame
        symbols = _run("nm", linked)
        places: dict[str, list[str]] = {}
        for address, name in re.findall(r"^([0-9a-f]+) [tTW] (\S+)$", symbols, re.MULTILINE):
            places.setdefault(address, []).append(name)
        self.same = {name: names for names in places.values() for name in names}

    def titles(self, target: str) -> set[str]:
        """Nodes that a name can mean; equal functions may have been made one."""
        name = target.lstrip("*")
        if name in self.frames:
            return {name}
        names = [name, *self.same.get(name, ())]
        found = {t for n in names for t in self.by_name.get(n, set()) | ({n} & set(self.frames))}
        if not found and name not in ONLY_REPLAY:
            raise Internal(f"nothing is known of {target}")
        return found

    def marks(self, title: str) -> Marks:
        return frozenset(MARKED).intersection(_bare(c) for c in self.calls.get(title, ()))

    def depth(self, title: str, above: tuple[str, ...] = (), marks: Marks = NONE) -> int:
        """Bytes of stack from entering a function to the end of its deepest call."""
        marks |= self.marks(title)
        if title in above:
            if not title.startswith(("/", "smg_")):
                return 0  # labels inside a library function that call each other by jumps
            raise Internal(f"{title} calls itself")
        key = title, marks
        if key not in self._depths:
            called = self.calls.get(title, set()).union(*(self.marked_calls[mark].get(title, ()) for mark in marks))
            callees = {t for c in called for t in self.titles(c)}
            below = max((self.depth(t, (*above, title), marks) for t in callees), default=0)
            self._depths[key] = self.frames[title] + below
        return self._depths[key]

    def way_to(self, start: str, ends: set[str]) -> int:
        """The deepest stack on a way from `start` to one of `ends`, both included; -1 if there is none."""
        if start in ends:
            return self.frames[start]
        ways = [self.way_to(t, ends) for c in self.calls.get(start, ()) for t in self.titles(c) if t != start]
        return max((self.frames[start] + way for way in ways if way >= 0), default=-1)

    def sources(self, title: str, seen: set[str]) -> set[str]:
        if title in seen:
            return set()
        seen.add(title)
        own = {self.files[title]} if title in self.files else set()
        # A function of which several files have a copy is in the file of whoever made the pointer to it.
        called = [
            found for c in self.calls.get(title, ()) if len(found := self.titles(c)) == 1 or not c.startswith("*")
        ]
        return own.union(*(self.sources(t, seen) for found in called for t in found))


def _run(tool: str, *words: str | Path) -> str:
    plain = {**os.environ, "CCACHE_DISABLE": "1"}  # which does not keep what -fcallgraph-info writes
    done = subprocess.run([f"{CROSS}{tool}", *words], capture_output=True, text=True, env=plain)
    if done.returncode:
        raise Internal(f"{CROSS}{tool} refuses the runtime's sources", why=done.stderr.strip()[:500])
    return done.stdout


def _bare(title: str) -> str:
    return re.sub(r"\.(constprop|isra|part|cold).*", "", title.rpartition(":")[2])


def _pushed(line: str) -> int:
    """Bytes by which an instruction moves the stack pointer down."""
    found = re.search(r"\s(v?push)(?:\.w)?\s+\{([^}]*)\}|\sstmdb\s+sp!, (?P<many>)\{([^}]*)\}", line)
    if found:
        registers = found[2] if found[2] is not None else found[4]
        count = sum(_count(part.strip()) for part in registers.split(","))
        return count * (8 if found[1] == "vpush" and "d" in registers else 4)
    sub, store = r"\ssub(?:w|\.w)?\s+sp,(?: sp,)? #(\d+)", r"\sstr(?:d|\.w)?\s.*\[sp, #-(\d+)\]!"
    found = re.search(f"{sub}|{store}", line)
    return int(next(group for group in found.groups() if group)) if found else 0


def _count(part: str) -> int:
    first, _, last = part.partition("-")
    return int(last.strip()[1:]) - int(first.strip()[1:]) + 1 if last else 1


@functools.cache
def measured_now(core: str) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """`measured`, of the sources as they are."""
    if shutil.which(f"{CROSS}gcc") is None:
        raise MissingPart(
            "the stack of a new kernel must be measured, and there is no compiler for the board",
            why=f"{CROSS}gcc is not installed, and the kernel is not in the table of stack use",
            help=f"install {CROSS}gcc; `python -m tools.measure_stack` then adds the kernel to the table",
        )
    with tempfile.TemporaryDirectory() as folder:
        return measured(core, Path(folder))


def measured(core: str, folder: Path) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Facts of one core, and the sources of every kernel. Firmware that does not page is built without the code for it,
    and so is that without replay or streams: each is measured on its own."""
    ways: dict[str, dict[str, Any]] = {}
    kernels: dict[str, Any] = {}
    sources: dict[str, list[str]] = {}
    for pages in (True, False):
        objects = _compiled(core, sorted(HERE.glob("kernels/*.c")), folder / f"kernels{pages}", [_flag("PAGES", pages)])
        for replays, streams in itertools.product((True, False), repeat=2):
            way = way_of(pages, replays, streams)
            found, own = _measured_with(core, folder / f"way_{way.replace(' ', '_')}", objects, pages, replays, streams)
            kernels |= found.pop("kernels")
            sources |= own
            ways[way] = found
    return {**ways.pop(""), "kernels": kernels, **ways}, sources


def way_of(pages: bool, replays: bool, streams: bool) -> str:
    """What the facts of such firmware are called; those of the plain one have no name."""
    return " ".join(["paging"] * pages + ["replay"] * replays + ["streams"] * streams)


def _flag(name: str, value: bool) -> str:
    return f"-DSMG_{name}={int(value)}"


def _compiled(core: str, paths: Sequence[Path], folder: Path, more: Sequence[str]) -> list[Path]:
    """Object files in `folder`; a file of a kernel may have the name of one of the runtime."""
    flags = [*CORES[core].flags, *COMPILER_FLAGS, *more, f"-I{HERE}", f"-I{PORT}", f"-I{folder}"]
    folder.mkdir(exist_ok=True)

    def compiled(path: Path) -> Path:
        out = folder / (f"kernels_{path.stem}.o" if path.parent.name == "kernels" else f"{path.stem}.o")
        _run("gcc", *flags, "-fcallgraph-info=su", "-c", path, "-o", out)
        return out

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return list(pool.map(compiled, paths))


def _measured_with(
    core: str, folder: Path, kernels: Sequence[Path], pages: bool, replays: bool, streams: bool
) -> tuple[dict[str, Any], dict[str, list[str]]]:  # fmt: skip
    """With these parts of the runtime; `kernels` are object files."""
    folder.mkdir()
    (folder / "net_program.h").write_text(ANY_PROGRAM + PAGING * pages + REPLAYING * replays)
    (folder / "any_board.c").write_text(ANY_BOARD)
    kernel_names = sorted(set(re.findall(r" R smg_kernel_(\w+)$", _run("nm", *kernels), re.MULTILINE)))
    (folder / "table.c").write_text(table_source(kernel_names, {}))
    names = [*RUNTIME_SOURCES]
    for wanted, more in ((pages, PAGE_SOURCES), (replays, REPLAY_SOURCES), (streams, ROW_SOURCES)):
        names += more if wanted else ()
    port = [PORT / name for name in sorted((*PORT_FILES, "main.c")) if name.endswith(".c")]
    paths = [*(HERE / name for name in names), *port, folder / "any_board.c", folder / "table.c"]
    objects = [*kernels, *_compiled(core, paths, folder, [_flag("PAGES", pages), _flag("ROWS", streams)])]
    linked = folder / "all.elf"
    link = [*CORES[core].flags, "-nostartfiles", "--specs=nano.specs", "-Wl,-e,board_reset", "-Wl,--no-gc-sections"]
    _run("gcc", *link, *objects, "-o", linked)
    code = Code(objects, linked)
    (main,) = code.by_name["main"]
    outside = sum(code.frames[t] for t in code.by_name["board_start"])
    facts: dict[str, Any] = {
        "fixed": outside + code.depth(main),
        "run": outside + code.way_to(main, code.call_kernels["vm"]),
        "check": outside + code.way_to(main, code.call_kernels["check"]),
        "kernels": {},
    }
    sources: dict[str, list[str]] = {}
    for name in kernel_names:
        run, extent = code.titles(f"{name}_run"), code.titles(f"{name}_extent")
        facts["kernels"][name] = [max(map(code.depth, run)), max(map(code.depth, extent))]
        sources[name] = sorted(_files(code, run | extent))
    return facts, sources


def _files(code: Code, titles: Iterable[str]) -> set[str]:
    found = {name for t in titles for name in code.sources(t, set())}
    return {f"{name.removeprefix('kernels_')}.c" for name in found if name.startswith("kernels_")}
