"""What became of a model: the words for it, and the rules that decide. Needs nothing but Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

PASS, REFUSED, WRONG, CRASH, TORCH = "pass", "refused", "wrong", "crash", "torch"
OUTCOMES = (PASS, REFUSED, WRONG, CRASH, TORCH)
MEANING = {
    PASS: "every gradient of one step is PyTorch's, by rule (b) of parity.md; where float32 cannot decide, also by (a)",
    REFUSED: "an error of smidgen with its code",
    WRONG: "trains something else than PyTorch",
    CRASH: "ends with anything but an error of smidgen: an exception, an internal error, out of time or memory",
    TORCH: "PyTorch itself cannot make or train it here",
}
OUR_BUG = "E9"
Result = dict[str, Any]


def judged(found: Mapping[str, Any]) -> str:
    """The outcome of what one process reported; `stage` is how far it came."""
    if "error" in found:
        if found["stage"] in ("make", "torch"):
            return TORCH
        code = found["error"].get("code", "")
        return REFUSED if code and not code.startswith(OUR_BUG) else CRASH
    if found.get("stage") != "done":
        return CRASH
    not_learned = [name for name, size in found["not_learned"].items() if size != 0]
    if not_learned or not found["worst"] <= found["limit"]:
        return WRONG
    if "exact" in found and not found["exact"] <= found["exact_limit"]:
        return WRONG
    return PASS


COMPARING = ("compare", "exact")  # stages that have time of their own: no user waits for them


def ended(status: int, said: str, limit_s: float, compare_s: float = 0.0, lost: str = "") -> Result:
    """A process that ended without a report; `compare_s` is what a comparison may take besides."""
    last = said.strip().splitlines()[-1:] or [""]
    limit_s = compare_s if compare_s and last[0].removeprefix("stage ") in COMPARING else limit_s
    late = f"more than {limit_s:.0f} s of processor time"
    what = {-24: late, 152: late, -9: lost or "killed", 137: lost or "killed"}.get(
        status, f"ended with status {status}"
    )
    return {"stage": "process", "error": {"type": "process", "text": f"{what}: {last[0]}".rstrip(": ")[:400]}}


def refusals_without_advice(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Models that are refused with something else than an import error that says what to do."""
    found = []
    for row in rows:
        if row["outcome"] == REFUSED:
            error = row["error"]
            if not error["code"].startswith("E1") or not error.get("help"):
                found.append(f"{row['package']} {row['name']}")
    return found


__all__ = ["CRASH", "MEANING", "OUTCOMES", "PASS", "REFUSED", "TORCH", "WRONG", "ended", "judged",
           "refusals_without_advice"]  # fmt: skip
