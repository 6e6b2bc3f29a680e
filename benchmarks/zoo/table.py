"""docs/results/zoo.md, from docs/results/zoo.json."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from . import judge

GROUPS = ("timm", "transformers")
Row = Mapping[str, Any]


def page(report: Mapping[str, Any]) -> str:
    rows = report["rows"]
    parts = [
        "# Models of public packages",
        "`python -m benchmarks.zoo` takes models as they come from timm, transformers and other packages, with random "
        "weights, compiles each as a user would, and compares one training step with PyTorch by rule (b) of "
        "[parity](../explain/parity.md). The list was drawn before the first run "
        "(`benchmarks/zoo/models.json`) and keeps what fails. "
        f"{len(rows)} of {report['listed']} have a result. "
        f"Measured {report['date']} on {report['machine']['cpu']}, one thread, batch 2.",
        *[_meanings(), "## Summary", summary(rows), _times(rows)],
        "## Not passed", _failures(rows), "## Every model", _models(rows),
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part) + "\n"


def _meanings() -> str:
    return "\n".join(f"- **{word}**: {text}" for word, text in judge.MEANING.items())


def groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """timm, transformers, and all others together."""
    found: dict[str, list[Row]] = {name: [] for name in (*GROUPS, "others")}
    for row in rows:
        found[row["package"] if row["package"] in GROUPS else "others"].append(row)
    return found


def summary(rows: Sequence[Row]) -> str:
    lines = ["| package | models | " + " | ".join(judge.OUTCOMES) + " | passed |",
             "| --- |" + " ---: |" * (len(judge.OUTCOMES) + 2)]  # fmt: skip
    packages = list(dict.fromkeys(row["package"] for row in rows))
    for name in packages:
        lines.append(_counted(name, [row for row in rows if row["package"] == name]))
    others = groups(rows)["others"]
    if others:
        lines.append(_counted("all but timm and transformers", others))
    return "\n".join(lines)


def _counted(name: str, rows: Sequence[Row]) -> str:
    counts = [sum(row["outcome"] == word for row in rows) for word in judge.OUTCOMES]
    cells = [str(len(rows)), *map(str, counts), f"{counts[0] / max(1, len(rows)):.0%}"]
    return f"| {name} | " + " | ".join(cells) + " |"


def totals(rows: Sequence[Row]) -> str:
    said = []
    for name, part in groups(rows).items():
        counts = {word: sum(row["outcome"] == word for row in part) for word in judge.OUTCOMES}
        said.append(f"{name}: " + ", ".join(f"{n} {word}" for word, n in counts.items() if n))
    return "; ".join(said)


def _times(rows: Sequence[Row]) -> str:
    compiled = [row["compile_s"] for row in rows if "compile_s" in row]
    ratios = [row["torch_ms"] / row["step_ms"] for row in rows if row.get("step_ms")]
    if not compiled or not ratios:
        return ""
    slowest = max((row for row in rows if "compile_s" in row), key=lambda row: row["compile_s"])
    return (
        f"Compiling takes {statistics.median(compiled):.1f} s of processor time in the median, at most "
        f"{slowest['compile_s']:.0f} s ({slowest['name']}); {sum(s > 60 for s in compiled)} take more than 60 s. "
        f"A step is {statistics.median(ratios):.1f} × faster than PyTorch's eager one in the median, and slower for "
        f"{sum(r < 1 for r in ratios)} of {len(ratios)}."
    )


def _failures(rows: Sequence[Row]) -> str:
    """Grouped by what went wrong and why, the most frequent first; each group with its first message in full."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if row["outcome"] != judge.PASS:
            lines = _said(row).splitlines()
            cause = (row["outcome"], lines[0], *(line for line in lines[1:] if line.startswith("  why")))
            found.setdefault(cause, []).append(row)
    if not found:
        return "None."
    parts = []
    for cause, group in sorted(found.items(), key=lambda item: (-len(item[1]), item[0])):
        names = ", ".join(f"{row['package']} {row['name']}" for row in group)
        parts.append(f"{len(group)} **{cause[0]}**: {names}\n\n```text\n{_said(group[0])}\n```")
    bare = judge.refusals_without_advice(rows)
    if bare:
        parts.insert(0, f"Refused with something else than an import error (E1xx) with a help line: {', '.join(bare)}.")
    return "\n\n".join(parts)


def _said(row: Row) -> str:
    if "error" in row:
        return str(row["error"]["text"]).replace("```", "'''")
    missing = [name for name, size in row.get("not_learned", {}).items() if size]
    return f"does not learn {', '.join(missing[:5])}" if missing else f"{row['worst']:.1e} at {row['where']}"


def _models(rows: Sequence[Row]) -> str:
    lines = ["| model | parameters | outcome | compile s | step ms | torch ms | worst gradient | notes |",
             "| --- | ---: | --- | ---: | ---: | ---: | ---: | --- |"]  # fmt: skip
    for row in rows:
        code = row.get("error", {}).get("code", "")
        notes = "; ".join(str(row[k]) for k in ("note", "reference") if row.get(k))
        lines.append(
            f"| {row['package']} {row['name']} | {row.get('parameters', 0):,} | {row['outcome']} {code}".rstrip()
            + f" | {_figure(row, 'compile_s', '.1f')} | {_figure(row, 'step_ms', '.2f')} | "
            f"{_figure(row, 'torch_ms', '.2f')} | {_figure(row, 'worst', '.1e')} | {notes} |"
        )
    return "\n".join(lines)


def _figure(row: Row, name: str, form: str) -> str:
    return format(row[name], form) if name in row else ""


__all__ = ["groups", "page", "summary", "totals"]
