"""Makes src/smidgen/demo/demo.smg: the demo's network, pretrained on upright digits 0–7, as a program that learns on.

python tools/make_demo.py            # writes the file
python tools/make_demo.py --check    # makes it again and compares: exit status 1 if a byte differs

Weights start from a counter, and smidgen's exact kernels train them, so every machine makes the same bytes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import smidgen  # noqa: E402
from smidgen.demo import demo  # noqa: E402
from smidgen.ops.random import hashed  # noqa: E402
from smidgen.train.batches import order  # noqa: E402
from tools.demo_net import build  # noqa: E402

BATCH = 8
EPOCHS = 30
OPTIMIZER = smidgen.SGD(lr=0.01, momentum=0.9, weight_decay=1e-3)
SEED = 0


def initialised(model: torch.nn.Module) -> torch.nn.Module:
    """Each weight uniform within ±1/√fan_in, from a hash of its place; only additions, products and one square root,
    which IEEE 754 rounds the same everywhere."""
    fan_in = 1
    with torch.no_grad():
        for key, parameter in enumerate(model.parameters()):
            fan_in = parameter[0].numel() if parameter.dim() > 1 else fan_in  # a bias has that of its weight
            words = hashed(np.array([SEED, 0]), key, np.arange(parameter.numel(), dtype=np.uint32))
            uniform = (words >> np.uint32(8)).astype(np.float64) / 2**23 - 1
            values = (uniform / np.sqrt(fan_in)).astype(np.float32)
            parameter.copy_(torch.from_numpy(values).reshape(parameter.shape))
    return model


def shifted(x: np.ndarray, epoch: int) -> np.ndarray:
    """Each image moved by -1, 0 or 1 pixels both ways."""
    words = hashed(np.array([SEED, epoch]), 100, np.arange(len(x), dtype=np.uint32))
    down, right = (words % 3).astype(int), (words // 3 % 3).astype(int)
    wide = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-1)
    return np.stack([wide[i, :, d : d + 8, r : r + 8] for i, (d, r) in enumerate(zip(down, right, strict=True))])


def compiled(model: torch.nn.Module) -> smidgen.Job:
    example = torch.zeros(BATCH, 1, 8, 8)
    return smidgen.compile(model, example, optimizer=OPTIMIZER, batch=BATCH, seed=SEED, kernels="exact")


def pretrain(job: smidgen.Job, part: demo.Part) -> None:
    """The learning rate falls to zero in a straight line."""
    starts = range(0, len(part), BATCH)
    total = EPOCHS * len(starts)
    for epoch in range(EPOCHS):
        x, which = shifted(part.x, epoch), order(SEED, epoch, len(part))
        for i, start in enumerate(starts):
            job.lr = OPTIMIZER.lr * (1 - (epoch * len(starts) + i) / total)
            chosen = which[start : start + BATCH]
            job.train_step(x[chosen], part.y[chosen])


def make() -> smidgen.Job:
    """Pretrained through one program, compiled again from the learned weights: momentum, rate and step are fresh."""
    model = initialised(build())
    job = compiled(model)
    pretrain(job, demo.digits().pretraining)
    job.load_into(model)
    return compiled(model)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    args = parser.parse_args()
    job = make()
    if not args.check:
        job.save(demo.PROGRAM)
        print(f"{demo.PROGRAM.relative_to(ROOT)}: {demo.PROGRAM.stat().st_size:,} bytes, RAM {job.plan.ram_bytes:,}")
        return 0
    same = demo.PROGRAM.exists() and demo.PROGRAM.read_bytes() == job.program.to_bytes()
    print(f"{demo.PROGRAM.relative_to(ROOT)} {'is' if same else 'is NOT'} what tools/make_demo.py makes")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
