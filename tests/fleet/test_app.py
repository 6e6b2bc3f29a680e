"""`smidgen fleet new` writes an app, and `flwr run` simulates it, with the bits of the same fleet in one process."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.serverapp.strategy import FedAvg
from torch import nn

import smidgen
from smidgen import cli, fleet
from smidgen.errors import BadData, BadOption, SmidgenError
from smidgen.fleet.app import new_app
from tests.support import flower
from tests.support.transcripts import documented

SPEAKERS = ("Ada", "Grace", "Kurt", "Noether")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
    smidgen.compile(model, torch.randn(8, 6), optimizer=smidgen.SGD(lr=0.1)).save(tmp_path / "net.smg")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((90, 6)).astype(np.float32)
    speaker = np.array(SPEAKERS)[np.minimum(np.arange(90) // 20, 3)]
    np.savez(tmp_path / "d.npz", x=x, y=x[:, :3].argmax(1), speaker=speaker)
    return tmp_path


@pytest.mark.slow
def test_a_new_app_runs_and_learns_what_one_process_does(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fleet", "new", str(folder / "My App"), "--program", str(folder / "net.smg")]
    assert cli.main([*words, "--data", str(folder / "d.npz"), "--by", "speaker"]) == 0
    out = capsys.readouterr().out
    assert "4 devices by speaker, 20 to 30 samples each" in out
    assert "num-supernodes=4 client-resources-num-cpus=1" in out
    options = ["--stream", "--run-config", "rounds=2 epochs=2 seed=5"]
    status, said = flower.run(
        ["run", str(folder / "My App"), *options, "--federation-config",
         "num-supernodes=4 client-resources-num-cpus=1 init-args-num-cpus=1"]
    )  # fmt: skip
    assert status == 0, said
    save = folder / "My App" / "learned.smg"
    assert save.exists(), said
    assert "round 2: loss " in said
    learned = smidgen.load(save).state_dict()

    def here(context: object) -> fleet.Client:
        part = context.node_config["partition-id"]  # type: ignore[attr-defined]
        own = fleet.share(folder / "d.npz", "speaker", part=part, of=4)
        return fleet.Client(folder / "net.smg", own.x, own.y, eval=own.eval, part=part)

    grid = fleet.LocalGrid(fleet.client_app(here), 4)
    fleet.federate(grid, FedAvg(), folder / "net.smg", rounds=2, epochs=2, seed=5, save=folder / "same.smg")
    same = smidgen.load(folder / "same.smg").state_dict()
    assert all(np.array_equal(learned[name], same[name]) for name in same)
    said_of_it = json.loads((folder / "My App" / "learned.smg.json").read_text())
    assert [row["round"] for row in said_of_it["rounds"]] == [0, 1, 2]
    assert said_of_it["refused"] == []


def test_the_app_is_what_flower_takes(folder: Path) -> None:
    made = new_app(str(folder / 'a "b"'), str(folder / "net.smg"), str(folder / "d.npz"), "speaker")
    said = tomllib.loads((folder / 'a "b"' / "pyproject.toml").read_text())
    assert said["project"]["name"] == "a-b"
    config = said["tool"]["flwr"]["app"]["config"]
    assert config["save"] == str((folder / 'a "b"' / "learned.smg").resolve())
    assert (config["batch"], config["lr"], config["by"]) == (8, 0.1, "speaker")
    assert made.samples == (20, 20, 20, 30)
    assert {p.name for p in (folder / 'a "b"').iterdir()} == {"pyproject.toml", "server_app.py", "client_app.py"}
    for name in ("server_app.py", "client_app.py"):
        text = (folder / 'a "b"' / name).read_text()
        compile(text, name, "exec")
        assert len(text.splitlines()) < 60


def test_each_device_has_its_own_samples_and_nobody_has_them_twice(folder: Path) -> None:
    for of in (1, 2, 3, 4):
        parts = [fleet.share(folder / "d.npz", "speaker", part=i, of=of) for i in range(of)]
        rows = np.concatenate([np.concatenate([p.x[0], p.x_test[0]]) for p in parts])
        assert len(np.unique(rows, axis=0)) == len(rows) == 90
        assert sorted(name for p in parts for name in p.ids) == sorted(SPEAKERS)
        assert all(len(p.y_test) == len(p.y) // 4 for p in parts)


@pytest.mark.parametrize(("change", "kind", "says"), [
    ({"app": "."}, BadOption, "is there already"),
    ({"program": "no.smg"}, SmidgenError, "no.smg"),
    ({"data": "no.npz"}, BadData, "no file"),
    ({"by": "subject"}, BadData, "has no array 'subject'"),
    ({"by": "x"}, BadData, "is not one id a sample"),
    ({"by": "one"}, BadData, "the same for all samples"),
    ({"data": "wide.npz"}, BadData, "wide.npz"),
    ({"data": "labels.npz"}, BadData, "labels.npz"),
])  # fmt: skip
def test_what_a_run_would_stumble_over_is_an_error_now(
    change: dict[str, str], kind: type[SmidgenError], says: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    whole = dict(np.load("d.npz"))
    np.savez("d.npz", **whole, one=np.zeros(90))
    np.savez("wide.npz", **{**whole, "x": np.zeros((90, 7), np.float32)})
    np.savez("labels.npz", **{**whole, "y": np.full(90, 3)})
    given = {"app": "app", "program": "net.smg", "data": "d.npz", "by": "speaker", **change}
    with pytest.raises(kind) as found:
        new_app(given["app"], given["program"], given["data"], given["by"])
    assert says in str(found.value)
    assert not Path("app").exists()


def test_json_has_the_documented_keys(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = ["--program", str(folder / "net.smg"), "--data", str(folder / "d.npz")]
    assert cli.main(["fleet", "new", str(folder / "app"), *paths, "--by", "speaker", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == documented()["fleet new"]


@pytest.mark.parametrize(("part", "of"), [(4, 4), (-1, 4), (0, 5), (0, 0)])
def test_a_device_without_samples_is_an_error(part: int, of: int, folder: Path) -> None:
    with pytest.raises(BadOption, match="has no samples"):
        fleet.share(folder / "d.npz", "speaker", part=part, of=of)
