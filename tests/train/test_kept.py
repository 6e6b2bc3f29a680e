"""Copies of the state: a job with a limit keeps them in a file, so that its process stays within what the plan says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from smidgen.errors import CannotWrite, NotFinite
from tests.support.arguments import compiled

WIDE = 1200
LIMITED = """
import os, resource, sys
import numpy as np
import smidgen
from smidgen.train import checkpoint, evaluate, divergence as finite, loop as fit, history
from smidgen.train import snapshots as kept, paged_undo as undo, weights

def data_bytes():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData"))

page_to = "page.bin" if "page" in sys.argv[1:] else None
job = smidgen.load("net.smg", kernels="exact", page_to=page_to)
x = np.random.default_rng(0).standard_normal((16, 1200)).astype(np.float32)
y = x[:, :2].copy()
job.fit(x[:4], y[:4])
job.engine.fingerprint
state = job.program.saved_bytes
assert state > 16 << 20
limit = data_bytes() + state // 4
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
job.fit(x, y, epochs=3, eval=(x, y), patience=1, checkpoint="run.ckpt", checkpoint_every=2)
job.checkpoint("run.ckpt")
job.resume("run.ckpt")
job.fit(x, y, epochs=3, eval=(x, y), patience=1, checkpoint="run.ckpt", checkpoint_every=2)
job.save("trained.smg")
job.lr = 1e30
try:
    job.fit(x, y, epochs=3)
except smidgen.errors.NotFinite as error:
    print(error.code)
"""


def wide(**options: Any) -> smidgen.Job:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDE, WIDE), nn.ReLU(), nn.Linear(WIDE, WIDE), nn.ReLU(), nn.Linear(WIDE, 2))
    optimizer = smidgen.SGD(lr=1e-3, momentum=0.9)
    given: dict[str, Any] = {"loss": "mse", "optimizer": optimizer, "kernels": "exact", "effort": 0, **options}
    return compiled(model, torch.zeros(4, WIDE), **given)


@pytest.mark.parametrize("how", ["budget", "page"])
def test_a_job_with_a_limit_takes_no_more_ram_for_copies_of_its_state(how: str, tmp_path: Path) -> None:
    budget = wide().plan.ram_bytes
    more = {"page_to": tmp_path / "made.bin", "budget": budget - (4 << 20)} if how == "page" else {"budget": budget}
    job = wide(**more)
    assert bool(job.plan.page_state_bytes) == (how == "page")
    job.save(tmp_path / "net.smg")
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, how], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout) == (0, "E506\n"), done.stderr
    trained = smidgen.load(tmp_path / "trained.smg", kernels="exact", page_to=tmp_path / "other.bin")
    assert trained.step > 1
    trained.resume(tmp_path / "run.ckpt")


def small(**options: Any) -> tuple[smidgen.Job, np.ndarray, np.ndarray]:
    torch.manual_seed(0)
    rng = np.random.default_rng(1)
    x = rng.standard_normal((24, 6)).astype(np.float32)
    job = compiled(nn.Linear(6, 3), x[:4], optimizer=smidgen.SGD(lr=0.1, momentum=0.9), kernels="exact",
                          memory=smidgen.Memory(effort=0), **options)  # fmt: skip
    return job, x, rng.integers(0, 3, 24)


def test_a_run_learns_the_same_wherever_copies_are_kept(tmp_path: Path) -> None:
    found = []
    for options in ({}, {"budget": "1MB"}):
        job, x, y = small(**options)
        job.fit(x, y, epochs=6, eval=(x[:5], y[:5]), patience=1, checkpoint=tmp_path / "run.ckpt")
        again, _, _ = small(**options)
        again.resume(tmp_path / "run.ckpt")
        assert again.fit(x, y, epochs=6, eval=(x[:5], y[:5]), patience=1, checkpoint=tmp_path / "run.ckpt").stopped
        found += [job.state_dict(), again.state_dict()]
    for other in found[1:]:
        assert all(np.array_equal(value, other[name]) for name, value in found[0].items())


def test_a_loss_that_is_no_number_is_undone_from_the_file() -> None:
    job, x, y = small(budget="1MB")
    job.lr = 1e38
    with pytest.raises(NotFinite):
        job.fit(x, y, epochs=3)
    assert all(np.isfinite(value).all() for value in job.state_dict().values())


def test_nowhere_to_keep_copies_is_said_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    job, x, y = small(budget="1MB")

    def full(*given: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(CannotWrite, match="copy of the state") as caught:
        job.fit(x, y)
    assert caught.value.why == "No space left on device"
    assert "checkpoint=" in caught.value.help
    assert job.step == 0
