"""Classes that are added at run time: while they are spare, nothing is different, to the last bit; once added, a digit
that was never seen is learned from 20 samples while the known ones stay. Needs torch and scikit-learn."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import smidgen
from smidgen.errors import BadData, BadOption, BadProgram
from smidgen.train.classes import c_initializer
from tests.support.arguments import compiled as compiled_with
from tests.support.libraries import compiled
from tests.support.new_classes import digits, net, nine_known

C = Path(__file__).parents[1] / "c"
OPTIMIZERS = {
    "sgd": smidgen.SGD(0.1), "momentum": smidgen.SGD(0.1, momentum=0.9, weight_decay=0.01),
    "adamw": smidgen.AdamW(0.01, weight_decay=0.1), "clipped": smidgen.SGD(0.1, clip_norm=0.5),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("spare", [1, 7, 8])
def test_spare_classes_change_no_bit_of_the_others(name: str, spare: int) -> None:
    x, y = digits()
    known = y < 9
    x, y = x[known][:160], y[known][:160]
    plain = smidgen.compile(
        net(), x[:16], optimizer=OPTIMIZERS[name], memory=smidgen.Memory(accumulate=True), kernels="exact"
    )
    wide = smidgen.compile(
        net(),
        x[:16],
        optimizer=OPTIMIZERS[name],
        memory=smidgen.Memory(accumulate=True),
        classes=smidgen.Classes(spare=spare),
        kernels="exact",
    )
    for first in range(0, 96, 16):
        part = slice(first, first + 16)
        assert plain.train_step(x[part], y[part]) == wide.train_step(x[part], y[part])
    assert plain.train_step(x, y) == wide.train_step(x, y)  # in parts
    for key, value in plain.state_dict().items():
        assert np.array_equal(value, wide.state_dict()[key]), key
    assert np.array_equal(plain.predict(x), wide.predict(x))
    assert plain.evaluate(x, y) == wide.evaluate(x, y)
    assert not wide.engine.state.view("8.weight")[9:].any(), "what is not in use stays as it was"
    assert not wide.engine.state.view("8.bias")[9:].any()


@pytest.mark.parametrize("new", [0, 5, 8])
def test_a_digit_never_seen_is_learned_from_twenty_samples(new: int) -> None:
    """With ten samples of each known digit in the batches, so that they are not forgotten."""
    x, y, model, chosen = nine_known(new)
    test = slice(1200, None)
    device = smidgen.compile(
        model, x[:16], method="last:2", optimizer=smidgen.SGD(0.02, momentum=0.9), classes=smidgen.Classes(spare=4)
    )

    def right(digits_: Any) -> float:
        return float((device.predict(x[test][digits_]).argmax(1) == y[test][digits_]).mean())

    before = right(y[test] != 9)
    assert device.add_class("new") == 9
    device.fit(x[chosen], y[chosen], epochs=20, progress=False)
    assert right(y[test] == 9) >= 0.8
    assert right(y[test] != 9) >= before - 0.05


def test_names_survive_save_and_checkpoint_and_go_home(tmp_path: Path) -> None:
    x, y = digits()
    x, y = x[:16], y[:16] % 9
    names = [f"digit {k}" for k in range(9)]
    job = smidgen.compile(net(), x, classes=smidgen.Classes(spare=2, names=names))
    assert job.classes == names
    assert job.predict(x).shape == (16, 9)
    with pytest.raises(
        BadData, match=r"label 9 in sample 0 .*\n.* 9 classes, 0 to 8\n  help: add the class first: job\.add_class"
    ):
        job.fit(x, y * 0 + 9, progress=False)
    with pytest.raises(BadData, match="label 9 in sample 0"):
        job.train_step(x, y * 0 + 9)
    assert job.add_class("kätzchen") == 9
    job.fit(x, y * 0 + 9, progress=False)
    assert job.predict(x).shape == (16, 10)
    assert job.state_dict()["8.weight"].shape == (10, 32)
    job.save(tmp_path / "net.smg")
    job.checkpoint(tmp_path / "net.ckpt")
    loaded = smidgen.load(tmp_path / "net.smg")
    assert loaded.classes == [*names, "kätzchen"]
    fresh = smidgen.compile(net(), x, classes=smidgen.Classes(spare=2, names=names))
    fresh.resume(tmp_path / "net.ckpt")
    assert fresh.classes == [*names, "kätzchen"]
    assert np.array_equal(fresh.predict(x), job.predict(x))
    model = net(10)
    job.load_into(model)
    assert np.allclose(model(torch.from_numpy(x)).detach().numpy(), job.predict(x), atol=1e-5)
    job.export_weights(tmp_path / "w.safetensors")
    loaded.import_weights(tmp_path / "w.safetensors")
    assert np.array_equal(loaded.predict(x), job.predict(x))
    with pytest.raises(BadData, match=r"'8.bias' has shape \(4,\), the program wants \(10,\)"):
        loaded.load_state_dict({"8.bias": np.zeros(4)})


def test_the_same_from_c(tmp_path: Path) -> None:
    x, _ = digits()
    job = smidgen.compile(net(), x[:4], classes=smidgen.Classes(spare=2))
    job.save(tmp_path / "net.smg")
    flags = ("-O0", "-g1", "-fsanitize=address,undefined", f"-DNET_CLASSES={c_initializer(job.program)}")
    tool = compiled("gcc", flags, [C / "classes.c"])
    command = [tool, tmp_path / "net.smg", tmp_path / "state", "cat", "", "x" * 24, "dog", "mouse"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.splitlines()[:6] == [
        "9 cat ", "-1 - the name of a class is empty or too long", "-1 - the name of a class is empty or too long",
        "10 dog ", "-1 - all spare classes are taken", "11 -1 -1",
    ], done.stderr  # fmt: skip
    job.add_class("cat")
    job.add_class("dog")
    assert (tmp_path / "state").read_bytes() == job.engine.machine.state.tobytes()


@pytest.mark.parametrize("added", [0, 1, 2])
def test_a_label_of_a_class_that_was_not_added_is_refused_in_c(added: int, tmp_path: Path) -> None:
    x, _ = digits()
    job = smidgen.compile(net(), x[:4], classes=smidgen.Classes(spare=2))
    job.save(tmp_path / "net.smg")
    tool = compiled("gcc", ("-O0", f"-DNET_CLASSES={c_initializer(job.program)}"), [C / "classes.c"])
    command = [tool, tmp_path / "net.smg", tmp_path / "state", *["cat", "dog"][:added]]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[added + 1 :]
    assert len(lines) == 1 + 11 + 1
    for label, line in enumerate(lines, -1):
        found, status, changed, *said = line.split(maxsplit=3)
        assert found == f"{label}:"
        if 0 <= label < 9 + added:
            assert (status, changed, said) == ("0", "1", [])
        else:
            assert (status, changed) == ("3", "0"), "refused before anything is learned"
            what = "a label is that of a spare class that was not added"
            assert said[0].endswith(what if 9 + added <= label < 11 else "a label is not the number of a class")


class Smoothed(nn.Module):
    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output, target, label_smoothing=0.1)


def test_what_cannot_be_done_is_said() -> None:
    x = torch.randn(4, 1, 8, 8)
    job = smidgen.compile(net(), x, classes=smidgen.Classes(spare=1))
    for name in ("", 7, "x" * 24, "a\0b"):
        with pytest.raises(BadOption, match="is not a name for a class"):
            job.add_class(name)  # type: ignore[arg-type]
    job.add_class("cat")
    with pytest.raises(BadOption, match="there is a class 'cat' already\n  help: its number is 9"):
        job.add_class("cat")
    with pytest.raises(BadOption, match="all 1 spare classes are taken"):
        job.add_class("dog")
    with pytest.raises(BadOption, match="the program has no spare classes"):
        smidgen.compile(net(), x).add_class("cat")
    refused: list[tuple[dict[str, Any], str]] = [
        ({"spare_classes": -1}, "not a number of spare classes"),
        ({"spare_classes": 1, "method": "bias"}, "cannot be learned"),
        ({"spare_classes": 1, "class_names": ["a"]}, "1 class_names for 9 classes"),
        ({"class_names": ["a", "a"]}, "the same name"), ({"class_names": "ab"}, "not a list of class names"),
        ({"spare_classes": 1, "loss": "mse"}, "does not compare scores with labels"),
        ({"spare_classes": 1, "loss": Smoothed(), "target": torch.zeros(4, dtype=torch.int64)}, "label smoothing"),
    ]  # fmt: skip
    for arguments, message in refused:
        with pytest.raises(BadOption, match=message):
            compiled_with(net(), x, **arguments)
    with pytest.raises(BadOption, match="the scores come from 'relu', not from a linear layer"):
        smidgen.compile(nn.Sequential(net(), nn.ReLU()), x, classes=smidgen.Classes(spare=1))


def test_a_program_that_lies_about_its_classes_is_refused() -> None:
    from dataclasses import replace

    job = smidgen.compile(net(), torch.randn(4, 1, 8, 8), classes=smidgen.Classes(spare=2))
    for lie in ({"known": 8}, {"spare": 3}, {"weight": "6.weight"}, {"names": 3}, {"outputs": None}):
        facts = {**job.program.meta["classes"], **lie}
        with pytest.raises(BadProgram, match="does not describe its classes"):
            smidgen.train.job.Job(replace(job.program, meta={**job.program.meta, "classes": facts}))
