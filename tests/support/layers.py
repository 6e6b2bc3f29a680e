"""The packages of src/smidgen and what each may import: the one table of it."""

from __future__ import annotations

from pathlib import Path

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "pyproject.toml").is_file())
SOURCE = ROOT / "src" / "smidgen"
TOP = {"__init__", "api", "errors", "files", "ir", "terminal"}

BASE = "errors ir terminal files"

COMPILER: dict[str, str] = {
    "effort": "",
    "graph": "effort",
    "imported": "",
    "inputs": "",
    "optimizers": "",
    "precision": "",
    "options": "optimizers precision",
    "torch_import": "imported inputs",
    "place": "effort graph",
    "passes": "graph imported optimizers",
    "encode": "graph place",
    "planner": "effort graph place passes encode",
    "loss_facts": "",
    "replay": "options loss_facts",
    "entries": "graph options passes place planner",
    "pipeline": "graph imported optimizers options passes planner precision replay entries",
    "plan_facts": "graph place",
    "verify_rows": "graph place",
    "verify": "graph place verify_rows",
    "assemble": "effort place encode planner replay entries plan_facts loss_facts verify",
    "fit": "effort graph optimizers options place passes planner replay entries pipeline plan_facts loss_facts "
    "assemble",
}
"""What each part of compiler/ imports of the others."""

DIRECTION: dict[str, str] = {
    "errors": "",
    "ir": "",
    "terminal": "",
    "files": "errors",
    "program": "errors ir files",
    "runtime": "errors ir",
    "ops": "errors ir",
    "devices": "errors ir program runtime",
    "methods": "errors ir ops devices",
    "compiler": f"{BASE} program runtime ops devices methods",
    "train": f"{BASE} program runtime",
    "schemes": "errors files ir program ops devices methods compiler train",
    "api": "errors ir terminal program runtime devices methods compiler train schemes",
    "fewshot": "errors ir methods compiler train api",
    "report": f"{BASE} program runtime ops devices compiler train schemes api",
    "deploy": f"{BASE} program runtime devices train",
    "fleet": "errors ir terminal files program devices compiler train api",
    "demo": "errors ir terminal train report",
    "cli": f"{BASE} program ops devices methods compiler train api fewshot report deploy fleet demo",
    "__init__": "errors program runtime methods compiler train api fleet",
}
"""What each package, or file at the top, imports: no more and no less."""
