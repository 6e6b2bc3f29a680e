"""Each error code, provoked through the command line: the exact message, the exit status, and nothing half-written."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from smidgen import cli, errors
from smidgen.compiler import assemble, verify
from smidgen.errors import Internal, UnsafeLayout
from smidgen.methods import registry
from tests.support.error_files import METHODS, NETS, write_data


@pytest.fixture(autouse=True, scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that all tests read; each test works in a copy of nothing but their names."""
    place = tmp_path_factory.mktemp("errors")
    (place / "nets.py").write_text(NETS)
    (place / "own_methods.py").write_text(METHODS)
    x = write_data(place)
    torch.manual_seed(0)
    job = smidgen.compile(nn.Linear(3, 2), x[:4], optimizer=smidgen.SGD(0.1))
    job.save(place / "net.smg")
    job.checkpoint(place / "net.ckpt")
    smidgen.compile(nn.Linear(3, 2), x[:4], loss="mse", optimizer=smidgen.SGD(1e20)).save(place / "mse.smg")
    words = nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(6, 2))
    smidgen.compile(words, np.zeros((4, 3), np.int64)).save(place / "words.smg")
    whole = (place / "net.smg").read_bytes()
    (place / "cut.smg").write_bytes(whole[:300])
    (place / "altered.smg").write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
    (place / "other.smg").write_bytes(b"PK" + whole[2:])
    cut = (place / "net.ckpt").read_bytes()
    (place / "cut.ckpt").write_bytes(cut[:-1])
    (place / "a_folder").mkdir()
    return place


TRAIN = "train net.smg --data good.npz"
TWICE = "is named twice\n  why  writing it would replace what is read or written there"
HOW = "np.savez('{}.npz', x=inputs, y=targets)"
FOLDER_HELP = "name a file, in a folder that exists and can be written to"
ROWS: list[tuple[str, str, str]] = [
    (
        "a model that cannot be exported", "build nets.py:Fixed --input 4x3x4 -o out.smg",
        "error[E102]: the model works only for the example's batch size\n"
        "  at   nets.py:11: return self.head(x.reshape(4, 12))\n"
        "  why  shape '[4, 12]' is invalid for input of size 12*batch\n"
        "  help: write x.shape[0], not a number and not len(x); samples must not be combined with each other",
    ),
    (
        "no class axis", "build nets.py:flat --input 4x5 -o out.smg",
        "error[E103]: cross_entropy needs a class axis\n"
        "  why  the output has the shape (5n), n being the number of samples\n"
        "  help: loss='bce_with_logits' takes one score per sample",
    ),
    (
        "a model that is not there", "build nets.py:nothing --input 4x5 -o out.smg",
        "error[E104]: nets.py has no 'nothing'\n"
        "  help: one of Bessel, Fixed, Picks, Twice, flat, loud, nn, norm, of_two, plain, root_mean_square, "
        "torch, wide",
    ),
    ("no input", "plan nets.py:plain",
     "error[E104]: nets.py:plain comes without an example input\n"
     "  help: --input 8x3x32x32, batch first; once for each input of the model"),
    ("no exported file", "plan net.pt2", "error[E104]: no file net.pt2"),
    (
        "more than can be addressed", "build nets.py:wide --input 1x300000 --loss mse --batch 4000 -o out.smg",
        "error[E201]: ARENA needs 4800016000 bytes, a program can address 2147483584",
    ),
    (
        "an unknown device", "plan nets.py:plain --input 4x3 --device stm32f747",
        "error[E203]: there is no device 'stm32f747'\n  help: did you mean 'stm32f746'?  (smidgen devices)",
    ),
    (
        "a misspelt method", "plan nets.py:plain --input 4x3 --method lastlayer",
        "error[E301]: 'lastlayer' is neither a method nor a parameter of this model\n"
        "  help: did you mean 'last_layer'?",
    ),
    (
        "a scheme that is none", "plan nets.py:plain --input 4x3 --method sparse_update:b1,w2",
        "error[E309]: 'b1,w2' is not a scheme of sparse updates\n"
        "  why  'b1,w2' is neither b and a number nor w and layers\n"
        "  help: SparseUpdate('b22 w21:1,24:1,36:1/8'): biases of the last 22 layers, "
        "weights of layers with their shares",
    ),
    (
        "nothing to train", "plan nets.py:plain --input 4x3 --method bn",
        "error[E302]: method 'bn' finds nothing to train in this model\n  why  no parameter selected\n"
        '  help: method="full" trains every parameter with requires_grad=True',
    ),
    (
        "no place for a stream", "plan nets.py:norm --input 4x3 --method tinyol",
        "error[E310]: this model has no last layer that could be learned beside\n  why  no layer of it has a weight\n"
        '  help: method="tinyol:attach" learns a layer behind the network',
    ),
    (
        "nothing to score by",
        "plan nets.py:Twice --input 4x3 --method tinytrain --loss nets.py:of_two --target 4x2",
        "error[E311]: the channels of this model cannot be scored\n"
        "  why  the loss does not take what it returns in evaluation mode\n"
        "  help: return the same in both modes, or give a loss that takes both",
    ),
    ("nothing to calibrate with", "plan nets.py:plain --input 4x3 --precision int8",
     "error[E401]: precision='int8' has no samples to calibrate with\n"
     "  why  the range of every value decides what a step of int8 stands for\n"
     "  help: data=x, some dozens of typical samples, as the network is given them"),
    ("a choice in int8", "plan nets.py:plain --input 4x3 --precision int8 --data good.npz --method tinytrain",
     "error[E402]: method 'tinytrain' cannot choose channels of a network in int8\n"
     "  why  they are scored by gradients in f32\n"
     "  help: precision='f32'; in int8 a scheme that is given: method='sparse_update:b2 w1:1/4'"),
    (
        "no gradient", "plan nets.py:Picks --input 4x3 --method pick.*",
        "error[E303]: the loss does not depend on anything that learns\n"
        "  why  method 'pick.*' selects pick.weight, pick.bias",
    ),
    (
        "an unknown command", "trian net.smg",
        "error[E304]: argument command: invalid choice: 'trian'\n  help: did you mean 'train'?  (smidgen --help)",
    ),
    (
        "a momentum for adam", "plan nets.py:plain --input 4x3 --optimizer adam --momentum 0.9",
        "error[E304]: adam has no momentum\n  help: --optimizer sgd --momentum 0.9",
    ),
    (
        "an unknown error", "explain E100",
        "error[E304]: there is no error 'E100'\n  help: did you mean 'E104'?",
    ),
    (
        "batch statistics of one value", "train norm.smg --data one.npz",
        "error[E305]: batch statistics need more than one value per channel\n"
        "  at   train, instruction 1, batch_stats_f32\n"
        "  why  with bn='batch' a norm takes the mean and variance of the values at hand; one value has no variance\n"
        "  help: give more samples per step, or bn='frozen'",
    ),
    (
        "a loss that is no sum",
        "build nets.py:plain --input 4x3 --loss nets.py:root_mean_square --target 4x2 --accumulate -o out.smg",
        "error[E306]: this loss cannot be split into micro-batches\n  at   loss\n"
        "  why  'sqrt' of a sum is not the sum of 'sqrt'\n"
        "  help: compile without Memory(accumulate=True) and give at most `batch` samples a step",
    ),
    ("no program", "inspect nothing.smg", "error[E501]: cannot read 'nothing.smg'\n  why  No such file or directory"),
    (
        "a truncated program", "train cut.smg --data good.npz",
        "error[E501]: the file has 300 bytes, {whole} are written in it\n  at   cut.smg",
    ),
    (
        "an altered program", "inspect altered.smg",
        "error[E501]: the checksum does not match: the file is damaged\n  at   altered.smg",
    ),
    ("another file", "infer other.smg --data good.npz", "error[E501]: not a smidgen program\n  at   other.smg"),
    (
        "data without y", "train net.smg --data no_y.npz",
        f"error[E502]: 'no_y.npz' has no array 'y'\n  why  it has x\n  help: {HOW.format('no_y')}",
    ),
    (
        "data without x", "infer net.smg --data no_x.npz",
        f"error[E502]: 'no_x.npz' has no array 'x'\n  why  it has y, z\n  help: {HOW.format('no_x')}",
    ),
    ("no data", "train net.smg --data nothing.npz",
     f"error[E502]: no file 'nothing.npz'\n  help: {HOW.format('nothing')}"),
    (
        "damaged data", "train net.smg --data damaged.npz",
        "error[E502]: 'damaged.npz' is not an .npz file of numbers\n  why  it is damaged\n"
        f"  help: {HOW.format('damaged')}",
    ),
    (
        "data that would run code", "train net.smg --data objects.npz",
        "error[E502]: 'objects.npz' is not an .npz file of numbers\n"
        f"  why  it holds Python objects, which are never loaded\n  help: {HOW.format('objects')}",
    ),
    (
        "one array", "train net.smg --data one_array.npy",
        "error[E502]: 'one_array.npy' holds one array\n  why  inputs and targets are needed by name\n"
        f"  help: {HOW.format('one_array')}",
    ),
    (
        "a file of another kind as data", "train net.smg --data nets.py",
        f"error[E502]: 'nets.py' is not an .npz file\n  help: {HOW.format('nets')}",
    ),
    (
        "arrays that say they are huge", "infer net.smg --data huge.npz",
        "error[E502]: cannot read 'huge.npz'\n  why  its arrays are larger than the memory\n"
        f"  help: {HOW.format('huge')}",
    ),
    (
        "arrays beyond all numbers", "infer net.smg --data huger.npz",
        "error[E502]: 'huger.npz' is not an .npz file of numbers\n  why  it is damaged\n"
        f"  help: {HOW.format('huger')}",
    ),
    (
        "an array that does not say what it is", "infer net.smg --data unclear.npz",
        "error[E502]: 'unclear.npz' is not an .npz file of numbers\n  why  it is damaged\n"
        f"  help: {HOW.format('unclear')}",
    ),
    ("nothing to evaluate", f"{TRAIN} --eval empty.npz",
     "error[E502]: no samples given\n  at   empty.npz\n  help: give at least one sample"),
    ("an output in place of the data", f"{TRAIN} --save good.npz", f"error[E304]: 'good.npz' {TWICE}"),
    ("two outputs in one place", f"{TRAIN} --save a --export ./a", f"error[E304]: './a' {TWICE}"),
    ("a checkpoint in place of the program", f"{TRAIN} --checkpoint net.smg", f"error[E304]: 'net.smg' {TWICE}"),
    ("a program in place of a model", "build nets.py:plain --input 4x3 -o nets.py", f"error[E304]: 'nets.py' {TWICE}"),
    ("predictions in place of the data", "infer net.smg --data good.npz -o good.npz",
     f"error[E304]: 'good.npz' {TWICE}"),
    ("a page in place of the program", "inspect net.smg --html net.smg", f"error[E304]: 'net.smg' {TWICE}"),
    ("empty data", "train net.smg --data empty.npz",
     "error[E502]: no samples given\n  help: give at least one sample"),
    (
        "a wrong shape", "train net.smg --data wide.npz",
        "error[E502]: 'input' has shape (12, 4), the program wants (n, 3)",
    ),
    ("a wrong dtype", "train net.smg --data text.npz", "error[E502]: 'input' has dtype <U8, the program wants numbers"),
    (
        "different lengths", "train net.smg --data short.npz",
        "error[E502]: inputs have different numbers of samples\n  why  input 12, target 7",
    ),
    (
        "NaN in the data", "train net.smg --data nan.npz",
        "error[E502]: 'input' holds NaN in sample 5 (counted from 0)\n"
        "  help: leave such samples out, or replace the numbers: numpy.nan_to_num",
    ),
    (
        "a label out of range", "train net.smg --data label.npz",
        "error[E502]: label 2 in sample 1 (counted from 0) is not the number of a class\n"
        "  why  there are 2 classes, 0 to 1\n  help: they seem to count from 1: give y - 1",
    ),
    (
        "wrong data to evaluate", "train net.smg --data good.npz --eval label.npz",
        "error[E502]: label 2 in sample 1 (counted from 0) is not the number of a class\n  at   label.npz\n"
        "  why  there are 2 classes, 0 to 1\n  help: they seem to count from 1: give y - 1",
    ),
    (
        "an index that a kernel refuses", "train words.smg --data word.npz",
        "error[E503]: train, instruction 1, embedding_f32: an embedding index is outside the table\n"
        "  help: indices must be below the rows of the table, and at least 0: look at x.min() and x.max()",
    ),
    (
        "an unwritable output", f"{TRAIN} --save nowhere/out.smg",
        f"error[E505]: cannot write 'nowhere/out.smg'\n  why  No such file or directory\n  help: {FOLDER_HELP}",
    ),
    (
        "a folder as output", "build nets.py:plain --input 4x3 -o a_folder",
        f"error[E505]: cannot write 'a_folder'\n  why  it is a folder\n  help: {FOLDER_HELP}",
    ),
    (
        "a damaged checkpoint", f"{TRAIN} --resume cut.ckpt",
        "error[E507]: the checkpoint has {checkpoint} bytes, it says {full}\n  at   cut.ckpt\n"
        "  why  it is cut off\n  help: an older one may still be good",
    ),
    (
        "a checkpoint of another program", "train mse.smg --data target.npz --resume net.ckpt",
        "error[E507]: the checkpoint is of another program\n  at   net.ckpt\n"
        "  help: load the program that wrote it; the same model, options and versions compile to the same program",
    ),
]  # fmt: skip


def run(folder: Path, text: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str, list[str]]:
    """Exit status, stdout, stderr, and the files that appeared."""
    before = set(os.listdir(folder))
    with contextlib.chdir(folder):
        status = cli.main(text.split())
    out, err = capsys.readouterr()
    return status, out, err, sorted(set(os.listdir(folder)) - before - {"__pycache__"})


@pytest.mark.parametrize(("text", "message"), [pytest.param(*r[1:], id=r[0].replace(" ", "-")) for r in ROWS])
def test_the_error_is_exact_for(text: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if "norm.smg" in text and not (folder / "norm.smg").exists():
        norm = smidgen.compile(nn.BatchNorm1d(3), np.zeros((4, 3), np.float32), bn="batch")
        norm.save(folder / "norm.smg")
        np.savez(folder / "one.npz", x=np.zeros((1, 3), np.float32), y=[0])
    sizes = {"whole": "net.smg", "checkpoint": "cut.ckpt", "full": "net.ckpt"}
    for name, file in sizes.items():
        message = message.replace(f"{{{name}}}", str((folder / file).stat().st_size))
    status, out, err, made = run(folder, text, capsys)
    code = message[6:10]
    assert (out, err, made) == ("", message + "\n", [])
    assert status == errors.all_errors()[code].exit_status


def test_an_unsupported_operator_names_the_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err, made = run(folder, "build nets.py:Bessel --input 4x3 -o out.smg", capsys)
    assert (status, out, made) == (1, "", [])
    assert err == (
        "error[E101]: torch op aten.special_bessel_j0 is not supported\n"
        "  at   nets.py:29: return torch.special.bessel_j0(self.head(x))\n"
        "  why  in one of its steps smidgen has no rule for it\n  help: compose it of simpler operations\n"
    )


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (
            "ninth_row",
            "error[E307]: 'weight' has no index 8 along axis 0\n  why  its shape is 2×3\n  help: indices from 0 to 1",
        ),
        ("words", "error[E308]: method 'words' does not return a list of updates\n  why  choose returned ['weight']\n"
                  "  help: return [Update(name), …]"),
    ],
)  # fmt: skip
def test_a_method_of_ones_own_is_held_to_its_contract(
    method: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_METHODS", registry.all_methods())  # the file registers its methods each time
    status, out, err, made = run(folder, f"build own_methods.py:plain --input 4x3 --method {method} -o o.smg", capsys)
    assert (out, err, made) == ("", message + "\n", [])
    assert status == errors.all_errors()[message[6:10]].exit_status


def test_a_device_that_is_too_small_says_what_was_tried(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err, made = run(
        folder, "build nets.py:wide --input 4x300000 --loss mse --device rp2040 -o o.smg", capsys
    )
    what, why, help = err.splitlines()
    assert (status, out, made) == (1, "", [])
    alone = r"parameters and momentum alone are \d\.\d+ MB"
    assert re.fullmatch(rf"error\[E201\]: needs \d\.\d+ MB \([\d,]+ bytes\) of RAM, rp2040 has 264 KB: {alone}", what)
    assert why.startswith("  why  parameters ")
    assert re.match(r"  help: \d+ other choices were tried, none fits; ", help)


def test_a_loss_without_end_stops_with_the_gradients(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err, made = run(folder, "train mse.smg --data target.npz --save out.smg", capsys)
    first, why, help = err.splitlines()
    assert (status, out, made) == (1, "", [])
    assert first == "error[E506]: the loss is infinite in step 1 (epoch 1)"
    assert why.startswith("  why  its gradients are as large as weight ")
    assert help.startswith("  help: the job is back before step 1 (epoch 1); go on with job.lr = 1e+19")


def test_without_torch_the_commands_that_need_it_say_so(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for command in ("plan", "verify"):
        status, out, err, _ = run(folder, f"{command} nets.py:plain --input 4x3", capsys)
        assert (status, out) == (1, "")
        assert err == (
            f"error[E504]: {command} needs PyTorch\n  why  import of torch halted; None in sys.modules\n"
            "  help: pip install 'smidgen[compile]'\n"
        )


@pytest.mark.parametrize(
    ("fault", "text", "status"),
    [
        (
            UnsafeLayout("'a' and 'b' overlap", at="0 (train)"),
            "error[E202]: 'a' and 'b' overlap\n  at   0 (train)\n",
            1,
        ),
        (Internal("a slot at 3"), "error[E901]: a slot at 3\n", 3),
    ],
    ids=["E202", "E901"],
)
def test_our_own_bugs_have_a_code_too(
    fault: errors.SmidgenError, text: str, status: int, folder: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The planner has no known bug to provoke, so the verifier is made to find one."""

    def found(*_: object) -> None:
        raise fault

    check: Callable[..., None] = found
    monkeypatch.setattr(verify, "verify", check)
    assert assemble.verify is verify
    got, out, err, made = run(folder, "build nets.py:plain --input 4x3 -o out.smg", capsys)
    assert (got, out, err, made) == (status, "", text, [])


def test_what_nobody_thought_of_is_our_bug_and_shows_its_lines(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def surprise(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(smidgen.train.load, "load", surprise)
    status, out, err, made = run(folder, "inspect net.smg", capsys)
    assert (status, out, made) == (3, "", [])
    assert err.startswith("Traceback (most recent call last):\n")
    assert err.endswith(
        "error[E901]: ZeroDivisionError: division by zero\n"
        "  help: this is a bug of smidgen: please report it with the lines above\n"
    )


FULL = "error[E505]: cannot write to standard output\n  why  No space left on device\n"


@pytest.mark.parametrize(
    ("text", "streams", "status", "said"),
    [
        ("methods", ">/dev/full", 1, FULL),
        ("ops --json", ">/dev/full", 1, FULL),
        ("methods", ">&-", 0, ""),
        ("inspect nothing.smg", "2>/dev/full", 1, ""),
        (f"{TRAIN} --save full.smg", ">/dev/null 2>/dev/full", 0, ""),
        (f"{TRAIN} --save full.smg", ">/dev/null 2>&-", 0, ""),
    ],
)
def test_a_stream_that_takes_nothing_gives_no_traceback_and_stops_no_training(
    text: str, streams: str, status: int, said: str, folder: Path
) -> None:
    done = subprocess.run(
        f"exec {sys.executable} -m smidgen.cli {text} {streams}", shell=True, cwd=folder, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (status, "", said)
    if "--save" in text:
        (folder / "full.smg").unlink()


def test_an_output_without_a_name_is_not_left_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--save", "--export", "--checkpoint", "--resume"):
        with contextlib.chdir(folder):
            assert cli.main([*TRAIN.split(), option, ""]) == 2
        assert capsys.readouterr().err.startswith("error[E304]: '' is not a path\n")


def test_json_stays_json_whatever_the_model_prints_and_the_numbers_are(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in ("plan nets.py:loud --input 4x3 --json", "verify nets.py:loud --input 4x3 --json"):
        status, out, err, _ = run(folder, text, capsys)
        assert (status, err) == (0, "made\n")
        assert json.loads(out)["model"] == "nets.py:loud"
    np.savez(folder / "ignored.npz", x=np.zeros((2, 3), np.float32), y=[-100, -100])
    status, out, _, _ = run(folder, "infer net.smg --data ignored.npz --json", capsys)
    assert json.loads(out, parse_constant=pytest.fail)["metrics"] == {"loss": None, "samples": 2}


def test_every_code_is_provoked_here() -> None:
    """But those of updates, which no command is given: tests/fleet/test_trust.py."""
    source = Path(__file__).read_text()
    missing = [code for code in errors.all_errors() if f"error[{code}]" not in source and not code.startswith("E6")]
    assert not missing
