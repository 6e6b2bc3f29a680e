"""Fifty training steps of whole networks leave the same bits in STATE, whichever compiler built the runtime.

Nothing but the library differs between the runs. Partial batches and predictions are among the steps.
"""

from __future__ import annotations

import concurrent.futures
import functools
import hashlib
import multiprocessing
import os
import platform
import shutil
from pathlib import Path

import numpy as np
import pytest

from smidgen import api
from smidgen.compiler.assemble import encode
from smidgen.compiler.optimizers import SGD, Adam, Optimizer
from smidgen.runtime.machine import Machine
from tests.support.libraries import compiled

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("same_bits")]  # the runtime is compiled once for all
STEPS, BATCH = 50, 2
VECTORS = ("-mavx2", "-mfma") if platform.machine() == "x86_64" else ()
BUILDS = {
    "gcc -O0": ("gcc", ("-O0",)),
    "gcc -O3": ("gcc", ("-O3", *VECTORS)),
    "clang -O2": ("clang", ("-O2",)),
    "tcc": ("tcc", ()),
}
# 50 steps of MCUNet at 64 pixels take 8 s without optimisation, so it need not be made smaller.
PROGRAMS: dict[str, tuple[str, Optimizer]] = {
    "lenet5-momentum": ("lenet5", SGD(0.01, momentum=0.9, weight_decay=1e-4)),
    "lenet5-adam": ("lenet5", Adam(1e-3)),
    "mcunet-momentum": ("mcunet", SGD(1e-4, momentum=0.9)),
}


def can_run(build: str) -> bool:
    flags = Path("/proc/cpuinfo").read_text() if build == "gcc -O3" and VECTORS else "avx2 fma"
    return shutil.which(BUILDS[build][0]) is not None and "avx2" in flags and "fma" in flags


@pytest.fixture(scope="module")
def libraries() -> dict[str, Path]:
    """The runtime by each compiler there is."""
    return {build: compiled(cc, flags) for build, (cc, flags) in BUILDS.items() if can_run(build)}


@functools.cache
def program(name: str) -> bytes:
    from benchmarks.nets import NETS  # not in the processes that only run

    net, optimizer = NETS[PROGRAMS[name][0]], PROGRAMS[name][1]
    x, _ = net.data(BATCH)
    return encode(api.build(net.model(), x, loss=net.loss, optimizer=optimizer)).to_bytes()


def trained(path: Path, library: Path) -> tuple[str, list[float], bool]:
    """(hash of STATE and of all that came out, losses, whether all of STATE is finite)"""
    machine = Machine(path, library)
    before = machine.state.tobytes()
    rng = np.random.default_rng(5)
    shape = machine.entries["infer"][0].shape(BATCH)
    batches = [(rng.standard_normal(shape).astype(np.float32), rng.integers(0, 10, BATCH, np.int32)) for _ in range(2)]
    loss, output = np.zeros((), np.float32), np.zeros((BATCH, 10), np.float32)
    seen, losses = hashlib.sha256(), []
    for step in range(STEPS):
        n = BATCH - (step % 5 == 4)
        x, y = (a[:n] for a in batches[step % 2])
        machine.run("train", [x, y], [loss], n)
        losses.append(float(loss))
        seen.update(loss.tobytes())
        if step % 10 == 9:
            machine.run("infer", [batches[0][0]], [output], BATCH)
            seen.update(output.tobytes())
    after = machine.state.tobytes()
    assert after != before
    seen.update(after)
    return seen.hexdigest(), losses, bool(np.isfinite(np.frombuffer(after, np.float32)).all())


@pytest.mark.parametrize("name", PROGRAMS)
def test_fifty_training_steps_give_the_same_bits_with_every_compiler(
    name: str, libraries: dict[str, Path], tmp_path: Path
) -> None:
    path = tmp_path / "p.smg"
    path.write_bytes(program(name))
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=spawn) as pool:
        runs = {build: pool.submit(trained, path, library) for build, library in libraries.items()}
        found = {build: run.result() for build, run in runs.items()}
    assert len({hashed for hashed, _, _ in found.values()}) == 1, {build: seen[0] for build, seen in found.items()}
    _, losses, finite = next(iter(found.values()))
    assert finite
    assert losses[-2] < losses[0], "it does not learn from the same batch, so its bits mean little"
    missing = [build for build in BUILDS if build not in libraries]
    if missing:
        said = f"not compared, because not installed or not for this processor: {', '.join(missing)}"
        pytest.fail(said) if os.environ.get("CI") else pytest.skip(said)


def test_fused_multiply_adds_give_other_bits(libraries: dict[str, Path], tmp_path: Path) -> None:
    """The comparison can fail: it does once a compiler is allowed to contract."""
    if "gcc -O3" not in libraries or not VECTORS:
        pytest.skip("needs gcc and a processor with fused multiply-add")
    path = tmp_path / "p.smg"
    path.write_bytes(program("lenet5-momentum"))
    flags = ("-O1", "-fexpensive-optimizations", *VECTORS, "-ffp-contract=fast")
    fused = compiled("gcc", flags)
    assert trained(path, fused)[0] != trained(path, libraries["gcc -O3"])[0]
