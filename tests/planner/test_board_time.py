"""Predicted instructions of a training step against those that QEMU counts, for every core with rates of its own; and
the work of kernels, counted one by one."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.board_prices import BOARDS, SINK_OF, WITHIN, board_of, counted
from benchmarks.nets.boards import Options, small
from smidgen import SGD, Adam, ops
from smidgen.compiler.planner.core_rates import core_rates
from smidgen.devices.cores import CORES
from smidgen.ops import work
from tests.support.boards import EMULATOR, need

NETS = {
    "over-time": (("1d",), 300, Options(SGD(1e-3, momentum=0.9), batch=2)),
    "images": (("2d",), 301, Options(SGD(1e-3))),
    "both": (("1d", "2d", "dense"), 302, Options(Adam(1e-3), method="last:2")),
}


def test_every_core_that_has_a_port_was_counted() -> None:
    assert set(core_rates()) == set(CORES) == set(BOARDS)


@pytest.mark.parametrize("core", BOARDS)
@pytest.mark.parametrize("name", NETS)
def test_predicted_instructions_are_about_those_counted(core: str, name: str) -> None:
    need(*EMULATOR)
    step = counted(small(name, *NETS[name]), board_of(core))
    assert step.predicted(core_rates()[core]) == pytest.approx(step.instructions, rel=WITHIN)


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
