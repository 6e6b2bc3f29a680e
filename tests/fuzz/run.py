"""`make fuzz`: builds the target, lets libFuzzer work on it for a while, and says in a line how it went.

Exit status 0 without a finding, 1 with one, or if a run of a minute or more did not reach every kernel; inputs,
findings and the log are in build/fuzz.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from smidgen.terminal import Progress, count_text, seconds_text

from .build import CORPUS, OUT, build_fuzz

LIMITS = ("-max_len=16384", "-timeout=600", "-rss_limit_mb=4096", "-reload=0", "-print_final_stats=1")
PULSE = re.compile(r"^#(\d+)\s.*?cov: (\d+).*?corp: (\d+)/", re.M)
KERNELS = re.compile(r"^kernels that ran: (\d+ of \d+); not:(.*)$", re.M)
LONG_S = 60
"""A run of so many seconds has to reach every kernel."""


def fuzz(seconds: int, seed: int) -> int:
    if shutil.which("clang") is None:
        print("make fuzz needs clang and its libFuzzer: apt-get install clang", file=sys.stderr)
        return 2
    print("building the fuzz target ...", flush=True)
    target, found, log = build_fuzz(OUT / "fuzz"), OUT / "corpus", OUT / "log"
    found.mkdir(exist_ok=True)
    options = [*LIMITS, f"-seed={seed}", f"-max_total_time={seconds}", f"-artifact_prefix={OUT}/finding-"]
    print(f"fuzzing for {seconds_text(seconds)} with --seed {seed}; log in {relative(log)}", flush=True)
    with log.open("w") as to, Progress("fuzzing", seconds) as bar:
        running = subprocess.Popen([target, *options, found, CORPUS], stderr=to, stdout=to)
        start = time.monotonic()
        while running.poll() is None:
            time.sleep(1)
            bar.advance(int(time.monotonic() - start) - bar.done, summary(log))
    text = log.read_text(errors="replace")
    if running.returncode:
        report = text.find("==ERROR"), text.find("finding: "), text.find("runtime error"), len(text) - 3000
        print(text[min(at for at in report if at >= 0) :][:4000])
        print(f"FINDING after {summary(log)} with --seed {seed}; the program is in {relative(OUT)}/finding-*")
        return 1
    kernels = KERNELS.search(text)
    run, missed = (kernels[1], kernels[2].split()) if kernels else ("unknown", ["the log does not say"])
    print(f"no finding: {summary(log)}, kernels run {run}")
    if missed:
        print(f"never reached: {', '.join(missed)}")
    return int(bool(missed) and seconds >= LONG_S)


def summary(log: Path) -> str:
    """`1.2 M programs, 5700 edges`, from the last line that libFuzzer wrote."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        pulses = PULSE.findall(file.read().decode(errors="replace"))
    if not pulses:
        return "starting"
    programs, edges, kept = pulses[-1]
    return f"{count_text(int(programs))} programs, {edges} edges, {kept} inputs kept"


def relative(path: Path) -> Path:
    return path.relative_to(OUT.parents[1])


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    arguments.add_argument("--seconds", type=int, default=1200)
    arguments.add_argument("--seed", type=int, default=random.randrange(1, 2**31), help="of libFuzzer; default: fresh")
    given = arguments.parse_args()
    sys.exit(fuzz(given.seconds, given.seed))
