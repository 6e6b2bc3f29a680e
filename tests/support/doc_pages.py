"""What a documentation page holds that can be run, and running it: CONTRIBUTING.md describes the conventions.

A page is run top to bottom in one folder and one namespace; a difference is a Mismatch that names page and line.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from smidgen import cli
from smidgen.errors import SmidgenError
from tests.support import flower

ROOT = Path(__file__).resolve().parents[2]
PARTS = re.compile(
    r"^```(?P<info>[^`\n]*)\n(?P<block>.*?)^```[ \t]*$|(?<!`)<!--\s*setup:(?P<setup>.*?)-->", re.MULTILINE | re.DOTALL
)
NOT_RUN = ("git", "pip", "make", "cd", "scp", "ssh", "cp", "python3", ".")  # set-up, and other machines
WILD = "…"


class Mismatch(AssertionError):
    """A page says something else than what happens."""


@dataclass(frozen=True)
class Block:
    kind: str  # python, c, diff, console, text, …, and setup for the comment
    words: tuple[str, ...]  # after the kind, as `no-run` or `file=nets.py`
    text: str
    line: int
    follows: bool  # nothing but white space stands between it and the block before

    def option(self, name: str) -> str:
        return next((w.partition("=")[2] for w in self.words if w.startswith(f"{name}=")), "")

    @property
    def file(self) -> str:
        """The file that the block is, or is added to."""
        return self.option("file") or self.option("add-to")

    @property
    def is_run(self) -> bool:
        return "no-run" not in self.words


def blocks(text: str) -> list[Block]:
    found: list[Block] = []
    end = 0
    for part in PARTS.finditer(text):
        kind, *words = (part["info"] or "").split() or ["setup" if part["setup"] is not None else ""]
        follows = bool(found) and not text[end : part.start()].strip()
        body = part["block"] if part["setup"] is None else textwrap.dedent(part["setup"]).strip()
        line = text.count("\n", 0, part.start()) + (1 if part["setup"] is None else 0)
        found.append(Block(kind, tuple(words), body, line, follows))
        end = part.end()
    fences = len(re.findall(r"^\s*```", text, re.MULTILINE))
    fenced = sum(b.kind != "setup" for b in found)
    if fences != 2 * fenced:
        raise Mismatch(f"{fences} fences, but {fenced} blocks: a block starts and ends with ``` at the start of a line")
    return found


def changes_sources(page: Sequence[Block]) -> bool:
    """Does the page write into the project? Then it is run in a copy of it."""
    return any(b.file.startswith(("src/", "tests/")) for b in page)


def write_file(block: Block, folder: Path) -> None:
    path = folder / block.file
    path.parent.mkdir(parents=True, exist_ok=True)
    if block.kind == "diff":
        path.write_text(patched(path.read_text(encoding="utf-8"), block), encoding="utf-8")
    elif block.option("add-to"):
        path.write_text(path.read_text(encoding="utf-8") + "\n\n" + block.text, encoding="utf-8")
    else:
        path.write_text(block.text, encoding="utf-8")


def patched(text: str, block: Block) -> str:
    """With the lines that start with - (and a blank for context) replaced by those that start with +."""
    lines = block.text.splitlines()
    old = "".join(line[1:] + "\n" for line in lines if not line.startswith("+"))
    new = "".join(line[1:] + "\n" for line in lines if not line.startswith("-"))
    if text.count(old) != 1:
        raise Mismatch(f"line {block.line}: {block.file} has these lines {text.count(old)} times:\n{old}")
    return text.replace(old, new)


def run_page(page: Path, folder: Path, files: bool = True) -> None:
    """Run everything in `page`, in `folder`; with files=False the files are there already."""
    parts = blocks(page.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    with _beside(folder):
        for block, after in zip(parts, [*parts[1:], None], strict=True):
            try:
                if block.file:
                    if files:
                        write_file(block, folder)
                elif block.kind in ("python", "setup") and block.is_run:
                    said = after.text if after and after.follows and after.kind == "text" else None
                    run_python(block, names, said, str(page))
                elif block.kind in ("console", "sh") and block.is_run:
                    run_console(block)
                elif block.kind == "c" and block.is_run:
                    raise Mismatch("C that is not part of a file: say file=…, add-to=… or no-run")
                elif re.search(r"^\$ ", block.text, re.MULTILINE) and block.is_run:
                    raise Mismatch("a command outside a console block is not run")
            except Mismatch as error:
                raise Mismatch(f"{page.name}:{block.line}: {error}") from None
    names.clear()  # one by one, so that what is open closes now: a page's functions keep all its names in a cycle


@contextlib.contextmanager
def _beside(folder: Path) -> Iterator[None]:
    """In `folder`, with modules from there; afterwards everything is as before."""
    path, modules, env = list(sys.path), set(sys.modules), dict(os.environ)
    os.environ.update(COLUMNS="100", NO_COLOR="1")
    sys.path.insert(0, str(folder))
    try:
        with contextlib.chdir(folder):
            yield
    finally:
        sys.path[:] = path
        os.environ.clear()
        os.environ.update(env)
        for name in set(sys.modules) - modules:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder.resolve())):
                del sys.modules[name]


def run_python(block: Block, names: dict[str, Any], said: str | None, page: str) -> None:
    """Run one block; `said` is what it has to print, or the error that it has to end with."""
    code = compile("\n" * block.line + block.text, page, "exec")
    out = io.StringIO()
    error = ""
    try:
        with contextlib.redirect_stdout(out):
            exec(code, names)
    except SmidgenError as raised:
        error = str(raised)
    if error and (said is None or not said.startswith("error[")):
        raise Mismatch(f"the block ends with\n{error}")
    if said is not None:
        compare(said, error if said.startswith("error[") else out.getvalue())


def run_console(block: Block) -> None:
    """Every `$ command`, with the lines up to the next one as its output; with error[…] in it, status is not 0."""
    text = block.text.replace("\\\n", " ")
    if not text.startswith("$ "):
        raise Mismatch("a console block starts with `$ command`")
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        line, _, expected = part.partition("\n")
        words = shlex.split(line, comments=True)
        if words[0] in NOT_RUN and words[:2] != ["make", "-C"]:
            continue
        status, out = run_command(words)
        fails = expected.startswith("error[") or "\nerror[" in expected
        if (status != 0) != fails:
            raise Mismatch(f"`{line}` ends with status {status}:\n{out}")
        if expected.strip():
            compare(expected, out)


def run_command(words: Sequence[str]) -> tuple[int, str]:
    """Exit status of a command and what it says in a pipe; if it fails, with what it says to stderr."""
    if words[0] == "python":
        done = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True)
        return done.returncode, done.stdout + (done.stderr if done.returncode else "")
    if words[0].startswith("./") or words[0] == "make":  # a binary that the page has built, or its building
        done = subprocess.run(words, capture_output=True, text=True)
        return done.returncode, done.stdout + (done.stderr if done.returncode else "")
    if words[0] == "flwr":
        return flower.run(words[1:])
    if words[0] == "pytest" and "PYTEST_CURRENT_TEST" in os.environ:
        raise Mismatch(
            "pytest inside pytest: a page that runs tests writes into src/ or tests/, and has a copy of its own"
        )
    if words[0] not in ("smidgen", "pytest"):
        raise Mismatch(f"no rule for the command '{words[0]}': run it in a test of its own, or say no-run")
    out, err = io.StringIO(), io.StringIO()
    # In this process: loading torch takes longer than most commands.
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            if words[0] == "smidgen":
                status = cli.main(list(words[1:]))
            else:
                status = int(pytest.main(["-p", "no:cacheprovider", "--capture=sys", *words[1:]]))
        except SystemExit as stop:
            status = int(stop.code or 0)
    return status, out.getvalue() + (err.getvalue() if status else "")


def compare(expected: str, got: str) -> None:
    """… stands for anything in a line, alone on a line for any lines. Columns may be wider than on the page."""
    wanted, lines = ([" ".join(line.split()) for line in text.strip().splitlines()] for text in (expected, got))
    pattern = "".join(
        r"(?:.*\n)*?" if line == WILD else ".*".join(map(re.escape, line.split(WILD))) + r"\n" for line in wanted
    )
    if not re.fullmatch(pattern, "".join(line + "\n" for line in lines)):
        raise Mismatch(f"the page says\n{expected.rstrip()}\nbut this is what happens\n{got.rstrip()}")


if __name__ == "__main__":
    run_page(Path(sys.argv[1]), Path.cwd(), files=False)
