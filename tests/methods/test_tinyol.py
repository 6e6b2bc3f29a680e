"""TinyOL: one layer learns sample by sample beside a frozen network, as PyTorch would, from a start that is the network
as it was. Needs torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smidgen
from smidgen import SGD, Adam, Classes, Memory, ops
from smidgen.compiler.graph import interp
from smidgen.compiler.options import Options
from smidgen.compiler.pipeline import Lowering
from smidgen.compiler.torch_import.capture import import_model
from smidgen.errors import BadOption, CannotStream
from smidgen.methods import TinyOL
from smidgen.methods.tinyol import EPS, LIMIT
from tests.support.int8_values import rounded

LR = 0.05


class Conv(nn.Module):
    """Batch-norm, a residual block, dropout before the classifier."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.norm = nn.Conv2d(2, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8)
        self.deep, self.point = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 8, 1)
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(8, 5)
        for buffer, low, high in ((self.norm.running_mean, -1, 1), (self.norm.running_var, 0.5, 2)):
            assert buffer is not None
            nn.init.uniform_(buffer, low, high)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = x + self.point(torch.relu(self.deep(x)))
        return self.head(self.drop(x.mean((2, 3))))


class Words(nn.Module):
    """A layer of a transformer, and a score for each position."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.inside = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.inside(x)).mean(1)


def images() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 2, 1))


def flat() -> nn.Module:
    """The classifier reads a flattened image."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(2, 4, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 4))


def line() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Conv1d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv1d(6, 3, 3, padding=1))


NETS: dict[str, tuple[Any, tuple[int, ...], str]] = {
    "conv": (Conv, (2, 8, 8), "cross_entropy"),
    "sequence": (Words, (5, 8), "cross_entropy"),
    "images": (images, (2, 6, 6), "mse"),
    "flat": (flat, (2, 8, 8), "cross_entropy"),
    "line": (line, (3, 10), "mse"),
}
METHODS = ["tinyol", "tinyol:attach"]


def samples(name: str, count: int, seed: int = 0) -> tuple[Any, Any]:
    _, shape, loss = NETS[name]
    rng = np.random.default_rng(seed)
    x = (0.3 + rng.standard_normal((count, *shape))).astype(np.float32)
    return x, x if loss == "mse" else rng.integers(0, 3, count)


def compiled(name: str, method: Any = "tinyol", batch: int = 4, **more: Any) -> smidgen.Job:
    build, shape, loss = NETS[name]
    given = {"optimizer": SGD(LR), "kernels": "exact", **more}
    return smidgen.compile(build().eval(), torch.zeros(batch, *shape), method=method, loss=loss, **given)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("method", METHODS)
def test_the_first_prediction_is_that_of_the_network_to_the_bit(name: str, method: str) -> None:
    """Also after calibration: whatever the statistics are, the layer is of zeros."""
    x, _ = samples(name, 40)
    job, plain = compiled(name, method), compiled(name, "last_layer")
    np.testing.assert_array_equal(job.predict(x), plain.predict(x))
    job.calibrate(x)
    np.testing.assert_array_equal(job.predict(x), plain.predict(x))
    assert set(job.plan.learns) == {"tinyol.weight", "tinyol.bias"}


class Same:
    """What the job does, in PyTorch and float64: features, moments, the layer."""

    def __init__(self, name: str, method: str, job: smidgen.Job) -> None:
        build, _, self.loss = NETS[name]
        self.model, self.attach = build().double().eval(), method.endswith("attach")
        state, self.flat = job.state_dict(), name == "flat" and not self.attach
        self.weight, self.bias = (torch.tensor(state[f"tinyol.{k}"]).double() for k in ("weight", "bias"))
        for value in (self.weight, self.bias):
            value.requires_grad = True
        center, mean, var = self.as_flattened(torch.tensor(state["tinyol.moments"][:3]).double())
        self.mean, self.std = center + mean, (var + 1e-8).sqrt()

    def as_flattened(self, values: torch.Tensor) -> torch.Tensor:
        """Of a flattened image [height, width, channels], as PyTorch flattens it."""
        return values.view(-1, 4, 4, 4).permute(0, 3, 1, 2).reshape(values.shape) if self.flat else values

    def layer(self, x: torch.Tensor, channels: int, op: Any) -> torch.Tensor:
        last = x.movedim(channels, -1)
        z = ((last - self.mean) / self.std).clamp(-LIMIT, LIMIT).movedim(-1, channels)
        y: torch.Tensor = op(z)
        return y

    def __call__(self, x: Any) -> torch.Tensor:
        last = [m for m in self.model.modules() if isinstance(m, (nn.Linear, nn.Conv2d, nn.Conv1d))][-1]
        image = isinstance(last, (nn.Conv1d, nn.Conv2d))

        def beside(module: Any, given: Any, result: torch.Tensor) -> torch.Tensor:
            def op(z: torch.Tensor) -> torch.Tensor:
                if isinstance(last, nn.Linear):
                    return F.linear(z, self.as_flattened(self.weight), self.bias)
                w = self.weight.permute(0, 3, 1, 2)  # [outputs, height, width, inputs]
                if isinstance(last, nn.Conv1d):
                    return F.conv1d(z, w[:, :, 0], self.bias, last.stride, last.padding)  # type: ignore[arg-type]
                return F.conv2d(z, w, self.bias, last.stride, last.padding)  # type: ignore[arg-type]

            return result + self.layer(given[0], 1 if image else -1, op)

        hook = None if self.attach else last.register_forward_hook(beside)
        y: torch.Tensor = self.model(torch.as_tensor(x).double())
        if hook is not None:
            hook.remove()
            return y
        axis = 1 if y.dim() == 4 else -1

        def op(z: torch.Tensor) -> torch.Tensor:
            return F.linear(z.movedim(axis, -1), self.weight, self.bias).movedim(-1, axis)

        return y + self.layer(y, axis, op)

    def of_loss(self, x: Any, y: Any) -> torch.Tensor:
        if self.loss == "mse":
            return F.mse_loss(self(x), torch.as_tensor(y).double())
        return F.cross_entropy(self(x), torch.as_tensor(y))


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kernels", ["exact", "fast"])
@pytest.mark.parametrize("entry", ["learn", "train"])
def test_the_layer_learns_as_in_pytorch_and_nothing_else_changes(
    name: str, method: str, kernels: str, entry: str
) -> None:
    job = compiled(name, method, kernels=kernels)
    job.calibrate(samples(name, 60, 1)[0])
    rng = np.random.default_rng(2)
    before = job.state_dict()
    before |= {
        k: (0.3 * rng.standard_normal(before[k].shape)).astype(np.float32) for k in ("tinyol.weight", "tinyol.bias")
    }
    job.load_state_dict(before)
    x, y = samples(name, 4, 3)
    torch_layer = Same(name, method, job)
    predicted = torch_layer(x).detach().numpy()
    np.testing.assert_allclose(job.predict(x), predicted, rtol=1e-4, atol=1e-5)
    if entry == "learn":
        np.testing.assert_allclose(job.learn(x, y), predicted, rtol=1e-4, atol=1e-5)
    else:
        job.train_step(x, y)
    torch_layer.of_loss(x, y).backward()
    after = job.state_dict()
    for key, own in (("tinyol.weight", torch_layer.weight), ("tinyol.bias", torch_layer.bias)):
        grad = own.grad
        assert grad is not None
        got = (before[key] - after[key]) / LR
        np.testing.assert_allclose(
            got, grad.numpy(), rtol=2e-3, atol=2e-4 * float(grad.abs().max()) + 1e-5, err_msg=key
        )
    moved = {k for k in after if not np.array_equal(after[k], before[k])}
    assert moved == {"tinyol.weight", "tinyol.bias", "tinyol.moments", "tinyol.seen"}


@pytest.mark.parametrize("name", ["conv", "images"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("optimizer", [SGD(LR), SGD(LR, momentum=0.9), Adam(0.01)], ids=["sgd", "momentum", "adam"])
def test_exact_kernels_do_what_the_interpreter_does(name: str, method: str, optimizer: Any) -> None:
    """Ten samples, one by one, through the reference and beyond: outputs, losses and state."""
    build, shape, loss = NETS[name]
    more = {"optimizer": optimizer, "method": [TinyOL("attach" if "attach" in method else "", samples=4)]}
    job = compiled(name, **more)
    imported = import_model(build().eval(), torch.zeros(4, *shape), loss=loss)
    entries = Lowering(imported).entries(Options(optimizer, tuple(more["method"]), 4, "", False, 0, 0, ()))
    graph = entries.graphs["learn"]
    state = {
        name: np.asarray(graph.data[name])
        for name, t in graph.tensors.items()
        if t.role.is_state and name in graph.data
    }
    updated = {
        node.outs[out]: node.ins[source] for node in graph.nodes if not ops.get(node.op).is_view
        for out, source in ops.get(node.op).shares.items()
    }  # fmt: skip
    for x, y in zip(*samples(name, 10), strict=True):
        target = np.asarray(y)[None]
        got = job.learn(x, y)
        values = {graph.inputs[0]: x[None].astype(np.float64), graph.inputs[1]: target}
        run = interp.run(graph, {**values, **state}, n=1)
        np.testing.assert_allclose(got, run["output"][0], rtol=2e-5, atol=2e-5)
        state |= {first: run[last] for last, first in updated.items()}
    for key, value in job.state_dict().items():
        np.testing.assert_allclose(value, state[key].reshape(value.shape), rtol=2e-4, atol=2e-5, err_msg=key)


@pytest.mark.parametrize("name", ["conv", "flat", "images"])
@pytest.mark.parametrize("const", ["f32", "int8"])
def test_merged_is_unmerged(name: str, const: str, tmp_path: Path) -> None:
    build, shape, loss = NETS[name]
    model = rounded(build().eval())
    job = smidgen.compile(
        model, torch.zeros(4, *shape), method="tinyol", loss=loss, optimizer=SGD(LR), kernels="exact",
        memory=Memory(const=const),
    )  # fmt: skip
    x, y = samples(name, 40)
    job.load_into(model)  # before there is a reference
    for sample, label in zip(x, y, strict=True):
        job.learn(sample, label)
    job.load_into(model)
    with torch.no_grad():
        wanted = model(torch.tensor(x)).numpy()
    np.testing.assert_allclose(job.predict(x), wanted, rtol=0, atol=1e-5)
    job.export_weights(tmp_path / "w.safetensors")
    from safetensors.numpy import load_file

    assert not [k for k in load_file(tmp_path / "w.safetensors") if "tinyol" in k]


class Even(nn.Module):
    """Squeeze and excite; what the classifier reads varies by a thousandth of itself, if the images hardly differ."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.down, self.up = nn.Conv2d(2, 16, 3, 2, 1), nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1)
        self.head = nn.Linear(16, 5)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.sigmoid(self.stem(x))
        excited: torch.Tensor = x * torch.sigmoid(self.up(torch.relu(self.down(x.mean((2, 3), keepdim=True)))))
        return excited.mean((2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))


@pytest.mark.parametrize("spread", [1.0, 0.01])
def test_merged_is_unmerged_but_for_the_rounding_of_what_the_layer_reads(spread: float) -> None:
    """Numbers that vary little beside their size have few digits that tell them apart, merged or not."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 5, 200)
    x = (1 + spread * rng.standard_normal((200, 2, 16, 16)) * (1 + 0.3 * y[:, None, None, None])).astype(np.float32)
    model = Even().eval()
    job = smidgen.compile(model, torch.zeros(1, 2, 16, 16), method="tinyol", optimizer=SGD(0.05), kernels="exact")
    for sample, label in zip(x, y, strict=True):
        job.learn(sample, label)
    unmerged, own = job.predict(x), {k: v.astype(np.float64) for k, v in job.state_dict().items()}
    before = {name: value.double().numpy() for name, value in model.state_dict().items()}
    job.load_into(model)
    with torch.no_grad():
        merged = model(torch.tensor(x)).numpy()
        f = model.double().features(torch.tensor(x).double()).numpy()
    weight = model.head.weight.detach().numpy()
    exact = before["head.weight"] + own["tinyol.weight"] / np.sqrt(own["tinyol.moments"][2] + EPS)
    np.testing.assert_allclose(weight, exact, rtol=1e-7)
    rounding = 2.0**-24 * (np.abs(f) @ np.abs(weight).T).max()
    assert np.abs(merged - unmerged).max() <= 8 * rounding
    assert (rounding < 1e-5) == (spread == 1.0)


def test_what_no_weight_of_the_model_can_do_is_not_merged() -> None:
    from smidgen.errors import BadData

    for name, method in (("line", "tinyol"), ("sequence", "tinyol"), ("conv", "tinyol:attach")):
        with pytest.raises(BadData, match="tinyol"):
            compiled(name, method).load_into(NETS[name][0]())


def test_new_classes_are_learned_beside_old_ones(tmp_path: Path) -> None:
    for method in METHODS:
        job = compiled("conv", method, classes=Classes(spare=2, names=("a", "b", "c", "d", "e")), optimizer=SGD(0.2))
        x, _ = samples("conv", 64, 5)
        old = job.predict(x)
        np.testing.assert_array_equal(old, compiled("conv", "last_layer").predict(x))
        job.calibrate(x)
        label = job.add_class("new")
        assert job.learn(x[0], label).shape == (6,)
        new = x + np.linspace(-1, 1, 128).reshape(2, 8, 8).astype(np.float32)
        for i in range(200):
            job.learn(new[i % 64], label)
            job.learn(x[i % 64], int(old[i % 64].argmax()))
        assert (job.predict(new).argmax(1) == label).mean() > 0.8
        assert (job.predict(x).argmax(1) == old.argmax(1)).mean() > 0.8
        job.save(tmp_path / "net.smg")
        np.testing.assert_array_equal(smidgen.load(tmp_path / "net.smg", kernels="exact").predict(x), job.predict(x))
        assert job.state_dict()["tinyol.weight"].shape[0] == 6


def test_a_program_of_another_method_has_no_entry_more() -> None:
    assert set(compiled("conv", "last_layer").program.entries) == {"infer", "train", "evaluate"}
    learning = {"learn", "observe", "detect", "drift", "restart"}
    assert set(compiled("conv").program.entries) == {"infer", "train", "evaluate", *learning}
    replaying = compiled("conv", memory=smidgen.Memory(replay=smidgen.Replay(8)))
    assert set(replaying.program.entries) == {"infer", "train", "evaluate", "features", "judge", *learning}


def test_frozen_weights_stay_in_flash_and_little_is_in_ram() -> None:
    job, plain = compiled("conv"), compiled("conv", "last_layer")
    assert job.program.state_bytes <= plain.program.state_bytes + 4 * (5 * 8) + 4 * 3 + 4 * 8 + 6 * 16
    assert job.program.arena_bytes <= 1.1 * plain.program.arena_bytes


def test_other_parts_are_refused() -> None:
    with pytest.raises(BadOption, match="tinyol:head"):
        compiled("conv", "tinyol:head")
    for bad in (TinyOL, lambda part: TinyOL(samples=part)):
        with pytest.raises(BadOption):
            bad("head")
    assert [str(TinyOL()), str(TinyOL("attach"))] == METHODS


def test_a_network_without_a_layer_can_have_one_attached() -> None:
    net = nn.Sequential(nn.ReLU(), nn.AvgPool2d(2))
    with pytest.raises(CannotStream, match="no last layer") as error:
        smidgen.compile(net, torch.zeros(2, 3, 4, 4), method="tinyol", loss="mse")
    assert "tinyol:attach" in str(error.value)
    job = smidgen.compile(net, torch.zeros(2, 3, 4, 4), method="tinyol:attach", loss="mse")
    assert job.state_dict()["tinyol.weight"].shape == (3, 3)


def test_a_loss_that_is_not_for_evaluation_is_refused() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> Any:
            y = self.head(x)
            return (y, y) if self.training else y

    def loss(output: Any, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output[0], target) + F.cross_entropy(output[1], target)

    with pytest.raises(CannotStream, match="evaluation mode"):
        smidgen.compile(
            Two().train(), torch.zeros(4, 4), method="tinyol", loss=loss, target=torch.zeros(4, dtype=torch.int64)
        )


def test_a_proof_says_that_pytorch_lacks_what_a_method_added() -> None:
    from smidgen.report.proof import prove

    model, rng = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 3)), np.random.default_rng(0)
    facts: dict[str, Any] = {
        "loss": "cross_entropy",
        "optimizer": "sgd",
        "lr": None,
        "bn": "frozen",
        "method": "tinyol",
    }
    with pytest.raises(BadOption, match="cannot be compared with PyTorch after a method has changed it"):
        prove(model, "net", lambda: [rng.standard_normal((4, 16)).astype(np.float32)], rng, **facts)
