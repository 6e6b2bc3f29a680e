"""Graphs in torch: each function is what the op's record says, whole networks are the user's own, and a wrong gradient
on either side is found. Needs torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.nets import NETS
from smidgen import SGD, Update, api, ops
from smidgen.compiler.assemble import encode
from smidgen.compiler.entries import Entries
from smidgen.compiler.graph import interp
from smidgen.compiler.options import checked_options
from smidgen.compiler.pipeline import Lowering
from smidgen.compiler.torch_import.capture import import_model
from smidgen.errors import BadOption
from smidgen.ir import at
from smidgen.report import parity, proof, torch_graph
from smidgen.report.torch_graph import FUNCTIONS, TorchGraph
from smidgen.train.job import Job
from tests.support.op_cases import SAMPLES, built, inputs_of

KINDS = {"f32": torch.float64, "i32": torch.int64, "u8": torch.bool}


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if ops.get(name).cases])
def test_a_function_of_torch_is_what_the_record_says(name: str) -> None:
    """Values and gradients in float64, on the cases of the record."""
    op = ops.get(name)
    for case in op.cases:
        arrays = inputs_of(op, case)
        attrs = at(dict(case.attrs), SAMPLES)
        wanted = np.asarray(
            op.ref(*arrays, **attrs, **({"run": ops.Run(SAMPLES, SAMPLES, 0)} if op.needs_run else {}))[0]
        )
        if "dtype" in attrs:
            attrs["dtype"] = KINDS[attrs["dtype"]]
        xs = [torch.tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays]
        with np.errstate(all="ignore"):
            got = FUNCTIONS[name](*xs, **attrs)
        if wanted.dtype.kind != "f":
            if name != "cast":  # to integers, ours saturates
                np.testing.assert_array_equal(got.numpy().astype(wanted.dtype), wanted)
            continue
        np.testing.assert_allclose(got.detach().double().numpy(), wanted, rtol=1e-9, atol=1e-9)
        if not got.requires_grad or op.vjp is ops.NOT_DIFFERENTIABLE or not np.isfinite(wanted).all():
            continue
        u = np.random.default_rng(7).standard_normal(wanted.shape)
        got.backward(torch.from_numpy(u))
        b, ins, outs = built(op, case, arrays)
        dys: list[Any] = [b.tensor(f"d{outs[0]}", b[outs[0]].shape), *[None] * (len(outs) - 1)]
        b.stage = "backward"
        grads = op.vjp(b, b.nodes[0], dys)  # type: ignore[operator]
        env = interp.run(b.graph(), {**dict(zip(ins, arrays, strict=True)), str(dys[0]): u}, n=SAMPLES)
        for x, grad in zip(xs, grads, strict=True):
            if grad is not None and x.grad is not None:
                np.testing.assert_allclose(env[grad], x.grad.numpy(), rtol=1e-7, atol=1e-8)


def lowering(name: str) -> tuple[nn.Module, Lowering]:
    net = NETS[name]
    model = net.model().eval()
    return model, Lowering(import_model(model, net.batch(2)[0], loss=net.loss))


@pytest.mark.parametrize("name", ["encoder", "dscnn", "mcunet", "mobilenetv2", "proxyless", "resnet18"])
def test_a_graph_in_torch_is_the_users_model(name: str) -> None:
    """Predictions and every gradient in float64."""
    model, low = lowering(name)
    options = checked_options(model, batch=2, method="full", optimizer=SGD(0.1))
    shapes = low.entries(options).shapes
    twin = TorchGraph(low.forward(options)["infer"], shapes).double()
    model = model.double()
    (x,), y = NETS[name].batch(2)
    inputs = torch.from_numpy(x) if NETS[name].tokens else torch.from_numpy(x).double()
    for each in (model, twin):
        F.cross_entropy(each(inputs), torch.from_numpy(y)).backward()
    np.testing.assert_allclose(twin(inputs).detach(), model(inputs).detach(), rtol=1e-9, atol=1e-12)
    own, theirs = dict(twin.named_parameters()), dict(model.named_parameters())
    assert set(own) == set(theirs)
    for key, parameter in theirs.items():
        got, want = own[key].grad, parameter.grad
        assert got is not None
        assert want is not None
        assert got.shape == want.shape
        assert float((got - want).abs().max()) <= 1e-9 * float(want.abs().max()), key


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.stem, self.a = nn.Conv2d(2, 8, 3, stride=2, padding=1), nn.Conv2d(8, 16, 1)
        self.b, self.head = nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu6(self.a(torch.tanh(self.stem(x))))
        return self.head((x + torch.sigmoid(self.b(x))).mean((2, 3)))


RNG = np.random.default_rng(0)
BATCHES = [([RNG.standard_normal((4, 2, 8, 8)).astype(np.float32)], np.array([0, 1, 2, 1])) for _ in range(3)]
METHODS: dict[str, Any] = {
    "tinytl": "tinytl", "lora": "lora:2", "scheme": "sparse_update:b2 w1:1/2,2:1/4",
    "slices": [Update("stem.weight", 0, (0, 5)), Update("a.weight", 1, (2, 3)), Update("b.bias", 0, (7,)), "head.bias"],
}  # fmt: skip
OPTIMIZER = SGD(0.05, momentum=0.9, weight_decay=1e-2)


def entries_of(method: str) -> Entries:
    return api.build(Net().eval(), BATCHES[0][0][0], method=METHODS[method], optimizer=OPTIMIZER)


def verdicts(entries: Entries, twin: nn.Module, masks: dict[str, np.ndarray], steps: int = 3) -> list[bool]:
    def reference(dtype: torch.dtype) -> parity.Reference:
        return parity.Reference(twin, "cross_entropy", OPTIMIZER, entries.learns, "frozen", dtype, masks)

    job = Job(encode(entries), kernels="exact")
    a = parity.free_run(entries, reference, BATCHES[:steps])
    return [a.passed, parity.restarted(job, reference(torch.float64), OPTIMIZER, BATCHES[:steps]).passed]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_proved_with_weight_decay_and_all(method: str) -> None:
    found = proof.prove_model(
        Net().eval(), "net", BATCHES, "cross_entropy", METHODS[method], OPTIMIZER, "frozen"
    )  # fmt: skip
    assert found.passed, found.to_text()


def wrong_norm(x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor, groups: int, eps: float) -> torch.Tensor:
    """Right values; no gradient comes back through the statistics."""
    y: torch.Tensor = FUNCTIONS["group_norm"](x.detach(), gamma, beta, groups=groups, eps=eps)
    return y + (x - x.detach()) * gamma


def test_a_wrong_gradient_on_the_side_of_torch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = entries_of("tinytl")
    twin = proof.torch_twin(Net().eval(), entries)
    entries = proof.away_from_zero(entries, twin)  # nothing would come back through a scale of zero
    assert verdicts(entries, twin, {}) == [True, True]
    monkeypatch.setattr(torch_graph, "FUNCTIONS", {**FUNCTIONS, "group_norm": wrong_norm})
    assert verdicts(entries, twin, {}) == [False, False]


def test_what_starts_at_zero_is_started_elsewhere_on_both_sides() -> None:
    entries = entries_of("tinytl")
    twin = proof.torch_twin(Net().eval(), entries)
    moved = proof.away_from_zero(entries, twin)
    own = dict(twin.named_parameters())
    before, after = (Job(encode(e)).state_dict() for e in (entries, moved))
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {name for name in before if not before[name].any()} >= {"lite.0.norm2.weight"}
    for name in changed:
        np.testing.assert_array_equal(after[name], own[name].detach().float().numpy())


@pytest.mark.parametrize("method", ["slices", "scheme"])
def test_another_mask_is_found(method: str) -> None:
    """One channel more, one less, or another one."""
    entries, model = entries_of(method), Net().eval()
    masks = parity.masks_of(entries)
    assert verdicts(entries, model, masks) == [True, True]
    for name, mask in masks.items():
        shifted = {**masks, name: np.roll(mask, 1, next(u.axis for u in entries.updates if u.param == name))}
        assert verdicts(entries, model, shifted, 1) == [False, False], name
        assert verdicts(entries, model, {**masks, name: np.ones_like(mask)}, 1) == [False, False], name


def test_what_is_beside_a_slice_must_keep_its_bits() -> None:
    entries, model = entries_of("slices"), Net().eval()
    job = Job(encode(entries), kernels="exact")
    job.train_step(BATCHES[0][0][0], BATCHES[0][1])
    assert proof.goes_home(job, model, BATCHES[0][0], entries)
    with torch.no_grad():
        model.a.weight[0, 0] += 1e-7
    assert not proof.goes_home(job, model, BATCHES[0][0], entries)


def test_an_op_without_a_function_in_torch_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = entries_of("tinytl")
    monkeypatch.setattr(torch_graph, "FUNCTIONS", {k: v for k, v in FUNCTIONS.items() if k != "tanh"})
    with pytest.raises(BadOption, match="cannot be compared with PyTorch after a method has changed it") as caught:
        proof.torch_twin(Net().eval(), entries)
    assert "what tanh is in torch" in str(caught.value)
    with pytest.raises(BadOption, match="with batch statistics"):
        proof.torch_twin(Net().eval(), entries, "batch")


class NormBeforeTokens(nn.Module):
    """The gradient of its norm arrives in another order of memory: of one sample torch makes wrong numbers of that,
    other than its own finite differences."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.norm, self.head = nn.BatchNorm2d(6), nn.Linear(35, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(x).flatten(2).transpose(1, 2).mean(2))


def test_a_norm_whose_gradient_comes_in_another_order_is_compared() -> None:
    batches = [([RNG.standard_normal((1, 6, 7, 5)).astype(np.float32)], np.array([k])) for k in range(3)]
    found = proof.prove_model(
        NormBeforeTokens().eval(), "net", batches, "cross_entropy", "full", OPTIMIZER, "frozen"
    )  # fmt: skip
    assert found.passed, found.to_text()
