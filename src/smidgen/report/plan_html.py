"""A plan as one HTML page with pictures: no network, no fonts, nothing but the file itself.

Names come from the user's model. They reach the page as JSON without a single `<`, and the page's policy allows no
script but the one written here, named by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
from collections.abc import Sequence
from importlib import resources
from typing import Any

from .. import files
from ..program.plan import Plan
from ..program.timeline import KINDS, STAGES, tensor_text
from ..terminal import seconds_text
from .by_layer import Layer, grouped, layers_of
from .plan_text import fits_text, infer_text, limit_text, ordered, plan_text, state_parts, step_text


def write(
    plan: Plan, path: str | os.PathLike[str], *, title: str = "", seconds_per_step: float | None = None,
    seconds_per_inference: float | None = None,
) -> None:  # fmt: skip
    """The page appears complete or not at all."""
    target = files.checked_path(path, 'plan_html.write(job.plan, "plan.html")')
    page = html_page(plan, title=title, seconds_per_step=seconds_per_step, seconds_per_inference=seconds_per_inference)
    files.write(target, page.encode("utf-8", "replace"))


def html_page(
    plan: Plan, *, title: str = "", seconds_per_step: float | None = None, seconds_per_inference: float | None = None
) -> str:
    text = plan_text(
        plan, seconds_per_step=seconds_per_step, seconds_per_inference=seconds_per_inference, all_layers=True
    )
    data = page_data(plan, seconds_per_step, seconds_per_inference)
    return filled("plan", title or "a training program", text, data)


def filled(name: str, title: str, text: str, data: dict[str, Any], styles: Sequence[str] = ("page",)) -> str:
    """page.html around `name`.html, with its script, its styles, what it draws, and the same as text."""

    def part(file: str) -> str:
        return resources.files(__package__).joinpath("assets", file).read_text("utf-8")

    parts = {"js": part(f"{name}.js"), "css": "".join(part(f"{style}.css") for style in styles)}
    policy = {
        "default-src": "'none'", "script-src": _named(parts["js"]), "style-src": _named(parts["css"]),
        "img-src": "data:", "base-uri": "'none'", "form-action": "'none'",
    }  # fmt: skip
    given = {
        **parts,
        "name": name,
        "csp": "; ".join(f"{source} {value}" for source, value in policy.items()),
        "title": html.escape(title),
        "text": html.escape(text),
        "data": _script_safe(data),
    }
    page = part("page.html").replace("{{body}}", part(f"{name}.html"))
    # In one pass: nothing is filled twice.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: given[found[1]], page)


def _named(source: str) -> str:
    """As a content security policy names a piece of code."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


def _script_safe(data: dict[str, Any]) -> str:
    """JSON that cannot end a script element, or begin a comment in it."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def page_data(
    plan: Plan, seconds_per_step: float | None = None, seconds_per_inference: float | None = None
) -> dict[str, Any]:
    """What the page draws; names are numbers of one table of strings."""
    layers = [row for row in layers_of(plan) if row.counts]
    facts = plan.facts.to_json()
    return {
        "plan": {
            "ram_bytes": plan.ram_bytes, "state_bytes": plan.state_bytes, "arena_bytes": plan.arena_bytes,
            "context_bytes": plan.context_bytes, "stack_bytes": plan.stack_bytes, "work_bytes": plan.work_bytes,
            "flash_bytes": plan.flash_bytes,
            "batch": plan.batch, "method": plan.method, "optimizer": plan.optimizer, "learns": len(plan.learns),
            "model_tensors": plan.model_tensors, "model_parameters": plan.model_parameters,
            "learned_parameters": plan.learned_parameters, "macs": plan.cost.macs.get("train", 0),
            "seconds": seconds_per_step, "infer_seconds": seconds_per_inference,
        },
        "fits": [limit_text(plan), fits_text(plan)] if plan.objective else None,
        "predicted": [
            *([["step", seconds_text(plan.step_seconds), step_text(plan)]] if plan.step_seconds else []),
            *([["infer", seconds_text(plan.infer_seconds), infer_text(plan)]] if plan.infer_seconds else []),
        ],
        "decisions": [
            {"kind": d.kind, "why": d.why, "saves_bytes": d.saves_bytes, "adds_s": d.adds_s} for d in plan.decisions
        ],
        "layers": [_row(row) for row in layers],
        "rows": [_row(row) for row in grouped(layers)],
        "state": list(state_parts(plan).items()),
        "strings": [tensor_text(text) for text in facts["strings"]],
        "kinds": KINDS,
        "stages": STAGES,
        "entries": [
            {"name": name, "arena": plan.arena_by_entry[name], **facts["entries"][name]}
            for name in ordered(plan.facts.entries)
        ],
    }  # fmt: skip


def _row(row: Layer) -> dict[str, Any]:
    return {
        "name": row.name, "ops": row.ops, "forward": row.forward_macs, "backward": row.backward_macs,
        "saved": row.saved_bytes, "weights": row.weights_bytes, "learns": row.learns, "members": row.members,
    }  # fmt: skip
