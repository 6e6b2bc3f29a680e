"""Devices and their limits: every figure has a source, a plan never passes RAM or flash, and what is offered instead
was compiled and does fit. Needs torch for the plans."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import smidgen
from smidgen.compiler.fit import misfit
from smidgen.compiler.options import BadOption
from smidgen.compiler.planner.core_rates import rates_of
from smidgen.devices import room
from smidgen.devices.device import Bank, Device, Speed, device_names, load_device, parsed
from smidgen.devices.room import Limit, Need, Overhead, assigned, fits
from smidgen.errors import DoesNotFit, UnknownDevice
from smidgen.terminal import bytes_text
from tests.support.arguments import compiled

KB = 1024
SPEED = """[speed]
cycles_per_mac = 10.5
cycles_per_byte = 1.0
cycles_per_call = 150
source = "measured on the bench"
"""
FIGURES = {
    "mkr1000": ([32 * KB], 256 * KB), "nano33ble": ([256 * KB], 1024 * KB), "nrf52840": ([256 * KB], 1024 * KB),
    "stm32f405": ([128 * KB, 64 * KB], 1024 * KB), "stm32f746": ([320 * KB], 1024 * KB),
    "rp2040": ([264 * KB], 2048 * KB), "netduinoplus2": ([192 * KB], 1024 * KB),
    "jetson-nano": ([4 * KB**3], 16 * KB**3), "raspberry-pi-4b": ([4 * KB**3], 0),
}  # fmt: skip


@pytest.mark.parametrize("name", device_names())
def test_every_figure_of_a_device_has_a_source(name: str) -> None:
    device = load_device(name)
    counted = rates_of(device) is not None  # its core's instructions have a source in cores.json
    tables = {"clock", "power", "page", *([] if counted else ["speed"]), *(["flash"] if device.flash_bytes else [])}
    figures = tables | {b.name for b in device.ram_banks}
    assert set(device.sources) == figures
    assert all(len(source) > 10 for source in device.sources.values())
    if device.board:
        assert load_device(device.board).kind == "emulated"


@pytest.mark.parametrize("name", sorted(FIGURES))
def test_figures_are_those_of_the_data_sheet(name: str) -> None:
    device = load_device(name)
    assert ([b.bytes for b in device.ram_banks], device.flash_bytes) == FIGURES[name]


def test_an_unknown_device_is_met_with_a_suggestion() -> None:
    with pytest.raises(UnknownDevice, match="did you mean 'rp2040'"):
        load_device("rp2350")
    with pytest.raises(BadOption, match="device=7 is not a device"):
        smidgen.compile(nn.Linear(2, 2), torch.randn(2, 2), device=7)  # type: ignore[arg-type]


def test_a_device_of_ones_own_is_a_file_of_the_same_form(tmp_path: Path) -> None:
    text = (Path(room.__file__).parent / "stm32f405.toml").read_text().replace("[power]", f"{SPEED}\n[power]")
    path = tmp_path / "my_board.toml"
    path.write_text(text.replace("65_536", "32_768"))
    device = load_device(str(path))
    assert (device.name, device.ram_bytes) == ("my_board", 160 * KB)
    assert device.speed == Speed(10.5, 1.0, 150.0)
    for fault, message in (
        (text.replace("align = 8", "align = 7"), "align"), (text.replace("[clock]", "[clok]"), "clok"),
        (text.replace("0x1000_0000", "0x2000_0000"), "overlap"), (re.sub("source = .*", "", text, count=1), "source"),
        (text.replace("cycles_per_mac = 10.5", "cycles_per_mac = 0"), "0 is not a number of cycles"),
        (text.replace("watts = 0.17", 'watts = "little"'), "'little' is not a number of cycles, seconds"),
        (text.replace("[power]", "[powder]"), "unknown key 'powder'"), (text.replace("in_s", "inn_s"), "inn_s"),
        (text.replace("cycles_per_byte = 1.0\n", ""), "'cycles_per_byte' is missing"),
        (re.sub(r"\[power\]\n.*\n.*\n", "", text), "'power' is missing"),
        (re.sub(r"(\[page\]\n(.*\n){5})source = .*", r"\1", text), "'source' is missing"),
        ("not toml", "Expected"),
    ):  # fmt: skip
        path = tmp_path / f"{abs(hash(message))}.toml"
        path.write_text(fault)
        with pytest.raises(UnknownDevice, match=message):
            load_device(str(path))
    with pytest.raises(UnknownDevice, match="cannot read"):
        load_device(str(tmp_path / "nothing.toml"))


def device_of(*banks: int) -> Device:
    found = [Bank(f"B{i}", i << 28, size) for i, size in enumerate(banks)]
    return replace(load_device("stm32f405"), ram_banks=tuple(found))


@pytest.mark.parametrize(
    ("banks", "state", "arena", "expected"),
    [
        ((100, 50), 30, 50, "B0 B0 B0"),  # all in one: context and stack take 20
        ((100, 50), 30, 51, "B0 B1 B0"),
        ((100, 50), 51, 30, "B0 B0 B1"),
        ((100, 50), 51, 51, None),  # 122 of 150 bytes, but in no two pieces
        ((20, 60, 60), 60, 60, "B0 B1 B2"),
        ((19, 90), 10, 10, None),  # no room for the stack
    ],
)
def test_state_and_arena_are_whole_in_a_bank(
    banks: tuple[int, ...], state: int, arena: int, expected: str | None
) -> None:
    found = assigned(Limit.of_device(device_of(*banks)), Need(state, arena, Overhead(12, 8), 0))
    assert (found and " ".join(found[k] for k in ("stack", "state", "arena"))) == expected


def lenet() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


X = torch.zeros(8, 1, 28, 28)


def test_a_plan_that_fits_says_where_it_lies(tmp_path: Path) -> None:
    job = smidgen.compile(lenet(), X, batch=1, device="stm32f746", optimizer=smidgen.SGD(0.01))
    plan = job.plan
    assert plan.ram_bytes <= 320 * KB
    assert plan.flash_bytes <= 1024 * KB
    assert plan.device == "stm32f746"
    assert plan.banks == {"stack": "SRAM", "state": "SRAM", "arena": "SRAM"}
    assert job.program.align == 8
    job.save(tmp_path / "net.smg")
    assert smidgen.load(tmp_path / "net.smg").plan == plan


def test_banks_are_used_when_one_is_not_enough() -> None:
    last = smidgen.compile(lenet(), X, batch=8, method="bias", device="stm32f746").plan
    need = Need(last.state_bytes, last.arena_bytes, Overhead(last.context_bytes, last.stack_bytes), last.flash_bytes)
    device = device_of(need.state_bytes + 6000, need.arena_bytes)
    plan = smidgen.compile(lenet(), X, batch=8, method="bias", device=device).plan
    assert plan.banks == {"stack": "B0", "state": "B0", "arena": "B1"}


def test_what_is_offered_instead_does_fit_and_needs_what_was_said() -> None:
    momentum, plain = smidgen.SGD(0.01, momentum=0.9), smidgen.SGD(0.01)
    with pytest.raises(DoesNotFit) as caught:
        smidgen.compile(lenet(), X, optimizer=momentum, device="stm32f746")
    error = caught.value
    assert isinstance(error, misfit.OverLimit)
    needs = f"needs {bytes_text(error.needs_bytes, math.ceil)} ({error.needs_bytes:,} bytes) of RAM"
    assert error.what == f"{needs}, stm32f746 has 320 KB: parameters and momentum alone are 482 KB"
    assert error.at == ""
    assert error.why.startswith("parameters 241 KB, momentum 241 KB, ")
    assert all(fits(Limit.of_device(load_device("stm32f746")), o.need) for o in error.options)
    tried = [dict(option.arguments) for option in error.options]
    assert tried[0] == {"optimizer": plain, "batch": 2}
    assert {"method": "last_layer"} in tried
    assert {"method": "last:2"} in tried
    assert {"method": "bias"} in tried
    limit = Limit.of_device(load_device("stm32f746"))
    assert error.help == "; ".join(o.text(False, limit) for o in error.options)
    assert error.help.startswith("optimizer=smidgen.SGD(lr=0.01), batch=2 needs ")
    assert error.in_command_line().help.startswith("--momentum 0 --batch 2 needs ")
    for option in error.options:
        given = {"optimizer": momentum, "budget": option.need.ram_bytes, **option.arguments}
        assert compiled(lenet(), X, device="stm32f746", **given).plan.ram_bytes <= option.need.ram_bytes
        given["budget"] = option.need.ram_bytes - 8
        with pytest.raises(DoesNotFit):
            compiled(lenet(), X, device="stm32f746", **given)


def test_flash_is_a_limit_of_its_own() -> None:
    wide = nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 2))
    device = replace(load_device("mkr1000"), flash_bytes=300_000)
    with pytest.raises(
        DoesNotFit, match=r"needs 3\d\d KB of flash, mkr1000 has 293 KB\n  why  in it: constants 353 KB"
    ):
        smidgen.compile(wide, torch.randn(1, 300), method="last_layer", device=device)


def test_a_file_with_an_unknown_key_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown key 'x'"):
        parsed("a", "x = 1")
