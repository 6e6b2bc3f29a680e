"""NaN or infinity in an input never reaches the weights, from C either."""

import subprocess
from pathlib import Path

import torch
from torch import nn

import smidgen
from smidgen.runtime.library import Fault
from tests.support.libraries import compiled

C = Path(__file__).parents[1] / "c"


def test_a_training_step_in_c_refuses_them_and_learns_nothing(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 3))
    job = smidgen.compile(net, torch.zeros(2, 1, 8, 8), kernels="exact", memory=smidgen.Memory(accumulate=True))
    job.save(tmp_path / "net.smg")
    tool = compiled("gcc", ("-O1",), [C / "not_finite.c"])
    run = subprocess.run([tool, tmp_path / "net.smg"], capture_output=True, text=True, check=True)
    refused = f"3 {Fault.NOT_FINITE.value} 0 input 'input' holds NaN or an infinite number"
    assert [line.rstrip() for line in run.stdout.splitlines()] == [
        f"{way} {said}".rstrip()
        for way, learns in enumerate((1, 1, 0))
        for said in (f"0 0 {learns} ", refused, refused, f"0 0 {learns} ")
    ]
