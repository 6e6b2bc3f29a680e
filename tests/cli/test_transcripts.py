"""Every command in a terminal (through a pty), in a pipe and with --json, compared with tests/transcripts/.

The transcript is what a pipe gets, figures that a clock measured replaced by `…`. A terminal gets the same text with
colours; its progress lines are drawn and taken away again. SMIDGEN_WRITE=1 writes the transcripts anew.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.transcripts import NETS, documented

STORED = Path(__file__).parents[1] / "transcripts"
COLUMNS = 100
MODEL = "nets.py:build --input 8x1x8x8"
COMMANDS = {
    "plan": f"plan {MODEL} --batch 8 --method full",
    "plan-html": f"plan {MODEL} --method last_layer --html plan.html",
    "build": f"build {MODEL} -o built.smg",
    "train": "train net.smg --data train.npz --eval test.npz --epochs 3 --save out.smg",
    "infer": "infer net.smg --data test.npz",
    "inspect": "inspect net.smg",
    "verify": f"verify {MODEL}",
    "devices": "devices",
    "device": "devices esp32-s3",
    "methods": "methods",
    "ops": "ops",
    "explain": "explain E101",
    "explain-all": "explain",
    "demo": "demo",
}
CLOCK = [
    (r"\d[\d.,]* ?(µs|ms|s)\b", "…"),  # 3.2 ms
    (r"\d+:\d\d\b", "…"),
    (r"\d[\d.,]*( [kM])?(?= samples/s)", "…"),
    (r"(?<=samples/s )\d[\d.,]*( [kM])?", "…"),
    (r"\d[\d.,]*( [kM])? +…$", "…"),  # a row of a table that ends in samples/s and time
    (r" {2,}", "  "),  # columns move with the width of a figure
]


def data(seed: int, count: int) -> dict[str, Any]:
    """Three classes: a bright bar at one of three places."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, count)
    x = rng.standard_normal((count, 1, 8, 8)).astype(np.float32) * 0.3
    for i, k in enumerate(y):
        x[i, 0, :, 2 * k : 2 * k + 2] += 1
    return {"x": x, "y": y}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("user")
    (place / "nets.py").write_text(NETS)
    np.savez(place / "train.npz", **data(0, 120))
    np.savez(place / "test.npz", **data(1, 60))
    done = piped(place, f"build {MODEL} -o net.smg")
    assert done.returncode == 0, done.stderr
    return place


def environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "TERM")}
    return {**kept, "COLUMNS": str(COLUMNS), "LINES": "50", "TERM": "xterm-256color"}


def command(text: str) -> list[str]:
    return [sys.executable, "-m", "smidgen.cli", *text.split()]


def piped(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(text), cwd=folder, env=environment(), capture_output=True, text=True, check=False)


def in_terminal(folder: Path, text: str) -> tuple[int, str]:
    """Exit status and everything that a terminal gets, stderr included."""
    lead, follow = pty.openpty()
    fcntl.ioctl(follow, termios.TIOCSWINSZ, struct.pack("4H", 50, COLUMNS, 0, 0))
    child = subprocess.Popen(
        command(text), cwd=folder, env=environment(), stdin=follow, stdout=follow, stderr=follow, close_fds=True
    )
    os.close(follow)
    got = b""
    while True:
        try:
            chunk = os.read(lead, 65536)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        got += chunk
    os.close(lead)
    return child.wait(), got.decode().replace("\r\n", "\n")


def seen(raw: str) -> str:
    """What stays on the screen: lines that were taken away are gone, colours too."""
    drawn = re.sub(r"\r\x1b\[K[^\n\r]*(?=\r)", "", raw).replace("\r\x1b[K", "")
    return re.sub(r"\x1b\[[\d;]*m", "", drawn)


def without_clock(text: str) -> str:
    lines = []
    for line in text.splitlines():
        masked = re.sub(r"\S+ \((limit [\d.e-]+)\).*", r"… (\1) …", line)  # rounding depends on torch's vectors
        if any(re.search(pattern, line) for pattern, _ in CLOCK[:4]):
            for pattern, by in CLOCK:
                masked = re.sub(pattern, by, masked)
        lines.append(masked.rstrip())
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_pipe_gets_the_transcript_and_a_terminal_the_same_in_colour(name: str, folder: Path) -> None:
    done = piped(folder, COMMANDS[name])
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert "\r" not in done.stdout + done.stderr, "a bar in a pipe"
    got, stored = without_clock(done.stdout), STORED / f"{name}.txt"
    if os.environ.get("SMIDGEN_WRITE"):
        stored.write_text(got)
    assert got == stored.read_text()

    status, raw = in_terminal(folder, COMMANDS[name])
    assert status == 0
    shown = without_clock(seen(raw))
    for line in without_clock(done.stdout).splitlines():
        if "┤" in line or "░░" in line:
            continue  # the picture of the arena: colours on a terminal, shades in a pipe
        assert line in shown.splitlines(), "a terminal shows every line that a pipe gets"
    if name in ("plan", "inspect", "methods", "demo"):
        assert "\x1b[1m" in raw, "headings are bold"


@pytest.mark.parametrize("name", [n for n in COMMANDS if n != "plan-html"])
def test_json_has_exactly_the_documented_keys(name: str, folder: Path) -> None:
    done = piped(folder, f"{COMMANDS[name]} --json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    row = {"explain": "explain E101", "explain-all": "explain", "device": "devices NAME"}.get(name, name)
    assert list(found) == documented()[row]
    if name in ("inspect", "verify"):
        assert ["model", *found["plan"]] == documented()["plan"]
    if name == "train":
        assert list(found["epochs"][0]) == ["epoch", "loss", "eval", "lr", "seconds", "samples", "samples_per_s"]
        assert found["epochs"][-1]["eval"]["accuracy"] > found["before"]["accuracy"]


def test_the_files_that_commands_wrote_work(folder: Path) -> None:
    assert piped(folder, COMMANDS["train"]).returncode == 0
    before, after = (
        json.loads(piped(folder, f"infer {p} --data test.npz --json").stdout) for p in ("net.smg", "out.smg")
    )
    assert after["metrics"]["accuracy"] > before["metrics"]["accuracy"]
    done = piped(folder, "infer out.smg --data test.npz -o predicted.npz")
    assert done.stdout.splitlines()[-1] == "wrote predicted.npz"
    with np.load(folder / "predicted.npz") as file, np.load(folder / "test.npz") as test:
        assert (file["y"].argmax(1) == test["y"]).mean() == after["metrics"]["accuracy"]
