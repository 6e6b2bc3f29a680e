"""Options of compile that mean nothing: every message is exact. And what the pipeline gets of the others."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from smidgen import cli, methods
from smidgen.compiler.optimizers import SGD, AdamW
from smidgen.compiler.options import Options, checked_options
from smidgen.errors import SmidgenError
from smidgen.ir import Role
from smidgen.ops.build import Builder, feed
from tests.support import small
from tests.support.jobs import said
from tests.support.small import N

# -- options of compile --------------------------------------------------------------------------------------------

MODEL = nn.Linear(3, 2)
ANY = "optimizer=smidgen.SGD(lr=0.01), smidgen.Adam(lr=0.001) or smidgen.AdamW(lr=0.001)"
FOREIGN = "is not an optimizer of smidgen\n  help: "
METHOD = (
    "is not understood\n  why  it is a name, a method, or a list of methods, names of parameters and updates\n  help: "
)
METHOD += "method='full', or method=['head.*', 'norm.bias']"
SEED = "is not a seed\n  why  it is an integer from 0 to 2**31 - 1\n  help: seed=0"
SAMPLES = "is not a number of samples\n  help: batch=8, for instance"
MODES = "is not understood\n  help: bn='frozen' or bn='batch'"
OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"optimizer": "adam"}, f"optimizer='adam' {FOREIGN}optimizer=smidgen.Adam(lr=0.001)"),
    ({"optimizer": "lion"}, f"optimizer='lion' {FOREIGN}{ANY}"),
    ({"optimizer": 0.1}, f"optimizer=builtins.float {FOREIGN}{ANY}"),
    ({"optimizer": SGD}, f"optimizer=smidgen.compiler.optimizers.SGD {FOREIGN}optimizer=smidgen.SGD(lr=0.01)"),
    (
        {"optimizer": torch.optim.SGD(MODEL.parameters(), lr=0.3, momentum=0.9)},
        f"optimizer=torch.optim.sgd.SGD {FOREIGN}optimizer=smidgen.SGD(lr=0.3, momentum=0.9)",
    ),
    (
        {"optimizer": torch.optim.AdamW(MODEL.parameters())},
        f"optimizer=torch.optim.adamw.AdamW {FOREIGN}optimizer=smidgen.AdamW(lr=0.001, weight_decay=0.01)",
    ),
    (
        {"optimizer": torch.optim.RMSprop(MODEL.parameters())},
        f"optimizer=torch.optim.rmsprop.RMSprop {FOREIGN}{ANY}",
    ),
    ({"method": None}, f"method=None {METHOD}"),
    ({"method": []}, f"method=[] {METHOD}"),
    ({"method": ["full", 3]}, f"method=['full', 3] {METHOD}"),
    ({"method": {"full"}}, f"method={{'full'}} {METHOD}"),
    ({"batch": True}, f"batch=True {SAMPLES}"),
    ({"batch": 0}, f"batch=0 {SAMPLES}"),
    ({"batch": 2.0}, f"batch=2.0 {SAMPLES}"),
    ({"batch": 2**31}, f"batch=2147483648 {SAMPLES}"),
    ({"bn": "train"}, f"bn='train' {MODES}"),
    ({"bn": None}, f"bn=None {MODES}"),
    ({"accumulate": 4}, "accumulate=4 is not True or False\n  help: memory=smidgen.Memory(accumulate=True)"),
    ({"seed": -1}, f"seed=-1 {SEED}"),
    ({"seed": 2**31}, f"seed=2147483648 {SEED}"),
    ({"seed": "7"}, f"seed='7' {SEED}"),
    ({"model": nn.Linear}, "the model is the class Linear, not a module made of it\n  help: Linear(…)"),
    ({"model": None}, "the model is a NoneType, not a torch.nn.Module\n  help: pass the module itself"),
    (
        {"model": MODEL.state_dict()},
        "the model is a OrderedDict, not a torch.nn.Module\n  help: pass the module itself",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("given", "text"), OPTIONS, ids=[f"{min(g)}-{i}" for i, (g, _) in enumerate(OPTIONS)])
def test_an_option_that_means_nothing_says_what_would(given: dict[str, Any], text: str) -> None:
    assert said(lambda: checked_options(**{"model": MODEL, **given})) == f"error[E304]: {text}"


def test_options_come_back_as_the_pipeline_wants_them() -> None:
    assert checked_options(MODEL) == Options(SGD(lr=0.01, momentum=0.9), "full", None, "frozen", False, 0)
    given = checked_options(
        MODEL, optimizer=AdamW(), method=["bn", "head.*"], batch=np.int64(3), bn="batch", accumulate=np.True_,
        seed=np.uint8(7),
    )  # fmt: skip
    assert given == Options(AdamW(), ("bn", "head.*"), 3, "batch", True, 7)
    assert [type(v) for v in (given.batch, given.accumulate, given.seed)] == [int, bool, int]


# -- methods -------------------------------------------------------------------------------------------------------


def _chosen(method: Any, trainable: tuple[str, ...] = small.ALL, known: Any = None) -> list[str]:
    context = methods.Context(tuple(trainable), known or {}, len)
    return [u.param for u in methods.choose(method, small.forward()[0], context)]


def test_a_list_may_hold_methods_and_parameters() -> None:
    assert _chosen(["full"]) == _chosen("full") == list(small.ALL)
    assert _chosen(["last:1"]) == _chosen("last:1") == ["w3", "b3"]
    assert _chosen(("last_layer", "b1")) == ["w3", "b3", "b1"]
    b = Builder()
    bias, weight = (b.stored(name, np.ones(2), Role.PARAM) for name in ("bias", "scale.bias"))
    b.add("add", b.add("mul", feed(b, "x", (N, 2)), weight), bias)
    chosen = methods.choose(["bias"], b.graph(), methods.Context(("bias", "scale.bias"), {}, len))
    assert [u.param for u in chosen] == ["bias"], "a parameter before the method of the same name"


NOTHING = "error[E302]: method '{}' finds nothing to train in this model\n  why  {}\n"
NOTHING += '  help: method="full" trains every parameter with requires_grad=True'
KNOWN = {**{p: p for p in small.ALL}, "spare": "spare", "tied": "w3"}


def test_parameters_that_cannot_learn_are_not_called_unknown() -> None:
    frozen = tuple(p for p in small.ALL if p != "w3")
    text = NOTHING.format("w3", "it selects 1 with requires_grad=False")
    assert said(lambda: _chosen("w3", frozen)) == text
    text = NOTHING.format("spare*", "it selects 2 that the loss does not use")
    assert said(lambda: _chosen("spare*", (*small.ALL, "spare.a", "spare.b"))) == text
    text = NOTHING.format("spare", "it selects 1 that the loss does not use")
    assert said(lambda: _chosen("spare", known=KNOWN)) == text
    text = NOTHING.format("w3, spare", "it selects 1 with requires_grad=False, 1 that the loss does not use")
    assert said(lambda: _chosen(["w3", "spare"], frozen, KNOWN)) == text
    assert _chosen("tied", known=KNOWN) == ["w3"]


def test_suggestions_are_listed_once() -> None:
    text = "error[E301]: 'zzzz' is neither a method nor a parameter of this model\n  help: one of "
    names = sorted({*methods.all_methods(), *small.ALL, "bias"})
    assert said(lambda: _chosen("zzzz", (*small.ALL, "bias"))) == text + ", ".join(names)


def test_a_seed_is_checked_before_any_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", "nope.py:build", "--input", "2x3", "--seed", "-1"]) == 2
    assert capsys.readouterr() == ("", f"error[E304]: seed=-1 {SEED}\n")


def test_the_collector_is_as_it_was_after_compiling_and_after_an_error() -> None:
    before = gc.get_threshold()
    smidgen.compile(torch.nn.Linear(4, 3), torch.zeros(2, 4))
    assert gc.get_threshold() == before
    with pytest.raises(SmidgenError):
        smidgen.compile(torch.nn.Linear(4, 3), torch.zeros(2, 5))
    assert gc.get_threshold() == before
