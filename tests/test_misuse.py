"""Wrong arguments and wrong data, as a user gives them: every message is exact, and nothing is half-done after it."""

from __future__ import annotations

import copy
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from smidgen import api, cli, methods, native, source
from smidgen.build import Builder, feed, fetch
from smidgen.errors import SmidgenError
from smidgen.ir import Array, DType, Graph, Role
from smidgen.optimizers import SGD, Adam, AdamW
from smidgen.options import Options, checked_options
from smidgen.program import Program
from smidgen.trainer import Job, load

from . import small
from .small import N
from .test_program import encoded


def said(call: Callable[[], Any]) -> str:
    with pytest.raises(SmidgenError) as caught:
        call()
    return str(caught.value)


@pytest.fixture
def job() -> Job:
    return Job(api.encode(small.entries(optimizer=Adam(0.01))))


@pytest.fixture
def untouched(job: Job) -> Iterator[Job]:
    """A job whose state is the same before and after the test."""
    before = job._machine.state.tobytes()
    yield job
    assert job._machine.state.tobytes() == before


# -- data ----------------------------------------------------------------------------------------------------------

X, Y = small.data(4)
LONG = "'target' holds an integer that does not fit 32 bits"
DATA: list[tuple[str, Any, Any, str]] = [
    ("the most negative integer", X, np.array([0, 1, -(2**63), 2]), LONG),
    ("an integer of 33 bits", X, np.array([0, 1, 2**31, 2]), LONG),
    ("an unsigned integer", X, np.full(4, 2**64 - 1, np.uint64), LONG),
    ("float labels", X, np.zeros(4), "'target' has dtype float64, the program wants integers"),
    ("complex numbers", X.astype(complex), Y, "'x' has dtype complex128, the program wants numbers"),
    ("objects", np.full(X.shape, None), Y, "'x' has dtype object, the program wants numbers"),
    ("text", np.full(X.shape, "a"), Y, "'x' has dtype <U1, the program wants numbers"),
    ("None", None, Y, "'x' has dtype object, the program wants numbers"),
    ("beyond single precision", np.full(X.shape, 1e300), Y, "'x' holds a number that does not fit single precision"),
    ("another shape", X[:, :2], Y, "'x' has shape (4, 2, 8, 8), the program wants (n, 3, 8, 8)"),
    ("a scalar", np.float32(1), Y, "'x' has shape (), the program wants (n, 3, 8, 8)"),
    ("too many arrays", (X, X), Y, "3 arrays given, 2 wanted: x, target"),
    ("no samples", X[:0], Y[:0], "no samples given\n  help: give at least one sample"),
    (
        "different numbers of samples", X, Y[:3],
        "inputs have different numbers of samples\n  why  x 4, target 3",
    ),
    (
        "too many samples", np.concatenate([X, X]), np.concatenate([Y, Y]),
        "8 samples given, the program takes at most 4 at a time\n"
        "  help: give up to 4 samples, or compile with accumulate=True",
    ),
    ("a sparse tensor", torch.from_numpy(X).to_sparse(), Y, "'x' is a sparse tensor\n  help: give its .to_dense()"),
    (
        "masked elements", np.ma.masked_array(X, X > 0), Y,
        "'x' has masked elements\n  help: leave such samples out, or give its .filled(0)",
    ),
    ("complex tensors", torch.from_numpy(X).cfloat(), Y, "'x' has dtype complex64, the program wants numbers"),
]  # fmt: skip


@pytest.mark.parametrize(("x", "y", "text"), [pytest.param(*d[1:], id=d[0].replace(" ", "-")) for d in DATA])
def test_the_error_is_exact_for_data_with(x: Any, y: Any, text: str, untouched: Job) -> None:
    assert said(lambda: untouched.train_step(x, y)) == f"error[E502]: {text}"


def test_ragged_lists_are_not_arrays(untouched: Job) -> None:
    text = said(lambda: untouched.train_step(X, [[0, 1], [2]]))
    assert text.startswith("error[E502]: 'target' is not an array of numbers\n  why  setting an array element")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64], ids=str)
def test_tensors_of_other_precision_are_converted(dtype: torch.dtype, job: Job) -> None:
    x = torch.from_numpy(X).to(dtype).requires_grad_(dtype.is_floating_point)
    np.testing.assert_array_equal(job.predict(x), job.predict(x.detach().float().numpy()))


def test_booleans_are_zero_and_one() -> None:
    b = Builder()
    fetch(b, feed(b, "mask", (N, 2), DType.U8), "output")
    job = job_of({"infer": b.graph()}, 4)
    np.testing.assert_array_equal(job.predict(np.array([[True, False]])), [[1, 0]])
    np.testing.assert_array_equal(job.predict(np.array([[1, 0]])), [[1, 0]])
    assert (
        said(lambda: job.predict(np.array([[1, 256]]))) == "error[E502]: 'mask' holds 256, the program wants booleans"
    )
    assert said(lambda: job.predict(np.array([[1, -1]]))) == "error[E502]: 'mask' holds -1, the program wants booleans"


def test_a_label_that_is_no_class_says_which_are(untouched: Job) -> None:
    text = said(lambda: untouched.train_step(X, np.array([0, 1, 5, 2])))
    first, help = text.splitlines()
    assert first.startswith("error[E503]: train, instruction ")
    assert first.endswith(": a label is not the number of a class")
    assert help == "  help: labels must be below the number of classes, and at least 0"
    assert untouched.step == 0


# -- outputs of every shape ----------------------------------------------------------------------------------------


class Shaped(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.layer = kind, nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.layer(x)  # (n, 5, 3)
        if self.kind == "rows":
            return y.reshape(-1, 3)
        if self.kind == "columns":
            return y.transpose(0, 1).reshape(-1, 3)
        if self.kind == "second":
            return y.transpose(0, 1)
        return y.mean(1), y.transpose(0, 2), y.mean()


def _shaped(kind: str, batch: int) -> tuple[Job, nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model, x = Shaped(kind), torch.randn(7, 5, 4)

    def loss(output: Any, target: torch.Tensor) -> torch.Tensor:
        return ((output[0] if isinstance(output, tuple) else output) ** 2).mean() + 0 * target.mean()

    return smidgen.compile(model, x, loss=loss, target=torch.zeros(7), batch=batch), model, x


def _equal(got: Any, want: Any) -> None:
    gots, wants = (v if isinstance(v, tuple) else (v,) for v in (got, want))
    for g, w in zip(gots, wants, strict=True):
        np.testing.assert_allclose(g, w.detach().numpy(), atol=1e-6, strict=True)


@pytest.mark.parametrize("kind", ["rows", "second", "columns", "tuple"])
def test_outputs_of_any_shape_come_back_as_the_model_gives_them(kind: str) -> None:
    job, model, x = _shaped(kind, 3)
    for n in (1, 2, 3):
        _equal(job.predict(x[:n]), model(x[:n]))
    if kind in ("rows", "second"):
        for n in (4, 6, 7):
            _equal(job.predict(x[:n]), model(x[:n]))


@pytest.mark.parametrize(
    ("kind", "batch", "why"),
    [
        ("tuple", 3, "'output.2' is one result for all of them"),
        ("columns", 3, "in 'output' the rows of a sample are not together"),
        ("columns", 1, "in 'output' the rows of a sample are not together"),
    ],
)
def test_outputs_that_parts_cannot_be_joined_to_are_refused(kind: str, batch: int, why: str) -> None:
    job, _, x = _shaped(kind, batch)
    what = f"error[E502]: 7 samples given, the program takes {batch} at a time"
    assert said(lambda: job.predict(x)) == f"{what}\n  why  {why}\n  help: give up to {batch} samples"


# -- settings and state --------------------------------------------------------------------------------------------

LR_HELP = "  help: job.lr = 0.01, for instance"


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (None, "None is not a number"), ("0.1", "'0.1' is not a number"), (True, "True is not a number"),
        ([0.1], "[0.1] is not a number"), (math.nan, "nan is not a finite number ≥ 0"),
        (math.inf, "inf is not a finite number ≥ 0"), (-1, "-1 is not a finite number ≥ 0"),
        (1e39, "1e+39 does not fit single precision"), (10**50, f"{10**50} does not fit single precision"),
    ],
)  # fmt: skip
def test_a_learning_rate_is_a_number(value: Any, what: str, untouched: Job) -> None:
    def give() -> None:
        untouched.lr = value

    assert said(give) == f"error[E304]: learning rate {what}\n{LR_HELP}"


def test_a_learning_rate_may_be_of_any_number_type(job: Job) -> None:
    for value in (0, 1, np.float64(0.5), np.int32(2), np.float32(0.25)):
        job.lr = value  # type: ignore[assignment]
        assert job.lr == value


def _state(job: Job, **changes: Any) -> dict[str, Any]:
    return {k: v + 1 for k, v in job.state_dict().items()} | changes


STATES: list[tuple[str, dict[str, Any], str]] = [
    ("a scalar", {"b3": np.float32(1)}, "'b3' has shape (), the program has (5,)"),
    ("another shape", {"w3": np.ones((6, 5))}, "'w3' has shape (6, 5), the program has (5, 6)"),
    ("text", {"b3": np.array(["a"] * 5)}, "'b3' has dtype <U1, the program wants numbers"),
    ("None", {"b3": None}, "'b3' has dtype object, the program wants numbers"),
    ("too large", {"b3": np.full(5, 1e99)}, "'b3' holds a number that does not fit single precision"),
]


@pytest.mark.parametrize(("changes", "text"), [pytest.param(*s[1:], id=s[0].replace(" ", "-")) for s in STATES])
def test_nothing_is_loaded_unless_all_of_it_fits(changes: dict[str, Any], text: str, untouched: Job) -> None:
    assert said(lambda: untouched.load_state_dict(_state(untouched, **changes))) == f"error[E502]: {text}"


def test_a_state_of_another_model_is_refused(untouched: Job) -> None:
    assert said(lambda: untouched.load_state_dict({"head.weight": X})) == (
        "error[E502]: nothing of what is given belongs to this program\n  why  it learns b1, b2, b3, w1, w2, w3"
    )
    assert said(lambda: untouched.load_state_dict([X])) == (  # type: ignore[arg-type]
        "error[E304]: load_state_dict takes a mapping from names, not a list\n"
        "  help: job.load_state_dict(model.state_dict())"
    )
    untouched.load_state_dict({})


OPTIM_HELP = "  help: job.load_optimizer_state(other.optimizer_state(), other.step)"


def test_an_optimizer_state_is_complete_or_refused(untouched: Job) -> None:
    def attempt(step: Any = 3, **changes: Any) -> str:
        values = {p: {k: v + 1 for k, v in slots.items()} for p, slots in untouched.optimizer_state().items()}
        return said(lambda: untouched.load_optimizer_state({**values, **changes}, step))

    zeros = np.zeros(5, np.float32)
    missing = f"error[E502]: 'b3' has no 'exp_avg_sq' in the optimizer's state\n{OPTIM_HELP}"
    assert attempt(b3={"exp_avg": zeros}) == missing
    assert attempt(b3=zeros) == missing.replace("exp_avg_sq", "exp_avg")
    shape = "error[E502]: 'b3:exp_avg' has shape (), the program has (5,)"
    assert attempt(b3={"exp_avg": 1.0, "exp_avg_sq": zeros}) == shape
    text = "error[E502]: 'b3:exp_avg_sq' has dtype <U1, the program wants numbers"
    assert attempt(b3={"exp_avg": zeros, "exp_avg_sq": np.array(["a"] * 5)}) == text
    for step in (-1, 1.5, None, True, 2**31):
        assert attempt(step) == f"error[E304]: step={step!r} is not a number of updates\n{OPTIM_HELP}"
    text = "error[E304]: load_optimizer_state takes a mapping from names, not a NoneType\n" + OPTIM_HELP
    assert said(lambda: untouched.load_optimizer_state(None, 0)) == text  # type: ignore[arg-type]


# -- back into the model -------------------------------------------------------------------------------------------


class Normed(nn.Module):
    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.stem, self.norm, self.head = nn.Linear(3, width), nn.BatchNorm1d(width), nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.norm(self.stem(x))))


@pytest.fixture(scope="module")
def normed() -> tuple[Program, Normed]:
    torch.manual_seed(0)
    model = Normed()
    return smidgen.compile(model, torch.randn(5, 3), bn="batch").program, model


def test_another_model_is_refused_before_anything_is_copied(normed: tuple[Program, Normed]) -> None:
    job = Job(normed[0])
    renamed = copy.deepcopy(normed[1])
    renamed.last, renamed.head = renamed.head, nn.Identity()
    wider = copy.deepcopy(normed[1])
    wider.head = nn.Linear(6, 9)
    for model, text in (
        (renamed, "the model has no 'head.bias'\n  help: did you mean 'stem.bias'?"),
        (wider, "'head.bias' has shape (9,) in the model, (4,) in the program"),
    ):
        with torch.no_grad():
            model.stem.weight.fill_(9)
        before = copy.deepcopy(model.state_dict())
        assert said(lambda model=model: job.load_into(model)) == f"error[E502]: {text}"  # type: ignore[misc]
        assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert said(lambda: job.load_into(normed[1].state_dict())) == (
        "error[E304]: load_into takes a torch.nn.Module, not a OrderedDict\n  help: pass the module"
    )


def test_the_count_of_batches_grows_as_it_does_in_torch(normed: tuple[Program, Normed]) -> None:
    job, model = Job(normed[0]), copy.deepcopy(normed[1])
    model.norm.num_batches_tracked.fill_(10)
    rng = np.random.default_rng(0)
    for steps in (2, 3):
        for _ in range(steps):
            job.train_step(rng.standard_normal((5, 3)), np.zeros(5, int))
        job.load_into(model)
        assert model.norm.num_batches_tracked == 10 + job.step
    other = copy.deepcopy(normed[1])
    job.load_into(other)
    assert other.norm.num_batches_tracked == 5
    still = Job(smidgen.compile(normed[1], torch.randn(5, 3)).program)
    still.train_step(rng.standard_normal((5, 3)), np.zeros(5, int))
    still.load_into(other)
    assert other.norm.num_batches_tracked == 5, "its statistics are frozen"


def test_statistics_of_one_sample_are_refused_with_help(normed: tuple[Program, Normed]) -> None:
    job = Job(normed[0])
    first, at, help = said(lambda: job.train_step(np.zeros((1, 3)), np.zeros(1, int))).splitlines()
    assert first == "error[E305]: batch statistics need more than one value per channel"
    assert at.startswith("  at   train, instruction ")
    assert help == "  help: give more samples per step, or bn='frozen'"
    assert job.step == 0


def test_the_runtime_says_what_the_help_is_for() -> None:
    kernels = "".join(p.read_text() for p in (native.LIBRARY.parent / "kernels").glob("*.c"))
    for text in (native.TOO_FEW, *native.HELP):
        assert f'"{text}"' in kernels


# -- files ---------------------------------------------------------------------------------------------------------

WRITE_HELP = "  help: name a file, in a folder that exists and can be written to"


def test_a_file_that_cannot_be_written_is_an_error_and_leaves_nothing(untouched: Job, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for path, why in (
        (tmp_path, "it is a folder"),
        (tmp_path / "no" / "net.smg", "No such file or directory"),
        (tmp_path / "file" / "net.smg", "Not a directory"),
        (tmp_path / ("n" * 300), "File name too long"),
    ):
        text = said(lambda path=path: untouched.save(path))  # type: ignore[misc]
        assert text == f"error[E505]: cannot write '{path}'\n  why  {why}\n{WRITE_HELP}"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "mine"


def test_what_is_no_path_is_no_path(untouched: Job) -> None:
    for path in (None, 3, b"net.smg", "a\0b"):
        text = f"error[E304]: {path!r} is not a path\n  help: "
        assert said(lambda path=path: untouched.save(path)) == text + 'job.save("model.smg")'  # type: ignore[misc]
        assert said(lambda path=path: load(path)) == text + 'smidgen.load("model.smg")'  # type: ignore[misc]


def test_what_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    missing = tmp_path / "net.smg"
    assert said(lambda: load(missing)) == f"error[E501]: cannot read '{missing}'\n  why  No such file or directory"
    assert said(lambda: load(tmp_path)) == f"error[E501]: cannot read '{tmp_path}'\n  why  Is a directory"
    os.mkfifo(tmp_path / "pipe")  # nobody writes into it, and nobody waits for that
    text = f"error[E501]: cannot read '{tmp_path / 'pipe'}'\n  why  it is not an ordinary file"
    assert said(lambda: load(tmp_path / "pipe")) == text
    missing.write_bytes(b"")
    assert said(lambda: load(missing)) == (
        f"error[E501]: the file has 0 bytes, fewer than its header\n  at   {missing}"
    )  # fmt: skip
    b = Builder()
    fetch(b, feed(b, "x", (N, 2)), "output")
    encoded({"infer": b.graph()}, 2).save(missing)
    assert said(lambda: load(missing)) == (
        f"error[E501]: the program does not describe its plan and state\n  at   {missing}\n  why  KeyError: 'state'"
    )


def test_a_file_that_changes_while_it_is_read_is_refused(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read = tmp_path / "net.smg", Program.open
    job.save(path)

    def replaced(place: Path) -> Program:
        program = read(place)
        job.save(path)
        return program

    monkeypatch.setattr(Program, "open", staticmethod(replaced))
    text = f"error[E501]: the file changed while it was read\n  at   {path}\n  help: load it again"
    assert said(lambda: load(path)) == text


def job_of(graphs: dict[str, Graph], batch: int) -> Job:
    """Of graphs without anything that learns."""
    plan = Job(api.encode(small.entries())).plan.to_json()
    return Job(encoded(graphs, batch, {"plan": plan, "state": {}}))


def test_a_state_outside_the_program_is_refused(job: Job) -> None:
    facts = copy.deepcopy(job.program.meta["state"])
    facts["b3"]["offset"] = job.program.state_bytes
    p = job.program
    bad = Program(
        p.batch, p.align, p.entries, p.const, p.state, p.state_bytes, p.arena_bytes, {**p.meta, "state": facts}
    )
    assert said(lambda: Job(bad)) == "error[E501]: 'b3' lies outside the program's state"
    facts["b3"]["offset"] = 0
    facts["b3"]["stored"] = [10**50]
    assert said(lambda: Job(bad)) == "error[E501]: 'b3' lies outside the program's state"


def _anonymous_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_constants_of_a_loaded_program_stay_in_the_file(tmp_path: Path) -> None:
    b = Builder()
    x = feed(b, "x", (N, 1500))
    fetch(b, b.add("linear", x, b.const("w", np.random.default_rng(0).standard_normal((1500, 1500)))), "output")
    made = job_of({"infer": b.graph()}, 2)
    made.save(tmp_path / "net.smg")
    data = np.ones((2, 1500), np.float32)
    want = made.predict(data)
    native.release_freed()
    before = _anonymous_bytes()
    job = load(tmp_path / "net.smg")
    np.testing.assert_array_equal(job.predict(data), want)
    assert job.program.const_bytes > 8_000_000
    assert _anonymous_bytes() - before < 2_000_000
    assert job.program == made.program
    job.save(tmp_path / "net.smg")  # over the file in use
    os.truncate(tmp_path / "net.smg", 100)
    np.testing.assert_array_equal(job.predict(data), want)


# -- options of compile --------------------------------------------------------------------------------------------

MODEL = nn.Linear(3, 2)
ANY = "optimizer=smidgen.SGD(lr=0.01), smidgen.Adam(lr=0.001) or smidgen.AdamW(lr=0.001)"
FOREIGN = "is not an optimizer of smidgen\n  help: "
METHOD = "is not understood\n  why  it is a name, or a list of names of methods and parameters\n  help: "
METHOD += "method='full', or method=['head.*', 'norm.bias']"
SEED = "is not a seed\n  why  it is an integer from 0 to 2**31 - 1\n  help: seed=0"
SAMPLES = "is not a number of samples\n  help: batch=8, for instance"
MODES = "is not understood\n  help: bn='frozen' or bn='batch'"
OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"optimizer": "adam"}, f"optimizer='adam' {FOREIGN}optimizer=smidgen.Adam(lr=0.001)"),
    ({"optimizer": "lion"}, f"optimizer='lion' {FOREIGN}{ANY}"),
    ({"optimizer": 0.1}, f"optimizer=builtins.float {FOREIGN}{ANY}"),
    ({"optimizer": SGD}, f"optimizer=smidgen.optimizers.SGD {FOREIGN}optimizer=smidgen.SGD(lr=0.01)"),
    (
        {"optimizer": torch.optim.SGD(MODEL.parameters(), lr=0.3, momentum=0.9)},
        f"optimizer=torch.optim.sgd.SGD {FOREIGN}optimizer=smidgen.SGD(lr=0.3, momentum=0.9)",
    ),
    (
        {"optimizer": torch.optim.AdamW(MODEL.parameters())},
        f"optimizer=torch.optim.adamw.AdamW {FOREIGN}optimizer=smidgen.AdamW(lr=0.001, weight_decay=0.01)",
    ),
    (
        {"optimizer": torch.optim.RMSprop(MODEL.parameters())},
        f"optimizer=torch.optim.rmsprop.RMSprop {FOREIGN}{ANY}",
    ),
    ({"method": None}, f"method=None {METHOD}"),
    ({"method": []}, f"method=[] {METHOD}"),
    ({"method": ["full", 3]}, f"method=['full', 3] {METHOD}"),
    ({"method": {"full"}}, f"method={{'full'}} {METHOD}"),
    ({"batch": True}, f"batch=True {SAMPLES}"),
    ({"batch": 0}, f"batch=0 {SAMPLES}"),
    ({"batch": 2.0}, f"batch=2.0 {SAMPLES}"),
    ({"batch": 2**31}, f"batch=2147483648 {SAMPLES}"),
    ({"bn": "train"}, f"bn='train' {MODES}"),
    ({"bn": None}, f"bn=None {MODES}"),
    ({"accumulate": 4}, "accumulate=4 is not True or False\n  help: accumulate=True"),
    ({"seed": -1}, f"seed=-1 {SEED}"),
    ({"seed": 2**31}, f"seed=2147483648 {SEED}"),
    ({"seed": "7"}, f"seed='7' {SEED}"),
    ({"model": nn.Linear}, "the model is the class Linear, not a module made of it\n  help: Linear(…)"),
    ({"model": None}, "the model is a NoneType, not a torch.nn.Module\n  help: pass the module itself"),
    (
        {"model": MODEL.state_dict()},
        "the model is a OrderedDict, not a torch.nn.Module\n  help: pass the module itself",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("given", "text"), OPTIONS, ids=[f"{min(g)}-{i}" for i, (g, _) in enumerate(OPTIONS)])
def test_an_option_that_means_nothing_says_what_would(given: dict[str, Any], text: str) -> None:
    assert said(lambda: checked_options(**{"model": MODEL, **given})) == f"error[E304]: {text}"


def test_options_come_back_as_the_pipeline_wants_them() -> None:
    assert checked_options(MODEL) == Options(SGD(lr=0.01), "full", None, "frozen", False, 0)
    given = checked_options(
        MODEL, optimizer=AdamW(), method=["bn", "head.*"], batch=np.int64(3), bn="batch", accumulate=np.True_,
        seed=np.uint8(7),
    )  # fmt: skip
    assert given == Options(AdamW(), ("bn", "head.*"), 3, "batch", True, 7)
    assert [type(v) for v in (given.batch, given.accumulate, given.seed)] == [int, bool, int]


# -- methods -------------------------------------------------------------------------------------------------------


def _chosen(method: Any, trainable: tuple[str, ...] = small.ALL, known: Any = None) -> list[str]:
    return [u.param for u in methods.choose(method, small.forward()[0], trainable, known)]


def test_a_list_may_hold_methods_and_parameters() -> None:
    assert _chosen(["full"]) == _chosen("full") == list(small.ALL)
    assert _chosen(["last:1"]) == _chosen("last:1") == ["w3", "b3"]
    assert _chosen(("last_layer", "b1")) == ["w3", "b3", "b1"]
    b = Builder()
    bias, weight = (b.stored(name, np.ones(2), Role.PARAM) for name in ("bias", "scale.bias"))
    b.add("add", b.add("mul", feed(b, "x", (N, 2)), weight), bias)
    chosen = methods.choose(["bias"], b.graph(), ["bias", "scale.bias"])
    assert [u.param for u in chosen] == ["bias"], "a parameter before the method of the same name"


NOTHING = "error[E302]: method '{}' finds nothing to train in this model\n  why  {}\n"
NOTHING += '  help: method="full" trains every parameter with requires_grad=True'
KNOWN = {**{p: p for p in small.ALL}, "spare": "spare", "tied": "w3"}


def test_parameters_that_cannot_learn_are_not_called_unknown() -> None:
    frozen = tuple(p for p in small.ALL if p != "w3")
    text = NOTHING.format("w3", "it selects 1 with requires_grad=False")
    assert said(lambda: _chosen("w3", frozen)) == text
    text = NOTHING.format("spare*", "it selects 2 that the loss does not use")
    assert said(lambda: _chosen("spare*", (*small.ALL, "spare.a", "spare.b"))) == text
    text = NOTHING.format("spare", "it selects 1 that the loss does not use")
    assert said(lambda: _chosen("spare", known=KNOWN)) == text
    text = NOTHING.format("w3, spare", "it selects 1 with requires_grad=False, 1 that the loss does not use")
    assert said(lambda: _chosen(["w3", "spare"], frozen, KNOWN)) == text
    assert _chosen("tied", known=KNOWN) == ["w3"]


def test_suggestions_are_listed_once() -> None:
    text = "error[E301]: 'zzzz' is neither a method nor a parameter of this model\n  help: one of "
    names = sorted({*methods.all_methods(), *small.ALL, "bias"})
    assert said(lambda: _chosen("zzzz", (*small.ALL, "bias"))) == text + ", ".join(names)


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


def test_a_seed_is_checked_before_any_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", "nope.py:build", "--input", "2x3", "--seed", "-1"]) == 2
    assert capsys.readouterr() == ("", f"error[E304]: seed=-1 {SEED}\n")


def test_the_largest_input_is_still_made() -> None:
    rng = np.random.default_rng(0)
    made: Array = source.example_of("2x3:int2147483647", rng)
    assert made.shape == (2, 3)
