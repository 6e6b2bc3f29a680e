"""The packages of src/smidgen and what each may import: the one table of it."""

from __future__ import annotations

from pathlib import Path

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "pyproject.toml").is_file())
SOURCE = ROOT / "src" / "smidgen"
TOP = {"__init__", "api", "errors", "files", "ir", "terminal"}

BASE = "errors ir terminal files"
COMPILER = """effort graph imported optimizers options torch_import place passes encode planner pipeline plan_facts
loss_facts verify assemble fit"""
"""Parts of compiler/, in order: each may import those before it."""

DIRECTION: dict[str, str] = {
    "errors": "",
    "ir": "errors",
    "terminal": "errors",
    "files": "errors",
    "program": BASE,
    "runtime": f"{BASE} program",
    "ops": f"{BASE} program runtime",
    "devices": f"{BASE} program runtime ops",
    "methods": f"{BASE} program runtime ops devices",
    "compiler": f"{BASE} program runtime ops devices methods",
    "train": f"{BASE} program runtime",
    "api": f"{BASE} program runtime ops devices methods compiler train",
    "report": f"{BASE} program runtime ops devices methods compiler train api",
    "deploy": f"{BASE} program runtime ops devices methods compiler train api",
    "demo": f"{BASE} program runtime train report",
    "cli": f"{BASE} program runtime ops devices methods compiler train api report deploy demo",
    "__init__": "errors program runtime methods compiler train api",
}
"""What each package, or file at the top, may import."""
