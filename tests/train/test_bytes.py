"""Inputs that are given as bytes with scale and offset: the bits of the numbers that they stand for, wherever they come
from, and errors that say what to give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from smidgen import Bytes, Memory, Replay, cli
from smidgen.errors import BadData, BadOption, BadShape, ExportFailed, SmidgenError
from smidgen.program.program import Program
from smidgen.runtime.machine import Machine
from smidgen.train.job import Job
from tests.support.channels import InOrder

RNG = np.random.default_rng(0)
Q = RNG.integers(0, 256, (7, 3, 15, 11)).astype(np.uint8)
Y = RNG.integers(0, 4, len(Q))
WAYS: dict[str, dict[str, Any]] = {
    "one scale": {"scale": 1 / 255},
    "one of both": {"scale": 1 / 127.5, "offset": -1},
    "of each channel": {"scale": (0.017, 0.0175, 0.0174), "offset": [-2.1, -2.0, -1.8]},
    "one scale, more offsets": {"scale": 0.017, "offset": np.array([-2.1, -2.0, -1.8])},
    "as they are": {"scale": 1},
}


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(6, 8, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
    )  # fmt: skip


def narrow(channels: int = 3) -> nn.Module:
    """Its largest map is the image."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(channels, 8, 5, stride=4, padding=2), nn.ReLU(), nn.Conv2d(8, 16, 5, padding=2, stride=2), nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4),
    )  # fmt: skip


def both(x: Bytes, make: Callable[[], nn.Module] = model, **options: Any) -> tuple[Job, Job]:
    """A job that takes the bytes, and one that takes what they stand for."""
    options = {"batch": 3, "kernels": "exact", "optimizer": smidgen.SGD(0.05), **options}
    return smidgen.compile(make(), x, **options), smidgen.compile(make(), x.numbers, **options)


def state(job: Job) -> bytes:
    return job.engine.state.copy().tobytes()


# -- the same bits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_a_network_learns_and_predicts_the_bits_of_the_numbers(way: str) -> None:
    x = Bytes(Q, **WAYS[way])
    job, plain = both(x, method="full")
    job.fit(Q, Y, epochs=2, progress=False)
    plain.fit(x.numbers, Y, epochs=2, progress=False)
    assert job.predict(Q).tobytes() == plain.predict(x.numbers).tobytes()
    assert job.evaluate(Q, Y) == plain.evaluate(x.numbers, Y)
    assert state(job) == state(plain)


@pytest.mark.parametrize(
    "options",
    [{"method": "last_layer"}, {"method": "last_layer", "memory": Memory(stream=False)},
     {"method": "last_layer", "memory": Memory(whole_inputs=True)}, {"method": "bias"},
     {"memory": Memory(accumulate=True)}, {"method": "last_layer", "memory": Memory(replay=Replay(samples=5))},
     {"method": "full", "budget": "22KB"}, {"method": "bn", "bn": "batch"}],
    ids=str,
)  # fmt: skip
def test_every_technique_gives_the_bits_of_the_numbers(options: dict[str, Any]) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.BatchNorm2d(3), model()) if options.get("method") == "bn" else model()

    x = Bytes(Q, 1 / 127.5, -1)
    job, plain = both(x, make, **options)
    for first in (0, 3):
        part = slice(first, first + 3)
        assert job.train_step(Q[part], Y[part]) == plain.train_step(x.numbers[part], Y[part])
    assert state(job) == state(plain)
    assert job.predict(Q).tobytes() == plain.predict(x.numbers).tobytes()


def test_fast_kernels_are_as_near_as_they_are_with_numbers() -> None:
    x = Bytes(Q, 1 / 127.5, -1)
    job, plain = both(x, kernels="fast")
    job.fit(Q, Y, epochs=2, progress=False)
    plain.fit(x.numbers, Y, epochs=2, progress=False)
    np.testing.assert_allclose(job.predict(Q), plain.predict(x.numbers), rtol=1e-4, atol=1e-5)


def test_samples_of_a_replay_buffer_are_kept_as_bytes() -> None:
    """Numbers are kept as int8 with a scale, which loses something; bytes are what they are."""
    x = Bytes(Q, 1 / 255)
    whole = Memory(replay=Replay(samples=5, of="inputs", precision="f32"))
    job, plain = both(x, method="full", memory=whole)
    for first in (0, 2, 4):
        part = slice(first, first + 2)
        assert job.train_step(Q[part], Y[part]) == plain.train_step(x.numbers[part], Y[part])
    assert state(job) != state(plain)  # the buffer is part of it
    assert job.predict(Q).tobytes() == plain.predict(x.numbers).tobytes()
    assert plain.plan.ram_bytes - job.plan.ram_bytes > 4 * Q[0].nbytes


def test_bytes_are_learned_sample_by_sample() -> None:
    x = Bytes(Q, 1 / 255)
    job, plain = both(x, method="tinyol")
    for q, number, label in zip(Q, x.numbers, Y, strict=True):
        assert job.learn(q, label).tobytes() == plain.learn(number, label).tobytes()
    assert job.drift == plain.drift


def test_bytes_beside_numbers_and_of_one_axis() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 4)

        def forward(self, x: torch.Tensor, one: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.inner(x) * one[:, None]
            return y

    x, one = RNG.standard_normal((5, 6)).astype(np.float32), RNG.integers(0, 256, 5).astype(np.uint8)
    torch.manual_seed(0)
    network = Two()
    given = Bytes(one, 1 / 255, 0.5)
    job = smidgen.compile(network, (x, given), kernels="exact")
    with torch.no_grad():
        wanted = network(torch.tensor(x), torch.tensor(given.numbers)).numpy()
    np.testing.assert_allclose(job.predict((x, one)), wanted, rtol=1e-5, atol=1e-6)


def test_the_image_in_ram_takes_a_quarter() -> None:
    """With the whole sample in RAM, as a camera fills a frame: what is made of it is smaller than it."""
    q = np.zeros((1, 3, 64, 64), np.uint8)
    options: dict[str, Any] = {"method": "last_layer", "memory": Memory(whole_inputs=True), "batch": 1}
    job, plain = both(Bytes(q, 1 / 255), narrow, **options)
    assert plain.plan.ram_bytes - job.plan.ram_bytes > 0.85 * 3 * q.nbytes


# -- where they come from ----------------------------------------------------------------------------------------------


def test_a_source_that_cannot_seek_is_read_in_order_byte_by_byte() -> None:
    q = RNG.integers(0, 256, (1, 1, 48, 40)).astype(np.uint8)
    job = smidgen.compile(narrow(1), Bytes(q, 1 / 255), method="last_layer", kernels="exact")
    assert any(step.is_stream for step in job.program.entry_code("infer"))
    through, out = InOrder(job.program), np.zeros((1, 4), np.float32)
    assert through.run("infer", [q, out], (True, False), 1) == (0, "")
    assert out.tobytes() == job.predict(q).tobytes()
    ends = np.cumsum([count for _, count in through.read])
    assert [offset for offset, _ in through.read] == [0, *ends[:-1]]
    assert ends[-1] == q.nbytes
    assert max(count for _, count in through.read) < q.nbytes // 2


def test_a_program_file_says_what_its_bytes_stand_for(tmp_path: Path) -> None:
    job = smidgen.compile(model(), Bytes(Q, 1 / 127.5, -1), batch=2)
    job.save(tmp_path / "net.smg")
    wanted = Machine((tmp_path / "net.smg").read_bytes()).entries["train"][0]
    assert (wanted.dtype, wanted.scale, wanted.offset) == (np.uint8, np.float32(1 / 127.5), -1)
    back = Program.from_bytes((tmp_path / "net.smg").read_bytes())
    assert back.entry_buffers("train")[0].is_scaled
    assert not back.entry_buffers("train")[1].is_scaled
    loaded = smidgen.load(tmp_path / "net.smg", kernels="exact")
    assert loaded.predict(Q).tobytes() == Job(job.program, kernels="exact").predict(Q).tobytes()


def test_the_command_line_takes_bytes_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layers = "nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4)"
    (tmp_path / "nets.py").write_text(f"from torch import nn\ndef net():\n    return nn.Sequential({layers})\n")
    np.savez(tmp_path / "train.npz", x=Q, y=Y)
    source, made = f"{tmp_path}/nets.py:net", f"{tmp_path}/net.smg"
    assert cli.main(["verify", source, "--input", "3x3x15x11:bytes/127.5-1"]) == 0
    assert cli.main(["build", source, "--input", "3x3x15x11:bytes/127.5-1", "-o", made]) == 0
    assert cli.main(["inspect", made]) == 0
    assert "u8 n×3×15×11, bytes q for 0.00784314·q-1" in capsys.readouterr().out
    assert cli.main(["train", made, "--data", f"{tmp_path}/train.npz", "--epochs", "2"]) == 0


# -- what is refused ---------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Callable[[], Any], type[SmidgenError], str]] = {
    "floats": (lambda: Bytes(Q / 255, 1 / 255), BadShape, "it is float64"),
    "beyond a byte": (lambda: Bytes(Q.astype(int) + 1, 1 / 255), BadShape, "numbers from 1 to 256"),
    "too many axes": (lambda: Bytes(np.zeros((1,) * 7, np.uint8), 1), BadShape, "has 7 axes"),
    "a scale of zero": (lambda: Bytes(Q, 0), BadOption, "scale=0 of Bytes is not above zero"),
    "no number": (lambda: Bytes(Q, "1/255"), BadOption, "scale='1/255' of Bytes is not a number"),
    "infinity": (lambda: Bytes(Q, 1, float("inf")), BadOption, "offset=inf of Bytes is not a number"),
    "for two of three channels": (lambda: Bytes(Q, (1, 1)), BadOption, "Bytes has 2 of `scale` and 1 of `offset`"),
    "not as many offsets": (lambda: Bytes(Q, (1, 1, 1), (0, 0)), BadOption, "3 of `scale` and 2 of `offset`"),
    "a channel each of many": (lambda: Bytes(np.zeros((1, 33, 4, 4), np.uint8), (1,) * 33), BadOption, "33 scales"),
    "no Bytes": (lambda: Q, ExportFailed, "smidgen.Bytes(images, scale=1 / 255)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_example_that_is_no_bytes_says_what_to_give(name: str) -> None:
    make, kind, said = REFUSED[name]
    with pytest.raises(kind) as caught:
        smidgen.compile(model(), make())
    assert said in str(caught.value)
    assert "help:" in str(caught.value)


def test_a_target_is_given_in_numbers() -> None:
    with pytest.raises(BadOption, match="the target is given as Bytes"):
        smidgen.compile(nn.Conv2d(3, 3, 1), Bytes(Q, 1 / 255), loss="mse", target=Bytes(Q, 1 / 255))


@pytest.mark.parametrize(
    ("given", "said"),
    [(Q / 255, "has dtype float64, the program wants bytes"), (Q.astype(int) + 1, "holds 256, the program wants bytes"),
     (Q.astype(int) - 1, "holds -1, the program wants bytes")],
    ids=["floats", "too large", "below zero"],
)  # fmt: skip
def test_samples_that_are_no_bytes_say_what_to_give(given: Any, said: str) -> None:
    job = smidgen.compile(model(), Bytes(Q, 1 / 255))
    with pytest.raises(BadData) as caught:
        job.predict(given)
    assert said in str(caught.value)
    assert job.predict(Q.astype(np.int64)).tobytes() == job.predict(Q).tobytes()
