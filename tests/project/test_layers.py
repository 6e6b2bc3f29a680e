"""The direction of imports, read from the source: tests/support/layers.py is the one table of it. Imports within
functions and those for type checkers count. Underscore attributes belong to the package that defines them."""

from __future__ import annotations

import ast
import functools
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.layers import COMPILER, DIRECTION, SOURCE, TOP

WITHOUT_TORCH = ("errors", "ir", "terminal", "files", "program", "runtime", "ops", "devices", "methods", "train")
HEAVY = ("torch", "ortools")

WRONG_WAY: set[tuple[str, str]] = set()
"""Known imports against the direction; nothing may be added, and what is cut is taken out."""

DEBTS: dict[str, int] = {}
"""Uses of another package's underscore attributes, file by file; a count may only fall."""

Edge = tuple[str, str]
Tree = tuple[ast.AST, ...]


def modules(root: Path) -> dict[str, Path]:
    """`compiler.fit.search` → its file; a package is its `__init__`."""
    return {".".join(p.relative_to(root).with_suffix("").parts): p for p in sorted(root.rglob("*.py"))}


@functools.cache
def parsed(source: str) -> Tree:
    """All nodes of a file. Copies of the sources differ in one file: the others are read once."""
    return tuple(ast.walk(ast.parse(source)))


def plain(module: str) -> str:
    return module.removesuffix(".__init__")


def imported(module: str, tree: Tree, known: set[str]) -> Iterator[str]:
    """Every module of smidgen that one imports, wherever in its file."""
    for node in tree:
        if isinstance(node, ast.Import):
            yield from (found for a in node.names if (found := own(a.name)))
        elif isinstance(node, ast.Call) and called(node) in ("import_module", "__import__"):
            yield from (found for a in node.args[:1] if isinstance(a, ast.Constant) and (found := own(str(a.value))))
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = module.split(".")[: -node.level]
            elif node.module and node.module.split(".")[0] == "smidgen":
                base = []
            else:
                continue
            rest = (node.module or "").removeprefix("smidgen").strip(".") if not node.level else node.module or ""
            source = ".".join([*base, *([rest] if rest else [])])
            for alias in node.names:
                deeper = f"{source}.{alias.name}" if source else alias.name
                yield deeper if deeper in known else source or "__init__"


def called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def own(name: str) -> str:
    """A module of smidgen below it, `__init__` for smidgen itself; empty for those of others."""
    first, _, rest = name.partition(".")
    return (rest or "__init__") if first == "smidgen" else ""


def edges(root: Path) -> set[Edge]:
    files = modules(root)
    known = {plain(m) for m in files}
    return {
        (plain(m), to)
        for m, path in files.items()
        for to in imported(m, parsed(path.read_text(encoding="utf-8")), known)
        if to != plain(m)
    }


def is_allowed(edge: Edge) -> bool:
    a, b = (name.split(".") for name in edge)
    if a[0] != b[0]:
        return b[0] in DIRECTION[a[0]].split()
    if a[0] != "compiler" or len(a) == 1 or len(b) == 1 or a[1] == b[1]:
        return True
    return b[1] in COMPILER[a[1]].split()


def unused(root: Path) -> set[Edge]:
    """What the tables allow and nobody imports: a reader of them would draw a line that is not there."""
    pairs = [[name.split(".") if name else ["__init__"] for name in edge] for edge in edges(root)]
    real = {(a[0], b[0]) for a, b in pairs}
    parts = {(a[1], b[1]) for a, b in pairs if a[0] == b[0] == "compiler" and len(a) > 1 and len(b) > 1}
    return {(name, to) for name, may in DIRECTION.items() for to in may.split()} - real | {
        (f"compiler.{name}", f"compiler.{to}")
        for name, may in COMPILER.items()
        for to in may.split()
        if (name, to) not in parts
    }


def unknown(root: Path) -> list[str]:
    """Files at the top, packages and parts of the compiler that the tables do not name."""
    found = {p.stem for p in root.glob("*.py")} - TOP
    folders = {p.relative_to(root).parts[0] for p in root.glob("*/**/*.py")} - set(DIRECTION)
    parts = {m.split(".")[1] for m in modules(root) if m.startswith("compiler.")} - {"__init__", *COMPILER}
    return sorted([*found, *folders, *(f"compiler/{part}" for part in parts)])


def wrong_way(root: Path) -> set[Edge]:
    return {edge for edge in edges(root) if not is_allowed(edge)}


def private(root: Path) -> Counter[str]:
    """`file: count` of x._name that another package defines and the file's own does not, x being neither self nor cls,
    and of private names that are imported from another package."""
    files = modules(root)
    trees = {m: parsed(path.read_text(encoding="utf-8")) for m, path in files.items()}
    defined: dict[str, set[str]] = {}
    for module, tree in trees.items():
        defined.setdefault(module.split(".")[0], set()).update(definitions(tree))
    found: Counter[str] = Counter()
    for module, tree in trees.items():
        foreign = foreign_names(tree)
        here = module.split(".")[0]
        for node in tree:
            if isinstance(node, ast.ImportFrom) and (node.level or own(node.module or "")):
                outside = node.level >= len(module.split(".")) or not node.level
                names = [a.name for a in node.names if outside and is_private(a.name)]
                found[files[module].relative_to(root).as_posix()] += len(names)
            name, owner = named(node)
            if not is_private(name):
                continue
            others = any(name in names for package, names in defined.items() if package != here)
            if others and name not in defined[here] and owner not in {"self", "cls"} | foreign:
                found[files[module].relative_to(root).as_posix()] += 1
    return +found


def named(node: ast.AST) -> tuple[str, str]:
    """Attribute and owner of `x.name` and of `getattr(x, "name")`; else empty."""
    if isinstance(node, ast.Attribute):
        return node.attr, root_of(node.value)
    if isinstance(node, ast.Call) and called(node) == "getattr" and len(node.args) > 1:
        name = node.args[1]
        return str(name.value) if isinstance(name, ast.Constant) else "", root_of(node.args[0])
    return "", ""


def root_of(value: ast.expr) -> str:
    """`torch` of torch.nn.functional.linear(x).y"""
    while isinstance(value, ast.Attribute | ast.Call):
        value = value.value if isinstance(value, ast.Attribute) else value.func
    return value.id if isinstance(value, ast.Name) else ""


def is_private(name: str) -> bool:
    others = ("_replace", "_asdict", "_fields", "_make", "_version")  # of typing.NamedTuple and of torch.Tensor
    return name.startswith("_") and not name.endswith("__") and name not in others


def definitions(tree: Tree) -> Iterator[str]:
    for node in tree:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and root_of(node) in ("self", "cls"):
            yield node.attr


def foreign_names(tree: Tree) -> set[str]:
    """Modules of others, whose private names are another matter."""
    names: set[str] = set()
    for node in tree:
        if isinstance(node, ast.Import):
            names.update((a.asname or a.name).split(".")[0] for a in node.names if not a.name.startswith("smidgen"))
        elif isinstance(node, ast.ImportFrom) and not node.level and not (node.module or "").startswith("smidgen"):
            names.update(a.asname or a.name for a in node.names)
    return names


def heavy(root: Path) -> set[Edge]:
    """Imports of torch or ortools in packages that run on a device, wherever in a file."""
    found = set()
    for module, path in modules(root).items():
        if module.split(".")[0] not in WITHOUT_TORCH:
            continue
        for node in parsed(path.read_text(encoding="utf-8")):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            found |= {(plain(module), n.split(".")[0]) for n in names if n.split(".")[0] in HEAVY}
    return found


# -- the rules -----------------------------------------------------------------------------------------------------


def test_every_file_has_a_place_in_the_tables() -> None:
    assert unknown(SOURCE) == [], "a new file at the top, package or part of compiler/: give it a place in the tables"
    assert len(list(SOURCE.glob("*.py"))) <= 8


def test_the_table_itself_has_one_direction() -> None:
    for table in (DIRECTION, COMPILER):
        rank = {name: i for i, name in enumerate(table)}
        assert all(rank[to] < rank[name] for name, may in table.items() for to in may.split())


def test_the_table_names_no_import_that_nobody_makes() -> None:
    assert unused(SOURCE) == set(), "no longer imported: take it out of tests/support/layers.py and the page"


def test_imports_go_one_way() -> None:
    found = wrong_way(SOURCE)
    assert found - WRONG_WAY == set(), "imports against the direction"
    assert WRONG_WAY - found == set(), "no longer there: take it out of WRONG_WAY"


def test_underscore_attributes_stay_in_their_package() -> None:
    found = private(SOURCE)
    more = {file: count for file, count in found.items() if count > DEBTS.get(file, 0)}
    assert more == {}, f"private attributes of another package; known are {DEBTS}"
    fallen = {file: found[file] for file, count in DEBTS.items() if found[file] < count}
    assert fallen == {}, "fewer than DEBTS says: lower its counts"


def test_what_runs_on_a_device_needs_no_torch() -> None:
    assert heavy(SOURCE) == {("train.to_torch", "torch")}, "only job.load_into, which is given a module, has it"


# -- the rules can fail --------------------------------------------------------------------------------------------


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SOURCE, tmp_path / "smidgen", ignore=shutil.ignore_patterns("*.so", "__pycache__")))


@pytest.mark.parametrize("line", [
    "from ..compiler import verify",
    "def f():\n    from smidgen.compiler.fit import search\n",
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..compiler.place.arena import place\n",
    "import smidgen.report.plan_text\n",
    "import smidgen\n\n\ndef f():\n    return smidgen.compile\n",
    "import importlib\n\n\ndef f():\n    return importlib.import_module('smidgen.compiler.verify')\n",
    "def f():\n    return __import__('smidgen.compiler.verify')\n",
])  # fmt: skip
def test_a_wrong_way_import_is_found(line: str, copy: Path) -> None:
    with (copy / "train" / "weights.py").open("a") as file:
        file.write(f"\n{line}\n")
    (edge,) = wrong_way(copy) - wrong_way(SOURCE)
    assert edge[0] == "train.weights"


def test_an_import_that_is_gone_is_found(copy: Path) -> None:
    for file in copy.glob("methods/*.py"):
        file.write_text(file.read_text().replace("from ..devices.device import", "from .uses import"))
    assert unused(copy) == {("methods", "devices")}


def test_a_wrong_way_import_within_the_compiler_is_found(copy: Path) -> None:
    with (copy / "compiler" / "graph" / "check.py").open("a") as file:
        file.write("\nfrom ..fit import search\n")
    assert wrong_way(copy) - wrong_way(SOURCE) == {("compiler.graph.check", "compiler.fit.search")}


@pytest.mark.parametrize("file", ["mine.py", "mine/__init__.py", "mine/part.py", "compiler/mine.py"])
def test_a_new_file_is_found(file: str, copy: Path) -> None:
    (copy / file).parent.mkdir(exist_ok=True)
    (copy / file).write_text('"""Mine."""\n')
    assert len(unknown(copy)) == 1


@pytest.mark.parametrize("line", [
    "def f(job):\n    return job._files\n",
    "def f(job):\n    return getattr(job, '_files')\n",
    "from ..program.plan import _counts\n",
    "from smidgen.program.plan import _counts\n",
])  # fmt: skip
def test_a_private_name_of_another_package_is_found(line: str, copy: Path) -> None:
    with (copy / "report" / "by_layer.py").open("a") as file:
        file.write(f"\n\n{line}")
    assert private(copy) - private(SOURCE) == Counter({"report/by_layer.py": 1})


def test_torch_in_a_package_without_it_is_found(copy: Path) -> None:
    with (copy / "program" / "plan.py").open("a") as file:
        file.write("\n\ndef f():\n    import torch.nn\n")
    assert heavy(copy) - heavy(SOURCE) == {("program.plan", "torch")}


# -- Flower ----------------------------------------------------------------------------------------------------------


def test_only_a_fleet_imports_flower() -> None:
    found = set()
    for module, path in modules(SOURCE).items():
        for node in parsed(path.read_text(encoding="utf-8")):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            found |= {plain(module) for name in names if name.split(".")[0] in ("flwr", "ray")}
    assert found
    assert {module.split(".")[0] for module in found} == {"fleet"}


def test_a_client_runs_without_flower() -> None:
    """`import smidgen.fleet` and what a client is made of."""
    code = "import sys; sys.modules['flwr'] = sys.modules['torch'] = None; from smidgen import fleet; fleet.Client; "
    code += "fleet.share; fleet.Terms; assert not {'flwr.app', 'torch.nn'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    needed = "import sys; sys.modules['flwr'] = None; from smidgen import fleet; fleet.Checked"
    done = subprocess.run([sys.executable, "-c", needed], capture_output=True, text=True)
    assert "error[E504]: a fleet needs Flower" in done.stderr
