"""What an import keeps of the model: modes, names, roles, shared parameters, several rows a sample."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from smidgen.compiler.graph import interp
from smidgen.compiler.torch_import.capture import import_model
from smidgen.ir import Batch, DType, Role
from tests.support.torch_compare import close, feeds, ops_of
from tests.support.torch_models import _Shared, _Tied

# Modes, names, roles.


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop, self.fc = nn.Dropout(0.5), nn.Linear(400, 2)

    def forward(self, x: torch.Tensor) -> Any:
        return self.fc(self.drop(x))


def test_dropout_is_active_only_in_training_mode() -> None:
    model = Dropped()
    assert "dropout" in ops_of(import_model(model, torch.zeros(1, 400), loss="mse").train)
    imported = import_model(model.eval(), torch.zeros(1, 400), loss="mse")
    assert "dropout" not in ops_of(imported.train)
    assert not any(m.training for m in model.modules())


def test_dropout_keeps_the_mean() -> None:
    imported = import_model(Dropped(), torch.zeros(1, 400), loss=lambda o, t: o.mean(), target=torch.zeros(1))
    [node] = [n for n in imported.train.nodes if n.op == "dropout"]
    env = interp.run(imported.train, {"x": np.ones((5, 400)), "target": np.zeros(5)}, n=5)
    assert set(np.unique(env[node.outs[0]])) == {0.0, 2.0}
    assert env[node.outs[0]].mean() == pytest.approx(1, abs=0.1)
    assert imported.train[":counter"].role is Role.SETTING


def test_channel_dropout_and_stochastic_depth_are_imported() -> None:
    class Random(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            keep = x.new_empty(x.shape[0], 1, 1, 1).bernoulli_(0.75).div_(0.75)
            return F.dropout2d(x, 0.5, self.training) * (keep if self.training else 1)

    imported = import_model(Random(), torch.zeros(1, 8, 3, 3), loss="mse")
    env = interp.run(imported.train, {"x": np.ones((40, 8, 3, 3)), "target": np.zeros((40, 8, 3, 3))}, n=40)
    [dropped] = [n for n in imported.train.nodes if n.op == "feature_dropout"]
    values = env[dropped.outs[0]].reshape(40, 9, 8)
    assert (values == values[:, :1]).all()
    assert len(imported.infer.nodes) == 2


def test_names_roles_and_source_modules_are_those_of_the_model() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))
    model[3].weight.requires_grad_(False)
    imported = import_model(model, torch.zeros(4, 3, 4, 4), loss="cross_entropy", bn="batch")
    assert [p.name for p in imported.parameters] == list(dict(model.named_parameters()))
    assert [(p.module, p.requires_grad) for p in imported.parameters[-2:]] == [("3", False), ("3", True)]
    assert [p.name for p in imported.buffers] == list(dict(model.named_buffers()))
    assert imported.batch == 4
    train = imported.train
    assert train["0.weight"].role is Role.PARAM
    assert train["0.weight"].shape == (4, 3, 3, 3)
    assert train.data["0.weight"].dtype == np.float64
    assert train["1.running_mean"].role is Role.STAT
    assert {n.op: n.src for n in train.nodes if n.op in ("conv2d", "linear", "cross_entropy")} == {
        "conv2d": "0", "linear": "3", "cross_entropy": "loss",
    }  # fmt: skip
    [update] = [n for n in train.nodes if n.op == "running_stats"]
    assert update.attrs["count"] == Batch(4)
    assert train[imported.loss].shape == ()
    assert train.inputs == ("input", "target")
    assert train["target"].dtype is DType.I32
    assert imported.infer.outputs == ("output",)
    assert "running_stats" not in ops_of(imported.infer)


def test_shared_parameters_are_one_tensor_with_aliases() -> None:
    imported = import_model(
        _Tied(), torch.zeros(2, 5, dtype=torch.int64), loss=lambda o, t: o.mean(), target=np.zeros(2)
    )
    [only] = imported.parameters
    assert (only.name, only.aliases) == ("embed.weight", ("head.weight",))
    assert len(imported.train.of_role(Role.PARAM)) == 1
    assert len(import_model(_Shared(), torch.zeros(1, 4), loss="mse").train.of_role(Role.PARAM)) == 2


def test_samples_stay_in_sequence_in_torchs_attention() -> None:
    """nn.MultiheadAttention merges (length, batch) before its last product; samples would then be interleaved."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
    graph = import_model(layer, torch.zeros(1, 5, 8), loss="mse").train
    for node in graph.nodes:
        if node.op == "reshape":
            before, after = graph[node.ins[0]].shape, graph[node.outs[0]].shape
            lead = [math.prod(s[: next(i for i, d in enumerate(s) if isinstance(d, Batch))]) for s in (before, after)]
            assert lead[0] == lead[1], f"{before} → {after}"


def test_an_argument_or_setting_never_takes_the_name_of_a_parameter_or_buffer() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lr, self.weight = nn.Parameter(torch.ones(3)), nn.Parameter(torch.full((3,), 2.0))
            self.register_buffer("counter", torch.full((3,), 3.0))
            self.register_buffer("x", torch.full((3,), 4.0))
            self.v = nn.ParameterDict({"mul": torch.full((3,), 5.0)})

        def forward(self, weight: torch.Tensor, x: torch.Tensor, counter: torch.Tensor, target: torch.Tensor) -> Any:
            y = weight * self.weight + x * self.x + counter * self.counter * self.lr + target * self.v.mul
            return F.dropout(y, 0.5, self.training)

    model = Named()
    rng = np.random.default_rng(0)
    given = [rng.normal(size=(2, 3)) for _ in range(4)]
    imported = import_model(model, given, loss="mse")
    assert imported.infer.inputs == ("weight.2", "x.2", "counter.2", "target")
    assert imported.train.inputs == (*imported.infer.inputs, "target.2")
    for graph in (imported.train, imported.infer):
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            close(graph.data[name], tensor)
        assert [t.name for t in graph.of_role(Role.PARAM)] == ["lr", "weight", "v.mul"]
    assert [t.name for t in imported.train.of_role(Role.SETTING)] == [":counter"]
    env = interp.run(imported.infer, dict(zip(imported.infer.inputs, given, strict=True)), n=2)
    close(env["output"], model.eval()(*[torch.from_numpy(x) for x in given]))


def test_modules_called_model_and_loss_keep_their_names() -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.loss = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> Any:
            return self.loss(self.model(x))

    model = Nested()
    weighted = nn.BCEWithLogitsLoss(weight=torch.tensor([1.0, 2.0, 3.0]))  # has a buffer called weight, too
    imported = import_model(model, torch.zeros(2, 3), loss=weighted, target=torch.zeros(2, 3))
    for graph in (imported.train, imported.infer):
        assert [t.name for t in graph.of_role(Role.PARAM)] == [p.name for p in imported.parameters]
        close(graph.data["loss.weight"], model.loss.weight)
    close(imported.train.data["loss.weight.2"], torch.tensor([1.0, 2.0, 3.0]))


def test_a_model_in_evaluation_mode_is_captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    captured: list[bool] = []
    real = torch.export.export

    def counted(module: nn.Module, *args: Any, **options: Any) -> Any:
        captured.append(module.training)
        return real(module, *args, **options)

    monkeypatch.setattr(torch.export, "export", counted)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.BatchNorm1d(4))
    for was_training, wanted in ((False, [False]), (True, [False, True])):
        captured.clear()
        imported = import_model(model.train(was_training), torch.zeros(2, 3), loss="cross_entropy", bn="batch")
        assert captured == wanted
        assert ops_of(imported.infer) == ["feed", "linear", "batch_norm", "fetch"]
        dropped = ["dropout"] if was_training else []
        norm = ["batch_stats", "running_stats", "batch_norm_batch"]
        assert ops_of(imported.train) == ["feed", "feed", "linear", *dropped, *norm, "cross_entropy"]
        assert imported.infer.inputs == ("input",)


def test_an_output_with_several_rows_a_sample_takes_a_target_of_as_many_rows() -> None:
    class Flattened(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(9, 4), nn.Linear(4, 9)

        def forward(self, tokens: torch.Tensor) -> Any:
            return self.head(self.embed(tokens)).reshape(-1, 9)

    model = Flattened().double()
    tokens, target = torch.randint(0, 9, (3, 5)), torch.randint(0, 9, (15,))
    imported = import_model(model, tokens, loss="cross_entropy")
    assert imported.train["target"].shape == (Batch(5),)
    env = interp.run(imported.train, feeds(imported, [tokens], target), n=3)
    close(env[imported.loss], F.cross_entropy(model(tokens), target))


def test_outputs_that_are_none_are_left_out() -> None:
    class Weightless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

        def forward(self, x: torch.Tensor) -> Any:
            return self.attention(x, x, x, need_weights=False)

    assert import_model(Weightless(), torch.zeros(1, 3, 4), loss="mse").output_shapes == ((Batch(1), 3, 4),)


def test_a_loss_may_use_the_models_parameters() -> None:
    model = nn.Linear(3, 2)

    def decayed(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(output, target) + 0.1 * sum(p.square().sum() for p in model.parameters())

    imported = import_model(model, torch.zeros(1, 3), loss=decayed, target=torch.zeros(1, 2))
    env = interp.run(imported.train, {"input": np.zeros((2, 3)), "target": np.zeros((2, 2))}, n=2)
    want = decayed(model(torch.zeros(2, 3)), torch.zeros(2, 2)).item()
    assert env[imported.loss] == pytest.approx(want, rel=1e-6)


def test_inputs_of_float64_and_arrays_are_taken_in_the_models_precision() -> None:
    imported = import_model(nn.Linear(3, 2), np.zeros((1, 3)), loss="cross_entropy")
    assert imported.batch == 1
    assert imported.output_shapes == ((Batch(1), 2),)
