"""The corpus of `make fuzz`, findings included: replayed under the sanitizers without libFuzzer,
by the ordinary runtime, and by Python's reader. tests/fuzz/fuzz_program.c says what counts as a finding.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from smidgen.errors import BadProgram
from smidgen.program.program import Program
from smidgen.runtime.build import HERE as RUNTIME
from smidgen.runtime.machine import Machine
from tests.fuzz.build import CORPUS, build_replay
from tests.fuzz.build import HERE as FUZZ

FILES = sorted(CORPUS.glob("*.smg"))
SEEDS = [path for path in FILES if path.name.startswith("seed-")]
MUTATIONS = int(os.environ.get("SMIDGEN_MUTATIONS", "6000"))
COMPILER = next((cc for cc in ("clang", "gcc") if shutil.which(cc)), "")
needs_sanitizers = pytest.mark.skipif(not COMPILER, reason="needs clang or gcc and their sanitizers")


@pytest.fixture(scope="session")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fuzz target as a plain program; one build serves all test processes."""
    digest = hashlib.sha256()
    for path in sorted([*RUNTIME.rglob("*.[ch]"), *FUZZ.glob("*.[ch]")]):
        digest.update(path.read_bytes())
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    out = folder / f"replay-{digest.hexdigest()[:16]}"
    with (folder / "replay.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return out if out.exists() else build_replay(out, COMPILER)


def replayed(replay: Path, *arguments: str | Path) -> dict[str, str]:
    """What became of each file, mutation and kernel; fails with the sanitizer's report if there is one."""
    done = subprocess.run([replay, *arguments], capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, f"{done.stdout.splitlines()[-1:]}\n{done.stderr[:3000]}"
    return {name.rpartition("/")[2]: said for name, _, said in (li.partition(": ") for li in done.stdout.splitlines())}


@pytest.fixture(scope="session")
def verdicts(replay: Path) -> dict[str, str]:
    return replayed(replay, *FILES)


@needs_sanitizers
def test_every_file_of_the_corpus_is_survived(verdicts: dict[str, str]) -> None:
    assert {path.name for path in FILES} <= set(verdicts)
    for path in SEEDS:
        kind, _, why = verdicts[path.name].partition(": ")
        assert kind == "ran" or (kind == "stopped" and "instruction" in why), f"{path.name}: {verdicts[path.name]}"
    assert Counter(said.partition(":")[0] for said in verdicts.values())["refused"] >= 2


@needs_sanitizers
def test_the_seeds_run_every_kernel_and_their_work_is_counted(replay: Path) -> None:
    said = replayed(replay, *SEEDS)
    assert [name for name, what in said.items() if what == "never"] == []
    network = said["seed-decoder-mse.smg"].split()  # "ran: 123456 blocks"
    assert network[0] == "ran:"
    assert int(network[1]) > 10_000


@needs_sanitizers
def test_mutations_of_the_corpus_are_survived(replay: Path) -> None:
    said = replayed(replay, "-mutate", str(MUTATIONS), *FILES)
    kinds = Counter(what.partition(":")[0] for name, what in said.items() if name.startswith("mutation "))
    assert kinds.total() == MUTATIONS
    assert kinds["ran"] > MUTATIONS // 8
    assert kinds["refused"] > MUTATIONS // 4
    assert kinds["stopped"] > 0
    assert kinds["cut off"] < MUTATIONS // 50


@needs_sanitizers
def test_the_ordinary_runtime_gives_the_same_answers(verdicts: dict[str, str], tmp_path: Path) -> None:
    for path in FILES:
        try:
            Machine(path.read_bytes(), page_to=tmp_path / "page").close()
            said = ""
        except BadProgram as refusal:
            said = refusal.what
        kind, _, why = verdicts[path.name].partition(": ")
        # What asks for more memory than the target gives is refused there alone.
        if "bytes of state" not in why:
            assert (said or "opened") == (why if kind == "refused" else "opened"), path.name


def test_python_accepts_a_file_or_says_why_not() -> None:
    accepted, refused = [], Counter[str]()
    for path in FILES:
        start = time.process_time()
        try:
            Program.from_bytes(path.read_bytes())
            accepted.append(path.name)
        except BadProgram as error:
            refused[error.what] += 1
        # Milliseconds each; a file that claims to be huge would take minutes.
        assert time.process_time() - start < 30, f"{path.name} takes too long"
    assert {path.name for path in SEEDS} <= set(accepted)
    assert sum(refused.values()) + len(accepted) == len(FILES)


def test_the_corpus_is_small_and_its_names_say_where_files_come_from() -> None:
    assert sum(path.stat().st_size for path in FILES) < 350_000
    assert {path.name.partition("-")[0] for path in FILES} <= {"seed", "grown", "found"}
    assert {path.suffix for path in CORPUS.iterdir()} == {".smg"}
