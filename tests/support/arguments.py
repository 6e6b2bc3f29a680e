"""Arguments of `smidgen.compile` from flat names, for tests whose tables and functions hand them on."""

from dataclasses import fields, replace
from typing import Any

import smidgen

_MEMORY = {f.name for f in fields(smidgen.Memory)} - {"budget"}


def arguments(**flat: Any) -> dict[str, Any]:
    """`effort=0` becomes part of `memory`, `spare_classes=2` of `classes`, `threads=2` of `kernels`."""
    memory = {name: flat.pop(name) for name in list(flat) if name in _MEMORY}
    named = {"spare_classes": "spare", "class_names": "names"}
    classes = {named[name]: flat.pop(name) for name in list(flat) if name in named}
    threads = flat.pop("threads", 1)
    if memory:
        flat["memory"] = replace(flat.get("memory") or smidgen.Memory(), **memory)
    if classes:
        flat["classes"] = replace(flat.get("classes") or smidgen.Classes(), **classes)
    if threads != 1:
        flat["kernels"] = f"{flat.get('kernels') or 'fast'}:{threads}"
    return flat


def compiled(model: Any, example: Any, **flat: Any) -> smidgen.Job:
    return smidgen.compile(model, example, **arguments(**flat))
