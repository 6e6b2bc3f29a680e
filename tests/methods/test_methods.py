"""The contract of methods: what they are given, what they may return, and that nothing is trained that was not asked
for. Needs torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from smidgen import Update, methods
from smidgen.compiler.options import checked_options
from smidgen.compiler.pipeline import Lowering
from smidgen.compiler.torch_import.capture import import_model
from smidgen.errors import (
    BadMethod,
    BadOption,
    CannotUpdate,
    NothingToTrain,
    SmidgenError,
    UnknownMethod,
)
from smidgen.ir import Graph, Role
from smidgen.methods import Context, Method
from smidgen.methods.last import Last
from smidgen.ops.build import Builder
from tests.support.arguments import compiled as compiled_with


def dense() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3))


def images() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 3),
    ).eval()  # fmt: skip


DENSE, IMAGES = torch.randn(4, 8), torch.randn(4, 2, 12, 12)
NETS: list[tuple[Callable[[], nn.Module], torch.Tensor]] = [(dense, DENSE), (images, IMAGES)]


def compiled(model: nn.Module, x: torch.Tensor, **options: Any) -> smidgen.Job:
    return compiled_with(model, x, kernels="exact", **options)


def learns(**options: Any) -> tuple[str, ...]:
    return compiled(dense(), DENSE, **options).plan.learns


# -- what may be given ---------------------------------------------------------------------------------------------


class Biases(Method):
    name, doc = "my_biases", "every parameter whose name ends in bias"

    def choose(self, graph: Graph, context: Context) -> Sequence[Update]:
        return [Update(name) for name in context.trainable if name.endswith("bias")]


@pytest.mark.parametrize(
    ("method", "names"),
    [
        ("last_layer", "4.weight 4.bias"),
        ("last:2", "2.weight 2.bias 4.weight 4.bias"),
        (Last, "4.weight 4.bias"),
        (Last(2), "2.weight 2.bias 4.weight 4.bias"),
        (Biases, "0.bias 2.bias 4.bias"),
        (Biases(), "0.bias 2.bias 4.bias"),
        ("2.*", "2.weight 2.bias"),
        (Update("2.bias"), "2.bias"),
        (["last:1", "0.b*", Update("2.bias")], "4.weight 4.bias 0.bias 2.bias"),
        ((Biases, Last(1)), "0.bias 2.bias 4.bias 4.weight"),
    ],
    ids=str,
)
def test_methods_names_patterns_and_updates_may_be_given_and_mixed(method: Any, names: str) -> None:
    assert learns(method=method) == tuple(names.split())


def test_the_plan_names_what_was_asked_for() -> None:
    both = [Biases, Update("4.weight")]
    for method in ("last:2", Last(2)):
        assert compiled(dense(), DENSE, method=method).plan.method == "last:2"
    assert compiled(dense(), DENSE, method=both).plan.method == "my_biases, 4.weight"


def test_a_method_that_needs_arguments_is_given_as_an_object() -> None:
    class Several(Biases):
        def __init__(self, count: int) -> None:
            self.count = count

    with pytest.raises(BadOption, match=re.escape("method=Several(…)")):
        learns(method=Several)
    assert learns(method=Several(1)) == ("0.bias", "2.bias", "4.bias")


@pytest.mark.parametrize("method", [3, [], ["full", 3], object, [object()], {"full": 1}])
def test_what_means_nothing_is_refused(method: Any) -> None:
    with pytest.raises(BadOption, match="is not understood"):
        learns(method=method)


@pytest.mark.parametrize("argument", ["0", "-1", "x", "1.5"])
def test_an_argument_that_means_nothing_is_refused(argument: str) -> None:
    with pytest.raises(BadOption, match="is not understood"):
        learns(method=f"last:{argument}")
    with pytest.raises(BadOption, match="is not understood"):
        learns(method=f"bias:{argument}")
    with pytest.raises(BadOption, match="is not a number of layers"):
        Last(0)


# -- updates -------------------------------------------------------------------------------------------------------


class Returns(Method):
    """Whatever it is told."""

    name, doc = "returns", "what it is told"

    def __init__(self, *updates: Any) -> None:
        self.updates = updates

    def choose(self, graph: Graph, context: Context) -> Any:
        return self.updates


@pytest.mark.parametrize("method", [Update("2.weight", 0, (1, 5)), Returns(Update("2.weight", 1, range(3)))])
def test_a_slice_is_never_trained_whole(method: Any) -> None:
    plan = compiled(dense(), DENSE, method=method).plan
    assert plan.learned_parameters in (2 * 64, 3 * 32)
    assert plan.learns == ("2.weight",)


def test_the_same_update_twice_is_one() -> None:
    twice = Returns(Update("2.weight"), Update("2.weight"), Update("2.bias"))
    assert learns(method=[twice, "2.*", Update("2.bias")]) == ("2.weight", "2.bias")


def test_updates_that_contradict_each_other_are_refused() -> None:
    pair = Update("2.weight"), Update("2.weight", 0, (1,))
    for method in (list(pair), Returns(*pair), list(reversed(pair))):
        with pytest.raises(CannotUpdate, match="contradict"):
            learns(method=method)


def test_slices_of_two_axes_are_refused_with_what_would_work() -> None:
    pair = Update("2.weight", 0, (1,)), Update("2.weight", 1, (1, 2))
    for method in (list(pair), Returns(*pair), list(reversed(pair))):
        with pytest.raises(CannotUpdate, match=re.escape("'2.weight' cannot learn in slices of two axes")) as error:
            learns(method=method)
        assert "2.weight[axis 1, 2 indices]" in error.value.why
        assert error.value.help == "one of the two, or Update('2.weight'), which trains both and all else of it"
    assert learns(method=pair[0]) == learns(method=Update("2.weight")) == ("2.weight",)


def test_slices_of_one_axis_are_joined() -> None:
    joined = methods.selection.merged([Update("w", 0, (5, 1)), Update("v"), Update("w", 0, (2, 1))])
    assert joined == [Update("w", 0, (1, 2, 5)), Update("v")]


@pytest.mark.parametrize("arguments", [("",), (3,), ("w", 0), ("w", None, (1,)), ("w", 0, ()), ("w", -1, (1,)),
                                       ("w", 0, (1, 1)), ("w", 0, "12"), ("w", 0, (1.5,))])  # fmt: skip
def test_an_update_that_says_nothing_cannot_be_made(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(CannotUpdate):
        Update(*arguments)


@pytest.mark.parametrize("method", [Update("2.wieght"), Returns(Update("2.wieght"))])
def test_an_unknown_parameter_gets_the_name_that_was_meant(method: Any) -> None:
    with pytest.raises(UnknownMethod, match=re.escape("'2.wieght' is not a parameter")) as caught:
        learns(method=method)
    assert caught.value.help == "did you mean '2.weight'?"


def test_a_frozen_parameter_is_left_out_of_a_method_but_not_of_what_the_user_asks_for() -> None:
    model = dense()
    model[2].weight.requires_grad_(False)  # type: ignore[index, union-attr, operator]
    for method in ("2.*", Returns(Update("2.weight"), Update("2.bias"))):
        assert compiled(model, DENSE, method=method).plan.learns == ("2.bias",)
    with pytest.raises(CannotUpdate, match=re.escape("'2.weight' cannot learn")):
        compiled(model, DENSE, method=["2.bias", Update("2.weight")])


class Pick(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pick, self.table, self.spare = nn.Linear(8, 4), nn.Embedding(4, 3), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.table(self.pick(x).argmax(1)))


@pytest.mark.parametrize("name", ["pick.weight", "spare.weight"])
def test_what_no_gradient_reaches_is_refused_where_the_user_asks_for_it(name: str) -> None:
    assert compiled(Pick(), DENSE).plan.learns == ("table.weight",)
    with pytest.raises(CannotUpdate, match=re.escape(f"'{name}' cannot learn")):
        compiled(Pick(), DENSE, method=["table.weight", Update(name)])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8, bias=False)
        self.second = nn.Linear(8, 8, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.second(torch.relu(self.first(x))))


def test_a_further_name_of_a_parameter_means_the_same_tensor() -> None:
    for method in (Update("second.weight"), [Update("first.weight"), Returns(Update("second.weight"))]):
        assert compiled(Tied(), DENSE, method=method).plan.learns == ("first.weight",)


@pytest.mark.parametrize("chosen", [None, "2.weight", [Update("2.weight"), "2.bias"], {"2.weight": 1}, 3])
def test_a_method_that_returns_something_else_is_refused(chosen: Any) -> None:
    method = Returns()
    method.updates = chosen
    with pytest.raises(BadMethod, match="does not return a list of updates"):
        learns(method=method)


def test_a_method_without_choose_is_refused() -> None:
    with pytest.raises(BadMethod, match="method 'silent' does not say what learns"):
        learns(method=type("Silent", (Method,), {"name": "silent", "doc": "nothing"}))


@pytest.mark.parametrize(
    "asked", [["2.weight"], "2.weight", iter([Update("2.weight")])], ids=["names", "text", "iterator"]
)
def test_what_memory_is_asked_for_is_checked(asked: Any) -> None:
    class Asks(Returns):
        def choose(self, graph: Graph, context: Context) -> Sequence[Update]:
            context.memory(asked)
            return []

    with pytest.raises(BadMethod, match="memory takes a list of updates"):
        learns(method=Asks())


def test_indices_ascend_whatever_their_order() -> None:
    assert Update("2.weight", axis=1, indices=(3, 0, 2)).indices == (0, 2, 3)
    assert Update("2.weight", axis=1, indices=(3, 0)) == Update("2.weight", axis=1, indices=(0, 3))
    with pytest.raises(CannotUpdate, match="is not a valid slice"):
        Update("2.weight", axis=1, indices=(3, 0, 3))


def test_numbers_of_numpy_are_indices() -> None:
    plain = Update("2.weight", axis=1, indices=(3, 0))
    for indices in (np.array([3, 0]), (np.int64(3), np.int32(0)), [3, 0]):
        assert Update("2.weight", axis=np.int64(1), indices=indices) == plain  # type: ignore[arg-type]
    with pytest.raises(CannotUpdate, match="is not a valid slice"):
        Update("2.weight", axis=0, indices=np.array([0.5]))  # type: ignore[arg-type]


def test_a_method_that_finds_nothing_is_an_error() -> None:
    with pytest.raises(NothingToTrain, match="method 'returns' finds nothing"):
        learns(method=Returns())


# -- registration --------------------------------------------------------------------------------------------------


def test_a_registered_method_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods.registry, "_METHODS", methods.all_methods())
    assert methods.register(Biases) is Biases
    assert learns(method="my_biases") == ("0.bias", "2.bias", "4.bias")
    with pytest.raises(BadMethod, match="'my_biases' is registered twice"):
        methods.register(Biases)
    for attributes in ({"name": ""}, {"name": "a:b"}, {"name": "a*"}, {"doc": ""}):
        with pytest.raises(BadMethod, match="no name or no doc"):
            methods.register(type("Other", (Biases,), {"name": "other", **attributes}))


def test_every_file_of_the_package_is_imported() -> None:
    assert set(methods.all_methods()) >= {"full", "bias", "bn", "bn+last", "last", "last_layer"}
    assert all(kind.name == name and kind.doc for name, kind in methods.all_methods().items())


# -- the price of a choice -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Within(Method):
    """As many of the last layers as fit."""

    name: ClassVar[str] = "within"
    doc: ClassVar[str] = "the last layers that fit so many bytes"
    most_bytes: int

    def choose(self, graph: Graph, context: Context) -> Sequence[Update]:
        found: Sequence[Update] = ()
        for k in range(1, 9):
            more = Last(k).choose(graph, context)
            if more == found or context.memory(more) > self.most_bytes:
                break
            found = more
        return found


@pytest.mark.parametrize("options", [{}, {"batch": 16}, {"optimizer": smidgen.Adam()}, {"device": "stm32h743"},
                                     {"accumulate": True}, {"const": "int8"}], ids=str)  # fmt: skip
@pytest.mark.parametrize(("net", "x"), NETS, ids=["dense", "images"])
def test_a_method_can_choose_what_fits(net: Callable[[], nn.Module], x: torch.Tensor, options: dict[str, Any]) -> None:
    plans = [compiled(net(), x, method=f"last:{k}", **options).plan for k in (1, 2, 3)]
    needs = [plan.ram_bytes for plan in plans]
    assert needs == sorted(set(needs)), "each layer costs something"
    for k, plan in enumerate(plans):
        for spare in (0, 1):
            chosen = compiled(net(), x, method=Within(needs[k] + spare), **options).plan
            assert (chosen.learns, chosen.ram_bytes) == (plan.learns, plan.ram_bytes)
    with pytest.raises(NothingToTrain):
        compiled(net(), x, method=Within(needs[0] - 1), **options)


class Asks(Method):
    name, doc = "asks", "looks at everything that it is given"

    def choose(self, graph: Graph, context: Context) -> Sequence[Update]:
        self.context, self.graph = context, graph
        self.prices = [context.memory([Update("4.bias")]), context.memory([Update("4.bias")] * 2)]
        return [Update("4.bias")]


def test_a_method_sees_device_data_names_and_prices() -> None:
    asks, priced = Asks(), []

    def price(entries: Any) -> int:
        priced.append(entries.learns)
        return 7

    data = DENSE.numpy(), np.zeros(4)
    imported = import_model(dense(), DENSE, loss="cross_entropy")
    lowering = Lowering(imported, data=data, price=price)
    options = checked_options(dense(), method=asks)
    entries = lowering.entries(options)
    assert (asks.prices, priced) == ([7, 7], [("4.bias",)]), "a choice is priced once"
    assert entries.updates == (Update("4.bias"),) == lowering.choose(options)
    assert asks.context.data is data
    assert asks.context.device is None
    assert asks.context.trainable == tuple(name for name, _ in dense().named_parameters())
    assert asks.context.aliases["2.bias"] == "2.bias"
    assert asks.graph.of_role(Role.PARAM)
    with pytest.raises(AttributeError):
        asks.context.data = 3  # type: ignore[misc]
    compiled(dense(), DENSE, method=asks, device="stm32f746")
    assert asks.context.device is not None
    assert asks.context.device.name == "stm32f746"


@pytest.mark.parametrize("updates", [[], [Update("4.bias", 0, (3,))], [Update("4.biass")]])
def test_a_choice_that_cannot_be_has_no_price(updates: list[Update]) -> None:
    class Priced(Method):
        name, doc = "priced", "asks for a price that there is not"

        def choose(self, graph: Graph, context: Context) -> Sequence[Update]:
            with pytest.raises(SmidgenError):
                context.memory(updates)
            return [Update("4.bias")]

    assert learns(method=Priced) == ("4.bias",)


def test_what_is_tried_in_order_to_fit_learns_what_was_chosen_for_the_whole_batch() -> None:
    x = torch.randn(32, 2, 12, 12)
    two, three = (compiled(images(), x, method=f"last:{k}").plan for k in (2, 3))
    method = Within(three.ram_bytes - 1)
    assert len(compiled(images(), x[:1], method=method).plan.learns) == 6, "of one sample, all layers fit"
    split = compiled(images(), x, method=method, budget=two.ram_bytes // 2).plan
    assert split.batch < 32
    assert split.learns == two.learns


# -- changing the network ------------------------------------------------------------------------------------------


class Shift(Method):
    """A bias of its own behind the last layer, which alone learns."""

    name, doc = "shift", "a new bias after the last layer"

    def adapt(self, graph: Graph) -> Graph:
        at = next(i for i, node in reversed(list(enumerate(graph.nodes))) if node.op == "linear")
        layer = graph.nodes[at]
        b = Builder(graph)
        shift = b.stored("shift", np.zeros(int(graph[layer.outs[0]].shape[-1])), Role.PARAM)  # type: ignore[arg-type]
        rest, b.nodes = b.nodes[at + 1 :], b.nodes[: at + 1]
        out = b.add("add", layer.outs[0], shift)
        b.nodes += [n.with_(ins=tuple(out if i == layer.outs[0] else i for i in n.ins)) for n in rest]
        return b.graph()

    def choose(self, graph: Graph, context: Context) -> Sequence[Update]:
        assert "shift" in context.trainable
        return [Update("shift")]


@pytest.mark.parametrize(("net", "x"), NETS, ids=["dense", "images"])
def test_a_method_may_add_a_parameter_that_learns(net: Callable[[], nn.Module], x: torch.Tensor) -> None:
    model, y = net(), np.array([0, 1, 2, 0])
    before = model(x).detach().numpy()
    job = compiled(model, x, method=Shift, optimizer=smidgen.SGD(lr=0.5))
    np.testing.assert_allclose(job.predict(x), before, rtol=1e-5, atol=1e-6)
    losses = [job.train_step(x, y) for _ in range(5)]
    assert losses == sorted(losses, reverse=True)
    assert set(job.state_dict()) == {"shift"}
    np.testing.assert_allclose(job.predict(x), before + job.state_dict()["shift"], rtol=1e-5, atol=1e-6)
    assert job.evaluate(x, y)["loss"] < losses[-1]
    assert compiled(model, x, method=["full", Shift]).plan.learns == (*compiled(model, x).plan.learns, "shift")


class Breaks(Biases):
    def __init__(self, how: Callable[[Graph], Any]) -> None:
        self.how = how

    def adapt(self, graph: Graph) -> Graph:
        return self.how(graph)  # type: ignore[no-any-return]


def _random(graph: Graph) -> Graph:
    name = graph.of_role(Role.PARAM)[0].name
    return graph.with_(data={**graph.data, name: np.random.default_rng().standard_normal(graph.data[name].shape)})


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (lambda graph: None, "does not return a graph"),
        (lambda graph: graph.with_(inputs=()), "changes inputs or outputs"),
        (lambda graph: graph.with_(nodes=graph.nodes[:-2]), "is not valid"),
        (lambda graph: graph.with_(nodes=graph.nodes[::-1]), "is not valid"),
        (_random, "stores two values as"),
    ],
    ids=["no graph", "inputs", "too few nodes", "wrong order", "two values"],
)
def test_a_method_that_breaks_the_network_is_refused(how: Callable[[Graph], Any], said: str) -> None:
    with pytest.raises(BadMethod, match=said):
        learns(method=Breaks(how))
