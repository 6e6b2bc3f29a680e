"""A search finds the layer that is worth learning, judges by samples that nothing learned from, goes on where it was
interrupted, and keeps to the budget. Needs torch."""

from __future__ import annotations

import inspect
import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from smidgen import SGD, api, cli
from smidgen.errors import BadData, BadOption, BadScheme, DoesNotFit
from smidgen.methods import Update
from smidgen.schemes import Gains, Part, Trial, best_parts, cache, found_scheme
from smidgen.schemes.gains import split


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMIDGEN_CACHE", str(tmp_path / "cache"))


class Net(nn.Module):
    """All it needs to learn is in `mix`: before it the image has what matters, behind it nearly nothing is left."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.mix, self.thin = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 1), nn.Conv2d(16, 12, 1)
        self.head = nn.Linear(12, 4)
        with torch.no_grad():
            self.stem.weight.zero_()[:3, :, 1, 1] = 2 * torch.eye(3)
            self.mix.weight.mul_(0.01)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.mix(torch.relu(self.stem(x))))
        return self.head(torch.relu(self.thin(x)).mean((2, 3)))


def data(count: int = 160) -> tuple[Any, Any]:
    """The class is which colour shines, or none."""
    rng = np.random.default_rng(0)
    y = np.arange(count) % 4
    x = rng.standard_normal((count, 3, 6, 6)).astype(np.float32) * 0.3
    for i, label in enumerate(y):
        if label < 3:
            x[i, label] += 2
    return x, y


def task(budget: str = "200KB") -> Any:
    return api.prepared(Net().eval(), data()[0][:8], budget=budget, optimizer=SGD(0.01), kernels="exact")


def test_no_sample_is_learned_from_and_judged_by() -> None:
    y = np.array([0] * 20 + [1] * 9 + [2] + [3] * 2)
    found = split(y)
    assert not set(found.learn) & set(found.judge)
    assert len(found.learn) + len(found.judge) == len(y)
    counts = {label: int((y[found.judge] == label).sum()) for label in range(4)}
    assert counts == {0: 5, 1: 2, 2: 0, 3: 1}
    with pytest.raises(BadData, match="two samples of at least one class"):
        split(np.arange(5))


def test_features_before_a_cut_change_nothing_of_what_is_learned() -> None:
    x, y = data(64)
    with task() as asked:
        gains = Gains(asked.lowering, asked.options, x, y, Trial(2, 0.03))
        updates = [Update("thin.weight"), Update("head.weight"), Update("head.bias")]
        layers = [i for i, n in enumerate(asked.lowering.forward(asked.options)["train"].nodes) if n.op == "conv2d"]
        assert gains.of(updates, layers[2]) == gains.of(updates, layers[1]) == gains.of(updates, 0)


def test_the_best_parts_are_those_of_trying_all() -> None:
    for seed in range(6):
        rng = random.Random(seed)
        genes = [
            [Part("", 0.0, 0), *(Part(f"{g}:{i}", rng.uniform(-0.1, 1), rng.randint(10, 90)) for i in range(3))]
            for g in range(6)
        ]
        room = rng.randint(60, 260)
        fitting = [one for one in itertools.product(*genes) if sum(p.bytes for p in one) <= room]
        best = max(sum(p.gain for p in one) for one in fitting)
        found = best_parts(genes, room)
        assert sum(p.gain for p in found[0]) == pytest.approx(best)
        assert all(sum(p.bytes for p in one) <= room for one in found)
        assert best_parts(genes, room) == found, "the same every time"


def test_parts_share_the_gradient_that_passes_by() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        genes = []
        for g in range(5):
            alone = [rng.randint(60, 90) for _ in range(2)]
            parts = [Part(f"{g}:{i}", rng.uniform(-0.1, 1), b, b - rng.randint(40, 55)) for i, b in enumerate(alone)]
            genes.append([Part("", 0.0, 0), *parts])
        room = rng.randint(90, 200)

        def price(one: tuple[Part, ...]) -> int:
            chosen = [part for part in one if part.name]
            return min(sum(p.bytes for p in chosen), 50 + sum(p.beside for p in chosen))

        best = max(sum(p.gain for p in one) for one in itertools.product(*genes) if price(one) <= room)
        found = best_parts(genes, room, shared_bytes=50)
        assert sum(p.gain for p in found[0]) == pytest.approx(best)
        assert all(price(tuple(one)) <= room for one in found)


def test_a_budget_in_which_only_micro_batches_learn_has_a_scheme() -> None:
    """A batch of 32 images, each of whose maps counts 32 times: no layer could learn from all of them at once."""
    with api.prepared(Net().eval(), data()[0][:32], budget="60KB", optimizer=SGD(0.01), kernels="exact") as asked:
        found = found_scheme(asked.lowering, asked.options, asked.limit, asked.goal, data())
        whole = asked.lowering.context(asked.options).memory([Update("mix.weight"), Update("head.weight")])
    assert whole > 60 * 1024
    assert "1:" in found.scheme
    assert found.ram_bytes <= 60 * 1024


def test_it_finds_the_layer_that_is_worth_learning() -> None:
    with task() as asked:
        found = found_scheme(asked.lowering, asked.options, asked.limit, asked.goal, data())
    gains = {row.part: row.gain for row in found.rows}
    assert gains["1:1"] == max(gains.values())
    assert "1:" in found.scheme
    assert found.accuracy > found.before + 0.2
    job = smidgen.compile(Net().eval(), data()[0][:8], budget="200KB", method="sparse_update", data=data(),
                          optimizer=SGD(0.01), kernels="exact")  # fmt: skip
    assert job.plan.method == f"sparse_update:{found.scheme}"
    assert job.plan.ram_bytes <= 200 * 1024


def test_an_interrupted_search_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with task() as asked:
        whole = api.searched(asked.lowering, asked.options, asked.limit, data())
        for file in (cache.folder() / "schemes").iterdir():
            file.unlink()
        real, calls = Gains.of, itertools.count()

        def stops(self: Gains, *given: Any) -> float:
            if next(calls) == 9:
                raise KeyboardInterrupt
            return real(self, *given)

        monkeypatch.setattr(Gains, "of", stops)
        with pytest.raises(KeyboardInterrupt):
            api.searched(asked.lowering, asked.options, asked.limit, data())
        assert api.searched(asked.lowering, asked.options, asked.limit, data()) == whole
        before = next(calls)
        assert api.searched(asked.lowering, asked.options, asked.limit, data()) == whole
        assert next(calls) == before + 1, "nothing is tried again"


def test_a_smaller_budget_has_a_smaller_scheme_or_none() -> None:
    with task("24KB") as asked:
        found = found_scheme(asked.lowering, asked.options, asked.limit, asked.goal, data(80))
    assert found.ram_bytes <= 24 * 1024
    with pytest.raises(DoesNotFit), task("2KB") as asked:
        found_scheme(asked.lowering, asked.options, asked.limit, asked.goal, data(80))


@pytest.mark.parametrize(
    ("given", "error", "what"),
    [
        ({"budget": "30KB"}, BadScheme, "has no scheme"),
        ({"data": data(40)}, BadScheme, "has no scheme"),
        ({"budget": "30KB", "data": data(40)[0]}, BadData, "samples and labels"),
        ({"budget": "30KB", "data": (data(40)[0], data(40)[0])}, BadData, "one class a sample"),
        ({"budget": "30KB", "data": (data(40)[0], data(39)[1])}, BadData, "40 samples and 39 labels"),
    ],
)
def test_what_a_search_needs_is_said(given: dict[str, Any], error: type[Exception], what: str) -> None:
    with pytest.raises(error, match=what):
        smidgen.compile(Net().eval(), data()[0][:8], method="sparse_update", **given)


def test_a_search_asks_for_a_limit() -> None:
    with pytest.raises(BadOption, match="limit of RAM"):
        smidgen.search(Net().eval(), data()[0][:8], data=data(40))


# -- the command line ------------------------------------------------------------------------------------------------

SOURCE = f"""
import torch
from torch import nn

{inspect.getsource(Net)}

def build():
    return Net().eval()
"""


def test_the_command_line_searches_and_plans_with_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text(SOURCE)
    x, y = data()
    np.savez("proxy.npz", x=x, y=y)
    model = ["nets.py:build", "--input", "8x3x6x6"]
    words = ["--data", "proxy.npz", "--budget", "200KB", "-o", "scheme.json", "--html", "scheme.html"]
    assert cli.main(["search", *model, *words]) == 0
    said = capsys.readouterr().out
    found = json.loads(Path("scheme.json").read_text())
    assert found["scheme"] in said.splitlines()[1]
    assert "points above the classifier alone" in said
    page = Path("scheme.html").read_text()
    assert page.count("<circle") == len(found["rows"]) > 5
    assert "<script" not in page
    assert cli.main(["search", *model, *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scheme"] == found["scheme"]
    assert cli.main(["plan", *model, "--method", "scheme.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["method"] == f"sparse_update:{found['scheme']}"


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"kind": "smidgen scheme", "scheme": 3}'])
def test_a_file_that_is_no_scheme_is_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "nets.py").write_text(SOURCE)
    (tmp_path / "s.json").write_text(text)
    words = [f"{tmp_path}/nets.py:build", "--input", "8x3x6x6", "--method", str(tmp_path / "s.json")]
    assert cli.main(["plan", *words]) == 2
    assert "smidgen search" in capsys.readouterr().err


def test_a_search_without_a_limit_says_what_to_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["search", "nets.py:build", "--data", str(tmp_path / "no.npz")]) == 2
    assert "--budget 256KB" in capsys.readouterr().err
