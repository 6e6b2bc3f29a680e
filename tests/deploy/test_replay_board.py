"""Replay on emulated boards: the same bits as here, in the RAM that was planned; and C that reads memory, not files."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from benchmarks.nets.plain import DSCNN
from smidgen import SGD, Classes, Memory, Replay
from smidgen.deploy import emulate, linux_binary
from smidgen.deploy.board_run import train_on_board
from smidgen.deploy.firmware import program_header, write_firmware
from smidgen.devices.device import load_device
from smidgen.runtime.build import EXACT, compile_runtime
from smidgen.train.job import Job
from smidgen.train.npz import Samples
from tests.support.boards import EMULATOR, need
from tests.support.runner import command, fnv, ready

X = np.random.default_rng(0).standard_normal((20, 2, 6, 6)).astype(np.float32)
Y = np.arange(20) % 3


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 8, 3, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(32, 3),
    ).eval()  # fmt: skip


def made(device: str | None, replay: Replay, memory: Memory | None = None, **options: Any) -> Job:
    return smidgen.compile(
        net(), torch.zeros(4, 2, 6, 6), optimizer=SGD(0.05, momentum=0.9), device=device, kernels="exact",
        memory=replace(memory or Memory(), replay=replay), **{"method": "last_layer", **options},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("device", "replay", "memory"),
    [("mps2-an386", Replay(9), Memory()), ("mps2-an385", Replay(9, precision="f32"), Memory()),
     ("mps2-an386", Replay(7, of="inputs", fresh=1), Memory()), ("mps2-an385", Replay(8), Memory(accumulate=True))],
    ids=["int8 features", "f32 features", "inputs", "micro-batches"],
)  # fmt: skip
def test_a_board_replays_as_the_host_does(device: str, replay: Replay, memory: Memory, tmp_path: Path) -> None:
    need(*EMULATOR)
    job = made(device, replay, memory)
    made_of = write_firmware(tmp_path / "fw", job.program, load_device(device))
    emulate.make(tmp_path / "fw")
    report = train_on_board(tmp_path / "fw", Samples((X,), Y), check=True, epochs=2)
    here = Job(job.program, kernels="exact")
    here.fit(X, Y, epochs=2, progress=False)
    assert report.run.state == here.engine.state.copy().tobytes()
    assert len(here.replay) == replay.samples
    assert report.sections.ram_bytes == made_of.ram_bytes == job.plan.ram_bytes
    assert report.run.stack_used <= made_of.stack_bytes


def test_a_keyword_spotter_learns_a_stream_beside_old_words(tmp_path: Path) -> None:
    """DS-CNN, frozen; tinyol's layer learns from each new sample and an old one."""
    need(*EMULATOR)
    torch.manual_seed(0)
    options: dict[str, Any] = {"device": "mps2-an386", "kernels": "exact", "optimizer": SGD(0.05)}
    memory = Memory(replay=Replay(12), const="int8")
    model = DSCNN(12, norm=False).eval()
    job = smidgen.compile(model, torch.zeros(2, 1, 49, 10), method="tinyol", memory=memory, **options)
    x = np.random.default_rng(0).standard_normal((5, 1, 49, 10)).astype(np.float32)
    y = np.arange(5) % 3
    made_of = write_firmware(tmp_path / "fw", job.program, load_device("mps2-an386"))
    emulate.make(tmp_path / "fw")
    report = train_on_board(tmp_path / "fw", Samples((x,), y), check=True, epochs=1)
    here = Job(job.program, kernels="exact")
    here.fit(x, y, epochs=1, progress=False)
    assert report.run.state == here.engine.state.copy().tobytes()
    assert len(here.replay) == 5
    assert report.sections.ram_bytes == made_of.ram_bytes == job.plan.ram_bytes


def test_a_device_counts_the_buffer_and_the_new_samples() -> None:
    small, large = (made("mps2-an386", Replay(n)).plan for n in (8, 80))
    assert large.state_bytes - small.state_bytes == large.replay_bytes - small.replay_bytes == 72 * (32 + 4 + 4)
    without = smidgen.compile(net(), torch.zeros(4, 2, 6, 6), device="mps2-an386", method="last_layer").plan
    assert small.context_bytes - without.context_bytes >= 2 * (32 * 4 + 4)


def test_firmware_without_replay_has_nothing_of_it() -> None:
    plain = smidgen.compile(net(), torch.zeros(4, 2, 6, 6), method="last_layer", kernels="exact").program
    assert "REPLAY" not in program_header(plain, "net", dict.fromkeys(("stack", "state", "arena"), "sram"))
    text = program_header(made(None, Replay(9)).program, "net", dict.fromkeys(("stack", "state", "arena"), "sram"))
    assert '#define NET_REPLAY_ENTRY "features"' in text
    assert "#define NET_TRAIN_INPUTS 2 /* input f32[n,2,6,6], target i32[n] */" in text


MAIN = r"""
#include <stdio.h>
#include <stdlib.h>
#include "net_program.h"
#include "replay.h"
#include "smidgen_train.h"

static SmgContext x;
static _Alignas(64) uint8_t state[NET_STATE_BYTES], arena[NET_ARENA_BYTES];
static _Alignas(4) uint8_t rows[NET_REPLAY_ROWS_BYTES];
static const SmgReplay replay = NET_REPLAY;
static float images[NET_BATCH][72];
static int32_t labels[NET_BATCH];

static int fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    return 1;
}

int main(int count, char **names) {
    static _Alignas(64) uint8_t file[1 << 16];
    FILE *program = fopen(names[1], "rb"), *data = fopen(names[2], "rb");
    const size_t bytes = fread(file, 1, sizeof file, program);
    int32_t n;
    float loss;
    (void)count;
    if (smg_open(&x, file, bytes, state, sizeof state, arena, sizeof arena)) { return fail(smg_error(&x)); }
    if (!smg_replay_memory(&x, &replay)) { return fail(smg_error(&x)); }
    while (fread(&n, 4, 1, data) == 1 && n) {
        const size_t wanted = (size_t)n;
        if (fread(images, 288, wanted, data) != wanted || fread(labels, 4, wanted, data) != wanted) { return 2; }
        const SmgBuffer batch[] = {{images, sizeof images}, {labels, sizeof labels}};
        if (smg_replay_step(&x, &replay, batch, 2, n, rows, sizeof rows, &loss, NULL)) { return fail(smg_error(&x)); }
        if (smg_replay_keep(&x, &replay, rows, n)) { return fail(smg_error(&x)); }
    }
    /* What cannot be is refused, and leaves the state as it is. */
    const SmgBuffer batch[] = {{images, sizeof images}, {labels, sizeof labels}}, shorter[] = {{images, 4}, batch[1]};
    SmgReplay other = replay;
    if (!smg_replay_step(&x, &replay, batch, 2, 2, rows, 1, &loss, NULL)) { return fail("too few rows"); }
    if (!smg_replay_step(&x, &replay, shorter, 2, 2, rows, sizeof rows, &loss, NULL)) { return fail("too short"); }
    if (!smg_replay_step(&x, &replay, batch, 1, 2, rows, sizeof rows, &loss, NULL)) { return fail("too few"); }
    if (!smg_replay_step(&x, &replay, batch, 2, 0, rows, sizeof rows, &loss, NULL)) { return fail("nothing"); }
    images[0][3] = 1.0f / (float)atoi("0");
    if (smg_replay_step(&x, &replay, batch, 2, 2, rows, sizeof rows, &loss, NULL) != SMG_STOPPED) { return 3; }
    if (smg_fault(&x, NULL) != SMG_FAULT_NOT_FINITE) { return fail(smg_error(&x)); }
    other.at += 4096;
    if (smg_replay_memory(&x, &other)) { return fail("outside the state"); }
    fwrite(state, 1, sizeof state, stdout);
    ((uint32_t *)(void *)(state + replay.at))[0] = 1000;
    return smg_replay_memory(&x, &replay) ? fail("damaged") : 0;
}
"""


@pytest.mark.parametrize("replay", [Replay(6), Replay(6, of="inputs"), Replay(6, precision="f32", fresh=3)], ids=str)
def test_c_with_samples_in_memory_is_python_to_the_bit(replay: Replay, tmp_path: Path) -> None:
    need("cc")
    job = made(None, replay)
    program = job.program
    banks = dict.fromkeys(("stack", "state", "arena"), "sram")
    (tmp_path / "net_program.h").write_text(program_header(program, "net", banks))
    (tmp_path / "main.c").write_text(MAIN)
    flags = ("-O1", "-fsanitize=address,undefined", f"-I{tmp_path}", *(f for f in EXACT if f != "-fPIC"))
    compile_runtime(tmp_path / "run", "cc", flags, main=[tmp_path / "main.c"])
    (tmp_path / "net.smg").write_bytes(program.to_bytes())
    data, fresh = b"", job.replay.fresh
    for first in range(0, 20 - fresh, fresh):
        x, y = X[first : first + fresh], Y[first : first + fresh].astype(np.int32)
        data += np.int32(len(y)).tobytes() + x.tobytes() + y.tobytes()
        job.train_step(x, y)
    (tmp_path / "data").write_bytes(data + bytes(4))
    done = subprocess.run([tmp_path / "run", tmp_path / "net.smg", tmp_path / "data"], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == job.engine.state.copy().tobytes()


def test_new_classes_on_a_board_enter_its_buffer(tmp_path: Path) -> None:
    need(*EMULATOR)
    job = made("mps2-an386", Replay(9), classes=Classes(spare=1))
    write_firmware(tmp_path / "fw", job.program, load_device("mps2-an386"))
    emulate.make(tmp_path / "fw")
    report = train_on_board(tmp_path / "fw", Samples((X,), np.arange(20) % 4), check=True, add_classes=["cat"])
    assert report.same_as_host


@pytest.mark.parametrize("replay", [Replay(9), Replay(9, of="inputs", fresh=1)], ids=str)
def test_a_runner_replays_as_the_host_does(replay: Replay, tmp_path: Path) -> None:
    run = ready("x86_64-linux")
    job = made(None, replay)
    linux_binary.build_binary(job.program, "x86_64-linux", tmp_path / "runner")
    np.savez(tmp_path / "data.npz", x=X, y=Y)
    words = ["train", "--data", tmp_path / "data.npz", "--epochs", "2", "--state", tmp_path / "state.bin", "--json"]
    said = json.loads(command(run, tmp_path / "runner", *words))
    job.fit(X, Y, epochs=2, progress=False)
    assert said["steps"] == job.step
    assert said["state_hash"] == fnv(job.engine.state.copy().tobytes())
    other = Job(job.program, kernels="exact")
    other.restore(tmp_path / "state.bin")
    assert other.replay.counts == job.replay.counts
    command(run, tmp_path / "runner", *words)
    job.fit(X, Y, epochs=2, progress=False)
    other.restore(tmp_path / "state.bin")
    assert other.engine.state.copy().tobytes() == job.engine.state.copy().tobytes(), "a second run goes on"
    command(run, tmp_path / "runner", "infer", "--data", tmp_path / "data.npz", "--state", tmp_path / "state.bin")


@pytest.mark.parametrize("batch", [6, 2])
def test_a_runner_leaves_out_samples_whose_label_is_ignored_as_the_host_does(batch: int, tmp_path: Path) -> None:
    """In micro-batches, where no part knows how many labels the others ignore, and at once."""
    run = ready("x86_64-linux")
    job = made(None, Replay(8), Memory(accumulate=True))
    y = np.where(np.arange(20) % 5 < 2, -100, Y)
    y[: batch - 1], y[batch - 1] = -100, 1
    linux_binary.build_binary(job.program, "x86_64-linux", tmp_path / "runner")
    np.savez(tmp_path / "data.npz", x=X, y=y)
    words = ["train", "--data", tmp_path / "data.npz", "--epochs", "2", "--batch", str(batch), "--no-shuffle", "--json"]
    said = json.loads(command(run, tmp_path / "runner", *words))
    job.fit(X, y, epochs=2, batch=batch, shuffle=False, progress=False)
    assert said["state_hash"] == fnv(job.engine.state.copy().tobytes())
    assert sum(job.replay.seen.values()) == (y != -100).sum()
