"""What cannot be imported: the error names module and line, and what would work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from smidgen.compiler.graph import interp
from smidgen.compiler.torch_import import translate
from smidgen.compiler.torch_import.aten import TABLE
from smidgen.compiler.torch_import.capture import import_model
from smidgen.errors import BadOption, BadShape, ExportFailed, Internal, SmidgenError, UnsupportedOp
from tests.support.torch_compare import close
from tests.support.torch_models import Fn

# Errors.


class HardBatch(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        y = x.relu()
        return y.view(4, -1).sum(1, keepdim=True)


class SevenRows(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        y = x.relu()
        return y.view(7, -1)


class Pairs(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return x.reshape(-1, 2, 3).sum(1)


class DecidesByValue(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        if x.sum() > 0:
            return x
        return -x


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> Any:
        self.seen += 1
        return x


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return g


class OwnGradient(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return Straight.apply(x)  # type: ignore[no-untyped-call]


class InsideNoGrad(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        with torch.no_grad():
            y = x.cummax(1)[0]
        return x - y


class Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> Any:
        with torch.autocast("cpu"):
            return self.fc(x)


def helped(x: torch.Tensor) -> torch.Tensor:
    return x.cummax(1)[0]


class Helped(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return helped(x)


ERRORS: list[tuple[str, nn.Module, tuple[int, ...], type[SmidgenError], str]] = [
    ("hard-batch", HardBatch(), (3,), ExportFailed, "y.view(4, -1)"),
    ("hard-seven", SevenRows(), (3,), ExportFailed, "y.view(7, -1)"),
    ("pairs-of-samples", Pairs(), (3,), ExportFailed, "x.reshape(-1, 2, 3)"),
    ("data-dependent", DecidesByValue(), (3,), ExportFailed, "if x.sum() > 0:"),
    ("gram-matrix", Fn(lambda x: x @ x.T), (3,), ExportFailed, "multiple of the batch"),
    ("over-the-batch", Fn(lambda x: x.T @ x), (3,), UnsupportedOp, "over the samples"),
    ("one-sample", Fn(lambda x: x - x[0]), (3,), UnsupportedOp, "picked out of the batch"),
    ("batch-max", Fn(lambda x: x.amax(0)), (3,), UnsupportedOp, "sum and mean work"),
    ("cummax", Fn(lambda x: x.cummax(1)[0]), (3,), UnsupportedOp, "aten.cummax"),
    ("random", Fn(lambda x: x + torch.randn(3)), (3,), UnsupportedOp, "aten.randn"),
    ("boolean-index", Fn(lambda x: x[x > 0]), (3,), UnsupportedOp, "depends on values"),
    ("own-gradient", OwnGradient(), (3,), UnsupportedOp, "'Straight' defines itself"),
    ("buffer", Counts(), (3,), UnsupportedOp, "changes 'seen'"),
    ("helper", Helped(), (3,), UnsupportedOp, ": return x.cummax(1)[0]"),
    ("no-grad", InsideNoGrad(), (3,), UnsupportedOp, ": y = x.cummax(1)[0]"),
    ("autocast", Autocast(), (3,), UnsupportedOp, ": return self.fc(x)"),
    ("complex", Fn(lambda x: (x * 1j).angle()), (3,), UnsupportedOp, "imaginary"),
    ("complex-to-real", Fn(lambda x: torch.fft.fft(x).float()), (3,), UnsupportedOp, "x.real"),
    ("half", Fn(lambda x: x.half().float()), (3,), UnsupportedOp, "float16"),
    ("pool-indices", Fn(lambda x: F.max_pool2d(x, 2, return_indices=True)[1]), (1, 4, 4), UnsupportedOp, "indices"),
    ("gqa", Fn(lambda x: F.scaled_dot_product_attention(x, x[:, :1], x[:, :1], enable_gqa=True)), (2, 4, 4),
     UnsupportedOp, "grouped-query"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "shape", "error", "text"), [pytest.param(*r[1:], id=r[0]) for r in ERRORS])
def test_what_cannot_be_imported_is_named_with_its_line(
    model: nn.Module, shape: tuple[int, ...], error: type[SmidgenError], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(error) as caught:
        import_model(model, torch.zeros(4, *shape), loss=lambda o, t: o.mean(), target=np.zeros(4))
    message = str(caught.value)
    assert text in message
    assert f"{Path(__file__).name}:" in message
    assert "help:" in message
    assert len(message) < 900
    assert message.count("\n") <= 3
    assert capsys.readouterr() == ("", "")


def test_an_unknown_op_names_module_line_and_alternative() -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return torch.special.bessel_j0(x)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Sequential(nn.ReLU(), Odd())

        def forward(self, x: torch.Tensor) -> Any:
            return self.head(x)

    with pytest.raises(UnsupportedOp) as caught:
        import_model(Net(), torch.zeros(1, 3), loss="mse")
    lines = str(caught.value).split("\n")
    assert lines[0] == "error[E101]: torch op aten.special_bessel_j0 is not supported"
    assert lines[1].startswith("  at   head.1 (")
    assert "torch.special.bessel_j0(x)" in lines[1]


def test_an_op_in_a_loss_names_its_line() -> None:
    def ranked(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        difference = output - target
        return difference.cummax(1)[0].mean()

    with pytest.raises(UnsupportedOp) as caught:
        import_model(nn.Linear(3, 2), torch.zeros(1, 3), loss=ranked, target=torch.zeros(1, 2))
    assert caught.value.at.startswith("loss (")
    assert f"{Path(__file__).name}:" in caught.value.at
    assert caught.value.at.endswith(": return difference.cummax(1)[0].mean())")


def test_a_layer_of_torch_that_is_the_whole_model_is_named_by_its_class() -> None:
    with pytest.raises(UnsupportedOp) as caught:
        import_model(nn.EmbeddingBag(5, 3, padding_idx=1), torch.zeros(2, 4, dtype=torch.int64), loss="mse")
    assert caught.value.at == "EmbeddingBag"


def test_what_no_rule_foresaw_is_an_error_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise KeyError("x")

    monkeypatch.setitem(TABLE, "relu", broken)
    with pytest.raises(UnsupportedOp, match=r"aten\.relu.*\n.*F\.relu\(x\)(.|\n)*KeyError: 'x'"):
        import_model(Fn(lambda x: F.relu(x)), torch.zeros(2, 3), loss="mse")
    monkeypatch.setattr(translate, "named", broken)
    with pytest.raises(Internal, match="KeyError: 'x'"):
        import_model(nn.Linear(3, 2), torch.zeros(2, 3), loss="mse")


EXAMPLES: list[tuple[str, Any, str]] = [
    ("nothing", (), "there is no input"),
    ("none", None, "NoneType"),
    ("text", np.array(["a", "b"]), "cannot be read"),
    ("objects", np.array([None, 2], dtype=object), "cannot be read"),
    ("no-memory", torch.zeros(2, 3, device="meta"), "cannot be read"),
    ("complex", torch.zeros(2, 3, dtype=torch.complex64), "complex"),
    ("two-sizes", (torch.zeros(2, 3), torch.zeros(3, 3)), "different batch sizes"),
]


@pytest.mark.parametrize(("example", "text"), [pytest.param(*r[1:], id=r[0]) for r in EXAMPLES])
def test_an_example_that_cannot_be_used_is_explained(example: Any, text: str) -> None:
    with pytest.raises(BadShape, match=text):
        import_model(nn.Linear(3, 2), example, loss="mse")


@pytest.mark.parametrize("kind", [torch.bool, torch.uint8, torch.int16, torch.int64, torch.float16])
def test_examples_of_any_type_are_taken_as_torch_takes_them(kind: torch.dtype) -> None:
    model = Fn(lambda x, w: (x.float() / 3) @ w, (3, 2))
    x = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(kind)
    imported = import_model(model, x, loss="mse")
    env = interp.run(imported.infer, {imported.infer.inputs[0]: x.numpy()}, n=2)
    close(env["output"], model(x), 1e-6)
    reverse = np.zeros((2, 3), np.float32)[::-1]  # torch takes no negative strides
    assert import_model(nn.Linear(3, 2), reverse, loss="mse").batch == 2


def test_wrong_options_are_explained() -> None:
    model = nn.Linear(3, 2)
    x = torch.zeros(2, 3)
    with pytest.raises(BadOption, match="did you mean 'cross_entropy'"):
        import_model(model, x, loss="crossentropy")
    with pytest.raises(BadOption, match="target"):
        import_model(model, x, loss=lambda o, t: o.mean())
    with pytest.raises(BadOption, match="bn='batch'"):
        import_model(model, x, loss="mse", bn="train")
    with pytest.raises(BadOption, match="returns 2 tensors"):
        import_model(Fn(lambda x: (x, x)), x, loss="mse")
    for wrong in (None, 3):
        with pytest.raises(BadOption, match=f"loss={wrong} is not a loss\\n.*bce_with_logits, cross_entropy, huber"):
            import_model(model, x, loss=wrong, target=x)  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="the model is a function"):
        import_model(helped, x, loss="mse")  # type: ignore[arg-type]
    with pytest.raises(BadShape, match="the target has 5 samples, the example 2"):
        import_model(model, x, loss="mse", target=torch.zeros(5, 2))
    with pytest.raises(BadShape, match="the target has 2 tensors"):
        import_model(model, x, loss="mse", target=(x, x))
    for moved in (lambda x: x.T, lambda x: x.mean()):
        with pytest.raises(BadShape, match="first axis of the model's output is not the batch"):
            import_model(Fn(moved), x, loss="mse")
    with pytest.raises(BadShape, match="not a scalar"):
        import_model(model, x, loss=lambda o, t: o, target=x)
    with pytest.raises(BadShape, match="class axis"):
        import_model(Fn(lambda x: x[:, 0]), x, loss="cross_entropy")
    with pytest.raises(BadShape, match="no samples"):
        import_model(model, torch.zeros(0, 3), loss="mse")
    with pytest.raises(UnsupportedOp, match="momentum=None"):
        import_model(nn.Sequential(model, nn.BatchNorm1d(2, momentum=None)), x, loss="mse", bn="batch")
    import_model(nn.Sequential(model, nn.BatchNorm1d(2, momentum=None)), x, loss="mse", bn="frozen")
