"""The autoencoder of benchmarks.tinyol.motion on the emulated Nano 33 BLE: the same bits as here, and what it takes."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np

from smidgen.deploy import emulate
from smidgen.deploy.firmware import manifest, write_firmware
from smidgen.deploy.stream_run import Told, run_stream
from smidgen.devices.device import load_device
from smidgen.train.job import Job

from .motion import ADAPT, SCORED, WALKING, Known, auc, recordings

DEVICE: Final = "nano33ble"
Json = dict[str, Any]


def measure(known: int, comes: int, rate: float) -> Json:
    """Calibrated with one person's walking, it scores another's, learns it, and scores it again."""
    start, device = Known(known), load_device(DEVICE)
    job = start.compiled(rate, device=DEVICE)
    stream, walking = start.of(comes, WALKING, ADAPT)[:, None], start.of(comes, WALKING, SCORED)[:, None]
    activities = [k for k in range(len(recordings().names)) if k != WALKING]
    unusual = np.concatenate([start.of(comes, k, SCORED) for k in activities])[:, None]
    calibration = start.samples[:, None]
    asked: list[Told] = [("detect", (x,)) for x in (*walking, *unusual)]
    told: list[Told] = [("restart", [np.array(len(calibration))])]
    told += [("observe", (x,)) for x in (*calibration, *calibration)]
    first = len(told)
    told += [*asked, *(("learn", (x, x)) for x in stream), *asked]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "fw"
        made = write_firmware(folder, job.program, device)
        emulate.make(folder, "MAIN=stream.c")
        facts = manifest(folder)
        linked = emulate.sections(folder / f"{facts['boards'][-1]}.elf")
        found = run_stream(folder, job.program, told, count=True)
    here = Job(job.program, kernels="exact")
    here.calibrate(start.samples)
    scored, n = np.concatenate([walking, unusual])[:, 0], len(walking)
    before = here.detect(scored)
    for sample in stream:
        here.learn(sample)
    after = here.detect(scored)
    board = [np.array([float(a[0][0]) for a in found.answers[at : at + len(asked)]], np.float32)
             for at in (first, first + len(asked) + len(stream))]  # fmt: skip
    same = found.state == here.engine.state.copy().tobytes()
    same &= np.array_equal(board[0], before) and np.array_equal(board[1], after) and found.usual[0] == here.drift
    assert found.counts is not None
    runs = found.counts.runs
    learned = runs[first + len(asked) : first + len(asked) + len(stream)]
    detected = runs[first : first + len(asked)]
    return {
        "device": DEVICE, "machine": facts["machine"], "known": known, "comes": comes, "rate": rate,
        "same_bits": bool(same), "samples": len(stream),
        "auc_before": auc(board[0][:n], board[0][n:]), "auc_after": auc(board[1][:n], board[1][n:]),
        "ram_bytes": job.plan.ram_bytes, "linked_ram_bytes": linked.ram_bytes, "made_ram_bytes": made.ram_bytes,
        "stack_used": found.stack_used, "stack_bytes": made.stack_bytes,
        "code_bytes": linked.text, "program_bytes": linked.program,
        "learn_instructions": round(float(np.mean(learned))), "detect_instructions": round(float(np.mean(detected))),
        "clock_hz": device.clock_hz, "learned": job.plan.learned_parameters,
    }  # fmt: skip
