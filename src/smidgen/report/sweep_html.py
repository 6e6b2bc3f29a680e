"""A sweep as one HTML page with a picture: no network, no fonts, nothing but the file itself, as plan_html.py."""

from __future__ import annotations

import os

from .. import files
from ..compiler.fit.sweep import Sweep
from .plan_html import filled
from .sweep_text import answer, sweep_json, sweep_text, where_text


def write(sweep: Sweep, path: str | os.PathLike[str], *, title: str = "") -> None:
    """The page appears complete or not at all."""
    target = files.checked_path(path, 'sweep_html.write(sweep, "sweep.html")')
    files.write(target, html_page(sweep, title=title).encode("utf-8", "replace"))


def html_page(sweep: Sweep, *, title: str = "") -> str:
    data = {**sweep_json(sweep), "answer": answer(sweep), "where": where_text(sweep.prices)}
    return filled("sweep", title or "a model", sweep_text(sweep, title=title), data, styles=("page", "sweep"))


__all__ = ["html_page", "write"]
