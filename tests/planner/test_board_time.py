"""Predicted instructions of a step and of an inference against those that QEMU counts, for every core with rates of its
own; and the work of kernels, counted one by one."""

from __future__ import annotations

import functools
import itertools
import json

import pytest

from benchmarks.board_prices import BOARDS, OUT, SINK_OF, WITHIN, board_of, counted
from benchmarks.nets.boards import ONE_DIMENSIONAL, Options, Small, small
from smidgen import SGD, Adam, ops
from smidgen.compiler.planner.core_rates import SAME_CODE, core_rates
from smidgen.devices.cores import CORES
from smidgen.ops import work
from tests.support.boards import EMULATOR, need

NETS = {
    "over-time": (("1d",), 300, Options(SGD(1e-3, momentum=0.9), batch=2)),
    "images": (("2d",), 301, Options(SGD(1e-3))),
    "both": (("1d", "2d", "dense"), 302, Options(Adam(1e-3), method="last:2")),
}
CASES = list(zip(BOARDS, itertools.cycle(NETS), strict=False))
"""Each core once, each network a few times: firmware takes seconds."""


@functools.cache
def net(name: str) -> Small:
    return small(name, *NETS[name])


def test_every_core_that_has_a_port_was_counted() -> None:
    assert set(core_rates()) == set(CORES) == set(BOARDS)


@pytest.mark.parametrize(("core", "name"), CASES)
def test_predicted_instructions_are_about_those_counted(core: str, name: str) -> None:
    need(*EMULATOR)
    step, rates = counted(net(name), board_of(core)), core_rates()[core]
    assert step.predicted(rates) == pytest.approx(step.instructions, rel=WITHIN)
    assert step.infer_predicted(rates) == pytest.approx(step.infer_instructions, rel=WITHIN)


def test_networks_of_the_field_were_counted_on_every_core_and_are_predicted() -> None:
    rows = json.loads(OUT.read_text())["rows"]
    for core in set(BOARDS) - set(SAME_CODE):
        own = {row["net"]: row for row in rows if row["core"] == core}
        wanted = {"lenet5", "dscnn", *ONE_DIMENSIONAL} | ({"mcunet-last"} if core != "cortex-m55" else set())
        assert set(own) >= wanted, "the flash of the only board with a cortex-m55 is too small for MCUNet"
        assert all(max(row["off"], row["infer_off"]) < WITHIN for row in own.values())


def test_rates_are_of_known_ops_and_never_below_zero() -> None:
    for core in core_rates().values():
        assert len(core.rates) > 60
        for family, rate in core.rates.items():
            assert family.partition(" ")[0] in ops.all_ops()
            assert min(rate) >= 0 < sum(rate)


def test_weight_gradients_have_rates_with_every_optimizer() -> None:
    """Each was counted with some of them; the others are put together."""
    for core in core_rates().values():
        for (fused, (base, _)), way in itertools.product(SINK_OF.items(), ("", " depthwise")):
            if base == "conv2d_dw" and fused.rpartition("_")[2] in ("sgd", "momentum", "adam", "acc"):
                assert f"{fused}{way}" in core.rates


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("before", [-1, 0, 2])
@pytest.mark.parametrize("dilation", [1, 2])
def test_taps_in_the_padding_are_left_out(stride: int, before: int, dilation: int) -> None:
    size, outs, taps = 9, 5, 4
    places = [o * stride - before + k * dilation for o in range(outs) for k in range(taps)]
    inside = sum(0 <= at < size for at in places)
    assert work._met(size, outs, taps, stride, before, dilation) == inside


def test_blocks_are_rounded_up_as_kernels_do() -> None:
    # N H W C O OH OW KH KW SH SW PT PL DH DW G: 6 outputs are computed as 8, a run of 10 is 8 and 2 more
    plain = work.conv([1, 1, 20, 2, 6, 1, 16, 1, 5, 1, 1, 0, 0, 1, 1, 1])
    assert plain == work.Work(16 * 8 * 8, 16 * 8 * 2, 16 * 8)
    depthwise = work.conv([1, 8, 8, 12, 12, 6, 6, 3, 3, 1, 1, 0, 0, 1, 1, 12])
    assert (depthwise.blocked, depthwise.way) == (6 * 6 * 9 * 16, "depthwise")
    one_channel = work.conv([1, 8, 8, 1, 8, 6, 6, 3, 3, 1, 1, 0, 0, 1, 1, 1])
    assert one_channel.way == "depthwise"  # as the kernel has it
    assert work.linear([3, 5, 20]) == work.Work(3 * 5 * 16, 3 * 5 * 4, 3 * 5)
    assert work.linear_dx([1, 5, 20]).blocked == 32 * 5
