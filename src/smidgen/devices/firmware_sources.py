"""What firmware is made of besides the kernels: files of the runtime and the port, and how they are compiled."""

from __future__ import annotations

from typing import Final

from ..runtime.build import EXACT, HERE

PORT: Final = HERE / "ports" / "cortex_m"
RUNTIME_SOURCES: Final = ("vm.c", "faults.c", "load.c", "check.c", "channel.c", "extents.c", "train.c")
RUNTIME_HEADERS: Final = (
    "smidgen.h", "smidgen_train.h", "checked_run.h", "kernel.h", "split.h", "format.h", "extents.h", "exact_math.h",
    "contraction.h", "hash.h", "check.h", "rows.h",
)  # fmt: skip
# For applications: state that survives power loss, new classes, a stream, replay. The linker drops what main.c does not
# call.
REPLAY_SOURCES: Final = ("replay.c", "replay_rows.c", "replay_step.c")
MORE_SOURCES: Final = ("slots.c", "classes.c", "learn.c", *REPLAY_SOURCES)
MORE_HEADERS: Final = ("slots.h", "classes.h", "replay.h", "replay_rows.h", "crc.h", "smidgen_learn.h")
# Only where a program pages.
PAGE_SOURCES: Final = ("pages.c", "blocks.c")
PAGE_HEADERS: Final = ("blocks.h",)
# Only where a program streams.
ROW_SOURCES: Final = ("rows.c", "check_rows.c")
# Only where a gateway speaks for the board: what it answers with, and the port's own.
FLEET_SOURCES: Final = ("frames.c", "fleet.c", "fleet_rows.c")
FLEET_HEADERS: Final = ("frames.h", "fleet.h", "fleet_rows.h")
FLEET_PORT_FILES: Final = ("serial.h", "serial.c")
PORT_FILES: Final = ("board.h", "files.h", "startup.c", "semihosting.c", "strings.c", "arithmetic.c")
COMPILER_FLAGS: Final = (
    "-Os", "-g0", "-ffreestanding", "-ffunction-sections", "-fdata-sections", "-fno-tree-vectorize",
    "-fno-move-loop-invariants", "-fno-guess-branch-probability",
    *(flag for flag in EXACT if flag != "-fPIC"),
)  # fmt: skip
