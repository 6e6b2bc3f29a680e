"""Methods of the field: sparse updates by a scheme, TinyTL and LoRA learn what PyTorch learns of the same network, and
start as the function that the network was. Needs torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smidgen
from smidgen import SGD, Memory
from smidgen.errors import BadData, BadOption, BadScheme, CannotUpdate, NothingToTrain
from smidgen.methods.lora import Lora
from smidgen.methods.sparse_update import Scheme, SparseUpdate
from smidgen.methods.tinytl import EPS, TinyTL
from tests.support.int8_values import rounded

LR = 0.05


class Net(nn.Module):
    """A stem, a residual block with a projection on its skip, a residual block, a block that halves the image."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.a1, self.a2, self.skip = (
            nn.Conv2d(8, 12, 3, 2, 1, bias=False),
            nn.Conv2d(12, 12, 1),
            nn.Conv2d(8, 12, 1, 2),
        )
        self.a1_norm = nn.BatchNorm2d(12)
        self.b1, self.b2 = nn.Conv2d(12, 12, 3, padding=1, groups=12), nn.Conv2d(12, 12, 1)
        self.c = nn.Conv2d(12, 10, 3, 2, 1, groups=2)
        self.head = nn.Linear(10, 5)
        for buffer, low, high in ((self.a1_norm.running_mean, -1, 1), (self.a1_norm.running_var, 0.5, 2)):
            assert buffer is not None
            nn.init.uniform_(buffer, low, high)

    def blocks(self, x: torch.Tensor) -> list[Any]:
        return [
            lambda x: self.a2(torch.relu(self.a1_norm(self.a1(x)))) + self.skip(x),
            lambda x: x + self.b2(torch.relu(self.b1(x))),
            lambda x: torch.relu(self.c(x)),
        ]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        for block in self.blocks(x):
            x = block(x)
        return self.head(x.mean((2, 3)))


class WithModules(Net):
    """TinyTL, written by hand."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        super().__init__()
        self.lite = nn.ParameterDict(
            {
                name.replace(".", "/"): nn.Parameter(torch.tensor(v))
                for name, v in state.items()
                if name.startswith("lite.")
            }
        )

    def module(self, number: int, x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        def own(name: str) -> torch.Tensor:
            value: torch.Tensor = self.lite[f"lite/{number}/{name}".replace(".", "/")]
            return value.permute(0, 3, 1, 2) if value.ndim == 4 else value

        def norm(h: torch.Tensor, name: str) -> torch.Tensor:
            return F.group_norm(h, max(1, h.shape[1] // 8), own(f"{name}.weight"), own(f"{name}.bias"), EPS)

        half = tuple(d // 2 for d in x.shape[2:]) if min(x.shape[2:]) >= 4 else (1, 1)
        w = own("conv1.weight")
        stride = x.shape[2] // like.shape[2]
        h = F.conv2d(F.adaptive_avg_pool2d(x, half), w, None, stride, w.shape[2] // 2, groups=x.shape[1] // w.shape[1])
        h = norm(F.conv2d(torch.relu(norm(h, "norm1")), own("conv2.weight")), "norm2")
        return F.interpolate(h, size=like.shape[2:], mode="bilinear", align_corners=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        for number, block in enumerate(self.blocks(x)):
            y = block(x)
            x = y + self.module(number, x, y)
        return self.head(x.mean((2, 3)))


def data(samples: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    return torch.randn(samples, 3, 16, 16, generator=g), torch.randint(0, 5, (samples,), generator=g)


def compiled(method: Any, **more: Any) -> Any:
    more = {"optimizer": SGD(LR), "kernels": "exact", **more}
    return smidgen.compile(Net().eval(), data()[0], method=method, **more)


def moved(job: Any) -> dict[str, Any]:
    """What one step changed, by the learning rate: the gradients."""
    before = job.state_dict()
    job.train_step(*data())
    return {name: (before[name] - value) / LR for name, value in job.state_dict().items()}


def check_moved(job: Any, wanted: Mapping[str, torch.Tensor | None]) -> None:
    for name, got in moved(job).items():
        grad = wanted[name]
        assert grad is not None, name
        atol = 2e-4 * float(grad.abs().max()) + 1e-5
        np.testing.assert_allclose(got, grad.numpy(), rtol=2e-3, atol=atol, err_msg=name)


# -- TinyTL -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["tinytl", "tinytl:residual", TinyTL("bias")])
def test_it_begins_as_the_network_was_to_the_bit(method: Any) -> None:
    x, _ = data()
    np.testing.assert_array_equal(compiled(method).predict(x), compiled("bias").predict(x))


def test_modules_stand_beside_every_block_and_learn_with_biases_and_classifier() -> None:
    names = set(compiled("tinytl").plan.learns)
    modules = {n.split(".")[1] for n in names if n.startswith("lite.")}
    assert modules == {"0", "1", "2"}
    assert {n for n in names if not n.startswith("lite.")} == {
        "stem.bias", "a1_norm.bias", "a2.bias", "skip.bias", "b1.bias", "b2.bias", "c.bias", "head.weight", "head.bias",
    }  # fmt: skip
    residual = set(compiled("tinytl:residual").plan.learns)
    assert {n for n in residual if not n.startswith("lite.")} == {"head.weight", "head.bias"}
    assert not any(n.startswith("lite.") for n in compiled("tinytl:bias").plan.learns)


def test_modules_learn_as_in_pytorch() -> None:
    job = compiled("tinytl")
    state = job.state_dict()
    rng = np.random.default_rng(0)
    state |= {
        n: rng.standard_normal(v.shape).astype(np.float32) for n, v in state.items() if n.endswith("norm2.weight")
    }
    job.load_state_dict(state)
    model = WithModules(state).eval()
    x, y = data()
    np.testing.assert_allclose(job.predict(x), model(x).detach().numpy(), rtol=1e-4, atol=1e-5)
    F.cross_entropy(model(x), y).backward()
    wanted = {n.removeprefix("lite.").replace("/", "."): p.grad for n, p in model.named_parameters()}
    for name, got in moved(job).items():
        grad = wanted[name]
        assert grad is not None, name
        np.testing.assert_allclose(
            got, grad.numpy(), rtol=2e-3, atol=2e-4 * float(grad.abs().max()) + 1e-5, err_msg=name
        )


def test_what_has_no_image_has_no_modules() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    assert set(smidgen.compile(model, torch.randn(4, 6), method="tinytl").plan.learns) == {
        "0.bias",
        "2.weight",
        "2.bias",
    }
    with pytest.raises(BadOption, match="tinytl:head"):
        compiled("tinytl:head")


def test_modules_cannot_go_back_into_a_model_without_them() -> None:
    with pytest.raises(BadData, match=r"lite\.0"):
        compiled("tinytl").load_into(Net())


# -- LoRA -------------------------------------------------------------------------------------------------------------


def test_adapters_stand_beside_matrices_that_are_larger() -> None:
    job = compiled("lora:2")
    adapted = {n.removesuffix(".lora_up") for n in job.plan.learns if n.endswith(".lora_up")}
    assert adapted == {"a2.weight", "skip.weight", "b2.weight"}
    assert {"head.weight", "head.bias"} <= set(job.plan.learns)
    x, _ = data()
    np.testing.assert_array_equal(job.predict(x), compiled("bias").predict(x))


def test_adapters_learn_as_in_pytorch() -> None:
    job = compiled("lora:2")
    rng = np.random.default_rng(0)
    state = {n: rng.standard_normal(v.shape).astype(np.float32) for n, v in job.state_dict().items() if "lora" in n}
    job.load_state_dict(state)
    model, x, y = Net().eval(), *data()
    thin = {n: torch.tensor(v, requires_grad=True) for n, v in state.items()}
    own = dict(model.named_parameters())
    whole = {
        n: own[n] + (thin[f"{n}.lora_up"].flatten(1) @ thin[f"{n}.lora_down"].flatten(1)).view(own[n].shape)
        for n in {name.rpartition(".")[0] for name in thin}
    }
    output = torch.func.functional_call(model, whole, (x,))
    np.testing.assert_allclose(job.predict(x), output.detach().numpy(), rtol=1e-4, atol=1e-5)
    F.cross_entropy(output, y).backward()
    wanted = {n: p.grad for n, p in (*thin.items(), *own.items())}
    for name, got in moved(job).items():
        grad = wanted[name]
        assert grad is not None, name
        np.testing.assert_allclose(
            got, grad.numpy(), rtol=2e-3, atol=2e-4 * float(grad.abs().max()) + 1e-5, err_msg=name
        )


@pytest.mark.parametrize("more", [{}, {"memory": Memory(const="int8")}], ids=["f32", "int8"])
def test_merged_is_unmerged(more: dict[str, Any], tmp_path: Path) -> None:
    model, x, y = Net().eval(), *data()
    rounded(model)
    job = smidgen.compile(model, x, method="lora:2", optimizer=SGD(LR), kernels="exact", **more)
    for _ in range(10):
        job.train_step(x, y)
    for _ in range(2):  # twice is once
        job.load_into(model)
        with torch.no_grad():
            np.testing.assert_allclose(job.predict(x), model(x).numpy(), rtol=0, atol=1e-5)
    job.export_weights(tmp_path / "merged.safetensors")
    job.export_weights(tmp_path / "thin.safetensors", merge=False)
    from safetensors.numpy import load_file

    merged = load_file(tmp_path / "merged.safetensors")
    assert set(merged) == {"a2.weight", "skip.weight", "b2.weight", "head.weight", "head.bias"}
    np.testing.assert_array_equal(merged["a2.weight"], model.a2.weight.detach().numpy())
    again = smidgen.compile(model, x, method="lora:2", optimizer=SGD(LR), kernels="exact", **more)
    again.import_weights(tmp_path / "thin.safetensors")
    np.testing.assert_array_equal(again.state_dict()["a2.weight.lora_up"], job.state_dict()["a2.weight.lora_up"])
    job.save(tmp_path / "net.smg")
    smidgen.load(tmp_path / "net.smg").load_into(model)


def test_a_weight_in_two_places_has_one_adapter() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix, self.head = nn.Linear(12, 12), nn.Linear(12, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(torch.tanh(self.mix(torch.tanh(self.mix(x)))))

    model, x, y = Twice(), torch.randn(4, 12), torch.tensor([0, 1, 2, 0])
    job = smidgen.compile(model, x, method="lora:1", optimizer=SGD(LR), kernels="exact")
    for _ in range(5):
        job.train_step(x, y)
    job.load_into(model)
    with torch.no_grad():
        np.testing.assert_allclose(job.predict(x), model(x).numpy(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("rank", [6, 1000])
def test_a_rank_that_no_layer_can_have_says_which_one_works(rank: int) -> None:
    """The classifier alone would learn, without a word."""
    with pytest.raises(NothingToTrain, match=f"adapter of rank {rank}") as error:
        compiled(f"lora:{rank}")
    assert "'a2.weight', is 12 by 12" in str(error.value)
    found = re.search(r"lora:(\d+) is the highest", str(error.value))
    assert found is not None
    job = compiled(f"lora:{found[1]}")
    assert any(name.endswith(".lora_up") for name in job.plan.learns)
    assert int(found[1]) == rank - 1 or rank > 6


def test_a_model_without_layers_to_adapt_says_so() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 14 * 14, 3)).eval()
    with pytest.raises(NothingToTrain, match="no linear layer") as error:
        smidgen.compile(model, data()[0], method="lora")
    assert "last_layer" in str(error.value)


@pytest.mark.parametrize("text", ["lora:0", "lora:x", "lora:-1"])
def test_a_rank_is_a_number_from_one(text: str) -> None:
    with pytest.raises(BadOption, match=r"lora:rank"):
        compiled(text)
    with pytest.raises(BadOption):
        Lora(0)


# -- sparse updates ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "scheme"),
    [
        ("b22 w21:1,36:1/8", Scheme(22, ((21, Fraction(1)), (36, Fraction(1, 8))))),
        ("w3:0.25  b0", Scheme(0, ((3, Fraction(1, 4)),))),
        ("b3", Scheme(3)),
    ],
)
def test_a_scheme_is_text(text: str, scheme: Scheme) -> None:
    assert Scheme.of(text) == scheme == Scheme.of(str(scheme))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("  ", "empty"), ("b", "'b' is neither"), ("x3", "'x3' is neither"), ("b1 b2", "more than one"),
        ("w3", "'3' is not a layer"), ("w3:", "'3:' is not a layer"), ("w3:1/0", "share 1/0"), ("w3:2", "share 2"),
        ("w3:0", "share 0"), ("w3:1,3:1/2", "named twice"), ("w-1:1", "'-1:1' is not"), ("b9999999", "neither"),
    ],
)  # fmt: skip
def test_other_text_is_refused(text: str, why: str) -> None:
    with pytest.raises(BadScheme, match=why) as error:
        SparseUpdate(text)
    assert "SparseUpdate('b22" in str(error.value)


def test_layers_count_from_the_stem_and_the_bias_under_a_norm_is_its_shift() -> None:
    """Layers: stem 0, a1 1, a2 2, skip 3, b1 4, b2 5, c 6, head 7, in the order in which they run."""
    job = compiled("sparse_update:b6 w4:1/2,5:1/4,1:1")
    learned = job.state_dict(learned=True)
    assert {n: (v.axis, v.indices) for n, v in learned.items()} == {
        "a1_norm.bias": (None, None), "a2.bias": (None, None), "skip.bias": (None, None), "b1.bias": (None, None),
        "b2.bias": (None, None), "c.bias": (None, None), "head.bias": (None, None), "head.weight": (None, None),
        "a1.weight": (None, None), "b1.weight": (0, tuple(range(6))), "b2.weight": (1, (0, 1, 2)),
    }  # fmt: skip
    assert learned["b1.weight"].value.shape == (6, 1, 3, 3)
    assert job.state_dict()["b1.weight"].shape == (12, 1, 3, 3)


def test_slices_of_a_scheme_learn_as_in_pytorch_and_nothing_else_does() -> None:
    job = compiled(SparseUpdate("b2 w4:1/2,5:1/4"))
    model, x, y = Net().eval(), *data()
    F.cross_entropy(model(x), y).backward()
    grads = {n: p.grad for n, p in model.named_parameters()}
    got = moved(job)
    for name, values in got.items():
        grad = grads[name]
        assert grad is not None
        mask = torch.zeros_like(grad)
        mask[{"b1.weight": np.s_[:6], "b2.weight": np.s_[:, :3]}.get(name, ...)] = 1
        np.testing.assert_allclose(values, (grad * mask).numpy(), rtol=2e-3, atol=1e-5, err_msg=name)
        assert (values[(mask == 0).numpy()] == 0).all()


@pytest.mark.parametrize(
    ("text", "what", "help"),
    [
        ("b8", "more layers than there are", "b7"), ("w8:1", "no layer 8", "layers 0 to 7"),
        ("w6:1/2", "no axis of input channels", "w6:1"), ("w7:1/2", "the classifier", "leave w7 out"),
    ],
)  # fmt: skip
def test_what_the_network_does_not_have_is_refused(text: str, what: str, help: str) -> None:
    with pytest.raises(CannotUpdate, match=what) as error:
        compiled(SparseUpdate(text))
    assert help in str(error.value)


def test_without_a_layer_there_is_nothing_to_train() -> None:
    with pytest.raises(NothingToTrain):
        smidgen.compile(nn.Sequential(nn.ReLU(), nn.BatchNorm1d(3)), torch.randn(4, 3), method=SparseUpdate("b0"))
