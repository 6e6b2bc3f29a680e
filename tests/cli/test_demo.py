"""`smidgen demo`: what it promises, what it prints, and that the shipped network is the one its script makes."""

from __future__ import annotations

import fnmatch
import io
import json
import os
import pty
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smidgen import load
from smidgen.demo import demo
from smidgen.errors import MissingPart
from smidgen.runtime import machine

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
TIMES = {"train_s", "seconds"}

pytestmark = pytest.mark.xdist_group("demo")  # the demo runs once for all


@pytest.fixture(scope="module")
def told() -> tuple[str, dict[str, Any]]:
    stream = io.StringIO()
    figures = demo.run(stream=stream, width=100)
    return stream.getvalue(), figures


@pytest.fixture(scope="module")
def digits() -> demo.Digits:
    return demo.digits()


# -- the promise -------------------------------------------------------------------------------------------------


def test_it_learns_what_drifted_and_keeps_what_it_knew_within_64_kb(told: tuple[str, dict[str, Any]]) -> None:
    figures = told[1]
    assert figures["ram_bytes"] <= figures["limit_bytes"] == 65_536
    assert figures["gained_points"] >= 40  # 25 are promised
    assert figures["lost_points"] <= 2  # 5 are promised
    assert figures["before"]["known"] >= 0.95, "it was pretrained well"
    assert figures["seconds"] < 60


def test_ram_is_what_this_runtime_takes() -> None:
    job = load(demo.PROGRAM)
    assert (job.plan.context_bytes, job.plan.stack_bytes) == (machine.context_bytes(), machine.stack_bytes())
    assert job.plan.state_bytes == job.program.state_bytes
    assert job.plan.arena_bytes == job.program.arena_bytes
    assert job.plan.ram_bytes <= demo.LIMIT_BYTES


def test_accuracy_is_the_share_of_largest_scores_that_are_right(digits: demo.Digits) -> None:
    job = load(demo.PROGRAM)
    found = demo.measured(job, digits)
    for name, part in demo.tests(digits).items():
        assert found[name] == pytest.approx((job.predict(part.x).argmax(1) == part.y).mean(), abs=1e-4), name


def test_without_the_known_digits_it_would_forget_them(digits: demo.Digits) -> None:
    job = load(demo.PROGRAM)
    before = demo.measured(job, digits)["known"]
    demo.learn(job, digits.stream, epochs=5, show=False)
    assert demo.measured(job, digits)["known"] < before - 0.3


def test_the_published_figures_are_those_of_this_demo(told: tuple[str, dict[str, Any]]) -> None:
    published = json.loads((RESULTS / "demo.json").read_text())
    for key, value in told[1].items():
        if key not in TIMES:
            assert published[key] == value, f"{key}: run python -m benchmarks.demo"


# -- data --------------------------------------------------------------------------------------------------------


def test_no_image_is_in_two_of_pretraining_stream_and_test(digits: demo.Digits) -> None:
    def images(part: demo.Part) -> set[bytes]:
        return {x.tobytes() for x in part.x}

    tests = images(digits.known) | images(digits.unseen)
    pretraining = images(digits.pretraining)
    assert not tests & pretraining
    for x in digits.stream.x:  # as it came, whichever way it drifted
        upright = {np.ascontiguousarray(a).tobytes() for a in (x, np.rot90(x, -1, (1, 2)), -x)}
        assert not upright & (tests | pretraining)
    assert images(digits.rehearsed) <= pretraining


def test_each_part_holds_what_its_name_says(digits: demo.Digits) -> None:
    assert set(digits.pretraining.y) == set(digits.known.y) == set(range(8))
    assert set(digits.unseen.y) == {8, 9}
    assert set(digits.stream.y) == set(range(10))
    np.testing.assert_array_equal(np.rot90(digits.rotated.x, -1, (2, 3)), digits.known.x)
    np.testing.assert_array_equal(-digits.inverted.x, digits.known.x)
    for part in (digits.pretraining, digits.stream, *demo.tests(digits).values()):
        assert part.x.dtype == np.float32
        assert part.x.shape == (len(part), 1, 8, 8)
        assert (part.x.min(), part.x.max()) == (-1, 1)
    assert len(digits.pretraining) + len(digits.stream) + len(digits.known) + len(digits.unseen) <= 1797


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingPart) as caught:
        demo.run()
    assert str(caught.value) == (
        "error[E504]: the demo needs scikit-learn for its digits\n"
        "  why  import of sklearn.datasets halted; None in sys.modules\n"
        "  help: pip install 'smidgen[demo]'"
    )


# -- output ------------------------------------------------------------------------------------------------------


def test_text_shows_the_drift_both_accuracies_the_arena_and_pytorch(told: tuple[str, dict[str, Any]]) -> None:
    text, figures = told
    torch = figures["torch"]
    for share in (figures["before"]["drifted"], figures["after"]["drifted"], figures["after"]["known"]):
        assert f"{share:.1%}" in text
    assert text.startswith(
        f"A network of 3,734 weights learns on the device, in {figures['ram_bytes']:,} bytes of RAM\n"
    )
    assert f"{figures['gained_points']:+.1f} points" in text
    assert f"{torch['tensor_bytes']:,} bytes of tensors" in text
    assert torch["command"] in text
    assert "kept for backward" in text  # the arena
    assert "\x1b" not in text
    assert len(text.splitlines()) <= 52


@pytest.mark.parametrize("width", [60, 80, 120])
def test_lines_fit_the_terminal(width: int, digits: demo.Digits, told: tuple[str, dict[str, Any]]) -> None:
    job, style = load(demo.PROGRAM), demo.Style(colour=False, width=width)
    parts = [demo.introduction(job, digits, style), demo.results(told[1], style), demo.memory(told[1], style)]
    parts += [demo.arena(job, style)] if width >= 80 else []
    lines = "\n".join(parts).splitlines()
    assert max(map(len, lines)) <= width
    assert not any("~" in line for line in lines)


def test_colours_change_no_character(digits: demo.Digits, told: tuple[str, dict[str, Any]]) -> None:
    def both(colour: bool) -> str:
        style = demo.Style(colour, 100)
        return demo.introduction(load(demo.PROGRAM), digits, style) + demo.results(told[1], style)

    coloured = both(True)
    assert "\x1b[1;32m" in coloured
    for code in ("\x1b[1;32m", "\x1b[1m", "\x1b[2m", "\x1b[0m"):
        coloured = coloured.replace(code, "")
    assert coloured == both(False)


def test_json_has_the_documented_keys_and_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    figures = demo.run(json=True, epochs=1)
    assert set(figures) == set(demo.KEYS)
    assert json.loads(json.dumps(figures)) == figures
    assert capfd.readouterr() == ("", "")


def test_a_terminal_shows_a_progress_bar_and_no_torch_is_imported() -> None:
    script = "import sys; from smidgen.demo import demo; demo.run(epochs=6); print('torch' in sys.modules)"
    master, slave = pty.openpty()
    env = {**os.environ, "TERM": "xterm"}
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=slave, env=env)
    os.close(slave)
    seen = b""
    try:
        while chunk := os.read(master, 4096):
            seen += chunk
    except OSError:  # the other end was closed
        pass
    os.close(master)
    out, _ = process.communicate()
    assert process.returncode == 0
    assert out.decode().endswith("\nFalse\n")
    assert "training  ━" in seen.decode()
    assert seen.endswith(b"\r\x1b[K"), "the bar goes away"


# -- what is shipped ---------------------------------------------------------------------------------------------


def test_the_script_makes_the_shipped_file_again_byte_for_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tools import make_demo

    monkeypatch.setattr(sys, "argv", ["make_demo.py", "--check"])
    assert (make_demo.main(), capsys.readouterr().out) == (
        0,
        "src/smidgen/demo/demo.smg is what tools/make_demo.py makes\n",
    )

    other = load(demo.PROGRAM)
    other.lr *= 2
    other.save(tmp_path / "other.smg")
    monkeypatch.setattr(make_demo, "make", lambda: load(tmp_path / "other.smg"))
    said = "src/smidgen/demo/demo.smg is NOT what tools/make_demo.py makes\n"
    assert (make_demo.main(), capsys.readouterr().out) == (1, said)


def test_pytorch_was_measured_on_the_same_step_and_its_figures_are_shipped() -> None:
    recorded = json.loads((RESULTS / "demo_torch_memory.json").read_text())
    assert json.loads(demo.TORCH.read_text()) == recorded
    plan = load(demo.PROGRAM).plan
    assert recorded["batch"] == plan.batch
    assert recorded["weight_bytes"] == 4 * plan.model_parameters
    assert recorded["tensor_bytes"] > 3 * recorded["weight_bytes"]  # gradients and momentum as well
    for key in ("above_import_bytes", "process_bytes"):
        assert 0 < recorded[key]["min"] <= recorded[key]["median"] <= recorded[key]["max"]


def test_everything_the_package_needs_is_declared_as_its_data() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["smidgen"]
    for needed in (demo.PROGRAM, demo.TORCH):
        assert needed.exists()
        name = needed.relative_to(ROOT / "src" / "smidgen").as_posix()
        assert any(fnmatch.fnmatch(name, p) for p in patterns), name
    assert any(need.startswith("scikit-learn") for need in project["project"]["optional-dependencies"]["demo"])
