"""What README and docs say is what happens: their code runs, output, links and figures are right, generated pages are
up to date. Pages that change the sources run in a copy of the project. Needs torch and a C compiler."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.zoo import env
from smidgen.errors import BadOption, all_errors
from smidgen.report import explain
from tests.support.boards import need
from tests.support.copies import copied
from tests.support.doc_pages import ROOT, Mismatch, blocks, changes_sources, run_page, write_file
from tools import fill_figures, make_reference
from tools.result_tables import Figure

EXPLAINED = sorted(explain.FOLDER.glob("*.md"))
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *EXPLAINED]
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
RUN = [page for page in PAGES if any(b.kind in ("python", "console", "sh", "setup") for b in blocks(TEXTS[page]))]
MOST_NOT_RUN = 3
BUILD = """
import pathlib, shutil
from smidgen.runtime.build import compile_runtime
cc = shutil.which("tcc") or ""
compile_runtime(pathlib.Path("lib.so"), cc, () if cc else ("-O1",), checks=False)
"""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


# -- what pages say ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_everything_on_the_page_happens_as_it_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SMIDGEN_KERNELS", raising=False)  # readers do not have it
    torch.set_num_threads(1)
    needs = re.search(r"^<!-- needs: (.*?) -->", TEXTS[page], re.MULTILINE)
    need(*needs[1].split() if needs else ())
    packages = re.search(r"^<!-- packages: (.*?) -->", TEXTS[page], re.MULTILINE)
    if packages and not all(importlib.util.find_spec(name) for name in packages[1].split()):
        in_the_zoo(page, tmp_path, packages[1])
    elif changes_sources(blocks(TEXTS[page])):
        in_a_copy(page, tmp_path)
    else:
        run_page(page, tmp_path)


def in_a_copy(page: Path, folder: Path) -> None:
    """Put the page's files into a copy of the project, build its runtime, and run the rest of the page there."""
    copied(folder)
    for name in ("docs", "tools"):
        shutil.copytree(ROOT / name, folder / name)
    before = contents(folder)
    text = page.read_text(encoding="utf-8")
    for block in blocks(text):
        if block.file:
            write_file(block, folder)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "SMIDGEN"))}
    env |= {"PYTHONPATH": f"{folder / 'src'}{os.pathsep}{folder}", "SMIDGEN_LIBRARY": str(folder / "lib.so")}
    env |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1"}
    for command in (["-m", "tools.make_inplace"], ["-c", BUILD], ["-m", "tests.support.doc_pages", str(page)]):
        done = subprocess.run([sys.executable, *command], cwd=folder, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    after = contents(folder)
    touched = {name for name in {*before, *after} if before.get(name) != after.get(name)}
    assert touched <= named_files(page, text), "the page changes files that it does not name"


def in_the_zoo(page: Path, folder: Path, packages: str) -> None:
    """Run the page in the environment that the benchmark of public models has made, if it has."""
    if not env.is_made():
        pytest.skip(f"not installed: {packages} (python -m benchmarks.zoo --setup)")
    run = (
        "import sys, pathlib; from benchmarks.zoo import absent; absent.stand_in(); "
        "from tests.support.doc_pages import run_page; run_page(pathlib.Path(sys.argv[1]), pathlib.Path.cwd())"
    )
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    variables = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [env.PYTHON, "-W", "ignore", "-c", run, page], cwd=folder, env=variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a copy of the project; without what Python and the compiler make of it."""
    made = {"__pycache__", ".pytest_cache", "lib.so"}
    files = [path for path in folder.rglob("*") if path.is_file() and not made & {*path.parts, path.name}]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def named_files(page: Path, text: str) -> set[str]:
    """Files that a reader of the page is told of: its blocks are, or change them, or a link leads there."""
    links = re.findall(r"\]\(([^)\s#]+)", text)
    linked = {os.path.relpath((page.parent / link).resolve(), ROOT) for link in links if ":" not in link}
    return {block.file for block in blocks(text) if block.file} | linked


def test_hardly_a_block_is_not_run() -> None:
    left_out = [f"{name_of(page)}:{b.line}" for page in PAGES for b in blocks(TEXTS[page]) if not b.is_run]
    assert len(left_out) <= MOST_NOT_RUN, left_out


def test_the_one_page_that_rebuilds_the_core_runs_with_numpy_alone(tmp_path: Path) -> None:
    page = ROOT / "docs" / "explain" / "from_scratch.py"
    tree = ast.parse(page.read_text(encoding="utf-8"))
    froms = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    plain = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert {str(name).partition(".")[0] for name in froms | plain} - sys.stdlib_module_names == {"numpy"}
    done = subprocess.run(
        [sys.executable, "-W", "error", page], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("planted:") == 4
    assert re.search(r"step 300 +accuracy (9\d|100)%", done.stdout)
    assert "everything happened inside one block of" in done.stdout


# -- links, figures, generated pages -------------------------------------------------------------------------------


def slug(heading: str) -> str:
    """The anchor that a heading gets on a page."""
    return re.sub(r"[^\w\- ]", "", heading.replace("`", "").strip().lower()).replace(" ", "-")


def wrong_links(page: Path, text: str) -> list[str]:
    bare = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", bare):
        place, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        found = (page.parent / place).resolve() if place else page
        headings = (
            re.findall(r"^#+ (.*)$", found.read_text(encoding="utf-8"), re.M)
            if found.suffix == ".md" and found.is_file()
            else []
        )
        if not found.exists() or (anchor and anchor not in map(slug, headings)):
            wrong.append(target)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    assert wrong_links(page, TEXTS[page]) == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_figures_are_those_of_the_results(page: Path) -> None:
    assert fill_figures.filled(TEXTS[page]) == TEXTS[page], "python -m tools.fill_figures writes them"


@pytest.mark.parametrize("name", make_reference.PAGES)
def test_the_reference_is_up_to_date(name: str) -> None:
    there = (make_reference.FOLDER / name).read_text(encoding="utf-8")
    assert there == make_reference.PAGES[name](), "python -m tools.make_reference writes it"


# -- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", sorted(all_errors()))
def test_every_error_has_a_page_that_provokes_it(code: str) -> None:
    text = explain.page(code)
    assert re.match(rf"# {code}: \S", text)
    assert "\nWhat to do\n" in text
    parts = blocks(text)
    shown = [b for b in parts if (b.kind == "text" and b.follows) or b.kind == "console"]
    assert any(f"error[{code}]: " in b.text for b in shown), "an example, and the message it ends with"
    assert max(len(line) for line in text.splitlines()) <= 120


def test_every_page_belongs_to_an_error() -> None:
    assert {page.stem for page in EXPLAINED} == set(all_errors())


@pytest.mark.parametrize("code", ["E101", "e101", " E101 ", "101", "error[E101]", "error[E101]:"])
def test_a_code_may_be_written_as_it_is_met(code: str) -> None:
    assert explain.page(code) == explain.page("E101")


@pytest.mark.parametrize(
    ("code", "help"),
    [("E1O1", "did you mean 'E101'?"), ("", f"one of {', '.join(sorted(all_errors()))}"), ("../E101", None)],
)
def test_an_unknown_code_gets_help(code: str, help: str | None) -> None:
    with pytest.raises(BadOption) as caught:
        explain.page(code)
    assert caught.value.what == f"there is no error '{code}'"
    assert help is None or caught.value.help == help


# -- the checks themselves can fail --------------------------------------------------------------------------------

FENCE = "```"
WRONG = {
    "another output": ("python\nprint(1)\n```\n\n```text\n2", "page.md:2: the page says\n2"),
    "more output": ("python\nprint(1, 2)\n```\n\n```text\n1", "but this is what happens\n1 2"),
    "a line that is not there": ("python\nprint(1)\n```\n\n```text\n1\n…\n2", "the page says"),
    "no error": ("python\npass\n```\n\n```text\nerror[E304]: x", "the page says"),
    "an error that nobody expects": (
        "python\nfrom smidgen.report import explain\nexplain.page('E0')",
        "the block ends with\nerror[E304]: there is no error 'E0'",
    ),
    "another error": (
        "python\nfrom smidgen.report import explain\nexplain.page('E0')\n```\n```text\n"
        "error[E304]: there is no error 'E1'",
        "the page says",
    ),
    "a command that fails": ("console\n$ smidgen explain E0", "`smidgen explain E0` ends with status 2"),
    "a command that should fail": ("console\n$ smidgen methods\nerror[E101]: no", "ends with status 0"),
    "a command that says something else": ("console\n$ smidgen methods\nnothing", "the page says\nnothing"),
    "a script that fails": ("console\n$ python nowhere.py", "ends with status 2"),
    "a command without a rule": ("console\n$ smigden plan", "no rule for the command 'smigden'"),
    "a test inside a test": ("console\n$ pytest tests", "pytest inside pytest"),
    "a command in another block": ("\n$ smidgen plan", "a command outside a console block is not run"),
    "a console without a prompt": ("console\nsmidgen plan", "a console block starts with `$ command`"),
    "C that belongs nowhere": ("c\nint x;", "C that is not part of a file"),
    "lines that are not there": ("diff file=a.txt\n-old\n+new", "a.txt has these lines 0 times"),
    "a fence in the middle of a line": ("python\npass\n```\n\n    ```python", "fences, but"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "said"), WRONG.values(), ids=[name.replace(" ", "-") for name in WRONG])
def test_a_page_is_refused_for(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n")
    (tmp_path / "page.md").write_text(f"# A page\n{FENCE}{text}\n{FENCE}\n")
    with pytest.raises(Mismatch) as caught:
        run_page(tmp_path / "page.md", tmp_path)
    assert said in str(caught.value)


def test_a_page_may_set_up_write_files_and_leave_out_what_differs(tmp_path: Path) -> None:
    text = """
<!-- setup: import math -->
<!-- setup:
two = 2
-->
```python file=sub/mine.py
value = 40
```
```diff file=sub/mine.py
-value = 40
+value = 41
```
```python add-to=sub/mine.py
value += 1
```
```python
import sys; sys.path.insert(0, "sub"); import mine
print(mine.value, f"{math.pi * two:.2f}")
print("anything"), print("at all")
print("a  b")
```

```text
42 …8
…
 a b
```
```python no-run
never
```
```console
$ python sub/mine.py
$ pip install something   # is not run
$ smidgen explain E1 --json
error[E304]: there is no error 'E1'
  help: …
```
"""
    (tmp_path / "page.md").write_text(text)
    before = list(sys.path), Path.cwd()
    run_page(tmp_path / "page.md", tmp_path)
    assert (list(sys.path), Path.cwd(), "mine" in sys.modules) == (*before, False)


def test_a_page_of_packages_that_are_not_installed_is_skipped_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(env, "is_made", lambda: False)
    with pytest.raises(pytest.skip.Exception, match=r"not installed: timm \(python -m benchmarks\.zoo --setup\)"):
        in_the_zoo(tmp_path / "page.md", tmp_path, "timm")


def test_a_link_to_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# Here, `now`!\n")
    good = "[b](b.md) [b](b.md#here-now) [own](#a-title) [w](https://example.org)\n```\n[c](c.md)\n```\n"
    page = tmp_path / "a.md"
    page.write_text(f"# A title\n{good}")
    assert wrong_links(page, page.read_text()) == []
    assert wrong_links(page, f"{good} [c](c.md) [b](b.md#there) [own](#else)") == ["c.md", "b.md#there", "#else"]


FIGURES = [
    ("rows[net=a].ms .1f", "2.5"), ("rows.1.ms .0f", "3"), ("max(rows[*].ms) g", "3.25"), ("len(rows[*]) d", "2"),
    ("len(rows) d", "2"),
    ("rows[net=a,n=1].bytes bytes", "2 KB"), ("rows.0.bytes ,d", "2,048"), ("made.by s", "x"),
]  # fmt: skip
NO_FIGURES = [
    ("rows[*].ms .1f", "2 values"), ("rows[net=c].ms .1f", "0 values"), ("rows.2.ms .1f", "0 values"),
    ("no d", "0 values"), ("mean(rows[*].ms) g", "2 values"), ("rows.0 bytes", "cannot be written as 'bytes'"),
    ("made.by .1f", "cannot be written as '.1f'"),
]  # fmt: skip


@pytest.fixture
def results(tmp_path: Path) -> Path:
    (tmp_path / "r.json").write_text(
        '{"made": {"by": "x"}, "rows": [{"net": "a", "n": 1, "ms": 2.5, "bytes": 2048}, {"net": "b", "ms": 3.25}]}'
    )
    return tmp_path


def figure(where: str) -> Figure:
    return Figure("r.json", *where.split())


@pytest.mark.parametrize(("where", "text"), FIGURES, ids=[f[0].split()[0] for f in FIGURES])
def test_a_table_is_filled_in(where: str, text: str, results: Path) -> None:
    tables = {"t": [["net", "figure"], ["a", figure(where)]]}
    page = "Once\n\n<!-- table: t -->\n{0}<!-- end -->\n\nand again:\n\n<!-- table: t -->\n{0}<!-- end -->\n"
    rows = f"| net | figure |\n| --- | --- |\n| a | {text} |\n"
    for before in ("", "| old |\n", rows):
        assert fill_figures.filled(page.format(before), results, tables) == page.format(rows)


@pytest.mark.parametrize(("where", "said"), NO_FIGURES, ids=[f[0].split()[0] for f in NO_FIGURES])
def test_a_figure_that_is_not_there_is_refused(where: str, said: str, results: Path) -> None:
    with pytest.raises(fill_figures.NoFigure, match=re.escape(said)):
        fill_figures.written("t", results, {"t": [["figure"], [figure(where)]]})


def test_a_table_is_refused_without_its_file_or_with_rows_of_another_length(results: Path) -> None:
    for rows in ([["figure"], [Figure("no.json", "made.by", "s")]], [["one", "two"], ["x"]]):
        with pytest.raises(fill_figures.NoFigure, match=r"no\.json|rows of \[1\] cells"):
            fill_figures.written("t", results, {"t": rows})


@pytest.mark.parametrize(
    "page",
    ["<!-- table: t -->\nx\n", "x\n<!-- end -->\n", "<!-- table: other -->\n<!-- end -->\n",
     "see <!-- table: t -->\n<!-- end -->\n", "<!-- table: t --> <!-- end -->\n",
     "<!-- table: t -->\n<!-- table: t -->\n<!-- end -->\n",
     "3 <!-- figure: r.json made.by s -->x<!-- /figure -->\n"],
    ids=["no-end", "no-start", "no-table", "in-a-sentence", "one-line", "two-starts", "a-figure-in-a-sentence"],
)  # fmt: skip
def test_a_marker_that_is_not_complete_is_refused(page: str, results: Path) -> None:
    with pytest.raises(fill_figures.NoFigure):
        fill_figures.filled(page, results, {"t": [["figure"], ["1"]]})
