"""Weights as safetensors: the model's own names and layout, and no half-read file."""

from __future__ import annotations

import builtins
import json
import struct
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

import smidgen
from smidgen.compiler.assemble import encode
from smidgen.compiler.optimizers import SGD, Adam
from smidgen.train.job import Job
from smidgen.train.npz import write_npz
from tests.support import small
from tests.support.jobs import said, state

X, Y = small.data(8)


class Tied(nn.Module):
    """A convolution, a norm with statistics, and one weight under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4)
        self.up, self.head = nn.Linear(36, 36, bias=False), nn.Linear(36, 36)
        self.head.weight = self.up.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.up(torch.relu(self.norm(self.conv(x))).flatten(1)))
        return found


@pytest.fixture(scope="module")
def tied() -> tuple[nn.Module, Job]:
    torch.manual_seed(0)
    model = Tied()
    job = smidgen.compile(model, X[:4], optimizer=SGD(0.05), bn="batch")
    job.fit(X, Y, epochs=2)
    return model, job


def test_learned_weights_go_into_the_model_with_torchs_own_loader(tied: tuple[nn.Module, Job], tmp_path: Path) -> None:
    model, job = tied
    path = tmp_path / "w.safetensors"
    job.export_weights(path)
    found = safetensors.torch.load_file(path)
    assert sorted(found) == sorted(k for k in model.state_dict() if not k.endswith("num_batches_tracked"))
    missing, unexpected = model.load_state_dict(found, strict=False)
    assert (missing, unexpected) == ([], [])
    with torch.no_grad():
        want = model.eval()(torch.from_numpy(X)).numpy()
    np.testing.assert_allclose(job.predict(X), want, rtol=1e-4, atol=1e-5)
    with safetensors.safe_open(path, "numpy") as file:
        facts = {"format": "pt", "smidgen": version("smidgen"), "method": "full", "step": str(job.step)}
        assert file.metadata() == facts


def test_what_was_exported_is_imported_to_the_bit_and_written_the_same_again(
    tied: tuple[nn.Module, Job], tmp_path: Path
) -> None:
    _, job = tied
    one, two = tmp_path / "1.safetensors", tmp_path / "2.safetensors"
    job.export_weights(one)
    for _ in range(5):  # the library's own order is random
        job.export_weights(two)
        assert one.read_bytes() == two.read_bytes()
    fresh = Job(job.program)
    fresh.import_weights(one)
    for name, value in job.state_dict().items():
        np.testing.assert_array_equal(fresh.state_dict()[name], value, err_msg=name)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int8], ids=str)
def test_other_precisions_are_converted(dtype: torch.dtype, tmp_path: Path) -> None:
    job, path = Job(encode(small.entries())), tmp_path / "w.safetensors"
    given = {name: (torch.from_numpy(v) * 3).to(dtype) for name, v in job.state_dict().items()}
    safetensors.torch.save_file(given, path)
    job.import_weights(path)
    for name, value in given.items():
        np.testing.assert_array_equal(job.state_dict()[name], value.float().numpy())


NOT_STRICT = "  help: strict=False takes what this program learns and leaves the rest"


def test_names_shapes_and_dtypes_that_do_not_fit_are_errors_and_nothing_is_set(tmp_path: Path) -> None:
    job, path = Job(encode(small.entries(optimizer=Adam(0.1)))), tmp_path / "w.safetensors"
    own, before = job.state_dict(), state(job)
    new = {name: value + 1 for name, value in own.items()}
    rest = {name: value for name, value in new.items() if name not in ("b1", "b3")}
    for given, text in (
        (
            {**new, "ww3": new["w1"]},
            f"this program does not learn 'ww3'\n  at   {path}\n  why  did you mean 'w3'?\n{NOT_STRICT}",
        ),
        (rest, f"'b1' and 1 more are not in the file\n  at   {path}\n{NOT_STRICT}"),
        ({**rest, "b1": new["b1"]}, f"'b3' is not in the file\n  at   {path}\n{NOT_STRICT}"),
        ({**new, "w3": new["w3"].T.copy()}, "'w3' has shape (6, 5), the program has (5, 6)"),
        ({**new, "b3": new["b3"] * np.float64(1e300)}, "'b3' holds a number that does not fit single precision"),
        ({}, f"'b1' and 5 more are not in the file\n  at   {path}\n{NOT_STRICT}"),
    ):
        safetensors.numpy.save_file(given, path)
        assert said(lambda: job.import_weights(path)) == f"error[E502]: {text}"
        assert state(job) == before
    safetensors.torch.save_file({k: torch.from_numpy(v).to(torch.float8_e5m2) for k, v in own.items()}, path)
    assert said(lambda: job.import_weights(path)) == (
        f"error[E502]: 'b1' has dtype F8_E5M2, the program wants numbers\n  at   {path}\n  help: convert it to F32"
    )
    assert state(job) == before


def test_a_file_with_more_or_fewer_names_is_taken_if_asked_for(tmp_path: Path) -> None:
    job, path = Job(encode(small.entries(("w3", "b3")))), tmp_path / "w.safetensors"
    other = torch.zeros(3, dtype=torch.float8_e5m2)  # of no use here, so of no interest
    safetensors.torch.save_file({"w3": torch.ones(5, 6), "w1": torch.ones(2), "exotic": other}, path)
    kept = job.state_dict()["b3"]
    job.import_weights(path, strict=False)
    np.testing.assert_array_equal(job.state_dict()["w3"], np.ones((5, 6)))
    np.testing.assert_array_equal(job.state_dict()["b3"], kept)
    safetensors.torch.save_file({"w1": torch.ones(2)}, path)
    assert said(lambda: job.import_weights(path, strict=False)) == (
        f"error[E502]: nothing in the file belongs to this program\n  at   {path}\n  why  it learns b3, w3"
    )


def test_tied_names_must_agree(tied: tuple[nn.Module, Job], tmp_path: Path) -> None:
    job, path = Job(tied[1].program), tmp_path / "w.safetensors"
    values = job.state_dict()
    before = state(job)
    safetensors.numpy.save_file({**values, "head.weight": values["head.weight"] + 1}, path)
    assert said(lambda: job.import_weights(path)) == (
        f"error[E502]: 'up.weight' and 'head.weight' are one tensor, but differ in the file\n  at   {path}"
    )
    assert state(job) == before
    alone = {k: v * 2 for k, v in values.items() if k != "up.weight"}
    safetensors.numpy.save_file(alone, path)
    job.import_weights(path)
    np.testing.assert_array_equal(job.state_dict()["up.weight"], values["up.weight"] * 2)


def test_truncated_and_hostile_files_are_errors(tmp_path: Path) -> None:
    job, path = Job(encode(small.entries())), tmp_path / "w.safetensors"
    job.export_weights(path)
    good, before = path.read_bytes(), state(job)
    (size,) = struct.unpack_from("<Q", good)
    header = json.loads(good[8 : 8 + size])

    def with_header(text: bytes) -> bytes:
        return struct.pack("<Q", len(text)) + text + good[8 + size :]

    def moved(**changes: Any) -> bytes:
        return with_header(json.dumps({**header, "w1": {**header["w1"], **changes}}).encode())

    hostile = [good[:k] for k in (0, 1, 8, 9, size, 8 + size, len(good) - 1)]
    hostile += [b"\xff" * 100, struct.pack("<Q", 2**64 - 1) + good[8:], with_header(b"[" * 100000), with_header(b"{}")]
    hostile += [moved(shape=[2**62, 2**62]), moved(shape=[-1]), moved(data_offsets=[0, 2**63]), moved(dtype="X")]
    hostile += [moved(data_offsets=[4, 0]), good + b"more"]
    for data in hostile:
        path.write_bytes(data)
        text = said(lambda: job.import_weights(path))
        assert text.startswith("error[E502]: "), text
    assert state(job) == before
    path.write_bytes(good[:-1])
    assert said(lambda: job.import_weights(path)).startswith(
        f"error[E502]: '{path}' is not a safetensors file\n  why  "
    )
    assert said(lambda: job.import_weights(tmp_path / "no")) == (
        f"error[E502]: cannot read '{tmp_path / 'no'}'\n  why  No such file or directory"
    )
    assert said(lambda: job.export_weights(tmp_path / "no" / "w")).startswith("error[E505]: cannot write ")
    for call in (job.export_weights, job.import_weights):
        text = f'error[E304]: 3 is not a path\n  help: job.{call.__name__}("w.safetensors")'
        assert said(lambda call=call: call(3)) == text  # type: ignore[misc]


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("safetensors"):
            raise ModuleNotFoundError("No module named 'safetensors'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    job = Job(encode(small.entries()))
    for call in (job.export_weights, job.import_weights):
        assert said(lambda call=call: call(tmp_path / "w")) == (  # type: ignore[misc]
            "error[E504]: weights files need safetensors\n  why  No module named 'safetensors'\n"
            "  help: pip install 'smidgen[weights]'"
        )


def test_arrays_are_written_as_npz(tmp_path: Path) -> None:
    arrays = {"y0": np.arange(3), "y1": np.ones((2, 2), np.float32)}
    write_npz(str(tmp_path / "out.npz"), arrays)
    with np.load(tmp_path / "out.npz") as found:
        assert sorted(found.files) == ["y0", "y1"]
        np.testing.assert_array_equal(found["y1"], arrays["y1"])
    assert [p.name for p in tmp_path.iterdir()] == ["out.npz"]
