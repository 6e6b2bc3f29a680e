"""Few-shot learning: episodes are what Meta-Dataset's rules say, prototypes and loss are PyTorch's, and a comparison
goes on where it ended. Needs torch."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from smidgen import cli
from smidgen.errors import BadData, BadOption
from smidgen.fewshot import Prototypical, Settings, compare, prototype_loss, prototypes, read_set
from smidgen.fewshot.episodes import augmented, draw
from smidgen.ir import Array

CLASSES, EACH = 9, 14


def backbone() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 12, 1), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    )


def pictures(channels: int = 3) -> tuple[Array, Array]:
    rng = np.random.default_rng(5)
    kinds, label = rng.uniform(0, 200, (CLASSES, 4, 4, channels)), np.repeat(np.arange(CLASSES), EACH)
    images = np.kron(kinds[label], np.ones((1, 3, 3, 1))) + rng.normal(0, 120, (len(label), 12, 12, channels))
    return np.clip(images, 0, 255).astype(np.uint8), label


@pytest.fixture
def path(tmp_path: Path) -> str:
    images, label = pictures()
    np.savez(tmp_path / "kinds.npz", images=images, label=label)
    return str(tmp_path / "kinds.npz")


def settings(**more: Any) -> Settings:
    return Settings(**{"episodes": 2, "steps": 3, "lr": 0.01, "support": 30, "batch": 4, "kernels": "exact", **more})


def test_episodes_have_various_ways_and_shots_and_no_image_twice(path: str) -> None:
    found = read_set(path)
    ways, shots = set(), set()
    for number in range(40):
        one = draw(found, number, 3, 40)
        again = draw(found, number, 3, 40)
        np.testing.assert_array_equal(one.support, again.support)
        assert not set(one.support.tolist()) & set(one.query.tolist())
        assert len(set(one.support.tolist())) == len(one.support) <= 40
        assert set(one.support_labels.tolist()) == set(one.query_labels.tolist()) == set(range(one.ways))
        for rows, labels in ((one.support, one.support_labels), (one.query, one.query_labels)):
            kinds = {int(c): set(found.labels[rows[labels == c]].tolist()) for c in range(one.ways)}
            assert all(len(kind) == 1 for kind in kinds.values())
        assert np.bincount(one.query_labels).tolist() == [min(10, EACH // 2)] * one.ways
        ways.add(one.ways)
        shots |= set(np.bincount(one.support_labels).tolist())
    assert ways == set(range(5, CLASSES + 1))
    assert len(shots) > 3


def test_only_classes_for_testing_are_drawn_and_of_one_group(tmp_path: Path) -> None:
    images, label = pictures(1)
    images, label = np.concatenate([images] * 2), np.concatenate([label, label + CLASSES])
    split = np.array(["train" if c % 2 and c < 8 else "evaluation" for c in range(2 * CLASSES)])
    group = np.array(["a"] * CLASSES + ["b"] * CLASSES)
    np.savez(tmp_path / "s.npz", images=images, label=label, class_split=split, class_alphabet=group)
    found = read_set(str(tmp_path / "s.npz"))
    seen = set()
    for number in range(20):
        classes = set(found.labels[draw(found, number, 0, 30).support].tolist())
        assert all(split[c] == "evaluation" for c in classes)
        assert len({group[c] for c in classes}) == 1
        seen |= {str(group[c]) for c in classes}
    assert seen == {"a", "b"}
    assert found.images(np.arange(2), 20).shape == (2, 3, 20, 20)


def test_jpeg_files_in_one_block_are_read(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    images, label = pictures()
    made = []
    for one in images:
        file = io.BytesIO()
        image.fromarray(one).save(file, "JPEG", quality=95)
        made.append(np.frombuffer(file.getvalue(), np.uint8))
    offset = np.cumsum([0, *map(len, made)])
    np.savez(tmp_path / "j.npz", jpeg=np.concatenate(made), offset=offset, label=label)
    found = read_set(str(tmp_path / "j.npz")).images(np.array([3]), None)
    wanted = np.asarray(image.open(io.BytesIO(made[3].tobytes())))
    np.testing.assert_allclose((found[0].transpose(1, 2, 0) + 1) * 127.5, wanted, atol=1e-4)


def test_scores_are_angles_to_the_mean_of_each_class() -> None:
    rng = np.random.default_rng(0)
    features, labels = rng.standard_normal((11, 6)).astype(np.float32), np.arange(11) % 3
    made = prototypes(features, labels, 5)
    for c in range(3):
        mean = torch.tensor(features[labels == c]).mean(0)
        torch.testing.assert_close(torch.tensor(made[c]), nn.functional.normalize(mean, dim=0))
    assert not made[3:].any()
    x, model = torch.tensor(features), Prototypical(nn.Identity())
    scores, _ = model(x, torch.tensor(made).expand(11, -1, -1))
    wanted = 10 * nn.functional.normalize(x, dim=1) @ torch.tensor(made[:3]).T
    torch.testing.assert_close(scores[:, :3], wanted)
    loss = prototype_loss((scores, x), torch.tensor(labels))
    torch.testing.assert_close(loss, nn.functional.cross_entropy(wanted, torch.tensor(labels)))


def test_augmented_images_are_of_the_same_kind() -> None:
    images = np.random.default_rng(0).uniform(-1, 1, (30, 3, 16, 16)).astype(np.float32)
    made = augmented(images, np.random.default_rng(1))
    changed = [not np.array_equal(a, b) for a, b in zip(images, made, strict=True)]
    assert 20 < sum(changed) < 30
    assert made.min() >= -1
    assert made.max() <= 1
    np.testing.assert_array_equal(made, augmented(images, np.random.default_rng(1)))


METHODS = ["none", "last_layer", "full", "tinytrain"]


def test_methods_learn_and_every_episode_starts_anew(path: str) -> None:
    found = compare(backbone(), [read_set(path)], METHODS, settings(steps=12, episodes=3))
    rows = {row["method"]: row for row in found["rows"]}
    assert rows["full"]["accuracy"] > rows["none"]["accuracy"]
    assert rows["none"]["gain"] == 0
    alone = compare(backbone(), [read_set(path)], ["full", "tinytrain"], settings(steps=12, episodes=3))
    for method in ("full", "tinytrain"):  # the order of methods and episodes changes nothing
        assert alone["results"][f"kinds {method}"] == found["results"][f"kinds {method}"]


def test_an_interrupted_comparison_goes_on_with_the_same_result(path: str) -> None:
    whole = compare(backbone(), [read_set(path)], METHODS[1:], settings())
    known: dict[str, Any] = {}
    calls = 0

    def keep() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(backbone(), [read_set(path)], METHODS[1:], settings(), known=known, keep=keep)
    left = json.loads(json.dumps(known))
    told: list[int] = []
    again = compare(
        backbone(),
        [read_set(path)],
        METHODS[1:],
        settings(),
        known=left,
        told=lambda done, total, what: told.append(done),
    )
    assert again["rows"] == whole["rows"]
    assert len(told) == 6 - 3
    with pytest.raises(BadOption, match="of another comparison"):
        compare(backbone(), [read_set(path)], METHODS, settings(steps=4), known=left)


def test_a_budget_holds_for_every_method(path: str) -> None:
    found = compare(backbone(), [read_set(path)], ["last_layer", "tinytrain"], settings(episodes=1, budget="64KB"))
    assert all(plan["ram_bytes"] <= 64 * 1024 for plan in found["plans"].values())


def test_the_command_writes_table_picture_and_json(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text(
        "from torch import nn\n\n\ndef build():\n"
        "    return nn.Sequential(nn.Conv2d(3, 6, 3, 2), nn.ReLU(), nn.Conv2d(6, 8, 3), nn.AdaptiveAvgPool2d(1))\n"
    )
    Path("seed.py").write_text("")
    base = ["fewshot", "nets.py:build", "--sets", path, "--methods", "none,bias", "--steps", "2", "--support", "20"]
    torch.manual_seed(0)
    assert cli.main([*base, "--episodes", "2", "--svg", "a.svg"]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[0].split() == ["method", "kinds", "RAM", "learns"]
    assert "2 episodes a set" in text
    assert Path("a.svg").read_text().startswith("<svg")
    torch.manual_seed(0)
    assert cli.main([*base, "--episodes", "1", "-o", "run.json", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["method"] for row in found["rows"]] == ["none", "bias"]
    assert json.loads(Path("run.json").read_text())["results"]["kinds bias"]


def test_what_is_no_set_is_refused(tmp_path: Path) -> None:
    images, label = pictures()
    np.savez(tmp_path / "float.npz", images=images / 255, label=label)
    np.savez(tmp_path / "short.npz", images=images, label=label[:-1])
    np.savez(tmp_path / "few.npz", images=images[: 3 * EACH], label=label[: 3 * EACH])
    (tmp_path / "text.npz").write_text("no")
    for name in ("float", "short", "text", "missing"):
        with pytest.raises(BadData):
            read_set(str(tmp_path / f"{name}.npz"))
    with pytest.raises(BadData, match="an episode needs 5"):
        draw(read_set(str(tmp_path / "few.npz")), 0, 0, 30)
    for wrong in ({"episodes": 0}, {"lr": -1.0}, {"support": 2}):
        with pytest.raises(BadOption):
            settings(**wrong).checked()
