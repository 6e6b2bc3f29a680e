"""`smidgen verify` as a user meets it: exact output, exact errors, exit status. Needs torch and the C runtime."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from smidgen import all_methods, cli, errors
from smidgen.report.proof import MEANING
from tests.support.paged import momentum_in_pages

NETS = '''
import torch
from torch import nn


class Residual(nn.Module):
    """Convolutions, batch-norm and a residual connection."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.inner = nn.Conv2d(6, 6, 3, padding=1)
        self.head = nn.Linear(6, 4)

    def forward(self, x):
        x = torch.relu(self.norm(self.stem(x)))
        x = torch.relu(x + self.inner(x))
        return self.head(x.mean((2, 3)))


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        return torch.special.bessel_j0(self.head(x))


def build():
    return Residual()


def odd():
    return Odd()


def plain():
    return nn.Linear(3, 2)


def pair():
    return nn.LSTM(3, 2)


def number():
    return 3


ready = Residual()
'''
LEARNS = ("stem.weight", "norm.weight", "norm.bias", "inner.weight", "inner.bias", "head.weight", "head.bias")
INPUT = ("--input", "4x3x8x8")


@pytest.fixture(autouse=True)
def _beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder with nets.py, as a user would be."""
    torch.set_num_threads(1)
    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


def line_of(code: str) -> str:
    """`nets.py:12: the code` as messages show it."""
    number = next(i for i, line in enumerate(NETS.splitlines(), 1) if line.strip() == code)
    return f"nets.py:{number}: {code}"


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of `smidgen verify`."""
    try:
        status = cli.main(["verify", *args])
    except SystemExit as stop:  # argparse
        status = int(stop.code or 0)
    return (status, *capsys.readouterr())


# What works.


def test_a_residual_network_with_batch_norm_passes(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "nets.py:build", *INPUT)
    first, *rows = out.splitlines()
    assert status == 0
    assert first.startswith("PASS  nets.py:build: 7 tensors learn (full), batch 4, RAM ")
    meanings = [*MEANING.values(), "loaded back: same predictions, the rest untouched to the bit",
                "no live byte overwritten", "RAM planned = RAM asked for"]  # fmt: skip
    assert [row[:8] + row[8:68].rstrip() for row in rows] == [f"  pass  {text}" for text in meanings]
    ram = int(first.split("RAM ")[1].removesuffix(" bytes").replace(",", ""))
    parts = rows[-1][68:].replace(",", "").split(" + ")
    assert [part.split()[1] for part in parts] == ["state", "arena", "context", "stack"]
    assert sum(int(part.split()[0]) for part in parts) == ram
    assert err.splitlines()[0] == "compiling …"
    assert all(line.endswith(" …") for line in err.splitlines()), "only progress goes to stderr"


def test_batch_statistics_pass_and_json_has_the_documented_keys(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "nets.py:ready", *INPUT, "--bn", "batch", "--json")
    assert (status, err) == (0, "")
    proof: dict[str, Any] = json.loads(out)
    assert list(proof) == ["model", "passed", "parity", "ram_bytes", "mapped_bytes", "goes_home", "replayed", "plan"]
    assert (proof["model"], proof["passed"], proof["goes_home"]) == ("nets.py:ready", True, True)
    assert [row["rule"] for row in proof["parity"]] == ["a", "b", "c"]
    for row in proof["parity"]:
        assert list(row) == ["rule", "worst", "limit", "where", "beyond", "passed"]
        assert row["passed"] is (row["worst"] <= row["limit"]) is True
    plan = proof["plan"]
    assert set(plan["learns"]) == set(LEARNS)
    assert proof["ram_bytes"] == proof["mapped_bytes"] + plan["context_bytes"] + plan["stack_bytes"]


def test_a_learning_rate_of_zero_is_zero(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "nets.py:build", *INPUT, "--method", "bn", "--lr", "0", "--json")
    assert status == 0
    assert json.loads(out)["parity"][2]["where"] == "ours 0.00e+00, torch-f32 0.00e+00"


def test_the_model_may_import_its_neighbours_late_and_be_called_like_a_standard_module(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "neighbour_of_the_model.py").write_text("from torch import nn\n")
    (tmp_path / "numbers.py").write_text(
        "def build():\n    import neighbour_of_the_model\n    return neighbour_of_the_model.nn.Linear(3, 2)\n"
    )
    status, out, err = run(capsys, "numbers.py:build", "--input", "2x3", "--json")
    assert (status, err) == (0, "")
    assert json.loads(out)["passed"]
    import numbers

    assert numbers.Rational


def test_an_installed_command_finds_packages_where_the_user_is(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "models.py").write_text("def build():\n    return 3\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "smidgen").write_text("from smidgen.cli import main\nraise SystemExit(main())\n")
    command = [sys.executable, tmp_path / "bin" / "smidgen", "verify", "project.models:build", *INPUT]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stderr == "error[E104]: project.models:build gives a int, not a torch.nn.Module\n"


# What does not. Each error is all of stderr; nothing goes to stdout.

SHAPE_HELP = "help: 8x3x32x32 (batch first), 8x16:int100 for integers, 8x3x32x32:bytes/255 for bytes"
ERRORS: list[tuple[str, str, type[errors.SmidgenError], str]] = [
    ("a missing file", "nope.py:build --input 4x3x8x8", errors.BadModelSource, "no file nope.py"),
    (
        "no function", "nets.py --input 4x3x8x8", errors.BadModelSource,
        "'nets.py' does not name a model\n  help: file.py:build or package.module:build",
    ),
    (
        "a misspelt function", "nets.py:buld --input 4x3x8x8", errors.BadModelSource,
        "nets.py has no 'buld'\n  help: did you mean 'build'?",
    ),
    (
        "an unknown function", "nets.py:qqq --input 4x3x8x8", errors.BadModelSource,
        "nets.py has no 'qqq'\n  help: one of Odd, Residual, build, nn, number, odd, pair, plain, ready, torch",
    ),
    (
        "something that is no model", "nets.py:number --input 4x3x8x8", errors.BadModelSource,
        "nets.py:number gives a int, not a torch.nn.Module",
    ),
    (
        "an unknown package", "no.such:build --input 4x3x8x8", errors.BadModelSource,
        "cannot import no.such\n  why  No module named 'no'\n  help: or give a file: path/to/nets.py:build",
    ),
    (
        "an unfinished shape", "nets.py:build --input 4x3x", errors.BadModelSource,
        f"'4x3x' is not an input\n  {SHAPE_HELP}",
    ),
    (
        "an unknown kind of number", "nets.py:build --input 4x3:float", errors.BadModelSource,
        f"'4x3:float' is not an input\n  {SHAPE_HELP}",
    ),
    (
        "a size of zero", "nets.py:build --input 0x3x8x8", errors.BadModelSource,
        f"'0x3x8x8' is not an input\n  {SHAPE_HELP}",
    ),
    (
        "an input of the wrong shape", "nets.py:build --input 4x1x8x8", errors.BadModelSource,
        f"the model does not take 4x1x8x8\n  at   {line_of('x = torch.relu(self.norm(self.stem(x)))')}\n"
        "  why  Given groups=1, weight of size [6, 3, 3, 3], expected input[4, 1, 8, 8] to have 3 channels, "
        "but got 1 channels instead\n"
        "  help: --input 8x3x32x32, batch first; once for each input of the model",
    ),
    (
        "an input too many", "nets.py:build --input 4x3x8x8 --input 4x3", errors.BadModelSource,
        "the model does not take 4x3x8x8, 4x3\n"
        "  why  Residual.forward() takes 2 positional arguments but 3 were given\n"
        "  help: --input 8x3x32x32, batch first; once for each input of the model",
    ),
    (
        "several outputs", "nets.py:pair --input 4x5x3", errors.BadOption,
        "the model returns a tuple\n  help: verify needs a model with one output tensor",
    ),
    (
        "a misspelt method", "nets.py:build --input 4x3x8x8 --method ful", errors.UnknownMethod,
        "'ful' is neither a method nor a parameter of this model\n  help: did you mean 'full'?",
    ),
    (
        "a misspelt parameter", "nets.py:build --input 4x3x8x8 --method inner.wieght", errors.UnknownMethod,
        "'inner.wieght' is neither a method nor a parameter of this model\n  help: did you mean 'inner.weight'?",
    ),
    (
        "an unknown method", "nets.py:build --input 4x3x8x8 --method zz", errors.UnknownMethod,
        "'zz' is neither a method nor a parameter of this model\n"
        f"  help: one of {', '.join(sorted([*all_methods(), *LEARNS]))}",
    ),
    (
        "a count that is none", "nets.py:build --input 4x3x8x8 --method last:x", errors.BadOption,
        "method 'last:x' is not understood\n  help: last:k: the last k layers, as in last:3",
    ),
    (
        "a method that finds nothing", "nets.py:plain --input 4x3 --method bn", errors.NothingToTrain,
        "method 'bn' finds nothing to train in this model\n  why  no parameter selected\n"
        '  help: method="full" trains every parameter with requires_grad=True',
    ),
    (
        "a misspelt loss", "nets.py:build --input 4x3x8x8 --loss crossentropy", errors.BadOption,
        "no loss named 'crossentropy'\n  help: did you mean 'cross_entropy'?",
    ),
    (
        "a negative learning rate", "nets.py:build --input 4x3x8x8 --lr -1", errors.BadOption,
        "lr=-1.0 is not valid\n  at   SGD\n  why  it is a finite number in single precision, not negative\n"
        "  help: lr=0.01",
    ),
    (
        "statistics of one value", "nets.py:build --input 1x3x1x1 --bn batch", errors.BatchStatistics,
        "batch statistics need more than one value per channel\n"
        "  why  a norm takes the mean and variance of the values at hand; one value has no variance\n"
        "  help: train with a larger batch, or with bn='frozen'",
    ),
]  # fmt: skip
STATUS = {errors.NothingToTrain: 1, errors.BatchStatistics: 1}  # sound questions with the answer no; else wrong usage


@pytest.mark.parametrize(("args", "kind", "text"), [pytest.param(*e[1:], id=e[0].replace(" ", "-")) for e in ERRORS])
def test_the_error_is_exact_for(
    args: str, kind: type[errors.SmidgenError], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, *args.split(), "--json")
    assert status == kind.exit_status == STATUS.get(kind, 2)
    assert (out, err) == ("", f"error[{kind.code}]: {text}\n")


def test_an_unsupported_op_names_the_users_line_and_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "nets.py:odd", "--input", "4x3")
    progress, first, at, *rest = err.splitlines()
    assert (status, out, progress) == (1, "", "compiling …")
    assert first == "error[E101]: torch op aten.special_bessel_j0 is not supported"
    assert at == f"  at   {line_of('return torch.special.bessel_j0(self.head(x))')}"
    assert rest[-1].startswith("  help: ")


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["nets.py:build"], "the following arguments are required: --input\n  help: smidgen verify --help"),
        (
            ["nets.py:build", *INPUT, "--optimizer", "sgdd"],
            "argument --optimizer: invalid choice: 'sgdd'\n  help: did you mean 'sgd'?  (smidgen verify --help)",
        ),
        (
            ["nets.py:build", *INPUT, "--bn", "train"],
            "argument --bn: invalid choice: 'train'\n  help: one of batch, frozen  (smidgen verify --help)",
        ),
        (
            ["nets.py:build", *INPUT, "--lr", "fast"],
            "argument --lr: invalid float value: 'fast'\n  help: smidgen verify --help",
        ),
    ],
    ids=["no-input", "optimizer", "bn", "lr"],
)
def test_wrong_usage_is_an_error_like_any_other(args: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, *args)
    assert (status, out) == (2, "")
    assert err == f"error[E304]: {text}\n"


def test_the_process_ends_with_the_status_of_the_error() -> None:
    command = [sys.executable, "-m", "smidgen.cli", "verify", "nope.py:build", *INPUT]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "error[E104]: no file nope.py\n")


def test_every_error_has_a_code_and_a_status_of_its_kind() -> None:
    """0 done, 1 valid but impossible or mismatched, 2 wrong usage, 3 our bug."""
    found = errors.all_errors()
    assert len(found) == len(errors.SmidgenError.__subclasses__()), "a code is used twice"
    assert {code: kind.exit_status for code, kind in found.items() if kind.exit_status != 1} == {
        "E104": 2, "E203": 2, "E301": 2, "E304": 2, "E308": 2, "E309": 2, "E901": 3,
    }  # fmt: skip


def test_inspect_needs_no_pages_for_a_program_that_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    momentum_in_pages().save(tmp_path / "net.smg")
    assert cli.main(["inspect", str(tmp_path / "net.smg")]) == 0
    assert "bytes in PAGE" in capsys.readouterr().out


def test_build_needs_no_pages_for_a_program_that_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    momentum_in_pages().save(tmp_path / "net.smg")
    assert cli.main(["build", "net.smg", "--device", "mps2-an385", "--firmware", "fw", "-o", "copy.smg"]) == 0
    assert "fw: " in capsys.readouterr().out
    assert {Path(name).read_bytes() for name in ("copy.smg", "fw/net.smg")} == {Path("net.smg").read_bytes()}
