"""Fast kernels in whole programs: close to the exact ones, the same bits for any number of threads, counted memory."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from smidgen import api
from smidgen.compiler.assemble import encode
from smidgen.errors import BadOption
from smidgen.ir import Array
from smidgen.report.parity import relative
from smidgen.runtime.library import FastProbe, run_kernel
from smidgen.train.job import Job


class Net(nn.Module):
    """Dense, strided, depthwise and grouped convolutions, norms, attention-like products, odd sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 13, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(13)
        self.depth = nn.Conv2d(13, 13, 5, padding=2, groups=13)
        self.wide = nn.Conv2d(13, 30, 1)
        self.groups = nn.Conv2d(30, 20, 3, groups=5, dilation=2)
        self.head = nn.Linear(20, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = torch.nn.functional.hardswish(self.wide(x + self.depth(x)))
        x = torch.nn.functional.silu(self.groups(x)).flatten(2).transpose(1, 2)
        x = torch.softmax(x @ x.transpose(1, 2), -1) @ x
        y: torch.Tensor = self.head(x.mean(1))
        return y


def batch(n: int = 6) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, 3, 19, 17)).astype(np.float32), rng.integers(0, 7, n)


@pytest.fixture(scope="module")
def program() -> object:
    torch.manual_seed(0)
    x, _ = batch()
    return encode(api.build(Net(), x, optimizer=smidgen.Adam(1e-3), batch=6, accumulate=True))


def trained(program: object, kernels: str, threads: int = 1, samples: int = 6) -> Job:
    job = Job(program, kernels=kernels, threads=threads)  # type: ignore[arg-type]
    x, y = batch(samples)
    for _ in range(5):
        job.train_step(x, y)
    return job


@pytest.mark.parametrize("samples", [1, 6, 9])
def test_fast_kernels_train_as_exact_ones_do(program: object, samples: int) -> None:
    exact, fast = trained(program, "exact", samples=samples), trained(program, "fast", samples=samples)
    for name, want in exact.state_dict().items():
        assert relative(fast.state_dict()[name], want) < 1e-3, name
    x, y = batch()
    assert np.abs(fast.predict(x) - exact.predict(x)).max() < 1e-2
    assert abs(fast.evaluate(x, y)["loss"] - exact.evaluate(x, y)["loss"]) < 1e-2


def test_any_number_of_threads_gives_the_same_bits(program: object) -> None:
    one = trained(program, "fast")
    for threads in (2, 3):
        several = trained(program, "fast", threads)
        assert several.engine.machine.state.tobytes() == one.engine.machine.state.tobytes()


def test_work_memory_is_counted(program: object, tmp_path: Path) -> None:
    exact = trained(program, "exact")
    for threads in (1, 3):
        job = trained(program, "fast", threads)
        assert job.plan.work_bytes > 0
        assert job.plan.ram_bytes == exact.plan.ram_bytes + job.plan.work_bytes
        assert job.mapped_bytes + job.plan.context_bytes + job.plan.stack_bytes == job.plan.ram_bytes
    job.save(tmp_path / "net.smg")
    assert smidgen.load(tmp_path / "net.smg").plan == exact.plan, "a file does not say how it is run"


def test_fast_kernels_stay_within_the_declared_stack(program: object) -> None:
    machine = trained(program, "fast").engine.machine
    x, y = batch()
    used = machine.stack_used("train", [x, y.astype(np.int32)], [np.zeros((), np.float32)], 6)
    assert 0 < used <= smidgen.runtime.library.stack_bytes()


def test_wrong_choices_are_errors(program: object) -> None:
    for options in ({"kernels": "quick"}, {"kernels": "fast", "threads": 0}, {"kernels": "exact", "threads": 2}):
        with pytest.raises(BadOption):
            Job(program, **options)  # type: ignore[arg-type]


KERNELS = Path(smidgen.__file__).parent / "runtime" / "kernels"
MAPS = [
    (f"{name}_f32", 1 + (kind == "MAP_DX"), int(constants))
    for path in sorted(KERNELS.glob("*.c"))
    for kind, name, constants in re.findall(r"^(MAP|MAP_DX)\((\w+), (\d),", path.read_text(), re.MULTILINE)
]
PAIRS = re.findall(r"^BINARY\((\w+),", (KERNELS / "binary.c").read_text(), re.MULTILINE)


def shared_by_threads(kernel: str, inputs: int, params: list[int | float]) -> None:
    """Enough elements that threads share them, and a number that they cannot share evenly."""
    rng = np.random.default_rng(1)
    arrays = [(rng.random(70_001) + 0.25).astype(np.float32) for _ in range(inputs)]
    want = np.zeros(70_001, np.float32)
    assert run_kernel(kernel, [want, *arrays], params) is None
    got = []
    for threads in (1, 2, 3):
        out = np.full(70_001, np.nan, np.float32)
        found, complaint = FastProbe(threads=threads).run(kernel, [out, *arrays], params, (1, 1, 0))
        assert found
        assert complaint is None
        got.append(out)
    assert np.allclose(got[0], want, rtol=1e-5, atol=1e-6)
    assert got[1].tobytes() == got[0].tobytes() == got[2].tobytes()


@pytest.mark.parametrize(("kernel", "inputs", "constants"), MAPS, ids=[m[0] for m in MAPS])
def test_threads_share_elementwise_kernels(kernel: str, inputs: int, constants: int) -> None:
    shared_by_threads(kernel, inputs, [70_001, 0.5, 2.0][: 1 + constants])


@pytest.mark.parametrize("kernel", PAIRS)
def test_threads_share_kernels_of_two_inputs(kernel: str) -> None:
    shared_by_threads(kernel, 2, [1, 70_001, 1, 1])


def test_the_tables_of_elementwise_kernels_are_found() -> None:
    assert len(MAPS) > 40
    assert len(PAIRS) == 7


POOL = [5, 33, 30, 7, 16, 15, 2, 2, 2, 2, 0, 0, 1, 1]
"""N,H,W,C, OH,OW, kernel, stride, padding, dilation: more than is left to one thread."""


def same_bits(kernel: str, outs: list[Array], ins: list[Array], params: Sequence[int | float]) -> None:
    """One to three threads move the very bits that the exact kernel moves."""
    assert run_kernel(kernel, [*outs, *ins], params, (1, 1, 0)) is None
    for threads in (1, 2, 3):
        mine = [np.full_like(out, 77) for out in outs]
        assert FastProbe(threads=threads).run(kernel, [*mine, *ins], params, (1, 1, 0)) == (True, None)
        assert [a.tobytes() for a in mine] == [a.tobytes() for a in outs]


@pytest.mark.parametrize("channels", [1, 6, 7, 16, 37])
def test_threads_share_max_pooling(channels: int) -> None:
    rng = np.random.default_rng(channels)
    params: list[int | float] = [*POOL[:3], channels, *POOL[4:]]
    x = rng.integers(-3, 3, (5, 33, 30, channels)).astype(np.float32)
    x[0, 3, 4] = np.nan
    y = np.zeros((5, 16, 15, channels), np.float32)
    index = np.zeros((5, (16 * 15 * channels * 2 + 7) // 8), np.uint8)
    same_bits("max_pool2d_f32", [y, index], [x], params)
    same_bits("max_pool2d_dx_f32", [np.zeros_like(x)], [y, index], params)


def test_threads_share_copies_and_pads() -> None:
    x = np.random.default_rng(0).standard_normal((7, 90, 80)).astype(np.float32)
    turned = [3, 0, 0, 0, 0, 7, 80, 90, 7200, 1, 80, 7200, 90, 1]
    same_bits("copy_b4", [np.zeros((7, 80, 90), np.float32)], [x], turned)
    inside = [0, 0, 7, 90, 92, 1, 80, 1, 0, 1, 0, 82, 80, 1, 1]
    same_bits("pad_b4", [np.zeros((7, 92, 82), np.float32)], [x], inside)


def test_threads_share_gradients_by_range() -> None:
    rng = np.random.default_rng(0)
    dy, x = (rng.standard_normal(70_001).astype(np.float32) for _ in range(2))
    same_bits("range_dx_f32", [np.zeros_like(x)], [dy, x], [70_001, 0.0, 1.0, 0, 1.0, 0.25])


def test_a_forked_child_goes_on_without_the_threads(program: object) -> None:
    job = trained(program, "fast", 2)
    child = os.fork()
    if not child:
        x, y = batch()
        job.train_step(x, y)
        os._exit(int(job.engine.machine.state.tobytes() != expected(program)))
    for _ in range(6000):  # five minutes, on a machine that has other work to do
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.05)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pytest.fail("the child hangs")
    assert os.waitstatus_to_exitcode(status) == 0


def expected(program: object) -> bytes:
    """After six steps with one thread."""
    job = trained(program, "fast")
    x, y = batch()
    job.train_step(x, y)
    return job.engine.machine.state.tobytes()
