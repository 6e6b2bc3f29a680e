"""Wrong arguments and wrong data, as a user gives them: every message is exact, and nothing is half-done after it."""

from __future__ import annotations

import copy
import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from smidgen.errors import Internal
from smidgen.ir import DType
from smidgen.ops.build import Builder, feed, fetch
from smidgen.program.program import Program
from smidgen.runtime import library
from smidgen.train.job import Job
from tests.support import small
from tests.support.jobs import job_of, said
from tests.support.small import N

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
        "  help: give up to 4 samples, or compile with Memory(accumulate=True)",
    ),
    ("a sparse tensor", torch.from_numpy(X).to_sparse(), Y, "'x' is a sparse tensor\n  help: give its .to_dense()"),
    (
        "masked elements", np.ma.masked_array(X, X > 0), Y,
        "'x' has masked elements\n  help: leave such samples out, or give its .filled(0)",
    ),
    (
        "a NaN", np.where(np.arange(X.size).reshape(X.shape) == X[0].size * 2 + 5, np.nan, X), Y,
        "'x' holds NaN in sample 2 (counted from 0)\n"
        "  help: leave such samples out, or replace the numbers: numpy.nan_to_num",
    ),
    (
        "infinity", np.where(np.arange(X.size).reshape(X.shape) == 0, -np.inf, X), Y,
        "'x' holds an infinite number in sample 0 (counted from 0)\n"
        "  help: leave such samples out, or replace the numbers: numpy.nan_to_num",
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
    first, why = said(lambda: untouched.train_step(X, np.array([0, 1, 5, 2]))).splitlines()
    assert first == "error[E502]: label 5 in sample 2 (counted from 0) is not the number of a class"
    assert why == "  why  there are 5 classes, 0 to 4"
    assert said(lambda: untouched.train_step(X, np.array([1, 2, 3, 5]))).endswith("count from 1: give y - 1")
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
    first, at, why, help = said(lambda: job.train_step(np.zeros((1, 3)), np.zeros(1, int))).splitlines()
    assert first == "error[E305]: batch statistics need more than one value per channel"
    assert at.startswith("  at   train, instruction ")
    assert why.startswith("  why  with bn='batch' a norm takes the mean and variance of the values at hand;")
    assert help == "  help: give more samples per step, or bn='frozen'"
    assert job.step == 0


def test_python_knows_the_flags_of_kernels() -> None:
    header = (library.LIBRARY.parent / "kernel.h").read_text()
    (listed,) = re.findall(r"typedef enum \{([^}]*)\} SmgKernelFlag;", header)
    assert {f.name: str(f.value) for f in library.KernelFlag} == dict(re.findall(r"SMG_(\w+) = (\d+)", listed))
    assert library.kernel_flags("copy_b1") == library.KernelFlag.COPIES | library.KernelFlag.BYTES
    assert library.kernel_flags("batch_stats_f32") == library.KernelFlag.STATISTICS
    assert not library.kernel_flags("relu_f32")
    with pytest.raises(Internal, match="no kernel 'relu'"):
        library.kernel_flags("relu")


def test_python_knows_the_faults_of_the_runtime() -> None:
    header = (library.LIBRARY.parent / "smidgen.h").read_text()
    (listed,) = re.findall(r"typedef enum \{([^}]*)\} SmgFault;", header)
    numbers = dict(re.findall(r"SMG_FAULT_(\w+) = (\d+)", listed))
    assert {f.name: str(f.value) for f in library.Fault if f} == numbers
    assert "SMG_NO_FAULT = 0" in listed
    assert [int(n) for n in numbers.values()] == list(range(1, len(library.Fault)))
    texts = [library.fault_text(f) for f in library.Fault if library.Fault.LABEL <= f < library.Fault.SLOTS]
    assert all(texts)
    assert len(set(texts)) == len(texts)
    # What is wrong with a file, a call or slots has its text where it is found.
    assert {library.fault_text(f) for f in (1, 6, library.Fault.SLOTS, len(library.Fault), 99, -1)} == {""}
    assert library.fault_text(0) is None
