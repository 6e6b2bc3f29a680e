"""A plan is a function of the model, the options and the versions: never of the clock, the load, the order of a hash
table or what the process did before."""

import contextlib
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from smidgen.compiler import effort
from smidgen.compiler.effort import Effort
from tests.support.arguments import compiled


def programs(name: str, page_to: str, effort_s: str = "1") -> Iterator[str]:
    """Hashes of a network's programs for two budgets, with paging and with a ladder."""
    import smidgen
    from benchmarks.nets import NETS

    net = NETS[name]
    x, _ = net.data(8)

    def made(**options: Any) -> smidgen.Job:
        return compiled(
            net.model().eval(),
            x,
            kernels="exact",
            loss=net.loss,
            memory=smidgen.Memory(effort=float(effort_s)),
            **options,
        )

    free = made().plan

    def share(part: float) -> int:
        return free.ram_bytes - free.arena_bytes + int(part * free.arena_bytes)

    jobs = (
        made(budget=share(0.5)),
        made(budget=share(0.3)),
        made(budget=share(0.2), page_to=page_to),
        made(ladder=[share(0.85), share(0.75)]),
    )
    for job in jobs:
        yield hashlib.sha256(job.program.to_bytes()).hexdigest()


@contextlib.contextmanager
def busy_cores() -> Iterator[None]:
    """Other processes want all cores."""
    loads = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for load in loads:
            load.kill()
            load.wait()


def test_another_process_on_a_busy_machine_plans_the_same(tmp_path: Path) -> None:
    script = "import sys; from tests.acceptance.test_same_plan import programs; print(*programs(*sys.argv[1:]))"
    args = ["resnet8", str(tmp_path / "page.bin"), "0.1"]
    with busy_cores():
        other = subprocess.run(
            [sys.executable, "-c", script, *args], stdout=subprocess.PIPE, text=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": "1"},
        )  # fmt: skip
    assert other.stdout.split() == list(programs(*args))


def test_effort_runs_out_by_work_and_not_by_time() -> None:
    with effort.metered():
        some = Effort.of(1.0)
        time.sleep(0.01)
        assert some.left_s == 1.0
        effort.spend(0.75 * effort.UNITS)
        assert some.left_s == 0.25
        effort.spend(effort.UNITS)
        assert some.is_spent
        assert Effort.of(0.5).left_s == 0.5


def test_meters_of_two_compilations_do_not_meet() -> None:
    with effort.metered() as outer:
        effort.spend(5)
        with effort.metered() as inner:
            effort.spend(7)
        assert (outer.units, inner.units) == (5, 7)


def test_a_plan_that_the_clock_cut_short_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    import smidgen

    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(8 * 12 * 12, 4),
    )  # fmt: skip
    x = torch.zeros(4, 3, 16, 16)
    free = smidgen.compile(net, x, kernels="exact")
    budget = free.plan.ram_bytes - free.plan.arena_bytes // 3
    kept = smidgen.compile(net, x, kernels="exact", budget=budget)
    assert "stopped" not in {d.kind for d in kept.plan.decisions}
    monkeypatch.setattr(effort, "EMERGENCY_S", 0.0)
    monkeypatch.setattr(effort, "EMERGENCY", 0.0)
    stopped = smidgen.compile(net, x, kernels="exact", budget=budget)
    assert "stopped" in {d.kind for d in stopped.plan.decisions}
    assert hashlib.sha256(stopped.program.to_bytes()).digest() != hashlib.sha256(kept.program.to_bytes()).digest()
