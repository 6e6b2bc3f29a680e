"""The installed package with numpy alone: a wheel in a fresh environment trains on, bit for bit like this one.

Builds the wheel as a user's pip would, so the packaged C runtime is what is tested. Needs a C compiler and pip.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smidgen.compiler.assemble import encode
from smidgen.compiler.optimizers import Adam
from smidgen.train.job import Job
from smidgen.train.load import load
from tests.support import small

pytestmark = pytest.mark.xdist_group("numpy_only")  # installed once for all
ROOT = Path(__file__).resolve().parents[2]

# Runs in the other environment: program, data, and where results go are its arguments.
SCRIPT = """
import importlib.util, json, sys
import numpy as np
import smidgen
assert importlib.util.find_spec("torch") is None
try:
    import torch
except ImportError:
    pass
else:
    raise SystemExit("torch is installed")
path, data, results = sys.argv[1:]
given = np.load(data)
job = smidgen.load(path, kernels="exact")
start = job.step
losses = [job.train_step(given[f"x{k}"], given[f"y{k}"]) for k in range(3)]
job.lr = 0.003
losses.append(job.train_step(given["x0"], given["y0"]))
job.save(path + ".trained")
np.savez(results, losses=np.array(losses), predicted=job.predict(given["x1"]), **job.state_dict())
files = [(name.partition(".")[0], str(getattr(module, "__file__", ""))) for name, module in sys.modules.items()]
print(json.dumps({
    "smidgen": smidgen.__file__, "library": job.engine.machine._lib._name, "start": start, "step": job.step,
    "ram": job.plan.ram_bytes, "foreign": sorted({name for name, file in files if "site-packages" in file}),
}))
"""


def run(*command: Any, cwd: Path, status: int = 0) -> tuple[str, str]:
    """Output and errors of a command that knows nothing of this environment."""
    hidden = ("PYTHON", "SMIDGEN", "VIRTUAL_ENV")
    env = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
    done = subprocess.run([str(c) for c in command], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == status, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel in `out` and an environment of numpy and it in `env`."""
    folder = tmp_path_factory.mktemp("numpy_only")
    install(folder)
    return folder


def install(folder: Path) -> None:
    """From a clean copy of the sources, without a library in it."""
    pip = (sys.executable, "-m", "pip")
    unwanted = shutil.ignore_patterns("*.so", "*.part", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "src", folder / "src", ignore=unwanted, dirs_exist_ok=True)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    run(*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", "out", ".", cwd=folder)
    run(sys.executable, "-m", "venv", "--without-pip", "env", cwd=folder)
    [wheel] = (folder / "out").glob("*.whl")
    run(*pip, "--python", "env/bin/python", "install", "-q", wheel, f"numpy=={np.__version__}", cwd=folder)


def test_the_wheel_carries_the_compiled_runtime_and_its_sources(installed: Path) -> None:
    [wheel] = (installed / "out").glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    runtime = ROOT / "src" / "smidgen" / "runtime"
    sources = [*runtime.rglob("*.[ch]"), *runtime.rglob("*.txt"), *runtime.parent.rglob("*.py")]
    assert {f"smidgen/{path.relative_to(runtime.parent)}" for path in sources} <= names
    assert "smidgen/runtime/libsmidgen.so" in names
    assert "smidgen/py.typed" in names
    assert not any(name.startswith(("tests/", "benchmarks/")) for name in names)
    assert not wheel.name.endswith("-any.whl"), "it holds machine code"


def test_a_program_is_loaded_trained_and_saved_without_torch_bit_for_bit(installed: Path, tmp_path: Path) -> None:
    job = Job(encode(small.entries(optimizer=Adam(0.01), dropout=0.2, batch=4, accumulate=True)))
    job.train_step(*small.data(4, 9))
    job.save(tmp_path / "net.smg")
    batches = [small.data(n, k) for k, n in enumerate((4, 10, 3))]  # full, in parts, partial
    data, seen_at = tmp_path / "data.npz", tmp_path / "seen.npz"
    np.savez(data, **{f"{name}{k}": xy[i] for k, xy in enumerate(batches) for i, name in enumerate("xy")})

    out, _ = run(installed / "env/bin/python", "-c", SCRIPT, tmp_path / "net.smg", data, seen_at, cwd=tmp_path)
    said = json.loads(out)
    assert said["foreign"] == ["numpy", "smidgen"]
    assert said["smidgen"].startswith(str(installed / "env")), "not the wheel"
    assert said["library"].startswith(str(installed / "env")), "not the wheel's library"
    assert (said["start"], said["step"], said["ram"]) == (1, 5, job.plan.ram_bytes)

    losses = [job.train_step(x, y) for x, y in batches]
    job.lr = 0.003
    losses.append(job.train_step(*batches[0]))
    seen = np.load(seen_at)
    assert seen["losses"].tolist() == losses
    np.testing.assert_array_equal(seen["predicted"], job.predict(batches[1][0]))
    ours = job.state_dict()
    assert set(seen.files) == {"losses", "predicted", *ours}
    for name, value in ours.items():
        np.testing.assert_array_equal(seen[name], value, err_msg=name)

    job.save(tmp_path / "ours.smg")
    assert (tmp_path / "net.smg.trained").read_bytes() == (tmp_path / "ours.smg").read_bytes()
    again = load(tmp_path / "net.smg.trained")
    assert (again.lr, again.step) == (job.lr, job.step)
    assert again.train_step(*batches[2]) == job.train_step(*batches[2])


def test_what_needs_torch_says_so(installed: Path, tmp_path: Path) -> None:
    script = (
        "import smidgen\n"
        "try: smidgen.compile(None, None)\n"
        "except smidgen.SmidgenError as error: print(error)"
    )  # fmt: skip
    rest = "needs PyTorch\n  why  No module named 'torch'\n  help: pip install 'smidgen[compile]'\n"
    out, _ = run(installed / "env/bin/python", "-c", script, cwd=tmp_path)
    assert out == f"error[E504]: compiling {rest}"
    command = [installed / "env/bin/smidgen", "verify", "nets.py:build", "--input", "1x3"]
    assert run(*command, cwd=tmp_path, status=1) == ("", f"error[E504]: verify {rest}")


def test_the_command_is_installed(installed: Path, tmp_path: Path) -> None:
    out, _ = run(installed / "env/bin/smidgen", "--help", cwd=tmp_path)
    assert "prove parity with PyTorch" in out
