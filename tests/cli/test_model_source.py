"""Where the command line finds a model: the user's own errors are shown with their line."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from smidgen import cli
from smidgen.cli import model_source
from smidgen.ir import Array

# -- the command line ----------------------------------------------------------------------------------------------

NETS = """import torch
from torch import nn
def needs(width, *, depth):
    return nn.Linear(width, 2)
def raises():
    return nn.Linear(3, int("two"))
def torch_raises():
    return nn.Linear(3, -1)
def leaves():
    raise SystemExit
class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
"""
HELP = "\n  help: name a function without arguments that returns the model"
LARGE = "at most 8 axes, {} numbers, and integers below 2**31\n  help: a smaller batch proves the same: 8x3x32x32"
SOURCES: list[tuple[str, str, str]] = [
    ("nets.py:needs", "2x3", f"nets.py:needs needs arguments\n  why  missing a required argument: 'width'{HELP}"),
    ("nets.py:Net", "2x3", f"nets.py:Net needs arguments\n  why  missing a required argument: 'classes'{HELP}"),
    (
        "nets.py:raises", "2x3",
        'nets.py:raises fails\n  at   nets.py:6: return nn.Linear(3, int("two"))\n'
        "  why  ValueError: invalid literal for int() with base 10: 'two'",
    ),
    (
        "nets.py:torch_raises", "2x3",
        "nets.py:torch_raises fails\n  at   nets.py:8: return nn.Linear(3, -1)\n"
        "  why  RuntimeError: Trying to create tensor with negative dimension -1: [-1, 3]",
    ),
    ("nets.py:leaves", "2x3", "nets.py:leaves fails\n  at   nets.py:10: raise SystemExit\n  why  SystemExit"),
    ("typo.py:build", "2x3",
     "cannot run typo.py\n  at   typo.py:2: return (\n  why  SyntaxError: '(' was never closed"),
    ("package.typo:build", "2x3",
     "cannot import package.typo\n  at   package/typo.py:2: return (\n  why  SyntaxError: '(' was never closed"),
    ("fails.py:build", "2x3",
     "cannot run fails.py\n  at   fails.py:1: 1 / 0\n  why  ZeroDivisionError: division by zero"),
    ("lacks.py:build", "2x3",
     "cannot run lacks.py\n  at   lacks.py:1: import no_such_thing\n"
     "  why  ModuleNotFoundError: No module named 'no_such_thing'"),
    (
        "good.py:build", "8x99999999999x3",
        f"'8x99999999999x3' is too large an input\n  why  {LARGE.format('33,554,432')}",
    ),
    (
        "good.py:build", "8x3:int99999999999",
        f"'8x3:int99999999999' is too large an input\n  why  {LARGE.format('16,777,216')}",
    ),
    ("good.py:build", "x".join("1" * 70),
     f"'{'x'.join('1' * 70)}' is too large an input\n  why  {LARGE.format('33,554,432')}"),
]  # fmt: skip


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "package", raising=False)
    (tmp_path / "package").mkdir()
    for name, text in {
        "nets.py": NETS, "typo.py": "def build():\n    return (\n", "package/typo.py": "def build():\n    return (\n",
        "fails.py": "1 / 0\n", "lacks.py": "import no_such_thing\n",
        "good.py": "from torch import nn\ndef build():\n    return nn.Linear(3, 2)\n",
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)


@pytest.mark.usefixtures("nets")
@pytest.mark.parametrize(("model", "shape", "text"), SOURCES, ids=[f"{s[0]}-{i}" for i, s in enumerate(SOURCES)])
def test_the_users_own_errors_are_shown_with_their_line(
    model: str, shape: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["verify", model, "--input", shape, "--json"]) == 2
    assert capsys.readouterr() == ("", f"error[E104]: {text}\n")


def test_the_largest_input_is_still_made() -> None:
    rng = np.random.default_rng(0)
    made: Array = model_source.example_of("2x3:int2147483647", rng)
    assert made.shape == (2, 3)
