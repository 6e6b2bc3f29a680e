"""What a device learns from a stream, on real data → docs/results/tinyol.json; needs `../shared/data`.

python -m benchmarks.tinyol                # all of it; goes on where it was interrupted
python -m benchmarks.tinyol --only motion  # or words, or board (needs the ARM compiler and QEMU)
python -m benchmarks.tinyol --table        # only docs/results/tinyol.md and tinyol.svg

Motion: pairs of people; an autoencoder of the first one's walking is deployed with `tinyol` and learns the second
one's. The rate is chosen by pairs of people that are in no reported pair. Words: ten new words, one after the other,
with and without replay; rates are chosen by speakers and seeds that are not reported. Board: the first reported pair of
people on the emulated Nano 33 BLE.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from smidgen import files

from ..peers.machine import describe

OUT: Final = Path(__file__).parents[2] / "docs" / "results" / "tinyol.json"
CHOOSING, REPORTED = (0, 1, 5, 6), (2, 3, 4, 7, 8)  # seeds of the words
FEW: Final = CHOOSING[:2]  # choose what the old words are learned with
PARTS: Final = ("motion", "words", "board")
Json = dict[str, Any]
Setting = tuple[int, float]
"""Samples of a step (one: without replay), and the rate."""
ARMS: Final = {"replay": True, "alone": False, "alone_new": False}
"""Does it replay?"""


class Results:
    """What is known, kept after each run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runs: dict[str, Json] = json.loads(path.read_text())["runs"] if path.exists() else {}

    def of(self, given: Json, measured: Callable[[], Json]) -> Json:
        key = json.dumps(given)
        if key not in self.runs:
            self.runs[key] = measured()
            self.save()
            print(f"{key}: {json.dumps(self.runs[key])[:200]}", flush=True)
        return self.runs[key]

    def save(self) -> None:
        report = {"command": "python -m benchmarks.tinyol", "date": str(datetime.date.today()), "machine": describe(),
                  "runs": self.runs}  # fmt: skip
        files.write(self.path, (json.dumps(report, indent=1) + "\n").encode())


# -- motion ------------------------------------------------------------------------------------------------------------


def motion_pairs(results: Results, part: str, rates: Sequence[float]) -> list[Json]:
    from . import motion

    def one(known: int, comes: int) -> Json:
        given = {"do": "motion", "part": part, "known": known, "comes": comes, "rates": list(rates)}
        return results.of(given, lambda: motion.measure(known, comes, tuple(rates)))

    return [one(*pair) for pair in motion.pairs(part)]


def motion_rate(results: Results) -> float:
    """The best on average, by people that are not reported."""
    from . import motion

    found = motion_pairs(results, "choose", motion.RATES)
    return max(motion.RATES, key=lambda rate: statistics.fmean(f["after"][f"{rate:g}"]["all"] for f in found))


# -- words -------------------------------------------------------------------------------------------------------------


def choosing(results: Results, base: float, steps: Sequence[int], seeds: Sequence[int]) -> dict[Setting, list[Json]]:
    """Runs that a setting is chosen by, on the valid split."""
    from . import words

    found: dict[Setting, list[Json]] = {}
    for step in steps:
        for rate in words.REPLAY_RATES if step > 1 else words.ALONE_RATES:
            for seed in seeds:
                given = {"do": "words", "part": "choose", "seed": seed, "step": step, "base": base, "rate": rate}
                run = results.of(given, partial(words.learn, seed, base, rate, step, "valid", each=False))
                found.setdefault((step, rate), []).append(run)
    return found


def base_rate(results: Results) -> float:
    """Of the network that knows the old words: the one with which new words are learned best with replay."""
    from . import words

    def learned(base: float) -> float:
        found = choosing(results, base, [words.BASE_STEP], FEW)
        return _new(found[chosen(found, words.MOST_LOST)])

    return max(words.BASE_RATES, key=learned)


def setting(results: Results, base: float, arm: str) -> Setting:
    """Old words of the valid split lose little at it; at that of `alone_new`, what they will."""
    from . import words

    found = choosing(results, base, words.STEPS if ARMS[arm] else [1], CHOOSING)
    return chosen(found, 1.0 if arm == "alone_new" else words.MOST_LOST)


def chosen(found: Mapping[Setting, Sequence[Json]], most_lost: float) -> Setting:
    """The best for new words of those that lose at most so much of the old ones; of none, the one that loses least."""
    lost = {key: statistics.fmean(f["old"][0] - f["old"][-1] for f in runs) for key, runs in found.items()}
    allowed = [key for key in found if lost[key] <= most_lost]
    return max(allowed, key=lambda key: _new(found[key])) if allowed else min(found, key=lost.__getitem__)


def _new(runs: Sequence[Json]) -> float:
    return statistics.fmean(run["new"][-1] for run in runs)


def run_words(results: Results) -> None:
    from . import words

    base = base_rate(results)
    for arm in ARMS:
        step, rate = setting(results, base, arm)
        for seed in REPORTED:
            given = {
                "do": "words",
                "part": "report",
                "arm": arm,
                "seed": seed,
                "step": step,
                "base": base,
                "rate": rate,
            }
            results.of(given, partial(words.learn, seed, base, rate, step, "test", each=True))
    step, _ = setting(results, base, "replay")
    results.of({"do": "sizes", "step": step}, lambda: words.sizes(REPORTED[0], base, step))


# -- all of it ---------------------------------------------------------------------------------------------------------


def run_motion(results: Results) -> None:
    motion_pairs(results, "report", [motion_rate(results)])


def run_board(results: Results) -> None:
    from . import board, motion

    rate = motion_rate(results)
    known, comes = motion.pairs("report")[0]
    results.of({"do": "board"}, lambda: board.measure(known, comes, rate))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--table", action="store_true", help="write the page and the picture, and learn nothing")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    if not args.table:
        import torch

        torch.set_num_threads(1)
        results = Results(args.out)
        for part, run in zip(PARTS, (run_motion, run_words, run_board), strict=True):
            if args.only in (None, part):
                run(results)
    if args.only is None:
        write_table(args.out)
    return 0


def write_table(path: Path) -> None:
    from . import table

    report = json.loads(path.read_text())
    files.write(path.with_suffix(".md"), table.page(report).encode())
    files.write(path.with_suffix(".svg"), table.svg(report).encode())


if __name__ == "__main__":
    sys.exit(main())
