"""kill -9 at random moments of a training run with checkpoints: what is resumed ends with the same bits.

SMIDGEN_KILLS says how often (`make kill`: 200 times). Half of the kills come at a random time from outside, half within
a random system call that writes, syncs or renames; each hits a process that has nothing but numpy.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from smidgen.compiler.assemble import encode
from smidgen.compiler.optimizers import Adam
from tests.support import small

KILLS = int(os.environ.get("SMIDGEN_KILLS", "12"))

SCRIPT = """
import hashlib, json, os, pathlib, random, signal, sys, time
import numpy as np
import smidgen

folder, kills = pathlib.Path(sys.argv[1]), int(sys.argv[2])
data = np.load(folder / "data.npz")
path, result = folder / "run" / "run.ckpt", folder / "result"
rng = random.Random(0)
CALLS = ("open", "ftruncate", "write", "fchmod", "fsync", "replace")


def train(fatal):
    '''One process of the run; it kills itself in its `fatal`-th system call for a file.'''
    made = 0

    def wrapped(name, real):
        def call(*args, **kwargs):
            nonlocal made
            made += 1
            if made == fatal:
                if name == "write":
                    real(args[0], bytes(args[1])[: len(args[1]) // 2])
                elif rng.random() < 0.5:
                    real(*args, **kwargs)
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)
        return call

    assert "torch" not in sys.modules
    job = smidgen.load(folder / "net.smg")
    if path.exists():
        job.resume(path)
    for name in CALLS:
        setattr(os, name, wrapped(name, getattr(os, name)))
    history = job.fit(data["x"], data["y"], epochs=3, eval=(data["xt"], data["yt"]), patience=9, schedule="cosine",
                      warmup=0.1, checkpoint=path, checkpoint_every=1)
    digest = hashlib.sha256(job.engine.machine.state.tobytes()).hexdigest()
    result.write_text(json.dumps([digest, [e.loss for e in history.epochs], history.steps, history.stopped, made]))


def process(fatal=0, delay=None):
    '''Its exit status.'''
    child = os.fork()
    if not child:
        try:
            train(fatal)
            os._exit(0)
        finally:
            os._exit(1)
    if delay is not None:
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def whole():
    assert process() == 0
    return json.loads(result.read_text())


def forget():
    for file in path.parent.iterdir():
        file.unlink()


path.parent.mkdir()
start = time.monotonic()
want = whole()
seconds = time.monotonic() - start
calls = want.pop()
assert want[3] == "done"
seen = dict(kills=0, late=0, part=0, steps=[])
while seen["kills"] < kills:
    forget()
    inside = seen["kills"] % 2
    deadly = dict(fatal=rng.randint(1, calls)) if inside else dict(delay=rng.uniform(0, seconds))
    status = process(**deadly)
    if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
        assert status == 0 and not inside, status
        seen["late"] += 1  # it was done before
        continue
    seen["kills"] += 1
    left = sorted(file.name for file in path.parent.iterdir())
    assert set(left) <= {"run.ckpt", ".run.ckpt.part"}, left
    seen["part"] += ".run.ckpt.part" in left
    job = smidgen.load(folder / "net.smg")
    if path.exists():
        job.resume(path)  # every file with that name is whole
    seen["steps"].append(job.step)
    got = whole()
    assert got[:-1] == want, (deadly, job.step, got, want)
    assert [file.name for file in path.parent.iterdir()] == ["run.ckpt"], "something was left behind"
print(json.dumps({**seen, "run_steps": want[2], "calls": calls, "seconds": seconds}))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with small.memory_folder() as path:
        yield path


def test_a_run_killed_at_random_moments_ends_with_the_same_bits(folder: Path) -> None:
    program = encode(
        small.entries(optimizer=Adam(0.01), dropout=0.2, batch=4, accumulate=True, evaluate=True)
    )  # fmt: skip
    program.save(folder / "net.smg")
    (x, y), (xt, yt) = small.data(58), small.data(20, 1)
    np.savez(folder / "data.npz", x=x, y=y, xt=xt, yt=yt)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT, str(folder), str(KILLS)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout)
    if KILLS >= 200:
        print(seen)
    assert seen["kills"] == KILLS
    assert seen["run_steps"] == 45
    assert len(set(seen["steps"])) > min(KILLS, 40) // 4, "the kills came at the same moment"
    if KILLS < 4:
        pytest.skip("too few kills to say more")
    assert seen["part"] > 0, "no kill came while a file was written"
