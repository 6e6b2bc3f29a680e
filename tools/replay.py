"""Process replay: a refactoring shows that no program and no transcript changed.

python -m tools.replay --write before.json       # hashes of all programs, the text of errors, hashes of transcripts
python -m tools.replay --compare before.json     # does it again: exit status 1 and a list if anything differs

`--only PATTERN` takes the cases whose name contains it, or matches it as `lenet5/*`; `--quick` leaves out the group
`searched`, whose plans a solver looks for. A case is NETWORK/LIMIT or transcript/COMMAND. No hash depends on a path.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import smidgen
from smidgen.errors import SmidgenError
from tests.test_transcripts import COMMANDS, MODEL, NETS, data, piped, without_clock
from tools.replay_nets import Task, all_tasks

FORMAT = 1
SHARES = (70, 50, 35)  # percent of the RAM of the program without a limit
DEVICE = "stm32h743"
SEARCHED = ("lenet5", "resnet8", "small_sequences", "gru")
PAGED = ("lenet5_exact", "squeezenet", "encoder", "shared_weights")
VERSIONS = ("smidgen", "torch", "numpy", "ortools")


@dataclass(frozen=True)
class Case:
    name: str
    group: str  # programs, searched or transcripts
    run: Callable[[], str]


class Compiled:
    """One network: its model is made anew for each case, its size without a limit is found once."""

    def __init__(self, task: Task, folder: Path) -> None:
        self.task, self.folder = task, folder
        self._ram_bytes = 0

    def job(self, **limits: Any) -> smidgen.Job:
        model, inputs = self.task.make()
        return smidgen.compile(model, inputs, **{"effort": 0, **self.task.options, **limits})

    def share(self, percent: int) -> int:
        if not self._ram_bytes:
            self._ram_bytes = self.job().plan.ram_bytes
        return self._ram_bytes * percent // 100

    def free(self) -> str:
        job = self.job()
        self._ram_bytes = job.plan.ram_bytes
        return hashed(job)

    def budget(self, percent: int, effort: float = 0) -> str:
        return hashed(self.job(budget=self.share(percent), effort=effort))

    def paged(self, percent: int) -> str:
        return hashed(self.job(budget=self.share(percent), page_to=self.folder / f"{self.task.name}.page"))

    def device(self) -> str:
        options = {"kernels": "exact"} if self.task.options.get("kernels") in (None, "exact") else {}
        return hashed(self.job(device=DEVICE, **options))

    def ladder(self) -> str:
        return hashed(self.job(ladder=[self.share(percent) for percent in (90, 75, 60)]))

    def cases(self) -> Iterator[Case]:
        name = self.task.name
        yield Case(f"{name}/free", "programs", self.free)
        for percent in SHARES:
            yield Case(f"{name}/budget{percent}", "programs", lambda p=percent: self.budget(p))  # type: ignore[misc]
        yield Case(f"{name}/device", "programs", self.device)
        yield Case(f"{name}/ladder", "programs", self.ladder)
        if name in PAGED:
            yield Case(f"{name}/paged35", "programs", lambda: self.paged(35))
        if name in SEARCHED:
            yield Case(f"{name}/searched50", "searched", lambda: self.budget(50, 5.0))
            yield Case(f"{name}/searched35", "searched", lambda: self.budget(35, 5.0))


def hashed(job: smidgen.Job) -> str:
    return hashlib.sha256(job.program.to_bytes()).hexdigest()


class Transcripts:
    """The commands of tests/transcripts, in a folder of their own: what a pipe gets, without what a clock measured."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ready = folder, False

    def prepare(self) -> None:
        (self.folder / "nets.py").write_text(NETS)
        np.savez(self.folder / "train.npz", **data(0, 120))
        np.savez(self.folder / "test.npz", **data(1, 60))
        done = piped(self.folder, f"build {MODEL} -o net.smg")
        assert done.returncode == 0, done.stderr
        self.ready = True

    def run(self, command: str) -> str:
        if not self.ready:
            self.prepare()
        done = piped(self.folder, command)
        said = f"{done.returncode}\n{without_clock(done.stdout)}\n{without_clock(done.stderr)}"
        return hashlib.sha256(said.encode()).hexdigest()

    def cases(self) -> Iterator[Case]:
        for name, command in COMMANDS.items():
            yield Case(f"transcript/{name}", "transcripts", lambda c=command: self.run(c))  # type: ignore[misc]


def all_cases(folder: Path) -> Iterator[Case]:
    for task in all_tasks():
        yield from Compiled(task, folder).cases()
    yield from Transcripts(folder).cases()


def matches(name: str, pattern: str) -> bool:
    return pattern in name or fnmatchcase(name, pattern)


def outcome(case: Case) -> str:
    """A hash; or what smidgen says of a case that cannot be."""
    try:
        return case.run()
    except SmidgenError as error:
        return f"error: {error}"


def replayed(only: str = "", quick: bool = False, told: Callable[[str], None] = lambda line: None) -> dict[str, str]:
    """{case: hash or text of its error}, in the order of the tables."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for case in all_cases(Path(folder)):
            if matches(case.name, only) and not (quick and case.group == "searched"):
                start = time.perf_counter()
                found[case.name] = outcome(case)
                told(f"{time.perf_counter() - start:6.1f} s  {case.name}  {found[case.name].splitlines()[0][:60]}")
    return found


def versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in VERSIONS if name in _installed()}


def _installed() -> set[str]:
    return {name for name in VERSIONS if any(True for _ in metadata.distributions(name=name))}


def differences(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """One line for each case that differs; cases that only one side has count too."""
    lines = []
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name, "missing"), after.get(name, "missing")
        if old != new:
            lines.append(f"{name}: {_short(old)} -> {_short(new)}")
    return lines


def _short(value: str) -> str:
    return value if value.startswith("error") or value == "missing" else value[:12]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", type=Path, metavar="FILE")
    what.add_argument("--compare", type=Path, metavar="FILE")
    parser.add_argument("--only", default="", metavar="PATTERN")
    parser.add_argument("--quick", action="store_true", help="without the group `searched`")
    args = parser.parse_args(argv)
    stored = None if args.compare is None else json.loads(args.compare.read_text())
    if stored is not None and stored["format"] != FORMAT:
        print(f"{args.compare}: format {stored['format']}, not {FORMAT}", file=sys.stderr)
        return 2
    found = replayed(args.only, args.quick, lambda line: print(line, file=sys.stderr, flush=True))
    if stored is None:
        made = {"format": FORMAT, "versions": versions(), "cases": found}
        args.write.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")
        print(f"{len(found)} cases written to {args.write}")
        return 0
    if stored["versions"] != versions():
        print(f"note: written with {stored['versions']}, compared with {versions()}", file=sys.stderr)
    left_out = {
        name for name in stored["cases"] if not matches(name, args.only) or (args.quick and "/searched" in name)
    }
    lines = differences({name: old for name, old in stored["cases"].items() if name not in left_out}, found)
    print("\n".join([*lines, f"{len(lines)} of {len(found)} cases differ"]))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
