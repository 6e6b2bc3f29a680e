"""The zoo of public models: how its list is drawn, and how a model is judged. Needs none of the packages."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import smidgen
from benchmarks.zoo import absent, draw, judge, one, run, shrink, table, weights
from benchmarks.zoo.made import Made, fitting, floats, images

# -- the list --------------------------------------------------------------------------------------------------------

FAMILIES = {f"f{k}": [f"f{k}m{n}" for n in range(5)] for k in range(9)}


def ask(name: str) -> dict[str, Any] | None:
    return None if name.startswith("f3") or name.endswith("m2") else {"size": len(name)}


def test_the_draw_has_one_eligible_model_of_each_family() -> None:
    rows = draw.draw(FAMILIES, 100, "1", ask)
    assert [row["family"] for row in rows] == [f for f in sorted(FAMILIES) if f != "f3"]
    assert all(row["name"] in FAMILIES[row["family"]] and ask(row["name"]) == row["facts"] for row in rows)


def test_the_draw_depends_on_the_seed_and_not_on_the_order_of_what_is_offered() -> None:
    backwards = {family: names[::-1] for family, names in reversed(FAMILIES.items())}
    assert draw.draw(FAMILIES, 5, "1", ask) == draw.draw(backwards, 5, "1", ask)
    assert draw.draw(FAMILIES, 5, "1", ask) != draw.draw(FAMILIES, 5, "2", ask)
    assert len(draw.draw(FAMILIES, 5, "1", ask)) == 5


def test_a_family_more_does_not_change_what_the_others_give() -> None:
    before = {row["family"]: row["name"] for row in draw.draw(FAMILIES, 100, "1", ask)}
    after = {row["family"]: row["name"] for row in draw.draw({**FAMILIES, "g": ["gm1"]}, 100, "1", ask)}
    assert after == {**before, "g": "gm1"}


def test_the_list_is_long_enough_and_has_no_model_twice() -> None:
    rows = json.loads(run.LIST.read_text(encoding="utf-8"))
    counts = {name: len(part) for name, part in table.groups(rows).items()}
    assert counts["timm"] >= 72
    assert counts["transformers"] >= 70
    assert counts["others"] >= 50
    assert len({run.key(row) for row in rows}) == len(rows)
    families = [(row["package"], row["family"]) for row in rows]
    assert len(set(families)) == len(families)


def test_a_model_is_eligible_by_what_pytorch_does_with_it_alone() -> None:
    class Refused(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.svdvals(super().forward(x))  # smidgen has no such op

    class Random(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + torch.rand(1)

    assert fitting(lambda: Made(Refused(6, 6), floats(6, 6)))
    assert not fitting(lambda: Made(Random(6, 6), floats(6)))
    assert not fitting(lambda: Made(torch.nn.Linear(5, 6), floats(6)))
    assert not fitting(lambda: Made(torch.nn.Linear(6_000, 6_000), floats(6_000)))
    assert not fitting(lambda: Made(torch.nn.LSTM(6, 6, batch_first=True), floats(4, 6)))  # not one tensor


def test_a_configuration_is_shrunk_by_the_names_of_its_fields() -> None:
    fields = {
        "vocab_size": 30_000, "hidden_size": 768, "num_attention_heads": 12, "num_key_value_heads": 12, "dropout": 0.1,
        "num_hidden_layers": 12, "layer_types": ["a", "a", "b"] * 4, "use_cache": True, "pad_token_id": None,
        "depths": [2, 6, 3], "head_dim": None, "hidden_act": "gelu", "is_encoder_decoder": True,
        "vision_config": {"model_type": "vit", "hidden_size": 1024, "patch_size": 16},
    }  # fmt: skip
    assert shrink.shrunk(fields) == {
        "vocab_size": 99, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 4,
        "num_hidden_layers": 2, "layer_types": ["a", "b"], "use_cache": False, "pad_token_id": 0, "depths": [2, 2, 2],
        "vision_config": {"model_type": "vit", "hidden_size": 32, "patch_size": 8}, "decoder_start_token_id": 1,
    }  # fmt: skip
    assert "hidden_size" not in shrink.shrunk(fields, level=1)


# -- the judge -------------------------------------------------------------------------------------------------------

GOOD = {"stage": "done", "worst": 1e-6, "limit": 1e-4, "where": "w", "not_learned": {}}
JUDGED: dict[str, tuple[dict[str, Any], str]] = {
    "within the limit": (GOOD, "pass"),
    "beyond the limit": ({**GOOD, "worst": 2e-4}, "wrong"),
    "as far off as PyTorch itself may be": ({**GOOD, "worst": 2e-4, "limit": 3e-4}, "pass"),
    "and another function in float64": (
        {**GOOD, "worst": 2e-4, "limit": 3e-4, "exact": 1e-6, "exact_limit": 1e-9},
        "wrong",
    ),
    "not a number": ({**GOOD, "worst": float("nan")}, "wrong"),
    "a parameter that does not learn": ({**GOOD, "not_learned": {"w": 0.1}}, "wrong"),
    "a gradient of zero": ({**GOOD, "not_learned": {"w": 0.0}}, "pass"),
    "an op that is missing": ({"stage": "compile", "error": {"code": "E101", "text": ""}}, "refused"),
    "an internal error": ({"stage": "compile", "error": {"code": "E901", "text": ""}}, "crash"),
    "an exception": ({"stage": "compile", "error": {"text": "KeyError: 1"}}, "crash"),
    "an exception in a step": ({"stage": "step", "error": {"text": "KeyError: 1"}}, "crash"),
    "an exception in the comparison": ({"stage": "compare", "error": {"text": "KeyError: 1"}}, "crash"),
    "a package that does not work": ({"stage": "make", "error": {"text": "ImportError"}}, "torch"),
    "PyTorch cannot train it": ({"stage": "torch", "error": {"text": "RuntimeError"}}, "torch"),
    "no report": (judge.ended(-11, "stage compile\n", 60), "crash"),
    "out of time": (judge.ended(-24, "", 60), "crash"),
    "it never came to the end": ({"stage": "compare"}, "crash"),
}


@pytest.mark.parametrize(("found", "outcome"), JUDGED.values(), ids=[name.replace(" ", "-") for name in JUDGED])
def test_the_outcome_of(found: dict[str, Any], outcome: str) -> None:
    assert judge.judged(found) == outcome


def test_a_comparison_has_time_of_its_own() -> None:
    assert "more than 60 s" in judge.ended(-24, "stage compile\n", 60, 900)["error"]["text"]
    assert "more than 900 s" in judge.ended(-24, "stage step\nstage compare\n", 60, 900)["error"]["text"]


def test_the_limit_of_processor_time_grows_for_a_comparison() -> None:
    code = (
        "import resource; from benchmarks.zoo import one; resource.setrlimit(resource.RLIMIT_CPU, (5, 500));"
        "one.allow(100); print(*resource.getrlimit(resource.RLIMIT_CPU)); one.allow(900);"
        "print(*resource.getrlimit(resource.RLIMIT_CPU))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    soft, hard, most, _ = map(int, done.stdout.split())
    assert (soft in range(100, 105), hard, most) == (True, 500, 500)


def test_a_refusal_without_advice_is_found() -> None:
    def row(**error: str) -> dict[str, Any]:
        return {"package": "p", "name": "n", "outcome": judge.REFUSED, "error": error}

    assert judge.refusals_without_advice([row(code="E101", help="do this")]) == []
    assert judge.refusals_without_advice([row(code="E101", help=""), row(code="E305", help="x")]) == ["p n", "p n"]


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)
        self.gamma = torch.nn.Parameter(1e-5 * torch.ones(4, 1, 1))
        self.head = torch.nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm(self.conv(x)))
        return self.head((y + self.gamma * y.sin()).mean((2, 3)))


class NoOp(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.linalg.svd(x)[0])


def reported(monkeypatch: pytest.MonkeyPatch, model: torch.nn.Module) -> dict[str, Any]:
    monkeypatch.setattr(draw, "make", lambda row: Made(model, images(8)))
    monkeypatch.setattr(one, "TIMED_S", 0.0)
    return one.report({})


def test_a_model_that_trains_as_in_pytorch_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = reported(monkeypatch, Net())
    assert judge.judged(found) == judge.PASS, found
    assert found["worst"] > 0
    assert min(found["compile_s"], found["step_ms"], found["torch_ms"], found["parameters"]) > 0


def test_a_model_that_trains_otherwise_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 1.001 * super().forward(x)

    def compile_another(model: torch.nn.Module, *args: Any, **given: Any) -> Any:
        other = Other().eval()
        other.load_state_dict(model.state_dict())
        return compiled(other, *args, **given)

    compiled = smidgen.compile
    monkeypatch.setattr(smidgen, "compile", compile_another)
    found = reported(monkeypatch, Net())
    assert judge.judged(found) == judge.WRONG, found


def test_a_parameter_that_is_left_out_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = smidgen.compile
    monkeypatch.setattr(smidgen, "compile", lambda *args, **given: compiled(*args, method="last_layer", **given))
    found = reported(monkeypatch, Net())
    assert judge.judged(found) == judge.WRONG
    assert "conv.weight" in found["not_learned"]


def test_what_smidgen_refuses_keeps_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    found = reported(monkeypatch, NoOp())
    assert judge.judged(found) == judge.REFUSED
    assert found["error"]["text"].startswith(f"error[{found['error']['code']}]: ")


def test_any_other_exception_is_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **given: Any) -> Any:
        raise KeyError("planted")

    monkeypatch.setattr(smidgen, "compile", fails)
    found = reported(monkeypatch, Net())
    assert (judge.judged(found), found["stage"]) == (judge.CRASH, "compile")
    assert "planted" in found["error"]["text"]


# -- weights ---------------------------------------------------------------------------------------------------------


def test_weights_are_moved_off_zero_and_statistics_are_those_of_the_inputs() -> None:
    torch.manual_seed(0)
    net = Net().eval()
    rng = np.random.default_rng(0)
    batches = [torch.from_numpy(images(8)(rng, 8)[0]) for _ in range(weights.PASSES + 1)]
    given = iter(batches)
    assert weights.prepared(net, lambda: [next(given)], seed=0) == ""
    assert float(net.gamma.detach().abs().min()) > weights.NEAR_ZERO
    assert float(net.norm.bias.detach().std()) > 0
    assert not any(module.training for module in net.modules())
    with torch.no_grad():
        seen = torch.stack([net.conv(x) for x in batches[: weights.PASSES]])
    torch.testing.assert_close(net.norm.running_mean, seen.mean((0, 1, 3, 4)), rtol=1e-4, atol=1e-5)


def test_a_model_that_overflows_keeps_its_own_weights() -> None:
    class Steep(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).exp().exp()

    net = Steep(6, 3)
    torch.nn.init.normal_(net.weight, std=1e-3)
    before = net.weight.detach().clone()
    x = 10 * torch.ones(4, 6)
    assert weights.prepared(net, lambda: [x], seed=0).startswith("own initial weights")
    assert torch.equal(net.weight, before)


# -- runs ------------------------------------------------------------------------------------------------------------


def test_a_run_goes_on_where_it_was_interrupted() -> None:
    rows = [{"package": "timm", "name": name} for name in ("a", "b", "c")]
    results = {"timm/a": {"outcome": "pass"}, "timm/b": {"outcome": "refused"}}

    def names(again: str, only: str | None = None) -> str:
        return "".join(row["name"] for row in run.chosen(rows, results, again, only))

    assert (names("none"), names("failed"), names("all"), names("none", "timm/[ab]")) == ("c", "bc", "abc", "ab")


def test_a_process_that_dies_is_a_result(tmp_path: Any) -> None:
    killed = tmp_path / "python"
    killed.write_text("#!/bin/sh\necho 'stage compile' >&2\nkill -SEGV $$\n")
    killed.chmod(0o755)
    found = run.one({"package": "timm", "name": "a"}, killed, [])
    assert found["outcome"] == judge.CRASH
    assert "stage compile" in found["error"]["text"]


def test_the_page_shows_every_model_and_every_refusal() -> None:
    rows = [
        {"package": "timm", "name": "good", "outcome": "pass", "parameters": 1000, "compile_s": 2.0, "step_ms": 1.0,
         "torch_ms": 4.0, **GOOD},
        {"package": "small", "name": "bad", "outcome": "refused", "stage": "compile",
         "error": {"code": "E101", "text": "error[E101]: no fft\n  at   a\n  help: another"}},
        {"package": "small", "name": "bad too", "outcome": "refused", "stage": "compile",
         "error": {"code": "E101", "help": "x", "text": "error[E101]: no fft\n  at   b\n  help: another"}},
    ]  # fmt: skip
    page = table.page({"date": "2026-01-01", "machine": {"cpu": "x"}, "listed": 9, "rows": rows})
    assert "3 of 9 have a result." in page
    assert "| timm | 1 | 1 | 0 | 0 | 0 | 0 | 100% |" in page
    assert "| small | 2 | 0 | 2 | 0 | 0 | 0 | 0% |" in page
    assert (
        "2 **refused**: small bad, small bad too\n\n```text\nerror[E101]: no fft\n  at   a\n  help: another\n" in page
    )
    assert "something else than an import error (E1xx) with a help line: small bad." in page
    assert "4.0 × faster" in page
    assert "| timm good | 1,000 | pass | 2.0 | 1.00 | 4.00 | 1.0e-06 |" in page


# -- torchvision -----------------------------------------------------------------------------------------------------


@pytest.fixture
def stand_in() -> Iterator[None]:
    before, modules = list(sys.meta_path), set(sys.modules)
    absent.stand_in()
    yield
    sys.meta_path[:] = before
    for name in set(sys.modules) - modules:
        if name.startswith("torchvision"):
            del sys.modules[name]


@pytest.mark.usefixtures("stand_in")
def test_imports_of_torchvision_find_names_that_do_nothing() -> None:
    transforms = importlib.import_module("torchvision.transforms.functional")
    assert len({transforms.InterpolationMode.NEAREST: 1, transforms.InterpolationMode.BICUBIC: 2}) == 2
    assert issubclass(type("Mine", (transforms.Compose,), {}), transforms.Compose)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("torchaudio_or_what")


def test_a_short_run_is_timed_although_the_clock_ticks_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = [0.0]

    def run() -> None:
        spent[0] += 0.0007

    monkeypatch.setattr(one.time, "process_time", lambda: spent[0] // 0.01 * 0.01)
    milliseconds, runs = one.timed(run)
    assert milliseconds == pytest.approx(0.7, rel=0.03)
    assert runs > 600
