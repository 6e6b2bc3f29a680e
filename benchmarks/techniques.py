"""Each way to fit a budget, alone and together, by name; and what a program learns, for comparing bit for bit."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from smidgen.compiler.fit.candidate import Candidate, candidate, cheapest
from smidgen.compiler.fit.micro_batch import micro_batched
from smidgen.compiler.fit.search import best_for
from smidgen.compiler.fit.single_technique import SCHEDULED, alone
from smidgen.compiler.options import Options
from smidgen.compiler.passes.additive import takes_statistics
from smidgen.compiler.pipeline import Lowering
from smidgen.compiler.planner.goal import Goal, Search
from smidgen.devices.room import Limit, need_of
from smidgen.errors import DoesNotFit, Internal, SmidgenError, UnsafeLayout
from smidgen.ir import ceil_div
from smidgen.program.program import Program
from smidgen.train.job import Job

TECHNIQUES: Final = ("joint", "joint, may page", *SCHEDULED, "split")
SAME: Final = "same"
DID: Final = {"recompute", "page", "page_state", "split"}
LOSS: Final = "the losses"
OURS: Final = (Internal, UnsafeLayout)  # errors that no user should ever see
Batch = tuple[tuple[np.ndarray, ...], np.ndarray]
Learned = dict[str, np.ndarray]
Json = dict[str, Any]


@dataclass(frozen=True)
class Model:
    """One model and its options, for many budgets."""

    lowering: Lowering
    options: Options

    @property
    def samples(self) -> int:
        return self.lowering.entries(self.options).batch

    @property
    def at_once(self) -> bool:
        """In micro-batches it would learn something else: batch norms take the statistics of what they see."""
        return takes_statistics(self.lowering.entries(self.options).graphs["train"])


def found_by(technique: str, limit: Limit, model: Model, goal: Goal, search: Search) -> Candidate:
    """What the technique makes of the model within the limit. Raises DoesNotFit, or another documented error."""
    if technique in ("joint", "joint, may page"):
        goal = replace(goal, page=technique != "joint", split=not model.at_once, fill=True)
        return best_for(limit, model.lowering, model.options, goal, search)
    if technique == "split":
        made = _in_micro_batches(limit, model, goal)
    else:
        entries = model.lowering.entries(model.options)
        made = alone(technique, limit, entries, replace(goal, page=technique == "page"), search)
    if made is None:
        raise DoesNotFit(f"{technique} alone does not fit {limit.ram_bytes:,} bytes")
    return made


def _in_micro_batches(limit: Limit, model: Model, goal: Goal) -> Candidate | None:
    """Nothing recomputed for it, as many samples at a time as fit."""
    tried = []
    batch = 1 if model.at_once else model.samples
    while batch > 1:
        batch = ceil_div(batch, 2)
        entries = micro_batched(model.lowering, model.options, model.samples, batch)
        tried.append(candidate(limit, entries, goal))
    good = [one for one in tried if one.fits(limit)]
    return cheapest(limit, good, goal) if good else None


def learned(program: Program, batches: Iterable[Batch], pages: Path) -> Learned:
    """Losses, weights, statistics and the optimizer's state after these steps, with exact kernels."""
    job = Job(program, kernels="exact", page_to=pages if program.page_bytes else None)
    losses = [job.train_step(*batch) for batch in batches]
    state = {f"{owner}:{slot}": v for owner, of in job.optimizer_state().items() for slot, v in of.items()}
    return {LOSS: np.array(losses), **job.state_dict(), **state}


def differing(wanted: Learned, got: Learned) -> list[str]:
    """Names of what has other bits; every NaN is the same."""
    names = list(dict.fromkeys((*wanted, *got)))
    return [
        name for name in names
        if name not in wanted or name not in got or not np.array_equal(wanted[name], got[name], equal_nan=True)
    ]  # fmt: skip


def outcome(
    technique: str, budget_bytes: int, model: Model, goal: Goal, search: Search, wanted: Learned,
    batches: list[Batch], pages: Path,
) -> Json:  # fmt: skip
    """What became of one technique within one budget. A program is only made of what the verifier has passed; errors
    that are our own fault are outcomes too, and so is more RAM than allowed."""
    limit = Limit.of_budget(budget_bytes)
    row: Json = {"technique": technique, "budget_bytes": budget_bytes}
    try:
        best = found_by(technique, limit, model, goal, search)
        program = best.program()
    except OURS as error:
        return {**row, "outcome": f"fault {error.code}", "said": str(error)}
    except DoesNotFit:
        return {**row, "outcome": "does not fit", "code": DoesNotFit.code}
    except SmidgenError as refusal:
        return {**row, "outcome": "refused", "code": refusal.code, "said": str(refusal).splitlines()[0]}
    ram_bytes = need_of(None, program).ram_bytes
    plan, entries = program.meta["plan"], best.entries
    parts = ceil_div(entries.step_samples, entries.batch) if entries.step_samples else 1
    paged = sum(plan["paged"]["grad" if parts > 1 else "train"]) if program.page_bytes else 0
    row |= {"ram_bytes": ram_bytes, "paged_bytes": paged, "parts": parts,
            "did": sorted({d["kind"] for d in plan["decisions"]} & DID)}  # fmt: skip
    if ram_bytes > budget_bytes:
        return {**row, "outcome": "over budget"}
    other = differing(wanted, learned(program, batches, pages))
    return {**row, "outcome": f"differs: {', '.join(other[:3])}" if other else SAME}


def is_good(row: Json) -> bool:
    """The same bits, or a documented error."""
    return row["outcome"] in (SAME, "does not fit", "refused")


def said(row: Json) -> str:
    """The outcome, in a word or two."""
    code = row.get("code", "") if row["outcome"] == "refused" else ""
    return " ".join(filter(None, (row["outcome"], code, "(paged)" if row.get("paged_bytes") else "")))


def summed(found: Iterable[tuple[str, str]]) -> dict[str, dict[str, int]]:
    """Technique → what was said of it → how often."""
    sums: dict[str, dict[str, int]] = {}
    for technique, what in found:
        of = sums.setdefault(technique, {})
        of[what.partition(":")[0]] = of.get(what.partition(":")[0], 0) + 1
    return sums


def report_text(head: Json, rows: Iterable[Json]) -> bytes:
    """A JSON object with one row in a line."""
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    return (json.dumps(head, indent=1)[:-2] + f',\n "rows": [\n{lines}\n ]\n}}\n').encode()


__all__ = [
    "OURS", "SAME", "TECHNIQUES", "Batch", "Model", "differing", "found_by", "is_good", "learned", "outcome",
    "report_text", "said", "summed",
]  # fmt: skip
