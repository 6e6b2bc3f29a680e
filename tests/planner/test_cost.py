"""What nodes cost: by a device's own figures, by families of kernels, and by measurement, which is remembered. Needs
torch for the networks."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import smidgen
from smidgen import api, ops
from smidgen.compiler.fit.candidate import step_spent
from smidgen.compiler.options import BadOption
from smidgen.compiler.planner import measure
from smidgen.compiler.planner.core_rates import core_rates
from smidgen.compiler.planner.cost import DISK, HOST, CorePrices, Paging, Prices, Rate, family, prices_of, spent
from smidgen.compiler.planner.goal import Goal
from smidgen.devices.cores import core_of
from smidgen.devices.device import Device, device_names, load_device, parsed
from smidgen.ir import DType, Graph, Role, Tensor
from smidgen.ops.build import typed
from smidgen.program.plan import Plan
from smidgen.train.step_time import measure_step

X = torch.zeros(4, 3, 16, 16)


def net() -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU()]
    for _ in range(3):
        layers += [nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1)]
    return nn.Sequential(*layers, nn.MaxPool2d(3, 2, 1), nn.Flatten(), nn.Linear(512, 10)).eval()


@pytest.fixture(scope="module")
def graph() -> Graph:
    return api.build(net(), X, batch=4).graphs["train"]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one, where a kernel's time is the number of the measurement instead of the clock's word."""
    count = 0

    def timed(op: str, call: ops.Call, n: int, guess_s: float, kernels: str, threads: int, integer: int = 0) -> float:
        nonlocal count
        count += 1
        return count * 1e-3

    monkeypatch.setattr(measure, "timed", timed)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "smidgen"


# -- devices -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", device_names())
def test_every_device_has_prices_of_its_own(name: str) -> None:
    device = load_device(name)
    prices = prices_of(device)
    assert prices.name == name
    if device.speed is None:
        assert isinstance(prices, CorePrices)
        assert prices.core == core_rates()[core_of(device).name]
    else:
        assert prices.macs_per_s == pytest.approx(device.clock_hz / device.speed.cycles_per_mac)
    assert prices.page == device.page is not None
    assert 1e4 < prices.macs_per_s < 1e11
    assert 1e-3 < prices.watts == device.watts < 50


def own_board(*changes: tuple[str, str]) -> Device:
    """As a user would describe a board with an STM32F405."""
    text = (Path(api.__file__).parent / "devices" / "stm32f405.toml").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parsed("own", text)


def test_a_device_without_figures_is_priced_by_its_core(graph: Graph) -> None:
    own, known = prices_of(own_board()), prices_of(load_device("stm32f405"))
    assert spent(graph, 4, own) == spent(graph, 4, known)
    assert prices_of(None) is HOST


def test_figures_in_a_devices_own_file_count_more_than_its_core(graph: Graph) -> None:
    table = '[speed]\ncycles_per_mac = 100\ncycles_per_byte = 1\ncycles_per_call = 1\nsource = "measured"\n\n[power]'
    slow, known = prices_of(own_board(("[power]", table))), prices_of(load_device("stm32f405"))
    assert slow.macs_per_s == pytest.approx(1.68e6)
    assert spent(graph, 4, slow).seconds > 5 * spent(graph, 4, known).seconds


def test_a_core_that_was_not_counted_is_priced_by_its_clock(graph: Graph) -> None:
    guessed, known = (prices_of(replace(own_board(), core=core)) for core in ("cortex-m85", "cortex-m4"))
    assert not isinstance(guessed, CorePrices)
    assert 1 / 3 < spent(graph, 4, guessed).seconds / spent(graph, 4, known).seconds < 3


def test_a_slower_device_takes_longer(graph: Graph) -> None:
    names = ("stm32h743", "stm32f746", "nrf52840", "mkr1000")
    seconds = [spent(graph, 4, prices_of(load_device(name))).seconds for name in names]
    assert seconds == sorted(seconds)


def test_a_plan_for_a_device_says_what_a_step_takes(tmp_path: Path) -> None:
    job = smidgen.compile(net(), X, batch=1, device="stm32h743")
    prices = prices_of(load_device("stm32h743"))
    expected = step_spent(api.build(net(), X, batch=1), Goal(prices=prices))
    assert job.plan.step_seconds == pytest.approx(expected.seconds)
    assert job.plan.step_joules == pytest.approx(expected.seconds * prices.watts)
    job.save(tmp_path / "net.smg")
    assert smidgen.load(tmp_path / "net.smg").plan == job.plan
    assert smidgen.compile(net(), X).plan.step_seconds == 0  # nobody asked for a price


@pytest.mark.parametrize("wrong", [-1.0, "1", True, math.inf, math.nan])
def test_a_plan_with_impossible_seconds_is_refused(wrong: object) -> None:
    data = smidgen.compile(net(), X, batch=1, device="stm32h743").plan.to_json()
    with pytest.raises(ValueError, match="is not a number of seconds"):
        Plan.from_json({**data, "step_seconds": wrong})


# -- rates -------------------------------------------------------------------------------------------------------------


def tensor(*shape: int) -> Tensor:
    return Tensor("t", shape, DType.F32, Role.VALUE)


def test_a_family_with_a_rate_of_its_own_is_priced_by_it() -> None:
    call = ops.Call((tensor(10),), (tensor(10),), {})
    plain = Prices(macs_per_s=1.0, bytes_per_s=8.0, call_s=2.0)
    assert plain.seconds("relu", call, 1) == 2 + 80 / 8
    better = replace(plain, rates={"relu": Rate(call_s=1.0, mac_s=0.0, byte_s=0.5)}, watts=3.0)
    assert better.seconds("relu", call, 1) == 1 + 80 * 0.5
    assert better.joules("relu", call, 1) == 3 * 41
    assert better.seconds("tanh", call, 1) == plain.seconds("tanh", call, 1)


def test_groups_are_a_family_of_their_own(graph: Graph) -> None:
    found = {family(node.op, typed(graph, node)) for node in graph.nodes}
    assert {"conv2d", "conv2d in groups", "relu"} <= found


def test_fixed_rates_are_of_known_ops_and_never_below_zero() -> None:
    assert len(HOST.rates) > 40
    for name, rate in HOST.rates.items():
        assert name.removesuffix(" in groups") in ops.all_ops()
        assert min(rate.call_s, rate.mac_s, rate.byte_s) >= 0
        assert 0 < rate.call_s + rate.mac_s + rate.byte_s < 1e-3


def test_pages_cost_what_the_storage_takes() -> None:
    page = Paging(out_s=1.0, out_bytes_per_s=10.0, in_s=2.0, in_bytes_per_s=20.0, watts=7.0)
    prices = Prices(1e9, 1e9, 1e-6, watts=3.0, page=page)
    call = ops.Call((tensor(10), tensor(10)), (tensor(10),), {})
    assert prices.seconds("page_out", call, 1) == prices.seconds("page_write", call, 1) == 1 + 40 / 10
    assert prices.seconds("page_in", call, 1) == prices.seconds("page_wait", call, 1) == 2 + 40 / 20
    assert prices.seconds("page_start", call, 1) == 1e-6  # the time is counted where it is waited for
    assert prices.joules("page_in", call, 1) == 7 * 4
    with pytest.raises(smidgen.SmidgenError, match="nowhere to page to"):
        replace(prices, page=None).seconds("page_in", call, 1)


# -- measured ----------------------------------------------------------------------------------------------------------


def test_what_was_measured_is_remembered(cache: Path, graph: Graph) -> None:
    with measure.measured("fast") as prices:
        first = spent(graph, 4, prices).seconds
    (path,) = cache.iterdir()
    known = json.loads(path.read_text())["seconds"]
    again = measure.measured("fast")
    assert spent(graph, 4, again).seconds == first
    assert again.known == known
    assert not again.new
    other = measure.measured("exact")  # other kernels, other times
    assert not other.known


def test_what_two_processes_measure_is_joined(cache: Path, graph: Graph) -> None:
    one, other = measure.measured(), measure.measured()
    nodes = [node for node in graph.nodes if node.op in ("relu", "conv2d")]
    for prices, op in ((one, "relu"), (other, "conv2d")):
        for node in nodes:
            if node.op == op:
                prices.seconds(node.op, typed(graph, node), 4)
    one.remember()
    other.remember()
    assert set(measure.measured().known) == set(one.known) | set(other.known)


@pytest.mark.parametrize(
    "content",
    ["", "nonsense", "[]", "{}", '{"format": 1}', '{"format": 1, "seconds": {"a": "x"}}',
     '{"format": 0, "seconds": {"a": 1}}', '{"format": 1, "seconds": {"a": -1, "b": NaN, "c": 1e99}}'],
)  # fmt: skip
def test_a_damaged_file_is_measured_again(cache: Path, graph: Graph, content: str) -> None:
    path = measure.measured().path
    assert path is not None
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with measure.measured() as prices:
        assert not prices.known
        spent(graph, 4, prices)
    assert len(measure.measured().known) == len(prices.known) > 5


def test_a_folder_that_cannot_be_written_is_no_error(cache: Path, graph: Graph) -> None:
    cache.write_text("a file, where the folder would be")
    with measure.measured() as prices:
        assert spent(graph, 4, prices).seconds > 0
    assert not measure.measured().known


def test_another_library_is_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = measure.machine_key("fast", 1)
    assert here == measure.machine_key("fast", 1)
    assert len({here, measure.machine_key("exact", 1), measure.machine_key("fast", 2)}) == 3
    other = tmp_path / "libsmidgen.so"
    other.write_bytes(b"newer")
    monkeypatch.setenv("SMIDGEN_LIBRARY", str(other))
    assert measure.machine_key("fast", 1) != here


def test_a_cache_folder_must_be_absolute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert measure.cache_folder() == Path.home() / ".cache" / "smidgen"


def test_nothing_is_measured_unless_it_is_asked_for(cache: Path) -> None:
    fixed = smidgen.compile(net(), X, budget="120KB", kernels="exact", memory=smidgen.Memory(effort=0))
    assert not cache.exists()
    again = smidgen.compile(net(), X, budget="120KB", kernels="exact", memory=smidgen.Memory(effort=0))
    assert fixed.program.to_bytes() == again.program.to_bytes()
    measured = smidgen.compile(
        net(), X, budget="120KB", kernels="exact", memory=smidgen.Memory(effort=0, prices="measured")
    )
    assert cache.exists()
    assert measured.plan.ram_bytes <= 120 * 1024
    assert measured.plan.step_seconds > 1e-3 > fixed.plan.step_seconds


def test_prices_that_cannot_be_had_are_refused() -> None:
    with pytest.raises(BadOption, match="prices='free' is not understood"):
        smidgen.compile(net(), X, memory=smidgen.Memory(prices="free"))
    with pytest.raises(BadOption, match="which is no stm32h743"):
        smidgen.compile(net(), X, device="stm32h743", memory=smidgen.Memory(prices="measured"))


def test_what_cannot_be_timed_has_its_fixed_price(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> float:
        raise smidgen.SmidgenError("the data is refused")

    monkeypatch.setattr(measure, "timed", fails)
    prices = replace(measure.measured(), path=None, known={}, new={})
    assert spent(graph, 4, prices).seconds == pytest.approx(spent(graph, 4, HOST).seconds)
    assert set(prices.known.values()) == {None}


@pytest.mark.parametrize("kernels", ["exact", "fast"])
def test_the_sum_of_the_kernels_is_about_the_step(graph: Graph, kernels: str) -> None:
    """Within a factor of three, once: other programs use this machine too. benchmarks/predict.py has the figures."""
    job = smidgen.compile(net(), X, kernels=kernels)
    ratios = []
    while len(ratios) < 20 and not any(1 / 3 < ratio < 3 for ratio in ratios):
        prices = replace(measure.measured(kernels), path=None, known={}, new={})
        predicted = spent(graph, 4, prices).seconds
        assert None not in prices.known.values()  # a max-pool's index among them
        ratios.append(predicted / (measure_step(job) or math.nan))
    assert any(1 / 3 < ratio < 3 for ratio in ratios), ratios


def test_paging_is_timed_where_the_file_would_be(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Path] = []
    slow = Paging(out_s=1.0, out_bytes_per_s=1e3, in_s=2.0, in_bytes_per_s=2e3, watts=2.0)

    def timed_pages(folder: Path) -> Paging:
        folders.append(folder)
        return slow

    monkeypatch.setattr(measure, "timed_pages", timed_pages)
    assert measure.measured().page == DISK
    where = tmp_path / "page.bin"
    job = smidgen.compile(
        net(), X, budget="100KB", kernels="exact", memory=smidgen.Memory(effort=0, prices="measured", page_to=where)
    )
    assert folders == [tmp_path]
    assert measure.measured(page_to="p").page == slow  # and nothing of it is remembered
    assert job.plan.ram_bytes <= 100 * 1024


def test_a_folder_is_timed_and_left_as_it_was(tmp_path: Path) -> None:
    page = measure.timed_pages(tmp_path)
    assert page != DISK
    for figure in (page.out_s, page.in_s, page.out_bytes_per_s, page.in_bytes_per_s):
        assert 0 < figure < math.inf
    assert list(tmp_path.iterdir()) == []
    assert measure.timed_pages(tmp_path / "missing") == DISK


@pytest.mark.parametrize(("first_s", "byte_s"), [(1e-5, 1e-9), (1e-5, 0.0), (0.1, -1e-8), (0.0, 1e-9)])
def test_a_transfer_takes_time_whatever_the_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_s: float, byte_s: float
) -> None:
    monkeypatch.setattr(measure, "_median", lambda _, piece: first_s + piece * byte_s)
    page = measure.timed_pages(tmp_path)
    assert page.out_s == page.in_s == pytest.approx(max(first_s, 1e-7), rel=0.01)
    assert page.out_bytes_per_s == page.in_bytes_per_s == pytest.approx(1 / max(byte_s, 1e-11), rel=0.01)


def test_progress_is_shown_on_a_terminal_only(cache: Path, graph: Graph, capfd: pytest.CaptureFixture[str]) -> None:
    with measure.measured() as prices:
        spent(graph, 4, prices)
    assert capfd.readouterr() == ("", "")
