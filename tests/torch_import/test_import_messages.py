"""Advice in errors of the import is about the user's own code, and can be followed."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smidgen
from smidgen.compiler.torch_import.aten import TABLE, Unsupported
from smidgen.compiler.torch_import.aten.explained import COMPOSE, INSTEAD
from smidgen.compiler.torch_import.capture import import_model
from smidgen.errors import BadShape, ExportFailed, SmidgenError, UnsupportedOp
from tests.support.torch_compare import SAMPLES
from tests.support.torch_models import Fn
from tests.support.torch_rows import Row, agrees_with_torch, row_of

# Blocks of autocast.


def rotary(x: Tensor, w: Tensor) -> Tensor:
    """As models of language compute their positions: in float32 whatever surrounds it."""
    with torch.autocast(device_type=x.device.type, enabled=False):
        angles = torch.arange(3)[:, None] * w[None].to(x.dtype)
        y, z = angles.cos(), (x @ angles.t()).relu()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = z * 2
    return x * y[0] + z.sum(1, keepdim=True)


def nested(x: Tensor, w: Tensor) -> Tensor:
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        y = x @ w
    with torch.autocast("cpu"):
        z = (x + y).relu()  # nothing that autocast computes in another type
    return z * x + y


BLOCKS = [
    row_of("disabled", rotary, (4,), weights=[(4,)]),
    row_of("nested", nested, (4,), weights=[(4, 4)]),
]


@pytest.mark.parametrize("samples", [SAMPLES, 1])
@pytest.mark.parametrize("case", [pytest.param(r, id=r.name) for r in BLOCKS])
def test_autocast_that_changes_no_type_is_part_of_the_model(case: Row, samples: int) -> None:
    agrees_with_torch(case, samples)


class Autocast(nn.Module):
    def __init__(self, kind: torch.dtype) -> None:
        super().__init__()
        self.fc, self.kind = nn.Linear(3, 3), kind

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=self.kind):
            y: Tensor = self.fc(x)
        return y.float()


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_autocast_that_computes_in_half_precision_is_refused_where_it_does(kind: torch.dtype) -> None:
    with pytest.raises(UnsupportedOp) as caught:
        import_model(Autocast(kind), torch.zeros(2, 3), loss="mse")
    error = caught.value
    assert error.what == "torch op aten.linear is not supported"
    assert error.at.startswith("fc (")
    assert error.why == f"autocast makes it compute in {str(kind)[6:]}, smidgen trains in float32"
    assert error.help == "leave torch.autocast(…) out, or give it enabled=False"


# An op that torch defines in terms of others.


def test_advice_about_a_step_of_an_op_is_not_given_as_advice_about_the_op(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*_: Any) -> Any:
        raise Unsupported("it is odd", "index one axis at a time")

    monkeypatch.delitem(TABLE, "hardswish")
    for step in ("add", "clamp", "clamp_min", "clamp_max", "mul", "hardtanh"):
        monkeypatch.setitem(TABLE, step, refusing)
    for known in ("", "F.silu"):
        if known:
            monkeypatch.setitem(INSTEAD, "hardswish", known)
        with pytest.raises(UnsupportedOp) as caught:
            import_model(Fn(lambda x: nn.functional.hardswish(x)), torch.zeros(2, 3), loss="mse")
        assert "aten.hardswish" in caught.value.what
        assert caught.value.why == "in one of its steps it is odd"
        assert caught.value.help == (known or COMPOSE)


# Code of a library.

LIBRARY = """
import torch
from torch import nn


class Odd(nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(x)


class Deciding(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x
        return -x


class Gram(nn.Module):
    def forward(self, x):
        return x @ x.T


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, g):
        return g


class Signs(nn.Module):
    def forward(self, x):
        return Straight.apply(x)


class Experts(nn.Module):
    # As transformers has them: one by one, unless it is told otherwise.
    def __init__(self):
        super().__init__()
        self.how, self.weight = "eager", nn.Parameter(torch.ones(2, 3, 3))

    def set_experts_implementation(self, how):
        self.how = how

    def forward(self, x):
        chosen = (x[:, 0] > 0).long()
        if self.how == "grouped_mm":
            return torch.bmm(x[:, None], self.weight[chosen]).squeeze(1)
        y = torch.zeros_like(x)
        for expert in torch.nn.functional.one_hot(chosen, 2).sum(0).nonzero():
            rows = torch.where(chosen == expert[0])[0]
            y.index_add_(0, rows, x[rows] @ self.weight[expert[0]])
        return y


class Block(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 3), inner)

    def forward(self, x):
        return self.layers(x)
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    folder = tmp_path / "site-packages" / "oddzoo"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("", encoding="utf-8")
    (folder / "blocks.py").write_text(LIBRARY, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder.parent))
    return importlib.import_module("oddzoo.blocks")


def failure(model: nn.Module, *example: int) -> SmidgenError:
    with pytest.raises(SmidgenError) as caught:
        import_model(model, torch.zeros(example or (2, 3)), loss="mse")
    assert len(str(caught.value)) < 900
    assert str(caught.value).count("\n") == 3
    return caught.value


def test_for_code_of_a_library_it_says_which_module_to_replace(library: Any) -> None:
    error = failure(library.Block(library.Odd()))
    assert error.at.startswith("layers.1 (")
    assert error.help == (
        f"{COMPOSE}; the line is in oddzoo: subclass Odd with it changed, then model.set_submodule('layers.1', yours)"
    )
    assert failure(library.Odd()).help.endswith(
        "the line is in oddzoo: subclass Odd with it changed, then train yours instead"
    )
    gram = failure(library.Block(library.Gram()))
    assert isinstance(gram, ExportFailed)
    assert "subclass Gram with it changed" in gram.help
    assert "the line is in oddzoo: subclass the class it is in" in failure(library.Block(library.Deciding())).help


def test_for_a_function_of_a_library_it_says_what_to_replace(library: Any) -> None:
    error = failure(library.Block(library.Signs()))
    assert "defines itself" in str(error)
    assert "the line is in oddzoo: subclass the module that it is in" in error.help


def test_for_experts_taken_one_by_one_it_names_the_method_that_helps(library: Any) -> None:
    model = library.Block(library.Experts())
    help = "model.layers.1.set_experts_implementation('grouped_mm') computes experts without control flow"
    assert failure(model).help == help
    model.layers[1].set_experts_implementation("grouped_mm")
    import_model(model, torch.zeros(2, 3), loss="mse")


def test_what_it_says_about_a_module_of_a_library_works(library: Any) -> None:
    class Yours(library.Odd):  # type: ignore[misc, name-defined]
        def forward(self, x: Tensor) -> Tensor:
            return x.cos()

    model = library.Block(library.Odd())
    model.set_submodule("layers.1", Yours())
    import_model(model, torch.zeros(2, 3), loss="mse")


class Chunked(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        first, second = x.reshape(-1, 4).chunk(2)
        return torch.cat([first, second]).reshape(x.shape).mean(1)


def test_sizes_that_hold_for_some_batches_only_are_named_without_words_of_torch() -> None:
    error = failure(Chunked(), 3, 16, 4)
    assert error.what == "the model does not work for every batch size"
    assert "first, second = x.reshape(-1, 4).chunk(2)" in error.at
    assert error.why == "torch cannot prove for every batch that (((-1) + 24*batch) // (8*batch)) == 2"
    assert error.help.startswith("cut and fold along axes without the batch in them")


# Shapes that do not fit.


def test_an_error_about_shapes_has_a_reason_and_help_even_where_a_rule_gives_none() -> None:
    error = BadShape("something")
    assert error.why
    assert error.help
    assert BadShape("something", why="a", help="b").why == "a"


def test_errors_about_what_the_user_gives_have_their_own_reason_and_help() -> None:
    """Rules of ops may leave it to the default; what is said about examples, targets and outputs may not."""
    folder = Path(smidgen.__file__).parent
    bare = []
    for path in [*(folder / "compiler").rglob("*.py"), folder / "ops" / "strides.py"]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            raised = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "BadShape"
            if raised and not {"why", "help"} <= {k.arg for k in node.keywords}:
                bare.append(f"{path.name}:{node.lineno}")
    assert bare == []
