"""Which rung is taken: readings of free memory, groups, pressure and functions of the user."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from smidgen.train.memory_watch import CALM_BATCHES, PRESSURE_S, RESERVE, Callback, Reading, System, Watch
from tests.support.ladders import bits, made, shares

SIZES = (100, 60, 30)  # of rungs, in the tests of Watch


# -- which rung ----------------------------------------------------------------------------------------------------


class Given:
    """Readings of a test."""

    def __init__(self, *readings: Reading | None) -> None:
        self._readings: Iterator[Reading | None] = iter(readings)
        self.missing = ""

    def read(self, held_bytes: int) -> Reading | None:
        return next(self._readings)


def course(*readings: float | Reading | None, start: int = 0, clock: Callable[[], float] = lambda: 0.0) -> list[int]:
    """Rungs that a watch takes one after the other."""
    source = Given(*(Reading(r) if isinstance(r, (int, float)) else r for r in readings))
    watch, rung, found = Watch(SIZES, source, clock), start, []
    for _ in readings:
        rung, _ = watch.next_rung(rung, 0)
        found.append(rung)
    return found


def test_down_is_at_once_and_the_lowest_rung_is_kept_even_if_nothing_fits() -> None:
    assert course(100, 99, 60, 59, 0, -5) == [0, 1, 1, 2, 2, 2]
    assert course(1) == [2]


def test_up_takes_room_to_spare_for_some_batches_in_a_row() -> None:
    wait = [2] * (CALM_BATCHES - 1)
    assert course(*[110.0] * (CALM_BATCHES + 1), start=2) == [*wait, 0, 0]
    assert course(*[109.0] * (CALM_BATCHES + 1), start=2) == [*wait, 1, 1], "the middle one has room to spare"
    assert course(*[65.0] * 50, start=2) == [2] * 50
    broken = [200.0] * (CALM_BATCHES - 1)
    assert course(*broken, 40, *broken, None, *broken, start=2) == [2] * (3 * len(broken) + 2)
    lowest = [200.0] * (CALM_BATCHES - 1) + [70.0]
    assert course(*lowest, start=2)[-1] == 1, "only what has fitted all the time"


def test_pressure_takes_one_rung_at_a_time() -> None:
    times = iter([0.0, PRESSURE_S / 2, PRESSURE_S, 3 * PRESSURE_S])
    high = Reading(1000, pressure=30.0)
    assert course(high, high, high, high, clock=lambda: next(times)) == [1, 1, 2, 2]
    calm = [Reading(1000, pressure=1.0)] * CALM_BATCHES
    assert course(*calm, start=2) == [2] * (CALM_BATCHES - 1) + [0]
    assert course(*[high] * 20, start=2) == [2] * 20


@pytest.mark.parametrize("value", [None, "12", float("nan"), float("-inf"), True])
def test_a_function_that_gives_no_number_is_said_once_and_stops_nothing(
    value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, x, y = made("residual", [])
    job, _, _ = made("residual", shares(plain, 0.8))
    plain.fit(x, y, progress=False)
    history = job.fit(x, y, follow_memory=lambda: value)
    assert history.switches == ()
    assert bits(job) == bits(plain)
    said = capsys.readouterr().err
    assert said.count("memory is not followed: the function of follow_memory gave ") == 1


class Shy(Exception):
    """Neither it nor its text can be shown."""

    def __repr__(self) -> str:
        raise ValueError("no")

    __str__ = __repr__


def shy() -> float:
    raise Shy


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda: 1 // 0, "ZeroDivisionError"), (lambda: 10**400, "OverflowError"), (lambda: Shy(), "ValueError"),
        (shy, "Shy"),
    ],
)  # fmt: skip
def test_a_function_that_raises_stops_nothing(function: Callable[[], float], said: str) -> None:
    source = Callback(function)
    assert Watch(SIZES, source).next_rung(1, 0) == (1, "")
    assert source.missing.startswith("the function of follow_memory raised ")
    assert said in source.missing


def files(root: Path, texts: dict[str, str]) -> System:
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return System(root)


MEMINFO = "MemTotal:       1000 kB\nMemFree:         10 kB\nMemAvailable:    400 kB\n"
FREE = int(400 * 1024 - 1000 * 1024 * RESERVE)


def test_the_machines_free_memory_counts_beside_what_the_job_holds(tmp_path: Path) -> None:
    assert files(tmp_path, {"proc/meminfo": MEMINFO}).read(7) == Reading(FREE + 7)


def test_the_tightest_of_the_groups_around_the_process_counts(tmp_path: Path) -> None:
    groups = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "1:name=systemd:/x\n0::/a/b\n",
        "sys/fs/cgroup/a/b/memory.max": "max\n",
        "sys/fs/cgroup/a/b/memory.current": "5000\n",
        "sys/fs/cgroup/a/memory.max": "100000\n",
        "sys/fs/cgroup/a/memory.high": "80000\n",
        "sys/fs/cgroup/a/memory.current": "50000\n",
        "sys/fs/cgroup/a/memory.stat": "anon 1\ninactive_file 20000\n",
        "sys/fs/cgroup/c/memory.max": "1\n",
        "sys/fs/cgroup/c/memory.current": "1\n",
    }
    system = files(tmp_path, groups)
    assert system.read(0) == Reading(80000 - int(80000 * RESERVE) - 30000)
    (tmp_path / "sys/fs/cgroup/a/memory.high").write_text("max\n")
    assert system.read(0) == Reading(100000 - int(100000 * RESERVE) - 30000)
    (tmp_path / "sys/fs/cgroup/a/memory.current").write_text("200000\n")
    assert system.read(0) == Reading(0), "never less than nothing"


def test_groups_of_version_one_count_too(tmp_path: Path) -> None:
    groups = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "4:cpu,memory:/docker/x\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "60000\n",  # in a container, its own group is the root
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "10000\n",
        "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 4000\n",
    }
    system = files(tmp_path, groups)
    assert system.read(0) == Reading(60000 - 3000 - 6000)
    (tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert system.read(0) == Reading(FREE)


def test_pressure_is_the_share_in_which_some_task_waited(tmp_path: Path) -> None:
    text = "some avg10=12.50 avg60=1.00 avg300=0.00 total=5\nfull avg10=99.00 avg60=0.00 avg300=0.00 total=1\n"
    found = files(tmp_path, {"proc/meminfo": MEMINFO, "proc/pressure/memory": text}).read(0)
    assert found == Reading(FREE, 12.5)


@pytest.mark.parametrize("text", ["", "nonsense", "MemAvailable: much kB", "MemAvailable:", "\0\xff:", "MemFree: 1 kB"])
def test_without_a_source_there_is_no_reading_and_no_error(text: str, tmp_path: Path) -> None:
    strange = dict.fromkeys(("proc/meminfo", "proc/self/cgroup", "proc/pressure/memory"), text)
    system = files(tmp_path, strange)
    assert system.read(0) is None
    assert "says how much memory is free" in system.missing
    assert System(tmp_path / "nowhere").read(0) is None


def test_this_system_can_be_read() -> None:
    found = System().read(0)
    assert found is not None
    assert found.allowed_bytes > 0
