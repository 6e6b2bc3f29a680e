"""compile, sweep and max_batch: one set of arguments, what belongs together in one type, old spellings explained."""

from __future__ import annotations

import inspect
from dataclasses import FrozenInstanceError, fields
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from smidgen.errors import BadData, BadOption, DoesNotFit, ExportFailed, SmidgenError

X = torch.randn(4, 6)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


def test_three_verbs_share_one_signature_of_at_most_16_arguments() -> None:
    of = [inspect.signature(verb).parameters for verb in (smidgen.compile, smidgen.sweep, smidgen.max_batch)]
    assert of[0] == of[1] == of[2]
    assert len(of[0]) <= 16
    assert {"precision", "data", "memory", "budget", "classes"} <= set(of[0])


OLD = {
    "accumulate": True, "spare_classes": 2, "class_names": ["cat", "dog"], "const": "int8", "page_to": "page.bin",
    "objective": "energy", "deadline": "2x", "effort": 3.0, "ladder": ["32KB"], "prices": "measured", "threads": 2,
    "page": True,
}  # fmt: skip
"""Arguments of compile, sweep and max_batch in 0.1 that have moved, with a value of each."""


@pytest.mark.parametrize("name", OLD)
@pytest.mark.parametrize("verb", [smidgen.compile, smidgen.sweep, smidgen.max_batch])
def test_an_old_spelling_shows_the_new_one(name: str, verb: Any) -> None:
    with pytest.raises(BadOption, match=f"{name}= is written another way") as error:
        verb(net(), X, **{name: OLD[name]})
    given = eval(f"dict({error.value.help})", {"smidgen": smidgen, "dict": dict})
    assert set(given) <= set(inspect.signature(smidgen.compile).parameters)


def test_old_spellings_are_shown_together_in_the_order_of_the_call() -> None:
    with pytest.raises(BadOption) as error:
        smidgen.compile(net(), X, spare_classes=2, effort=3.0, class_names=["cat"], ladder=["32KB"], threads=4)
    assert error.value.what == (
        "spare_classes=, effort=, class_names=, ladder=, threads= are written another way since 0.2"
    )
    assert error.value.help == (
        "memory=smidgen.Memory(effort=3.0, ladder=['32KB']), classes=smidgen.Classes(spare=2, names=['cat']), "
        "kernels='fast:4'"
    )


@pytest.mark.parametrize(
    ("given", "help"),
    [({"told": print}, "leave out told= (`smidgen plan` shows progress)"), ({"page": False}, "leave out page=False"),
     ({"threads": 1, "kernels": "exact"}, "kernels='exact'")],
)  # fmt: skip
def test_an_old_spelling_that_says_nothing_can_be_left_out(given: dict[str, Any], help: str) -> None:
    with pytest.raises(BadOption) as error:
        smidgen.sweep(net(), X, **given)
    assert error.value.help == help


def test_an_argument_that_does_not_exist_is_said_of_the_function_that_was_called() -> None:
    with pytest.raises(TypeError, match=r"max_batch\(\) got an unexpected keyword argument 'optimiser'"):
        smidgen.max_batch(net(), X, optimiser=1)  # type: ignore[call-arg]


def test_the_short_form_of_a_budget_is_that_of_memory() -> None:
    model = net()
    short = smidgen.compile(model, X, kernels="exact", budget="8KB")
    long = smidgen.compile(model, X, kernels="exact", memory=smidgen.Memory("8KB"))
    assert short.program.to_bytes() == long.program.to_bytes()
    with pytest.raises(BadOption, match="the budget is given twice"):
        smidgen.compile(net(), X, budget="8KB", memory=smidgen.Memory("8KB"))


def test_threads_belong_to_kernels() -> None:
    assert (
        smidgen.compile(net(), X, kernels="fast:2").plan.work_bytes
        > smidgen.compile(net(), X, kernels="fast").plan.work_bytes
    )


@pytest.mark.parametrize(
    "wrong",
    [{"memory": "8KB"}, {"classes": 4}, {"precision": "int4"}, {"kernels": "fast:0"}, {"kernels": "faster"},
     {"memory": smidgen.Memory(effort=-1)}, {"memory": smidgen.Memory(objective="money")},
     {"memory": smidgen.Memory(deadline="soon")}, {"memory": smidgen.Memory(prices="free")},
     {"classes": smidgen.Classes(spare=-1)}, {"classes": smidgen.Classes(names="cat")}],
    ids=str,
)  # fmt: skip
def test_what_means_nothing_is_said_with_what_would(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadOption) as error:
        smidgen.compile(net(), X, **wrong)
    assert error.value.help


class Unequal:
    """Cannot be compared or hashed, as arrays of some libraries."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("ambiguous")


ODD = [np.ones(3), object(), [object()], b"f32", Unequal()]
KINDS = {"memory": smidgen.Memory, "classes": smidgen.Classes}
FIELDS = [(name, field.name) for name, kind in KINDS.items() for field in fields(kind)]
"""`data` is not among the arguments: it belongs to methods, and those that do not look at it take anything."""


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: type(odd).__name__)
@pytest.mark.parametrize(
    ("name", "field"), [(n, "") for n in inspect.signature(smidgen.compile).parameters if n != "data"] + FIELDS
)
def test_an_argument_of_any_odd_type_is_refused_by_an_error_of_ours(name: str, field: str, odd: Any) -> None:
    value = KINDS[name](**{field: odd}) if field else odd
    given: dict[str, Any] = {"model": net(), "example": X, "kernels": "exact"}
    with pytest.raises(SmidgenError) as error:
        smidgen.compile(**{**given, name: value})
    assert error.value.help
    assert name in ("example", "target") or isinstance(error.value, BadOption)


@pytest.mark.parametrize(
    "wrong", [{"kernels": "fast:99"}, {"memory": smidgen.Memory(page_to=5)}, {"memory": smidgen.Memory(effort=-1)}],  # type: ignore[arg-type]
    ids=str,
)  # fmt: skip
def test_help_is_no_old_spelling(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadOption) as error:
        smidgen.compile(net(), X, **wrong)
    smidgen.compile(net(), X, **eval(f"dict({error.value.help})", {"smidgen": smidgen, "dict": dict}))


def test_types_of_arguments_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        smidgen.Memory().effort = 3  # type: ignore[misc]


def test_data_reaches_a_method() -> None:
    seen = []

    class Looking(smidgen.all_methods()["full"]):  # type: ignore[misc]
        def choose(self, graph: Any, context: Any) -> Any:
            seen.append(context.data)
            return super().choose(graph, context)

    data = (X, torch.zeros(4, dtype=torch.long))
    smidgen.compile(net(), X, method=Looking(), data=data, kernels="exact")
    assert seen[0] is data


def test_nobody_means_a_budget_of_32_bytes() -> None:
    for given in (32, "32"):
        with pytest.raises(DoesNotFit, match="the budget has 32 bytes") as error:
            smidgen.compile(net(), X, budget=given, kernels="exact")
        assert error.value.why.startswith("the budget is 32 bytes, as a number without a unit is; 32KB are kilobytes")


def test_python_and_the_command_line_train_by_the_same_optimizer() -> None:
    from smidgen.cli.arguments import parser
    from smidgen.compiler.optimizers import DEFAULT, by_name
    from smidgen.compiler.options import checked_options

    assert checked_options(net()).optimizer == by_name("sgd") == DEFAULT == smidgen.SGD(lr=0.01, momentum=0.9)
    args = parser().parse_args(["plan", "nets.py:build", "--input", "4x6"])
    assert by_name(args.optimizer, lr=args.lr, momentum=args.momentum) == DEFAULT


def test_an_example_that_the_model_does_not_take_is_named_as_such() -> None:
    with pytest.raises(ExportFailed, match=r"the model does not take an input of 4x7") as error:
        smidgen.compile(net(), torch.zeros(4, 7))
    assert "mat1 and mat2 shapes cannot be multiplied" in error.value.why
    assert error.value.help == "give an example as the model is called with, batch first"


def test_labels_that_count_from_one_are_recognised() -> None:
    job = smidgen.compile(net(), X)
    with pytest.raises(BadData, match="label 3 in sample 2") as error:
        job.fit(X, torch.tensor([1, 2, 3, 1]))
    assert error.value.help == "they seem to count from 1: give y - 1"
    with pytest.raises(BadData) as error:
        job.fit(X, torch.tensor([0, 2, 3, 1]))
    assert error.value.help == ""
