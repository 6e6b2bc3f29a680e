"""Devices that differ learn together: each rule against the same in numpy, two rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.serverapp.strategy import FedAvg, Strategy
from torch import nn

import smidgen
from smidgen import fleet
from smidgen.errors import BrokenUpdate, DoesNotFit
from smidgen.fleet.parts import place
from smidgen.fleet.records import unpacked
from tests.support.fleet_reference import LR, Weights, averaged, narrow, padded, trained
from tests.support.fleets import cnn, samples

DATA = samples((6,), 3, (9, 8, 12), seed=1)
ASKED = {"rounds": 2, "epochs": 2, "batch": 4}
NAMES = ("0.weight", "0.bias", "2.weight", "2.bias")


def mlp(hidden: int = 8, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, hidden), nn.ReLU(), nn.Linear(hidden, 3))


def built(folder: Path, name: str, model: nn.Module, example: Any = None, **options: Any) -> Path:
    example = DATA[0][0][:4] if example is None else example
    options = {"optimizer": smidgen.SGD(lr=LR, momentum=0.0), **options}
    smidgen.compile(model, example, **options).save(folder / f"{name}.smg")
    return folder / f"{name}.smg"


def learned(clients: list[fleet.Client], program: Path, strategy: Strategy, **asked: Any) -> Weights:
    grid = fleet.LocalGrid(fleet.client_app(lambda c: clients[c.node_config["partition-id"]]), len(clients))
    result, checked = fleet.federate(grid, strategy, program, **{**ASKED, **asked})
    assert checked.refused == []
    return unpacked(result.arrays)


def weights(model: nn.Module) -> Weights:
    return {name: p.detach().numpy().astype(np.float64) for name, p in model.named_parameters()}


def close(ours: Weights, theirs: Weights, start: Weights) -> None:
    assert set(ours) == set(theirs)
    assert max(np.abs(ours[n] - theirs[n]).max() for n in ours) < 2e-6
    assert max(np.abs(ours[n] - start[n]).max() for n in ours) > 0.01


def everyone(strategy: type[Strategy], **options: Any) -> Strategy:
    return strategy(fraction_evaluate=0.0, **options)


# -- one model, made to fit in different ways ------------------------------------------------------------------------


def test_devices_with_plans_of_their_own_learn_the_bits_of_one_plan(tmp_path: Path) -> None:
    data = samples((3, 16, 16), 5, (9, 8, 12))
    torch.manual_seed(0)
    model = nn.Sequential(cnn()[:4], nn.Flatten(), nn.Linear(128, 5)).eval()
    x = data[0][0][:8]
    usual = smidgen.compile(model, x, kernels="exact").plan.ram_bytes
    plain = built(tmp_path, "plain", model, x, kernels="exact")
    plans = [
        built(tmp_path, "tight", model, x, kernels="exact", budget=int(usual * 0.8)),
        built(tmp_path, "paged", model, x, kernels="exact", budget=int(usual * 0.7),
              memory=smidgen.Memory(page_to=tmp_path / "p.bin")),
        built(tmp_path, "small", model, x, kernels="exact", batch=2, memory=smidgen.Memory(accumulate=True)),
    ]  # fmt: skip
    rams = [smidgen.load(p, page_to=tmp_path / "q.bin").plan.ram_bytes for p in plans]
    assert max(rams) < usual
    assert len({*rams}) == 3
    same = [fleet.Client(plain, *d, part=i) for i, d in enumerate(data)]
    own = [fleet.Client(p, *d, part=i) for i, (p, d) in enumerate(zip(plans, data, strict=True))]
    first = learned(same, plain, everyone(FedAvg), batch=8)
    second = learned(own, plain, everyone(FedAvg), batch=8)
    assert all(np.array_equal(first[n], second[n]) for n in first)


# -- parts of one model ----------------------------------------------------------------------------------------------


def test_sparse_devices_average_each_element_over_those_who_hold_it(tmp_path: Path) -> None:
    """One learns all, one two rows of a weight and the head, one two columns of it and a bias. What others learn are
    constants that are new in each round."""
    model = mlp()
    start = weights(model)
    row, column = np.zeros((8, 6)), np.zeros((8, 6))
    row[[1, 5]], column[:, [0, 4]] = 1, 1
    kinds: list[tuple[Any, dict[str, np.ndarray]]] = [
        ("full", {n: np.ones_like(v) for n, v in start.items()}),
        ([smidgen.Update("0.weight", axis=0, indices=[1, 5]), "2.weight", "2.bias"],
         {"0.weight": row, "2.weight": np.ones((3, 8)), "2.bias": np.ones(3)}),
        ([smidgen.Update("0.weight", axis=1, indices=[0, 4]), "2.bias"], {"0.weight": column, "2.bias": np.ones(3)}),
    ]  # fmt: skip
    paths = [built(tmp_path, str(i), model, method=method) for i, (method, _) in enumerate(kinds)]
    clients = [fleet.Client(p, *d, part=i) for i, (p, d) in enumerate(zip(paths, DATA, strict=True))]
    ours = learned(clients, paths[0], everyone(fleet.Elementwise))
    theirs = start
    for number in (1, 2):
        updates = []
        for i, ((x, y), (_, masks)) in enumerate(zip(DATA, kinds, strict=True)):
            new = trained(theirs, x, y, round=number, part=i, learns=masks)
            updates.append((len(y), {name: (new[name], mask) for name, mask in masks.items()}))
        theirs = averaged(theirs, updates)
    close(ours, theirs, start)


@pytest.mark.parametrize("head", [(), ("2.weight", "2.bias")])
def test_heterofl_is_the_published_rule(head: tuple[str, ...], tmp_path: Path) -> None:
    """Unweighted; rows of the classifier only of classes that a device has."""
    data = [(x, y if i else y % 2) for i, (x, y) in enumerate(DATA)]  # the first device has no class 2
    model = mlp()
    start, widths = weights(model), (8, 4, 2)
    paths = []
    for hidden in widths:
        own = mlp(hidden)
        own.load_state_dict({n: torch.from_numpy(v).float() for n, v in narrow(start, hidden).items()})
        paths.append(built(tmp_path, str(hidden), own))
    clients = [fleet.Client(p, *d, part=i) for i, (p, d) in enumerate(zip(paths, data, strict=True))]
    ours = learned(clients, paths[0], everyone(fleet.HeteroFL, head=head))
    theirs = start
    for number in (1, 2):
        updates = []
        for i, ((x, y), hidden) in enumerate(zip(data, widths, strict=True)):
            new = trained(narrow(theirs, hidden), x, y, round=number, part=i)
            held = {name: padded(new[name], theirs[name]) for name in NAMES}
            for name in head:
                held[name][1][[c for c in range(3) if c not in y]] = 0
            updates.append((1.0, held))
        theirs = averaged(theirs, updates)
    close(ours, theirs, start)


def test_fedepth_learns_blocks_one_after_another(tmp_path: Path) -> None:
    """A device learns all at once, one first the first layer with the head, then the head's weight with its bias."""
    model = mlp()
    start = weights(model)
    full = built(tmp_path, "full", model)
    blocks: list[tuple[str, ...]] = [("0.weight", "0.bias", "2.bias"), ("2.weight", "2.bias")]
    programs = [built(tmp_path, f"block{i}", model, method=list(names)) for i, names in enumerate(blocks)]
    clients = [
        fleet.Client(full, *DATA[0], part=0), fleet.BlockClient(programs, *DATA[1], part=1),
        fleet.BlockClient(programs, *DATA[2], part=2),
    ]  # fmt: skip
    ours = learned(clients, full, everyone(FedAvg))
    theirs = start
    for number in (1, 2):
        updates = []
        for i, (x, y) in enumerate(DATA):
            new = theirs
            for names in [NAMES] if i == 0 else blocks:
                new = trained(new, x, y, round=number, part=i, learns={name: np.ones(()) for name in names})
            updates.append((len(y), {name: (new[name], np.ones_like(new[name])) for name in NAMES}))
        theirs = averaged(theirs, updates)
    close(ours, theirs, start)


def test_split_mix_learns_as_many_base_networks_as_a_budget_holds(tmp_path: Path) -> None:
    models = [mlp(2, seed) for seed in range(4)]
    programs = [built(tmp_path, str(i), model) for i, model in enumerate(models)]
    ram = smidgen.load(programs[0]).plan.ram_bytes
    budgets = [ram, 2 * ram + 10, None]  # one, two and all four of them
    clients = [
        fleet.Client(programs[0], *d, part=i, budget_bytes=b)
        for i, (d, b) in enumerate(zip(DATA, budgets, strict=True))
    ]
    strategy = fleet.SplitMix(programs, seed=3, fraction_evaluate=1.0)
    checked = fleet.Checked(strategy, strategy.terms)
    grid = fleet.LocalGrid(fleet.client_app(lambda c: clients[c.node_config["partition-id"]]), 3)
    config = fleet.train_config(programs[0], epochs=2, batch=4)
    result = checked.start(grid, strategy.initial_arrays(), num_rounds=2, train_config=config)
    assert checked.refused == []
    firsts = [bases[0] for chosen in strategy.chosen.values() for bases in chosen.values()]
    assert sorted(firsts[:4]) == [0, 1, 2, 3]
    theirs = [weights(model) for model in models]
    for number in (1, 2):
        chosen = strategy.chosen[number]
        assert {node: len(bases) for node, bases in chosen.items()} == {2: 1, 3: 2, 4: 4}
        assert all(len({*bases}) == len(bases) for bases in chosen.values())
        for base in range(4):
            updates = []
            for i, (x, y) in enumerate(DATA):
                if base in chosen[i + 2]:
                    new = trained(theirs[base], x, y, round=number, part=i)
                    updates.append((len(y), {n: (v, np.ones_like(v)) for n, v in new.items()}))
            theirs[base] = averaged(theirs[base], updates)
    ours = unpacked(result.arrays)
    flat = {f"{i}/{n}": v for i, w in enumerate(theirs) for n, v in w.items()}
    close(ours, flat, {f"{i}/{n}": v for i, m in enumerate(models) for n, v in weights(m).items()})
    x, y = (np.concatenate(parts) for parts in zip(*DATA, strict=True))
    scores = [np.maximum(x @ w["0.weight"].T + w["0.bias"], 0) @ w["2.weight"].T + w["2.bias"] for w in theirs]
    measured = result.evaluate_metrics_clientapp[2]
    assert measured["accuracy"] == pytest.approx(np.mean(np.mean(scores, 0).argmax(1) == y))


# -- bytes into width and depth --------------------------------------------------------------------------------------


def test_bytes_become_width() -> None:
    x = DATA[0][0][:4]
    plans = {w: smidgen.compile(mlp(int(64 * w)), x, kernels="exact").plan.ram_bytes for w in (1.0, 0.5, 0.25)}
    for width, ram in plans.items():
        found, job = fleet.width_within(lambda w: mlp(int(64 * w)), x, ram, widths=[0.25, 1.0, 0.5])
        assert (found, job.plan.ram_bytes) == (width, ram)
    with pytest.raises(DoesNotFit, match="the narrowest network"):
        fleet.width_within(lambda w: mlp(int(64 * w)), x, plans[0.25] - 1, widths=[1.0, 0.5, 0.25])


def test_bytes_become_blocks() -> None:
    """Fewer with more bytes; each fits, all learn, and one more layer would not have fitted."""
    torch.manual_seed(0)
    model = nn.Sequential(*[m for _ in range(5) for m in (nn.Linear(6, 6), nn.ReLU())], nn.Linear(6, 3))
    x, head = torch.randn(32, 6), ("10.weight", "10.bias")
    names = {name for name, _ in model.named_parameters()}
    ram = smidgen.compile(model, x, kernels="exact").plan.ram_bytes
    least = max(
        smidgen.compile(model, x, kernels="exact", method=[f"{i}.*", *head]).plan.ram_bytes for i in range(0, 10, 2)
    )
    counts = []
    for budget in (ram, (ram + least) // 2, least, least * 3 // 4):
        found = fleet.blocks_within(model, x, budget, head=head)
        counts.append(len(found))
        assert all(job.plan.ram_bytes <= budget for _, job in found)
        assert {name for learns, _ in found for name in learns} == names
        assert [n for learns, _ in found for n in learns if n not in head] == [
            n for n in names_of(model) if n not in head
        ]
    assert counts[0] == 1 < counts[1] <= counts[2] <= counts[3]
    with pytest.raises(DoesNotFit, match="with the head does not fit"):
        fleet.blocks_within(model, x, 100, head=head)


def names_of(model: nn.Module) -> list[str]:
    return [name for name, _ in model.named_parameters()]


# -- what a device that differs sends --------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "shape", "said"), [
    ("0.weight", (9, 6), None), ("0.weight", (8, 6, 1), None), ("0.weight", (2, 6), [0, 1]),
    ("0.weight", (2, 6), [0, 1, 8]), ("0.weight", (2, 6), [0, -1, 1]), ("0.weight", (2, 6), [2, 0, 1]),
    ("0.weight", (2, 6), [0, 1, 1]), ("0.weight", (2, 6), [0]), ("0.weight", (2, 6), [0, 1.0, 2.0]),
])  # fmt: skip
def test_a_part_that_is_none_is_refused(name: str, shape: tuple[int, ...], said: list[int] | None) -> None:
    with pytest.raises(BrokenUpdate):
        place(name, fleet.Held((8, 6)), shape, said, "client 1")
    assert place(name, fleet.Held((8, 6)), (2, 6), [0, 7, 3]) == ([7, 3],)
