"""Learned state in two slots: whatever happens during a save, the newest complete state comes back or the one before,
never a mixture, and never another program's. The C side runs under the sanitizers. Needs torch and gcc."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

import smidgen
from smidgen.runtime.compile import EXACT, HERE
from tests.libraries import compiled

C = Path(__file__).parent / "c"
SANITIZE = ("-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc and its sanitizers")


def test_a_save_cut_at_every_byte_and_a_thousand_flipped_bits_never_give_a_mixture(tmp_path: Path) -> None:
    harness = compiled("gcc", SANITIZE, [C / "slots.c"])
    for seed in range(2):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
        smidgen.compile(model, torch.randn(4, 5), optimizer=smidgen.SGD(0.1, momentum=0.9)).save(
            tmp_path / f"{seed}.smg"
        )
    done = subprocess.run(
        [harness, tmp_path / "0.smg", tmp_path / "1.smg", "7"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = re.fullmatch(
        r"(\d+) cuts, (\d+) flips, (\d+) of them fell back to the state before; a slot needs (\d+) bytes, it has \d+\n",
        done.stdout,
    )
    assert found, done.stdout
    cuts, flips, older, bytes_ = map(int, found.groups())
    units = 6  # 1, 2, 4, …, 32
    assert cuts > units * 1.9 * bytes_  # erasing and writing, each byte of both
    assert (flips, older) == (units * 1000, units * 500)


def test_slots_need_nothing_but_the_compiler(tmp_path: Path) -> None:
    """Freestanding C without a library: memcpy, memset and the runtime's own functions are all that is missing."""
    made = tmp_path / "slots.o"
    subprocess.run(
        ["gcc", *EXACT, "-ffreestanding", "-O2", f"-I{HERE}", "-c", HERE / "slots.c", "-o", made], check=True
    )
    symbols = subprocess.run(["nm", made], check=True, capture_output=True, text=True).stdout
    wanted = set(re.findall(r" U (\w+)", symbols)) - {"_GLOBAL_OFFSET_TABLE_", "__stack_chk_fail"}
    assert wanted <= {
        "memcpy",
        "memset",
        "smg_say",
        "smg_add_number",
        "smg_add_text",
        "smg_reset_state",
        "smg_state_bytes",
        "smg_page_state_bytes",
    }
    assert not re.findall(r" [bBdDC] (\w+)", symbols), "nothing is global"
