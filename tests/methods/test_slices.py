"""Slices of parameters learn as in PyTorch with a mask, everything else keeps its bits, and a slice costs what it
should. Needs torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from smidgen import SGD, Adam, Update
from smidgen.errors import BadData, CannotUpdate
from tests.support.arguments import compiled as compiled_with
from tests.support.int8_values import rounded


class Tied(nn.Module):
    """One weight in two places, and a table of words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.mix = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.mix(torch.tanh(self.mix(self.words(tokens))))
        return self.head(x.mean(1))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x).mean(1))


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, stride=2, padding=1), nn.ReLU6(), nn.Conv2d(6, 6, 3, padding=1, groups=6),
        nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 8, 1, bias=False), nn.BatchNorm2d(8), nn.Hardswish(),
        nn.Conv2d(8, 4, 3, groups=2), nn.ConvTranspose2d(4, 3, 2), nn.Flatten(), nn.Linear(48, 3),
    )  # fmt: skip


def series() -> nn.Module:
    return nn.Sequential(nn.Conv1d(3, 5, 4, dilation=2), nn.Tanh(), nn.Conv1d(5, 4, 3), nn.Flatten(), nn.Linear(48, 3))


NETS: Mapping[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "images": (images, lambda: torch.randn(5, 2, 10, 10)),
    "series": (series, lambda: torch.randn(5, 3, 20)),
    "tied": (Tied, lambda: torch.randint(0, 11, (5, 4))),
    "attention": (Attention, lambda: torch.randn(5, 4, 8)),
}
CASES: Mapping[str, tuple[str, list[Any]]] = {
    "outputs": ("images", [Update("0.weight", 0, (4, 1))]),
    "inputs": ("images", [Update("5.weight", 1, (5, 0, 3)), "6.bias"]),
    "depthwise": ("images", [Update("2.weight", 0, (1, 2, 5)), Update("3.bias", 0, (0, 5))]),
    "groups": ("images", [Update("8.weight", 0, (3,)), Update("8.weight", 0, (0,)), Update("8.bias", 0, (1,))]),
    "inputs-of-groups": ("images", [Update("8.weight", 1, (2, 1))]),
    "window": ("images", [Update("0.weight", 2, (1,)), Update("9.weight", 1, (2,))]),
    "norm": ("images", [Update("6.weight", 0, (7, 2)), Update("6.bias", 0, (7, 2))]),
    "all-of-it": ("images", [Update("11.weight", 1, range(48)), "11.bias"]),
    "one-element": ("images", [Update("11.bias", 0, (2,))]),
    "over-time": ("series", [Update("0.weight", 1, (2,)), Update("2.weight", 0, (3, 0)), "4.weight"]),
    "table": ("tied", [Update("words.weight", 0, (10, 3, 4))]),
    "features": ("tied", [Update("words.weight", 1, (5,)), Update("mix.bias", 0, (1, 4))]),
    "twice": ("tied", [Update("mix.weight", 1, (0, 5)), "head.bias"]),
    "heads": ("attention", [Update("layer.self_attn.in_proj_weight", 0, (0, 1, 2, 3, 16, 17, 18, 19))]),
    "after-heads": ("attention", [Update("layer.self_attn.out_proj.weight", 1, (4, 5, 6, 7)), "head.weight"]),
    "hidden": ("attention", [Update("layer.linear1.weight", 0, (3, 9)), Update("layer.linear2.weight", 1, (3, 9))]),
}


def model_of(net: str) -> nn.Module:
    torch.manual_seed(3)
    model = NETS[net][0]()
    for name, buffer in model.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            buffer.copy_(torch.rand(buffer.shape) + 0.5)
    for name, parameter in model.named_parameters():
        if name in ("3.weight", "3.bias", "6.weight", "6.bias") and parameter.ndim == 1:
            parameter.data.copy_(torch.randn(parameter.shape))
    return model.eval()


def data_of(net: str, steps: int = 3) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(4)
    return [(NETS[net][1](), torch.randint(0, 3, (5,))) for _ in range(steps)]


def masks(model: nn.Module, parts: list[Any]) -> dict[str, torch.Tensor]:
    """1 where a parameter learns."""
    params = dict(model.named_parameters())
    found: dict[str, torch.Tensor] = {}
    for part in parts:
        update = Update(part) if isinstance(part, str) else part
        mask = found.setdefault(update.param, torch.zeros_like(params[update.param]))
        where = () if update.axis is None else (slice(None),) * update.axis + (list(update.indices or ()),)
        mask[where] = 1
    return found


def torch_trained(model: nn.Module, case: str, optimizer: Any) -> tuple[dict[str, np.ndarray], list[float]]:
    net, parts = CASES[case]
    params, learn = dict(model.named_parameters()), masks(model, parts)
    chosen = [params[name] for name in learn]
    kinds = {SGD: lambda: torch.optim.SGD(chosen, 0.1, momentum=0.9), Adam: lambda: torch.optim.Adam(chosen, 0.02)}
    own, losses = kinds[type(optimizer)](), []
    for x, y in data_of(net):
        own.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        for name, mask in learn.items():
            params[name].grad *= mask  # type: ignore[operator]
        own.step()
        losses.append(float(loss.detach()))
    return {name: params[name].detach().numpy() for name in learn}, losses


def compiled(case: str, **options: Any) -> smidgen.Job:
    net, parts = CASES[case]
    options = {"kernels": "exact", "optimizer": SGD(0.1, momentum=0.9), **options}
    return compiled_with(model_of(net), data_of(net)[0][0], method=parts, **options)


@pytest.mark.parametrize("optimizer", [SGD(0.1, momentum=0.9), Adam(0.02)], ids=["momentum", "adam"])
@pytest.mark.parametrize("case", CASES)
def test_a_slice_learns_as_in_torch_and_nothing_else_changes(case: str, optimizer: Any) -> None:
    net, parts = CASES[case]
    before = model_of(net).state_dict()
    want, losses = torch_trained(model_of(net), case, optimizer)
    job = compiled(case, optimizer=optimizer)
    got_losses = [job.train_step(x, y) for x, y in data_of(net)]
    np.testing.assert_allclose(got_losses, losses, rtol=2e-5)
    got = job.state_dict()
    assert set(got) == set(want)
    for name, mask in masks(model_of(net), parts).items():
        kept = mask.numpy() == 0
        np.testing.assert_array_equal(got[name][kept], before[name].numpy()[kept], err_msg=name)
        scale = max(1e-3, float(np.abs(want[name] - before[name].numpy()).max()))
        assert np.abs(got[name] - want[name]).max() < 2e-4 * scale, name
        assert not np.array_equal(got[name], before[name].numpy())
    fresh = model_of(net)
    job.load_into(fresh)
    for name, value in fresh.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), got.get(name, before[name].numpy()), err_msg=name)


@pytest.mark.parametrize("case", ["inputs", "depthwise", "twice"])
def test_every_way_to_fit_gives_the_same_bits(case: str, tmp_path: Path) -> None:
    free = compiled(case)
    losses = [free.train_step(x, y) for x, y in data_of(CASES[case][0])]
    plan = free.plan
    budget = plan.ram_bytes - plan.arena_bytes // 4
    for options in (
        {"accumulate": True, "batch": 2},
        {"budget": budget},
        {"budget": budget, "page_to": tmp_path / "p"},
    ):
        job = compiled(case, **options)
        assert [job.train_step(x, y) for x, y in data_of(CASES[case][0])] == losses, options
        for name, value in job.state_dict().items():
            np.testing.assert_array_equal(value, free.state_dict()[name], err_msg=name)


def test_a_slice_goes_on_after_a_save_and_takes_weights_from_outside(tmp_path: Path) -> None:
    job, whole = compiled("inputs"), compiled("inputs")
    steps = data_of("images")
    for x, y in steps:
        whole.train_step(x, y)
    job.train_step(*steps[0])
    job.save(tmp_path / "net.smg")
    again = smidgen.load(tmp_path / "net.smg", kernels="exact")
    for x, y in steps[1:]:
        again.train_step(x, y)
    for name, value in whole.state_dict().items():
        np.testing.assert_array_equal(again.state_dict()[name], value)
    momentum = whole.optimizer_state()["5.weight"]["momentum"]
    assert momentum.shape == (8, 6, 1, 1)
    assert {5} <= set(np.flatnonzero(np.abs(momentum).sum((0, 2, 3)))) <= {0, 3, 5}
    given = model_of("images").state_dict()["5.weight"].numpy().copy()
    given[:, [0, 3, 5]] = 7
    again.load_state_dict({"5.weight": given})
    now = again.state_dict()["5.weight"]
    assert (now[:, [0, 3, 5]] == 7).all()
    np.testing.assert_array_equal(now[:, [1, 2, 4]], model_of("images").state_dict()["5.weight"].numpy()[:, [1, 2, 4]])


def test_a_slice_costs_what_it_should() -> None:
    """State, kept activations and arithmetic of the weight gradient are those of the slice."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 1), nn.ReLU(), nn.Conv2d(64, 64, 1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 4),
    ).eval()  # fmt: skip
    x = torch.randn(8, 3, 16, 16)

    def plan(*parts: Any) -> Any:
        return compiled_with(model, x, method=list(parts), kernels="exact", optimizer=SGD(0.1, momentum=0.9)).plan

    whole, none = plan("2.weight", "4.weight", "8.bias"), plan("8.bias")
    eighth = plan(Update("2.weight", 1, range(4)), Update("4.weight", 1, range(8)), "8.bias")
    learned = (2048 + 4096) // 8
    assert eighth.learned_parameters == learned + 4
    assert eighth.state_bytes <= none.state_bytes + 2 * 4 * learned + 64
    macs = {name: found.cost.macs["train"] for name, found in (("whole", whole), ("eighth", eighth))}
    gradients = 8 * 256 * (2048 + 4096)
    assert macs["whole"] - macs["eighth"] == gradients * 7 // 8
    kept = 4 * 8 * 256 * (32 + 64)  # of the activations before both layers, whole
    assert whole.arena_bytes - eighth.arena_bytes >= 0.7 * (kept * 7 // 8)


def mostly_images() -> nn.Module:
    """Most of its bytes are activations."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1, groups=64), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 5),
    ).eval()  # fmt: skip


@pytest.mark.parametrize("optimizer", [SGD(0.1), SGD(0.1, momentum=0.9)], ids=["sgd", "momentum"])
@pytest.mark.parametrize(
    ("name", "axis", "length"),
    [("0.weight", 0, 32), ("2.weight", 0, 64), ("2.weight", 1, 32), ("4.weight", 0, 64), ("8.weight", 0, 5),
     ("8.weight", 1, 64)],
)  # fmt: skip
def test_no_slice_costs_more_than_the_whole(name: str, axis: int, length: int, optimizer: Any) -> None:
    """However much of it learns: but for the room in which four outputs of the weight are put together."""
    x = torch.randn(2, 3, 16, 16)

    def ram(part: Any) -> int:
        job = compiled_with(mostly_images(), x, method=[part, "2.bias"], kernels="exact", optimizer=optimizer)
        return int(job.plan.ram_bytes)

    whole, weight = ram(name), mostly_images().state_dict()[name]
    room = 4 * weight[:4].numel() if name != "4.weight" else 0
    for count in sorted({1, length // 2, 3 * length // 4, length - 1}):
        left_out = 4 * weight.numel() * (length - count) // length
        assert ram(Update(name, axis, range(count))) <= whole - left_out + room + 256, count


def test_what_several_layers_read_a_part_of_is_kept_once_and_in_part() -> None:
    """A block whose skip has a layer, too: both learn some input channels of one activation."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.stem, self.main = nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(64, 8, 3, 2, 1)
            self.skip, self.head = nn.Conv2d(64, 8, 1, 2), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.relu(self.stem(x))
            return self.head(torch.relu(self.main(x) + self.skip(x)).mean((2, 3)))

    x = torch.randn(8, 3, 16, 16)

    def arena(main: Any, skip: Any) -> int:
        parts = [Update("main.weight", 1, main), Update("skip.weight", 1, skip)]
        return compiled_with(Block().eval(), x, method=["stem.bias", *parts], kernels="exact").plan.arena_bytes

    activation, room = 4 * 8 * 256 * 64, 12 << 10  # what weights are put together in
    frozen = compiled_with(Block().eval(), x, method=["stem.bias"], kernels="exact").plan.arena_bytes
    assert arena(range(8), range(8)) - frozen <= activation // 8 + room  # the same channels: once
    assert arena(range(8), range(32, 48)) - frozen <= activation * 3 // 8 + room


@pytest.mark.parametrize("axis", [0, 1], ids=["outputs", "inputs"])
def test_a_slice_of_everything_is_the_whole(axis: int) -> None:
    x, shape = torch.randn(2, 3, 6, 6), (192, 128)

    def job(part: Any) -> smidgen.Job:
        return compiled_with(wide(), x, method=[part, "11.bias"], kernels="exact")

    every, whole = job(Update("2.weight", axis, range(shape[axis]))), job("2.weight")
    assert every.plan.ram_bytes == whole.plan.ram_bytes
    assert every.program.kernels == whole.program.kernels
    assert every.state_dict(learned=True)["2.weight"].indices is None


def wide() -> nn.Module:
    """Most of its bytes are weights."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 128, 3, padding=1), nn.ReLU(), nn.Conv2d(128, 192, 1), nn.ReLU(),
        nn.Conv2d(192, 192, 3, groups=192), nn.ReLU(), nn.Conv2d(192, 96, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(96 * 4, 256), nn.ReLU(), nn.Linear(256, 4),
    ).eval()  # fmt: skip


@pytest.mark.parametrize("axis", [0, 1], ids=["outputs", "inputs"])
def test_the_whole_weight_is_nowhere_in_ram(axis: int) -> None:
    """Beyond a step through frozen layers, RAM is that of the slice, its optimizer state, and what is kept for it."""
    x = torch.randn(2, 3, 6, 6)
    shapes = {"2.weight": (192, 128), "6.weight": (96, 192), "9.weight": (256, 384)}

    def plan(*parts: Any) -> Any:
        return compiled_with(wide(), x, method=["0.bias", *parts], kernels="exact", optimizer=SGD(0.1, momentum=0.9))

    frozen = plan().plan
    job = plan(*(Update(name, axis, range(0, shape[axis], 8)) for name, shape in shapes.items()))
    assert not any(kernel.startswith("put_") for kernel in job.program.kernels)
    whole = {4 * p.numel() for name, p in wide().named_parameters() if name in shapes}
    assert whole == {4 * 192 * 128, 4 * 96 * 192 * 9, 4 * 256 * 384}
    learned = sum(whole) // 8
    assert job.plan.state_bytes - frozen.state_bytes <= 2 * learned + 64
    kept = 4 * 2 * (36 * 128 + 16 * 192 + 384) // (8 if axis else 1)
    assert job.plan.ram_bytes - frozen.ram_bytes <= 1.1 * (2 * learned + kept) + 256


@pytest.mark.parametrize("kernels", ["exact", "fast"])
@pytest.mark.parametrize("axis", [0, 1], ids=["outputs", "inputs"])
def test_slices_of_int8_weights_train_as_those_of_f32(axis: int, kernels: str) -> None:
    x, y = torch.randn(2, 3, 6, 6), np.array([1, 3])
    parts = [
        Update("2.weight", axis, range(1, 60, 7)),
        Update("4.weight", 0, (3, 4, 99)),
        Update("9.weight", axis, (5,)),
    ]
    options: dict[str, Any] = {"method": ["0.bias", *parts], "kernels": kernels, "optimizer": SGD(0.1)}
    f32 = compiled_with(rounded(wide()), x, **options)
    int8 = compiled_with(rounded(wide()), x, memory=smidgen.Memory(const="int8"), **options)
    assert {"conv2d_w8_put_f32", "conv2d_dx_w8_put_f32", "linear_dx_w8_put_f32"} <= set(int8.program.kernels)
    assert int8.program.const_bytes < 0.35 * f32.program.const_bytes
    losses = [[job.train_step(x, y) for _ in range(4)] for job in (f32, int8)]
    if kernels == "fast":
        np.testing.assert_allclose(*losses, rtol=1e-5)
        return
    assert losses[0] == losses[1]
    for name, value in f32.state_dict().items():
        np.testing.assert_array_equal(value, int8.state_dict()[name], err_msg=name)


@pytest.mark.parametrize(
    ("update", "what", "help"),
    [
        (Update("0.weight", 4, (0,)), "'0.weight' has no axis 4", "axis=0 to 3"),
        (Update("0.weight", 0, (1, 6)), "'0.weight' has no index 6 along axis 0", "indices from 0 to 5"),
        (Update("0.bias", 1, (0,)), "'0.bias' has no axis 1", "axis=0 to 0"),
    ],
)
def test_a_slice_that_is_not_there_is_refused(update: Update, what: str, help: str) -> None:
    with pytest.raises(CannotUpdate, match=what) as caught:
        compiled_with(model_of("images"), data_of("images")[0][0], method=[update])
    assert caught.value.help == help


@pytest.mark.parametrize("indices", [torch.tensor([4, 1]), np.array([4, 1]), {1, 4}, [4, 1]], ids=type)
def test_indices_are_taken_from_whatever_lists_them(indices: Any) -> None:
    assert Update("0.weight", 0, indices) == Update("0.weight", 0, (1, 4))


@pytest.mark.parametrize(("axis", "indices"), [(-1, (0,)), (0, 3), (0, (0, 0)), (0, [1.0]), (0, slice(4)), ("0", (1,))])
def test_what_is_no_slice_says_what_would_be_one(axis: Any, indices: Any) -> None:
    with pytest.raises(CannotUpdate, match="is not a valid slice") as caught:
        Update("0.weight", axis, indices)
    assert caught.value.help == "Update('0.weight', axis=0, indices=range(8)), or (0, 3)"


def test_other_values_beside_a_slice_are_refused() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), torch.randn(5, 4)
    job = smidgen.compile(model, x, method=Update("0.weight", 0, (1, 4)), kernels="exact")
    state = job.state_dict()
    state["0.weight"][1] += 1
    job.load_state_dict(state)
    np.testing.assert_array_equal(job.state_dict()["0.weight"], state["0.weight"])
    other = {name: value.copy() for name, value in state.items()}
    other["0.weight"][1:3] += 1
    with pytest.raises(BadData, match="beside the slice that learns"):
        job.load_state_dict(other)
    np.testing.assert_array_equal(job.state_dict()["0.weight"], state["0.weight"])
