"""One static binary with the program inside trains on other machines with the host's bits, and reads data files that
nobody checked. Needs torch, gcc with sanitizers, zig and qemu-user."""

from __future__ import annotations

import io
import json
import os
import random
import re
import resource
import shutil
import struct
import subprocess
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from smidgen import cli
from smidgen.deploy import linux_binary
from smidgen.errors import BadCheckpoint, BadOption
from smidgen.runtime.build import HERE
from smidgen.train.job import Job
from tests.support.runner import command, fnv, ready

C = Path(__file__).parents[1] / "c"
SAMPLES, EPOCHS = 76, 10  # 100 steps of up to 8 samples, every tenth with 4
SANITIZE = ("-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
LINUX = [name for name, target in linux_binary.TARGETS.items() if not target.is_library]
# The first build for a machine makes its C library, which takes a minute or more.
AT_HAND = ("x86_64-linux", "aarch64-linux")
ALL = os.environ.get("SMIDGEN_TARGETS") == "all"
LATER = pytest.mark.skipif(not ALL, reason="`make targets` builds for all machines")
TARGETS = [pytest.param(name, marks=() if name in AT_HAND else LATER) for name in LINUX]


def lenet() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def data() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((SAMPLES, 1, 28, 28)).astype(np.float32), rng.integers(0, 10, SAMPLES)


# -- .npz in C ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("npz") / "npz"
    sources = [C / "npz.c", HERE / "runner" / "npz.c"]
    subprocess.run(["gcc", "-std=c11", "-Wall", "-Wextra", *SANITIZE, f"-I{HERE}", *sources, "-o", out], check=True)
    return out


def said(reader: Path, files: Sequence[bytes]) -> list[str]:
    stream = b"".join(struct.pack("<I", len(file)) + file for file in files)
    done = subprocess.run([reader], input=stream, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    lines = done.stdout.decode(errors="replace").splitlines()
    assert len(lines) == len(files)
    return lines


def npz(**arrays: Any) -> bytes:
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


KINDS = ("f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "?")


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_of_every_kind_are_read_as_numpy_wrote_them(kind: str, reader: Path) -> None:
    values = np.array([[0, 1, 2], [-3, 100, 1]]).astype(kind)
    (line,) = said(reader, [npz(y=np.arange(5), x=values)])
    sort, item = values.dtype.kind, values.dtype.itemsize
    assert line.startswith(f"x: {sort}{item} (2,3,) sum {values.astype(np.float64).sum():.10g}; y: i8 (5,) sum 10; ")


def test_what_cannot_be_read_is_said(reader: Path) -> None:
    packed = io.BytesIO()
    np.savez_compressed(packed, x=np.zeros(4))
    lines = said(reader, [
        packed.getvalue(), npz(x=np.zeros(2, ">f4")), npz(x=np.asfortranarray(np.zeros((2, 3)))), npz(z=np.zeros(2)),
        npz(x=np.zeros(2, np.complex64)), b"", b"PK", npz(x=np.zeros(()), y=np.zeros((0, 3))),
    ])  # fmt: skip
    wanted = ["it is compressed", "data type is not supported", "Fortran", "x: there is no array of that name",
              "data type is not supported", "damaged", "damaged", "x: f8 () sum 0; y: f8 (0,3,) sum 0;"]  # fmt: skip
    assert all(want in line for want, line in zip(wanted, lines, strict=True)), lines


def sealed(npy: bytes) -> bytes:
    """A zip whose checksums are right, around an array file that may be anything."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("x.npy", npy)
    return out.getvalue()


def test_truncated_and_altered_files_are_refused_or_read_within_their_bounds(reader: Path) -> None:
    rng = random.Random(0)
    whole = npz(x=np.arange(12, dtype=np.float32).reshape(3, 4), y=np.arange(3))
    files = [whole[:k] for k in range(len(whole))]
    good = said(reader, [whole])[0]
    assert all(line != good for line in said(reader, files)), "no part of a file is taken for the whole"
    altered = []
    for _ in range(6000):
        file = bytearray(whole)
        for _ in range(rng.choice((1, 1, 2, 4))):
            at = rng.randrange(len(file))
            file[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, file[at] ^ 1 << rng.randrange(8)))
        if rng.random() < 0.2:
            at = rng.randrange(len(file))
            file[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 9)))
        altered.append(bytes(file))
    said(reader, altered)
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        inner = archive.read("x.npy")
    heads = []
    for _ in range(3000):  # behind the checksum
        file = bytearray(inner)
        for _ in range(rng.choice((1, 2, 3))):
            file[rng.randrange(min(len(file), 128))] = rng.choice((*b"0123456789(),'{}: <|fiub", 0, 255))
        heads.append(sealed(bytes(file[: rng.choice((len(file), rng.randrange(len(file))))])))
    shapes = ["(" + "9" * k + ",)" for k in range(1, 30)] + ["(4294967296, 4294967296)", "(18446744073709551615,)"]
    for shape in shapes:
        head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
        heads.append(sealed(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + bytes(48)))
    said(reader, heads)


# -- runners -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """The program, the losses of every step on the host, and the job afterwards."""
    folder = tmp_path_factory.mktemp("host")
    x, y = data()
    np.savez(folder / "train.npz", x=x, y=y)
    job = smidgen.compile(lenet(), x[:8], optimizer=smidgen.SGD(0.01, momentum=0.9), seed=5, kernels="exact")
    job.save(folder / "net.smg")
    losses: list[float] = []
    train = job.engine.train

    def noted(inputs: Any, n: int) -> float:
        losses.append(train(inputs, n))
        return losses[-1]

    job.engine.train = noted  # type: ignore[method-assign]
    job.fit(x, y, epochs=EPOCHS, progress=False)
    return folder, np.array(losses, np.float32), job


@pytest.mark.parametrize("target", TARGETS)
def test_lenet_has_the_same_bits_on(target: str, host: tuple[Path, Any, Any], tmp_path: Path) -> None:
    run = ready(target)
    folder, losses, job = host
    runner = tmp_path / "runner"
    assert cli.main(["build", str(folder / "net.smg"), "--target", target, "-o", str(runner)]) == 0
    told = command(run, runner, "train", "--data", folder / "train.npz", "--epochs", str(EPOCHS), "--state",
                   tmp_path / "s.bin", "--losses", tmp_path / "losses", "--json")  # fmt: skip
    found = json.loads(told)
    assert np.array_equal(np.fromfile(tmp_path / "losses", np.float32), losses)
    assert found["state_hash"] == fnv(job.engine.machine.state.tobytes())
    assert found["steps"] == len(losses) == 100
    assert found["ram_bytes"] <= job.plan.ram_bytes
    assert found["peak_kb"] * 1024 > found["ram_bytes"] - job.plan.stack_bytes  # of the emulator, if there is one
    if not run:
        assert found["peak_kb"] * 1024 < 2 * job.plan.ram_bytes + 1_000_000
    home = smidgen.load(folder / "net.smg", kernels="exact")
    home.restore(tmp_path / "s.bin")
    assert home.engine.machine.state.tobytes() == job.engine.machine.state.tobytes()


def test_a_runner_resumes_infers_and_gives_its_program_back(host: tuple[Path, Any, Any], tmp_path: Path) -> None:
    run = ready("x86_64-linux")
    folder, _, job = host
    x, y = data()
    runner, state = tmp_path / "runner", tmp_path / "s.bin"
    linux_binary.build_binary(job.program, "x86_64-linux", runner)
    x.tofile(tmp_path / "x.bin")
    y.astype(np.int32).tofile(tmp_path / "y.bin")
    raw = ("--raw", tmp_path / "x.bin", "--raw", tmp_path / "y.bin")
    for _ in range(2):  # the second run goes on where the first one ended
        command(run, runner, "train", *raw, "--no-shuffle", "--lr", "0.02", "--batch", "4", "--state", state,
                "--save-every", "3")  # fmt: skip
    here = smidgen.load(folder / "net.smg", kernels="exact")
    here.lr = 0.02
    for _ in range(2):
        here.fit(x, y, shuffle=False, batch=4, progress=False)
    home = smidgen.load(folder / "net.smg", kernels="exact")
    home.restore(state)
    assert home.engine.machine.state.tobytes() == here.engine.machine.state.tobytes()
    told = command(run, runner, "infer", "--data", folder / "train.npz", "--state", state, "-o", tmp_path / "out.npy")
    assert np.array_equal(np.load(tmp_path / "out.npy"), here.predict(x))
    assert told == f"{SAMPLES} samples, {100 * here.evaluate(x, y)['accuracy']:.2f}% right\n"
    command(run, runner, "program", "-o", tmp_path / "back.smg")
    assert (tmp_path / "back.smg").read_bytes() == (folder / "net.smg").read_bytes()
    assert "train: input f32[1n,1,28,28] target i32[1n] -> loss f32[]" in command(run, runner, "info")
    assert command(run, runner, "--help").startswith("runner train --data")
    assert 'job.fit on the host with kernels="exact".' in command(run, runner, "--help")


def test_a_runner_says_what_is_wrong(host: tuple[Path, Any, Any], tmp_path: Path) -> None:
    run = ready("x86_64-linux")
    folder, _, job = host
    x, y = data()
    runner = tmp_path / "runner"
    linux_binary.build_binary(job.program, "x86_64-linux", runner)
    np.savez(tmp_path / "flat.npz", x=x.reshape(SAMPLES, -1), y=y)
    np.savez(tmp_path / "label.npz", x=x, y=y + 1)
    np.savez(tmp_path / "half.npz", x=x, y=y + 0.5)
    np.savez(tmp_path / "short.npz", x=x, y=y[:9])
    np.savez(tmp_path / "alone.npz", x=x)
    (tmp_path / "other.bin").write_bytes(bytes(100))
    command(run, runner, "train", "--data", folder / "train.npz", "--state", tmp_path / "s.bin")
    broken = bytearray((tmp_path / "s.bin").read_bytes())
    broken[100] ^= 1
    (tmp_path / "broken.bin").write_bytes(broken)
    rows = [
        ("train --data nothing.npz", 1, "nothing.npz: No such file or directory"),
        ("train --data flat.npz", 1, "flat.npz, array 'x': its shape is not that of the program's input"),
        ("train --data label.npz", 1, "a label is not the number of a class"),
        ("train --data half.npz", 1, "target: a number is out of range or not an integer"),
        ("train --data short.npz", 1, "target: inputs have different numbers of samples"),
        ("train --data alone.npz", 1, "array 'y': there is no array of that name"),
        ("train --raw other.bin --raw other.bin", 1, "other.bin: its size is not a whole number of samples"),
        ("train --raw other.bin", 1, "give one for each input"),
        ("train --data short.npz --batch 9", 1, "different numbers"),
        (f"train --data {folder / 'train.npz'} --batch 9", 2, "--batch is larger than the program's"),
        (f"train --data {folder / 'train.npz'} --state other.bin", 1, "it is not the state of this program"),
        (f"train --data {folder / 'train.npz'} --state broken.bin", 1, "no slot holds a complete state of this"),
        (f"train --data {folder / 'train.npz'} --lr 1e30", 1, "the loss is not finite: lower --lr"),
        ("train", 2, "give --data FILE.npz"), ("train --lr", 2, "runner train"), ("", 2, "runner train"),
        ("fly --data x", 2, "runner train"),
    ]  # fmt: skip
    for text, status, message in rows:
        done = subprocess.run([*run, runner, *text.split()], capture_output=True, text=True, cwd=tmp_path)
        assert (done.returncode, message in done.stderr) == (status, True), (text, done)
    home = smidgen.load(folder / "net.smg", kernels="exact")
    for name, why in (("broken.bin", "neither slot is complete"), ("nothing.bin", "No such file")):
        with pytest.raises(BadCheckpoint, match=why):
            home.restore(tmp_path / name)
    other = smidgen.compile(lenet(), x[:8], optimizer=smidgen.SGD(0.01, momentum=0.9), seed=6)
    with pytest.raises(BadCheckpoint, match="another program"):
        other.restore(tmp_path / "s.bin")


def test_a_runner_trains_under_a_limit_on_the_whole_process(tmp_path: Path) -> None:
    wide = [layer for _ in range(3) for layer in (nn.Linear(768, 768), nn.ReLU())]
    net = nn.Sequential(nn.Linear(64, 768), nn.ReLU(), *wide, nn.Linear(768, 3))
    x, y = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32), np.arange(8) % 3
    np.savez(tmp_path / "d.npz", x=x, y=y)
    job = smidgen.compile(net, x, optimizer=smidgen.SGD(0.01, momentum=0.9), kernels="exact",
                          budget="11MB", memory=smidgen.Memory(page_to=tmp_path / "unused", effort=0.0))  # fmt: skip
    assert job.plan.page_state_bytes > 2**20, "the optimizer's state is outside RAM"
    linux_binary.build_binary(job.program, "x86_64-linux", tmp_path / "runner")
    command = [tmp_path / "runner", "train", "--data", tmp_path / "d.npz", "--epochs", "3", "--no-shuffle", "--json",
               "--page-to", tmp_path / "pages"]  # fmt: skip

    def limited(megabytes: int) -> Any:
        most = megabytes * 2**20
        return subprocess.run(command, capture_output=True, text=True,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (most, most)))  # fmt: skip

    done = limited(14)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["loss"] == pytest.approx([job.train_step(x, y) for _ in range(3)][-1], rel=1e-6)
    done = limited(9)
    assert (done.returncode, done.stdout) == (1, "")
    assert "not enough memory for STATE and ARENA" in done.stderr


def test_a_runner_that_was_cut_off_says_so(host: tuple[Path, Any, Any], tmp_path: Path) -> None:
    linux_binary.build_binary(host[2].program, "x86_64-linux", tmp_path / "runner")
    whole = (tmp_path / "runner").read_bytes()
    for count in (len(whole) - 1, len(whole) - 24, len(whole) - 5000):
        cut = tmp_path / f"cut{count}"
        cut.write_bytes(whole[:count])
        cut.chmod(0o755)
        done = subprocess.run([cut, "info"], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == "error: the program inside cannot be opened: the executable is truncated\n"


def test_an_android_library_has_the_c_interface_and_nothing_else(host: tuple[Path, Any, Any], tmp_path: Path) -> None:
    ready("x86_64-linux")
    _, _, job = host
    linux_binary.build_binary(job.program, "aarch64-android", tmp_path / "libnet.so")
    read = shutil.which("readelf")
    assert read
    symbols = subprocess.run([read, "-W", "--dyn-syms", tmp_path / "libnet.so"], capture_output=True, text=True).stdout
    rows = [line.split() for line in symbols.splitlines() if re.match(r"\s*\d+:", line)]
    defined = {row[7] for row in rows if len(row) > 7 and row[6] != "UND"}
    missing = {row[7] for row in rows if len(row) > 7 and row[6] == "UND"}
    assert defined == {"smg_program", "smg_program_end", *linux_binary.public_functions()}
    assert {"smg_open", "smg_run", "smg_save", "smg_restore", "smg_add_class", "smg_train_step"} <= defined
    assert missing <= {"memcpy", "memset", "memmove", "memcmp", "strcmp", "strlen"}
    head = subprocess.run([read, "-W", "-hld", tmp_path / "libnet.so"], capture_output=True, text=True).stdout
    assert "AArch64" in head
    assert "Shared library: [libc.so]" in head
    assert set(re.findall(r"LOAD .* (0x\w+)$", head, re.MULTILINE)) == {"0x4000"}


def test_an_unknown_target_is_met_with_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="there is no target 'arm7-linux'\n  help: did you mean 'armv7-linux'"):
        linux_binary.checked_target("arm7-linux")
    assert cli.main(["build", "net.smg", "--target", "aarch64-linux"]) == 2
    assert os.listdir(tmp_path) == []


def test_a_step_in_parts_learns_the_bits_of_the_host(tmp_path: Path) -> None:
    run = ready("x86_64-linux")
    x, y = data()
    program = smidgen.compile(
        lenet(), torch.zeros(3, 1, 28, 28), memory=smidgen.Memory(accumulate=True), kernels="exact"
    ).program
    plan = {**program.meta["plan"], "step_samples": 8}  # eight samples, three at a time
    program = replace(program, meta={**program.meta, "plan": plan})
    job = Job(program, kernels="exact")
    losses = [job.train_step(x[i : i + 8], y[i : i + 8]) for i in range(0, SAMPLES, 8)]
    np.savez(tmp_path / "data.npz", x=x, y=y)
    runner = tmp_path / "runner"
    linux_binary.build_binary(program, "x86_64-linux", runner)
    words = ("train", "--data", tmp_path / "data.npz", "--no-shuffle", "--json")
    told = json.loads(command(run, runner, *words, "--losses", tmp_path / "losses"))
    assert told["steps"] == len(losses)
    assert told["state_hash"] == fnv(job.engine.machine.state.tobytes())
    np.testing.assert_array_equal(np.fromfile(tmp_path / "losses", "<f4"), np.float32(losses))
    assert json.loads(command(run, runner, *words, "--batch", "5"))["steps"] == -(-SAMPLES // 5)
