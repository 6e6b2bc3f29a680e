"""Every parameter learns."""

from __future__ import annotations

from ..ir import Role
from .registry import Update, register

register("full", "every parameter", lambda graph, k: [Update(t.name) for t in graph.of_role(Role.PARAM)])
