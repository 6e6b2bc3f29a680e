"""`make frames`: what a gateway may send to a board, against the board's own C, under the sanitizers (fuzz_frames.c).

Exit status 0 without a finding, 1 with one; inputs, findings and the log are in build/fuzz.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Final

from smidgen.fleet.frames import Ask, Frame
from smidgen.program.program import Program
from smidgen.runtime.build import compile_runtime

from .build import CORPUS, HERE, OUT, SANITIZE

PROGRAM: Final = CORPUS / "seed-parts.smg"  # it takes a batch in parts
MOST_BYTES: Final = 512
DONE: Final = re.compile(r"^Done (\d+) runs", re.M)
EDGES: Final = re.compile(r"cov: (\d+)")


def build(out: Path) -> Path:
    """With libFuzzer; edges are counted in the three files that read what comes over the line."""
    OUT.mkdir(parents=True, exist_ok=True)
    bare = Program.load(PROGRAM).bare_bytes()
    words = ", ".join(f"0x{word:08x}u" for (word,) in struct.iter_unpack("<I", bare))
    (OUT / "fuzz_frames_program.h").write_text(
        f"static const _Alignas(64) uint32_t own_program[{len(bare) // 4}] = {{{words}}};\n"
    )
    flags = ("-O2", *SANITIZE, "-fsanitize=fuzzer", f"-I{OUT}", "-Wno-unused-command-line-argument",
             f"-fsanitize-coverage-allowlist={HERE / 'frames.txt'}")  # fmt: skip
    return compile_runtime(out, "clang", flags, main=[HERE / "fuzz_frames.c"])


def seeds(folder: Path) -> None:
    """A round as a gateway asks for it, a program that comes, and a line as it is."""
    folder.mkdir(parents=True, exist_ok=True)

    def asked(kind: int, payload: bytes = b"", what: int = 0) -> bytes:
        return bytes([kind | what, 0, len(payload)]) + payload

    row = struct.pack("<I", 0) + bytes(64)
    step = struct.pack("<4H", 1, 1, 0, 0)
    parts = [struct.pack("<5H", 2, 4, first, 0, 1) for first in (0, 2)]
    of_a_round = [
        asked(Ask.STATE_IN, struct.pack("<I", 0) + bytes(32)), asked(Ask.STATE_SET, bytes(4), 128),
        asked(Ask.SAMPLES_IN, row), asked(Ask.STEP, step), *(asked(Ask.STEP, part) for part in parts),
        asked(Ask.HASH), asked(Ask.SAVE), asked(Ask.STATE_OUT, struct.pack("<2I", 0, 64)),
        asked(Ask.INFER, struct.pack("<2I2H", 0, 8, 1, 0)), asked(15), asked(Ask.STEP, step, 16),
    ]  # fmt: skip
    (folder / "round").write_bytes(b"\xc0" + b"".join(of_a_round))
    (folder / "recipe").write_bytes(b"\xc0" + bytes([15, 255, 0, 15, 3, 1]) + asked(Ask.RECIPE, struct.pack("<I", 512)))
    line = Frame(Ask.HELLO, 1, 1, b"").pack() + Frame(Ask.HASH, 1, 2, b"").pack()
    (folder / "line").write_bytes(b"\1" + line + line[:20] + b"\xa5" + line)


def fuzz(runs: int, seed: int) -> int:
    if shutil.which("clang") is None:
        print("make frames needs clang and its libFuzzer: apt-get install clang", file=sys.stderr)
        return 2
    target, found, log = build(OUT / "fuzz_frames"), OUT / "frames", OUT / "frames.log"
    seeds(found)
    limits = [f"-max_len={MOST_BYTES}", "-timeout=60", "-rss_limit_mb=2048", "-print_final_stats=1", "-reload=0"]
    command = [target, *limits, f"-seed={seed}", f"-runs={runs}", f"-artifact_prefix={OUT}/frames-finding-", found]
    print(f"{runs:,} executions with --seed {seed}", flush=True)
    with log.open("w") as to:
        status = subprocess.run(command, stdout=to, stderr=to, check=False).returncode
    text = log.read_text(errors="replace")
    done = DONE.search(text)
    if status or done is None:
        at = [text.find(sign) for sign in ("==ERROR", "finding: ", "runtime error") if sign in text]
        print(text[min(at, default=max(0, len(text) - 3000)) :][:4000])
        print(f"FINDING with --seed {seed}; the input is in {OUT.name}/frames-finding-*")
        return 1
    print(f"no finding: {int(done[1]):,} executions, {EDGES.findall(text)[-1]} edges")
    return 0


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(prog="python -m tests.fuzz.frames", description=__doc__)
    arguments.add_argument("--runs", type=int, default=10_000_000)
    arguments.add_argument("--seed", type=int, default=random.randrange(1, 2**31), help="of libFuzzer; default: fresh")
    given = arguments.parse_args()
    sys.exit(fuzz(given.runs, given.seed))
