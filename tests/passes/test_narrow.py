"""Constants as int8: a quarter of the flash, and not one bit of any result is different. Needs torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from benchmarks.nets import NETS, WEIGHTS
from smidgen.compiler.passes.narrow import int8_rows
from smidgen.devices.device import load_device
from smidgen.errors import BadOption, DoesNotFit
from tests.support.arguments import compiled
from tests.support.int8_values import rounded


def net(bias: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return rounded(nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=bias), nn.ReLU6(), nn.Conv2d(16, 16, 5, padding=2, groups=16), nn.ReLU6(),
        nn.Conv2d(16, 30, 1, bias=bias), nn.ReLU(), nn.Conv2d(30, 10, 3, groups=5), nn.Flatten(), nn.Linear(360, 21),
        nn.ReLU(), nn.Linear(21, 4),
    ))  # fmt: skip


def data(n: int = 12) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, 3, 8, 8)).astype(np.float32), rng.integers(0, 4, n)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize("method", ["last_layer", "last:2", ["0.bias"], ["2.weight", "8.bias"]], ids=str)
def test_the_bits_are_those_of_f32(method: Any, bias: bool, tmp_path: Path) -> None:
    """Also where a gradient goes through a layer, which reads the weight as the forward pass does."""
    if not bias and method == ["0.bias"]:
        method = ["2.bias"]
    x, y = data()
    options: dict[str, Any] = {"method": method, "optimizer": smidgen.SGD(0.05, momentum=0.9), "kernels": "exact"}
    wide = compiled(net(bias), x[:6], **options)
    narrow = compiled(net(bias), x[:6], memory=smidgen.Memory(const="int8"), **options)
    assert any(kernel.endswith("_w8_f32") for kernel in narrow.program.kernels)
    assert "int8" in [d.kind for d in narrow.plan.decisions]
    if isinstance(method, list):
        assert {"conv2d_dx_w8_f32", "linear_dx_w8_f32"} <= set(narrow.program.kernels)
    for job in (wide, narrow):
        job.fit(x, y, epochs=3, progress=False)
    for name, value in wide.state_dict().items():
        assert np.array_equal(value, narrow.state_dict()[name]), name
    assert np.array_equal(wide.predict(x), narrow.predict(x))
    assert wide.evaluate(x, y) == narrow.evaluate(x, y)
    assert narrow.program.const_bytes < 0.45 * wide.program.const_bytes
    narrow.save(tmp_path / "net.smg")
    assert np.array_equal(smidgen.load(tmp_path / "net.smg", kernels="exact").predict(x), narrow.predict(x))


def test_fast_kernels_read_them_too() -> None:
    x, y = data()
    jobs = [
        smidgen.compile(net(), x, method="last_layer", memory=smidgen.Memory(const="int8"), kernels=k)
        for k in ("exact", "fast")
    ]
    losses = [job.train_step(x, y) for job in jobs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_weights_that_are_not_int8_stay_as_they_are() -> None:
    x, _ = data()
    torch.manual_seed(1)
    plain = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, 4))
    first = smidgen.compile(plain, x, method="last_layer")
    other = smidgen.compile(plain, x, method="last_layer", memory=smidgen.Memory(const="int8"))
    assert first.program.to_bytes() == other.program.to_bytes()
    with pytest.raises(BadOption, match="const='int4' is not understood"):
        smidgen.compile(plain, x, memory=smidgen.Memory(const="int4"))


def test_scales_are_found_exactly_or_not_at_all() -> None:
    rng = np.random.default_rng(0)
    for top in (1, 3, 64, 100, 127, 128):
        q = rng.integers(-top, min(top, 127) + 1, (40, 30)).astype(np.float32)
        scale = np.exp(rng.standard_normal((40, 1)) * 3).astype(np.float32)
        found = int8_rows(q * scale)
        assert found is not None, top
        assert np.array_equal(found[0].astype(np.float32) * found[1][:, None], q * scale)
    assert int8_rows(np.zeros((3, 4))) is not None
    assert int8_rows(rng.standard_normal((3, 40))) is None
    assert int8_rows(np.array([[1.0, np.nan]])) is None


def test_a_device_takes_int8_when_only_that_fits_its_flash() -> None:
    x, _ = data(1)
    wide = smidgen.compile(net(), x, method="last_layer", device="mps2-an386").plan.flash_bytes
    device = replace(load_device("mps2-an386"), name="small", flash_bytes=wide - 1)
    plan = smidgen.compile(net(), x, method="last_layer", device=device).plan
    assert plan.flash_bytes < wide
    assert "int8" in [d.kind for d in plan.decisions]
    with pytest.raises(DoesNotFit, match="of flash, small has"):
        smidgen.compile(net(), x, method="last_layer", device=replace(device, flash_bytes=9000))


@pytest.mark.skipif(not (WEIGHTS / "mcunet-5fps.fp32.npz").exists(), reason="needs the published weights")
def test_mcunet_fits_a_megabyte_of_flash_with_the_same_bits() -> None:
    model = NETS["mcunet"].model()
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((1, 3, 128, 128)).astype(np.float32), np.array([3])
    options: dict[str, Any] = {"method": "last_layer", "optimizer": smidgen.SGD(0.01), "kernels": "exact"}
    wide = compiled(model, x, **options)
    narrow = compiled(model, x, device="stm32f746-disco", **options)
    assert wide.plan.flash_bytes > 2**20 > narrow.plan.flash_bytes
    assert "conv2d_f32" not in narrow.program.kernels
    for _ in range(2):
        assert wide.train_step(x, y) == narrow.train_step(x, y)
    assert np.array_equal(wide.predict(x), narrow.predict(x))
