"""TinyTrain: scores of channels are what PyTorch computes, the best of them learn, and nothing else changes. Needs
torch."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from benchmarks.nets.residual import ResNet18
from smidgen.api import build
from smidgen.compiler.graph import interp
from smidgen.compiler.options import Options
from smidgen.compiler.pipeline import Lowering
from smidgen.compiler.torch_import.capture import import_model
from smidgen.errors import BadOption, CannotSelect
from smidgen.ir import Array
from smidgen.methods import TinyTrain, Update
from smidgen.schemes.select import BackwardWork, best_channels, ranked
from smidgen.train.scoring import LayerScores

SAMPLES = 7


def spread_norms(model: nn.Module) -> nn.Module:
    for norm in model.modules():
        if isinstance(norm, (nn.BatchNorm1d, nn.BatchNorm2d)):
            for value, low, high in ((norm.running_mean, -1, 1), (norm.running_var, 0.5, 2), (norm.bias, -1, 1)):
                assert value is not None
                nn.init.uniform_(value, low, high)
    return model.eval()


class Residual(nn.Module):
    """Batch-norms, a depthwise layer, a skip that is projected, dropout, an odd image."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8)
        self.deep, self.inside, self.point = (
            nn.Conv2d(8, 8, 3, padding=1, groups=8),
            nn.BatchNorm2d(8),
            nn.Conv2d(8, 12, 1),
        )
        self.skip, self.drop, self.head = nn.Conv2d(8, 12, 1, bias=False), nn.Dropout(0.5), nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.relu6(self.norm(self.stem(x)))
        x = self.skip(x) + self.point(torch.relu(self.inside(self.deep(x))))
        return self.head(self.drop(x.mean((2, 3))))


class FanOut(nn.Module):
    """One output has three readers; a layer is called twice; a bias is added by hand; two heads are summed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again = nn.Linear(6, 9), nn.Linear(9, 9)
        self.bare, self.added, self.other = nn.Linear(9, 5, bias=False), nn.Parameter(torch.randn(5)), nn.Linear(9, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        z = torch.tanh(self.again(torch.relu(h)))
        z = torch.sigmoid(self.again(z)) * h + h
        return self.bare(z) + self.added + self.other(z)


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.TransformerEncoderLayer(8, 2, 20, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.inside(x)[:, 0])


def dscnn() -> nn.Module:
    """As the keyword spotter of MLPerf Tiny: an image of 49 by 10, four separable blocks."""

    def block() -> list[nn.Module]:
        return [nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
                nn.Conv2d(16, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]  # fmt: skip

    stem = [nn.Conv2d(1, 16, (10, 4), 2, (5, 1), bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*stem, *block(), *block(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 12))


def line() -> nn.Module:
    """Signals, and an image that grows."""
    wider = [nn.ConvTranspose1d(6, 4, 3), nn.GroupNorm(2, 4), nn.ReLU()]
    return nn.Sequential(nn.Conv1d(3, 6, 5, 2), nn.BatchNorm1d(6), nn.GELU(), *wider, nn.Flatten(), nn.LazyLinear(3))


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "residual": (Residual, (3, 13, 9)),
    "fan-out": (FanOut, (6,)),
    "transformer": (Transformer, (5, 8)),
    "dscnn": (dscnn, (1, 49, 10)),
    "line": (line, (3, 19)),
}


def made(name: str) -> tuple[nn.Module, Array, Array]:
    build, shape = NETS[name]
    torch.manual_seed(3)
    model = build()
    model(torch.randn(2, *shape))
    rng = np.random.default_rng(1)
    return spread_norms(model), rng.standard_normal((SAMPLES, *shape)).astype(np.float32), np.arange(SAMPLES) % 3


def reference(model: nn.Module, x: Array, y: Array) -> dict[str, Array]:
    """With hooks, in float64: each layer's output behind a batch-norm that follows it at once."""
    model = model.double()
    follows = {}
    for one, two in itertools.pairwise(dict(model.named_modules())):  # in the order of their definition
        if isinstance(model.get_submodule(two), (nn.BatchNorm1d, nn.BatchNorm2d)):
            follows[one] = two
    outputs: dict[str, list[torch.Tensor]] = {}

    def watch(name: str) -> Callable[..., torch.Tensor]:
        def hook(module: nn.Module, given: Any, result: torch.Tensor) -> torch.Tensor:
            result.retain_grad()
            outputs.setdefault(name, []).append(result)
            return result.clone()  # which the model may change in place

        return hook

    handles = []
    for name, module in list(model.named_modules()):
        if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.ConvTranspose1d)):
            handles.append(model.get_submodule(follows.get(name, name)).register_forward_hook(watch(name)))
    found: dict[str, Array] = {}
    for one, label in zip(x, y, strict=True):
        outputs.clear()
        nn.functional.cross_entropy(model(torch.tensor(one)[None].double()), torch.tensor([label])).backward()
        for name, values in outputs.items():
            if all(value.grad is not None for value in values):
                found[f"{name}.weight"] = found.get(f"{name}.weight", 0) + sum(map(per_channel, values)) ** 2 / 2 / len(
                    x
                )
    for handle in handles:
        handle.remove()
    model.float()
    return found


def per_channel(value: torch.Tensor) -> Any:
    """Of one sample [1, channels, …], or [1, …, channels] of a sequence."""
    product = (value * value.grad).detach().numpy()[0]
    return product.sum(tuple(range(1, product.ndim))) if product.shape[0] != 5 or product.ndim == 1 else product.sum(0)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("batch", [1, 4])
def test_scores_are_those_of_pytorch(name: str, batch: int) -> None:
    model, x, y = made(name)
    job = smidgen.compile(model, x[:batch], method="tinytrain", kernels="exact")
    found, wanted = {one.weight: one.channels for one in job.scores(x, y)}, reference(model, x, y)
    if name == "fan-out":  # the output of `bare` is what is behind its bias, which is no module of its own
        wanted.pop("bare.weight")
    if name == "transformer":  # three layers in one weight: hooks do not see them
        wanted.pop("inside.self_attn.out_proj.weight", None)
    assert set(wanted) <= set(found)
    assert len(wanted) >= 3
    for layer, scores in wanted.items():
        np.testing.assert_allclose(found[layer], scores, rtol=0, atol=1e-4 * scores.max(), err_msg=layer)
        assert scores.max() > 0


def test_scores_of_resnet_18_are_those_of_pytorch() -> None:
    torch.manual_seed(0)
    model = spread_norms(ResNet18(6))
    x = np.random.default_rng(2).standard_normal((3, 3, 65, 47)).astype(np.float32)
    job = smidgen.compile(model, x[:1], method="tinytrain", kernels="exact")
    found = {one.weight: one.channels for one in job.scores(x, np.arange(3))}
    wanted = reference(model, x, np.arange(3))
    assert set(found) == set(wanted)
    for layer, scores in wanted.items():
        np.testing.assert_allclose(found[layer], scores, rtol=0, atol=1e-4 * scores.max(), err_msg=layer)


def test_a_layer_with_a_bias_that_is_added_next_is_scored_behind_it() -> None:
    model, x, y = made("fan-out")
    job = smidgen.compile(model, x[:1], method="tinytrain", kernels="exact")
    found = next(one for one in job.scores(x, y) if one.weight == "bare.weight")
    total = np.zeros(5)
    double = model.double()
    for one, label in zip(x, y, strict=True):
        kept: list[torch.Tensor] = []
        handle = double.bare.register_forward_hook(lambda m, i, o, kept=kept: kept.append(o))  # type: ignore[operator, union-attr]
        logits = double(torch.tensor(one)[None].double())
        (grad,) = torch.autograd.grad(nn.functional.cross_entropy(logits, torch.tensor([label])), logits)
        handle.remove()
        total += ((kept[0] + double.added) * grad).detach().numpy()[0] ** 2 / 2 / len(x)  # type: ignore[operator]
    assert found.bias == "added"
    np.testing.assert_allclose(found.channels, total, rtol=0, atol=1e-4 * total.max())


@pytest.mark.parametrize("name", NETS)
def test_the_interpreter_scores_what_c_does(name: str) -> None:
    model, x, y = made(name)
    job = smidgen.compile(model, x[:1], method="tinytrain", kernels="exact")
    graph = build(model, x[:1], method="tinytrain").graphs["score"]
    acc = np.zeros(graph[":scores"].shape)  # type: ignore[arg-type]
    last = [node.outs[0] for node in graph.nodes if node.op == "add_squares"][-1]
    for one, label in zip(x, y, strict=True):
        values = {":scores": acc, graph.inputs[0]: one[None], graph.inputs[1]: np.array([label])}
        acc = interp.run(graph, values, n=1)[last]
    found = np.concatenate([one.channels for one in job.scores(x, y)])
    np.testing.assert_allclose(found, acc / len(x), rtol=1e-4, atol=1e-5 * acc.max())


def test_scores_have_the_same_bits_in_any_room() -> None:
    """Recomputed or not, row by row or not, with slices that learn or not."""
    model, x, y = made("residual")

    def bits(job: smidgen.Job) -> bytes:
        return b"".join(one.channels.tobytes() for one in job.scores(x, y))

    job = smidgen.compile(model, x[:4], method="tinytrain", kernels="exact")
    wanted = bits(job)
    least = None
    for budget in range(job.plan.ram_bytes, 4000, -400):
        try:
            small = smidgen.compile(model, x[:4], method=TinyTrain(layers=6), kernels="exact", budget=budget)
        except smidgen.errors.DoesNotFit:
            break
        least = small.plan
        assert bits(small) == wanted
        assert small.plan.ram_bytes <= budget
    assert least is not None
    assert least.arena_by_entry["score"] < job.plan.arena_by_entry["score"]
    job.select(x, y)
    assert any(part.indices is not None for part in job.state_dict(learned=True).values())
    assert bits(job) == wanted


def test_the_last_layers_are_scored_alone_and_take_less() -> None:
    model, x, y = made("dscnn")
    every = smidgen.compile(model, x[:2], method="tinytrain", kernels="exact")
    last = smidgen.compile(model, x[:2], method=TinyTrain(layers=2), kernels="exact")
    assert [one.weight for one in last.scores(x, y)] == [one.weight for one in every.scores(x, y)][-2:]
    assert last.plan.arena_by_entry["score"] < every.plan.arena_by_entry["score"]
    assert last.plan.cost.macs["score"] < every.plan.cost.macs["score"]


def test_a_budget_leaves_out_the_first_layers() -> None:
    model, x, y = made("dscnn")
    whole = smidgen.compile(model, x[:1], method="tinytrain", kernels="exact")
    every = len(whole.scores(x, y))
    budget = whole.plan.ram_bytes // 2
    small = smidgen.compile(model, x[:1], method="tinytrain", kernels="exact", budget=budget)
    assert 1 <= len(small.scores(x, y)) <= every
    small.select(x, y)
    assert small.plan.ram_bytes <= budget


# -- the choice --------------------------------------------------------------------------------------------------------


def layer(name: str, channels: list[float], parameters: int = 10, macs: int = 10) -> LayerScores:
    return LayerScores(name, None, 0, parameters, macs, np.array(channels, np.float32))


def test_layers_are_ranked_by_scores_for_their_size_and_work() -> None:
    layers = [layer("a", [4, 4], 10, 20), layer("b", [3, 3], 20, 10), layer("c", [1], 1, 1)]
    found = {one.scores.weight: one.score for one in ranked(layers)}
    assert list(found) == ["c", "a", "b"]
    assert found == pytest.approx({"c": 400.0, "a": 16.0, "b": 12.0})


def test_of_equal_channels_those_with_lower_numbers_learn() -> None:
    assert best_channels(np.array([1, 3, 3, 0, 3], np.float32), 2) == (1, 2)
    assert best_channels(np.array([1, 3, 3, 0, 9], np.float32), 3) == (1, 2, 4)


def test_backward_work_counts_gradients_of_what_learns_and_of_the_way_to_it() -> None:
    model = nn.Sequential(nn.Linear(6, 9, bias=False), nn.Linear(9, 4, bias=False))
    lowering = Lowering(import_model(model, torch.randn(2, 6), loss="cross_entropy"))
    work = BackwardWork(lowering.forward(Options(smidgen.SGD(0.1), "full", 2, "frozen", False, 0))["train"])
    assert work.of({"1.weight": 1}) == 36
    assert work.of({"1.weight": 0.5}) == 18
    assert work.of({"0.weight": 1}) == 54 + 36
    assert work.of({"0.weight": 1, "1.weight": 1}) == 54 + 36 + 36


@pytest.mark.parametrize("name", NETS)
def test_what_is_chosen_learns_and_all_else_stays(name: str) -> None:
    model, x, y = made(name)
    job = smidgen.compile(model, x[:3], method=TinyTrain(compute=0.3), optimizer=smidgen.SGD(0.1), kernels="exact")
    before = job.predict(x)
    job.select(x, y)
    np.testing.assert_allclose(job.predict(x), before, rtol=0, atol=1e-5 * np.abs(before).max())
    said = [decision.why for decision in job.plan.decisions if decision.kind == "select"]
    assert said
    for text in said:
        assert text.partition(":")[0] in job.plan.learns
    start = {k: v.detach().numpy().copy() for k, v in model.named_parameters()}
    first = job.train_step(x[:3], y[:3])
    for _ in range(20):
        last = job.train_step(x[:3], y[:3])
    assert last < first
    for name, part in job.state_dict(learned=True).items():
        whole = job.state_dict()[name]
        if part.indices is not None:
            rest = np.delete(whole, part.indices, part.axis)
            np.testing.assert_array_equal(rest, np.delete(start[name], part.indices, part.axis))
    unlearned = set(start) - set(job.plan.learns)
    job.load_into(model)
    for name in unlearned:
        np.testing.assert_array_equal(model.get_parameter(name).detach().numpy(), start[name])


def test_another_users_samples_choose_anew_and_keep_what_was_learned() -> None:
    model, x, y = made("residual")
    job = smidgen.compile(model, x[:4], method=TinyTrain(compute=0.4), optimizer=smidgen.Adam(0.01), kernels="exact")
    job.select(x, y)
    for _ in range(5):
        job.train_step(x[:4], y[:4])
    job.lr = 0.003
    learned, predicted = job.state_dict(), job.predict(x)
    other = np.random.default_rng(9).standard_normal(x.shape).astype(np.float32)
    job.select(other, 4 - y)
    np.testing.assert_allclose(job.predict(x), predicted, rtol=0, atol=1e-5 * np.abs(predicted).max())
    for name in set(learned) & set(job.state_dict()):
        np.testing.assert_array_equal(job.state_dict()[name], learned[name])
    assert job.lr == pytest.approx(0.003)
    assert job.step == 0


def test_the_choice_meets_budget_and_work() -> None:
    model, x, y = made("dscnn")
    free = smidgen.compile(model, x[:4], method="tinytrain", kernels="exact")
    free.select(x, y)
    seen = set()
    for part in (0.6, 0.8, 1.0):
        budget = int(free.plan.ram_bytes * part)
        job = smidgen.compile(model, x[:4], method="tinytrain", kernels="exact", budget=budget)
        job.select(x, y)
        assert job.plan.ram_bytes <= budget
        seen.add(job.plan.learns)
    more = smidgen.compile(model, x[:4], method=TinyTrain(compute=1.0), kernels="exact")
    more.select(x, y)
    assert more.plan.learned_parameters > free.plan.learned_parameters


def test_data_at_compile_time_chooses_at_once() -> None:
    model, x, y = made("residual")
    at_once = smidgen.compile(model, x[:4], method="tinytrain", data=(x, y), kernels="exact")
    later = smidgen.compile(model, x[:4], method="tinytrain", kernels="exact")
    assert len(later.plan.learns) == 1
    later.select(x, y)
    assert at_once.plan.learns == later.plan.learns


# -- errors ------------------------------------------------------------------------------------------------------------


def unchanged(job: smidgen.Job, x: Array, call: Callable[[], Any]) -> str:
    """What the error says; the job is as it was."""
    before, learns = job.engine.whole().tobytes(), job.plan.learns
    with pytest.raises(CannotSelect) as caught:
        call()
    assert job.engine.whole().tobytes() == before
    assert job.plan.learns == learns
    job.train_step(x[:2], np.array([0, 1]))
    return str(caught.value)


def test_what_cannot_be_chosen_from_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    model, x, y = made("residual")
    names = smidgen.Classes(names=["a", "b", "c", "d", "e"])
    job = smidgen.compile(model, x[:2], method="tinytrain", kernels="exact")
    assert "all samples are of one class, 2" in unchanged(job, x, lambda: job.select(x, 0 * y + 2))
    named = smidgen.compile(model, x[:2], method="tinytrain", kernels="exact", classes=names)
    if named.classes:
        assert "class 'd' has no sample" in unchanged(named, x, lambda: named.select(x, y))
    tight = smidgen.compile(model, x[:2], method=TinyTrain(compute=1e-7), kernels="exact")
    assert "no choice of layers meets compute=1e-07" in unchanged(tight, x, lambda: tight.select(x, y))
    job.save(tmp_path / "net.smg")
    loaded = smidgen.load(tmp_path / "net.smg", kernels="exact")
    np.testing.assert_array_equal(loaded.scores(x, y)[0].channels, job.scores(x, y)[0].channels)
    assert "a loaded program cannot be planned anew" in unchanged(loaded, x, lambda: loaded.select(x, y))
    plain = smidgen.compile(model, x[:2], method="bias", kernels="exact")
    assert "this program scores no channels" in unchanged(plain, x, lambda: plain.select(x, y))


def test_scores_that_are_not_finite_are_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    with torch.no_grad():
        model[0].weight.fill_(1e25)  # type: ignore[operator]
    x, y = np.ones((4, 4), np.float32) * 1e10, np.arange(4) % 3
    job = smidgen.compile(model, x[:1], method="tinytrain", kernels="exact")
    before = job.engine.whole().tobytes()
    with pytest.raises(CannotSelect, match="not finite"):
        job.select(x, y)
    assert job.engine.whole().tobytes() == before


@pytest.mark.parametrize(
    "given", [{"compute": 0}, {"compute": 1.5}, {"compute": "much"}, {"layers": 0}, {"layers": 1.5}]
)
def test_settings_that_mean_nothing_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(BadOption):
        TinyTrain(**given)


def test_what_does_not_go_with_a_later_choice_is_refused() -> None:
    model, x, _ = made("residual")
    for more in (
        {"memory": smidgen.Memory(replay=smidgen.Replay(samples=8))}, {"classes": smidgen.Classes(spare=2)},
        {"method": ["tinytrain", "lora"]},
    ):  # fmt: skip
        with pytest.raises(BadOption, match="tinytrain does not go with"):
            smidgen.compile(model, x[:2], **{"method": "tinytrain", "kernels": "exact", **more})


def test_a_mix_with_parameters_by_name_learns_both() -> None:
    model, x, y = made("residual")
    job = smidgen.compile(model, x[:2], method=["tinytrain", Update("stem.weight")], kernels="exact")
    job.select(x, y)
    assert "stem.weight" in job.plan.learns
    assert len(job.plan.learns) > 2
