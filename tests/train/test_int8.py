"""Networks in int8 from the user's side: they learn about what f32 learns, in less RAM, and go home as f32."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import smidgen
from smidgen.errors import BadCalibration, BadOption, CannotQuantize
from smidgen.ir import Array

CLASSES = 4
INT16 = smidgen.Int8(gradients="int16")


class Block(nn.Module):
    """Inverted bottleneck with a skip."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.expand, self.wide = nn.Conv2d(c, 2 * c, 1, bias=False), nn.BatchNorm2d(2 * c)
        self.depth, self.deep = nn.Conv2d(2 * c, 2 * c, 3, padding=1, groups=2 * c, bias=False), nn.BatchNorm2d(2 * c)
        self.project, self.last = nn.Conv2d(2 * c, c, 1, bias=False), nn.BatchNorm2d(c)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.wide(self.expand(x)))
        y = nn.functional.relu6(self.deep(self.depth(y)))
        return x + self.last(self.project(y))


def images(count: int, seed: int = 1, slow: float = 3.0, colour: int = 1) -> tuple[Array, Array]:
    """Waves along one axis or the other, slow or fast, brightest in a colour."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, count)
    t = np.arange(16) / 16
    waves = np.sin(2 * np.pi * (np.where(y < 2, slow, 2 * slow)[:, None] * t + rng.random((count, 1))))
    whole = np.where((y % 2 == 0)[:, None, None], waves[:, :, None], waves[:, None, :])
    x = whole[:, None] * np.where(np.arange(3) == colour, 1, 0.3)[:, None, None]
    return (x + 0.7 * rng.standard_normal(x.shape)).astype(np.float32), y


@functools.cache
def network() -> nn.Module:
    """Trained on waves of another length and colour; its classifier is new."""
    torch.manual_seed(0)
    made = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), Block(8),
        nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(), Block(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, CLASSES),
    )  # fmt: skip
    x, y = images(640, 3, slow=2, colour=0)
    for _ in range(20):
        made(torch.tensor(x))
    job = smidgen.compile(made.eval(), torch.zeros(16, 3, 16, 16), optimizer=smidgen.SGD(0.05), kernels="exact")
    job.fit(x, y, epochs=4, progress=False)
    job.load_into(made)
    nn.init.normal_(made[-1].weight, std=0.05)
    return made


def compiled(model: nn.Module, precision: Any = "int8", **options: Any) -> smidgen.Job:
    x, _ = images(64, 2)
    data = None if precision == "f32" else x
    given: dict[str, Any] = {"optimizer": smidgen.SGD(0.05, momentum=0), "data": data, **options}
    return smidgen.compile(model, torch.zeros(8, 3, 16, 16), precision=precision, **given)


def learned(job: smidgen.Job, steps: int = 60) -> list[float]:
    x, y = images(8 * steps)
    return [float(job.train_step(x[i : i + 8], y[i : i + 8])) for i in range(0, 8 * steps, 8)]


METHODS: list[Any] = ["full", "last_layer", ["bias", "9.weight"], "sparse_update:b5 w5:1/2,7:1"]


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_int8_learns_as_f32_does_and_takes_no_more_ram(method: Any) -> None:
    model = network()
    losses, ram = {}, {}
    for precision in ("f32", "int8"):
        job = compiled(model, precision, method=method)
        losses[precision], ram[precision] = learned(job), job.plan.ram_bytes
    first, last = (np.mean(losses["f32"][part]) for part in (slice(10), slice(-10, None)))
    ours = np.mean(losses["int8"][-10:])
    assert last < 0.9 * first
    assert first - ours > 0.8 * (first - last), f"{first}, {last} in f32, {ours} in int8"
    assert ram["int8"] <= ram["f32"]


def test_predictions_are_near_those_of_torch_and_accuracy_is_learned() -> None:
    model, (x, y) = network(), images(400, 7)
    job = compiled(model)
    with torch.no_grad():
        want = model(torch.tensor(x)).numpy()
    got = job.predict(x)
    assert np.abs(got - want).mean() < 0.1 * np.abs(want - want.mean(0)).mean()
    job.fit(*images(800), epochs=3, progress=False)
    assert job.evaluate(x, y)["accuracy"] > 0.9


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_weights_go_home_dequantised(method: Any) -> None:
    """The network in torch, with what int8 learned, computes what int8 computes: also behind norms."""
    model = network()
    job = compiled(model, method=method)
    learned(job)
    before, home, (x, _) = copy.deepcopy(model.state_dict()), copy.deepcopy(model), images(200, 9)
    job.load_into(home)
    changed = [name for name, value in home.state_dict().items() if not torch.equal(value, before[name])]
    assert changed
    assert set(changed) <= set(job.plan.learns)
    with torch.no_grad():
        want, untrained = (net(torch.tensor(x)).numpy() for net in (home, model))
    got = job.predict(x)
    assert np.abs(got - want).mean() < 0.15 * np.abs(want - want.mean(0)).mean()
    assert np.abs(got - want).mean() < 0.5 * np.abs(got - untrained).mean()


@pytest.mark.parametrize("precision", ["int8", INT16], ids=["f32", "int16"])
def test_what_is_saved_goes_on_with_the_same_bits(precision: Any, tmp_path: Path) -> None:
    model = network()
    whole, half = compiled(model, precision), compiled(model, precision)
    learned(whole, 20)
    x, y = images(8 * 20)
    for i in range(0, 80, 8):
        half.train_step(x[i : i + 8], y[i : i + 8])
    half.save(tmp_path / "half.smg")
    half.checkpoint(tmp_path / "half.ckpt")
    again, resumed = smidgen.load(tmp_path / "half.smg"), compiled(model, precision)
    resumed.resume(tmp_path / "half.ckpt")
    for job in (again, resumed):
        for i in range(80, 160, 8):
            job.train_step(x[i : i + 8], y[i : i + 8])
        for name, value in whole.state_dict().items():
            np.testing.assert_array_equal(job.state_dict()[name], value, err_msg=name)


def test_a_state_dict_comes_back_as_the_same_integers() -> None:
    job, other = compiled(network()), compiled(network())
    learned(job, 20)
    other.load_state_dict(job.state_dict())
    x, _ = images(50, 4)
    np.testing.assert_array_equal(job.predict(x), other.predict(x))


# -- how it fits -------------------------------------------------------------------------------------------------------


def trained_bits(job: smidgen.Job) -> tuple[list[float], dict[str, bytes]]:
    return learned(job, 5), {name: value.tobytes() for name, value in job.state_dict().items()}


@pytest.mark.parametrize("kind", ["plan", "page", "rows"])
def test_techniques_leave_the_bits_alone(kind: str, tmp_path: Path) -> None:
    model = network()
    method = "last_layer" if kind == "rows" else "full"
    free = compiled(model, method=method, kernels="exact", memory=smidgen.Memory(stream=False))
    whole = free.plan.ram_bytes
    budget = {"plan": 0.9, "page": 0.7, "rows": 0.8}[kind] * whole
    page_to = tmp_path / "page.bin" if kind == "page" else None
    within = smidgen.Memory(budget=int(budget), page_to=page_to, accumulate=False if kind == "page" else None)
    tight = compiled(model, method=method, kernels="exact", memory=within)
    assert tight.plan.ram_bytes <= budget
    kinds = {d.kind for d in tight.plan.decisions}
    assert kinds & {"plan": {"recompute", "split", "micro_batch", "order", "place"}, "page": {"page"},
                    "rows": {"stream"}}[kind], kinds  # fmt: skip
    assert trained_bits(free) == trained_bits(tight)


@pytest.mark.parametrize("kind", ["plan", "page"])
def test_techniques_leave_the_bits_of_int16_gradients_alone(kind: str, tmp_path: Path) -> None:
    """But for micro-batches, whose parts have exponents of their own."""
    model = network()
    free = compiled(model, INT16, kernels="exact", memory=smidgen.Memory(accumulate=False))
    budget = int({"plan": 0.95, "page": 0.75}[kind] * free.plan.ram_bytes)
    page_to = tmp_path / "page.bin" if kind == "page" else None
    within = smidgen.Memory(budget=budget, page_to=page_to, accumulate=False)
    tight = compiled(model, INT16, kernels="exact", memory=within)
    assert tight.plan.ram_bytes <= budget
    assert trained_bits(free) == trained_bits(tight)


def test_micro_batches_leave_the_bits_alone() -> None:
    model = network()
    whole = compiled(model, kernels="exact")
    parts = compiled(model, kernels="exact", batch=2, memory=smidgen.Memory(accumulate=True))
    assert trained_bits(whole) == trained_bits(parts)


def test_exact_and_fast_kernels_compute_the_same_integers() -> None:
    model, (x, _) = network(), images(40, 8)
    exact, fast = (compiled(model, smidgen.Int8(head="int8"), kernels=kernels) for kernels in ("exact", "fast:2"))
    np.testing.assert_array_equal(exact.predict(x), fast.predict(x))


# -- options and errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("int8", [smidgen.Int8(calibrate="percentile"), smidgen.Int8(calibrate="mse"),
                                  smidgen.Int8(rounding="nearest"), smidgen.Int8(head="int8"), INT16])  # fmt: skip
def test_every_choice_learns(int8: smidgen.Int8) -> None:
    losses = learned(compiled(network(), int8))
    assert np.mean(losses[-10:]) < 0.8 * np.mean(losses[:10]), losses


def test_a_plan_says_what_is_int8_and_what_is_not() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Linear(8, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))

    torch.manual_seed(0)
    said = " ".join(d.why for d in compiled(Net().eval()).plan.decisions)
    assert "1 layers in int8, calibrated on 64 samples" in said
    assert "head in f32: the last layer" in said
    assert "group_norm" in said


def test_data_that_tells_nothing_is_refused() -> None:
    x, model = images(64)[0], network()
    bad = x.copy()
    bad[5, 0, 3, 3] = np.nan
    for data, said in ((None, "has no samples"), (bad, "NaN or infinity"), (np.ones_like(x), "is 1 everywhere")):
        with pytest.raises(BadCalibration, match=said):
            compiled(model, data=data)
    with pytest.warns(UserWarning, match="calibrated on 3 samples"):
        compiled(model, data=x[:3])


def test_precision_that_means_nothing_is_refused() -> None:
    with pytest.raises(BadOption, match="precision='int4' is not known"):
        compiled(network(), "int4")
    with pytest.raises(BadOption, match="does not go with bn='batch'"):
        compiled(network(), bn="batch")
    with pytest.raises(CannotQuantize, match="method 'lora:4' does not learn in int8"):
        compiled(network(), method="lora:4")
    with pytest.raises(CannotQuantize, match="nothing of the network can be int8"):
        compiled(nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, CLASSES)))
