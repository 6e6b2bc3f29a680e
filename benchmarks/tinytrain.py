"""TinyTrain on its backbones and sets of few samples (Kwon et al. 2024, tables 1 and 2) → docs/results/tinytrain.md.

python -m benchmarks.tinytrain                                   # all of it; goes on where it was interrupted
python -m benchmarks.tinytrain --backbones mcunet --sets flower --methods none,tinytrain --episodes 3 --lr 0.001
python -m benchmarks.tinytrain --table                           # what is known so far, printed

Every method meets the same episodes, starts from the same weights pretrained on ImageNet (without meta-training), and
takes the learning rate with which it is best on the valid classes of miniImageNet; `--lr` leaves the choice out. The
page is written when every cell has all of its episodes. Needs `../shared/data`.

Memory and work are those of batch 1 in f32. Backward memory is what training adds to inference: state (what learns,
optimizer) and by how much the arena of a step is larger; RAM is that of the whole program, scoring included.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from torch import nn

from smidgen import files
from smidgen.fewshot import ImageSet, Settings, compare, read_set
from smidgen.fewshot.compare import interval, mean

from .method_memory import SPARSE
from .methods.tasks import DATA, PIXELS, backbone
from .nets import mobile

ROOT: Final = Path(__file__).parents[1]
BUILD, OUT = ROOT / "build" / "tinytrain", ROOT / "docs" / "results" / "tinytrain.md"
EPISODES, CHOOSING, STEPS = 30, 5, 40
RATES: Final = (1e-4, 1e-3, 1e-2)
SETS: Final = {"traffic": "gtsrb_64", "omniglot": "omniglot_32", "aircraft": "aircraft_jpeg128",
               "flower": "flowers102_jpeg128"}  # fmt: skip
METHODS: Final = ("none", "full", "last_layer", "tinytl", "sparse_update", "tinytrain")
NETS: Final = {
    "mcunet": (mobile.MCUNET_5FPS, "mcunet-5fps", 16), "mobilenetv2": (mobile.MOBILENETV2_035, "mbv2-w0.35", 16),
    "proxyless": (mobile.PROXYLESS_03, "proxyless-w0.3", 16),
}  # fmt: skip
PAPER: Final[Mapping[str, Mapping[str, tuple[float, ...]]]] = {
    "mcunet": {"none": (35.5, 42.3, 42.1, 73.8), "full": (82.0, 72.7, 75.3, 90.7),
               "last_layer": (55.3, 47.5, 56.7, 83.9), "tinytl": (78.9, 73.6, 74.4, 88.6),
               "sparse_update": (72.8, 67.4, 69.0, 88.3), "tinytrain": (79.3, 73.8, 78.8, 93.3)},
    "mobilenetv2": {"none": (39.9, 44.4, 48.4, 81.5), "full": (75.5, 69.1, 68.9, 84.4),
                    "last_layer": (58.2, 55.1, 59.6, 86.3), "tinytl": (71.3, 69.0, 68.1, 85.9),
                    "sparse_update": (77.3, 69.1, 72.4, 87.3), "tinytrain": (77.4, 68.1, 74.1, 91.6)},
    "proxyless": {"none": (42.6, 50.5, 41.4, 80.5), "full": (78.4, 73.3, 71.4, 86.3),
                  "last_layer": (57.1, 58.8, 52.7, 85.5), "tinytl": (72.5, 73.6, 70.3, 86.2),
                  "sparse_update": (76.0, 72.4, 71.2, 87.8), "tinytrain": (79.0, 71.9, 76.7, 92.7)},
}  # fmt: skip
Json = dict[str, Any]


def features(net: str) -> nn.Module:
    """The network without its classifier."""
    rows, weights, stem = NETS[net]
    model = backbone(rows, weights, stem, 10, 0)
    last = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)][-1]
    setattr(model.get_submodule(last.rpartition(".")[0]), last.rpartition(".")[2], nn.Identity())
    return model.eval()


def method_of(net: str, method: str) -> str:
    return SPARSE[net] if method == "sparse_update" else method


def valid_set() -> ImageSet:
    found = read_set(str(DATA / "fewshot" / "miniimagenet_jpeg84.npz"))
    split = found.files["class_split"]
    return replace(found, name="valid", classes=np.flatnonzero(split == "valid"))


def run(net: str, sets: Sequence[ImageSet], method: str, settings: Settings, name: str) -> Json:
    """What this method finds, kept in `build` after each episode."""
    kept = BUILD / f"{net}-{method}-{name}.json"
    known: Json = json.loads(kept.read_text()) if kept.exists() else {}
    kept.parent.mkdir(parents=True, exist_ok=True)

    def told(done: int, total: int, what: str) -> None:
        print(f"{net} {name}: {what} ({done}/{total})", file=sys.stderr, flush=True)

    def keep() -> None:
        files.write(kept, json.dumps(known, indent=1).encode())

    return compare(features(net), sets, [method_of(net, method)], settings, known=known, keep=keep, told=told)


def rate_of(net: str, method: str, settings: Settings) -> float:
    """Of all rates the best on classes that are not reported."""
    if method == "none":
        return RATES[0]
    valid, found = [valid_set()], dict[float, float]()
    for lr in RATES:
        asked = replace(settings, lr=lr, episodes=CHOOSING)
        found[lr] = run(net, valid, method, asked, f"valid-{lr:g}")["rows"][0]["accuracy"]
    return max(RATES, key=lambda lr: found[lr])


def known_results(episodes: int) -> tuple[dict[tuple[str, str, str], list[float]], dict[tuple[str, str], Json]]:
    """(network, method, set) → accuracies, and (network, method) → plan, as far as they are there."""
    found: dict[tuple[str, str, str], list[float]] = {}
    plans: dict[tuple[str, str], Json] = {}
    for net in NETS:
        for method in METHODS:
            kept = BUILD / f"{net}-{method}-report.json"
            data = json.loads(kept.read_text()) if kept.exists() else {}
            for name, file in SETS.items():
                own = data.get("results", {}).get(f"{file} {method_of(net, method)}", {})
                found[net, method, name] = [own[str(i)] for i in range(episodes) if str(i) in own]
            if known := list(data.get("plans", {}).values()):
                plans[net, method] = known[0]
    return found, plans


def table(episodes: int) -> str:
    found, plans = known_results(episodes)
    lines = ["| network | method | " + " | ".join(SETS) + " |", "|---|---|" + "---:|" * len(SETS)]
    for net in NETS:
        for method in METHODS:
            cells = []
            for k, name in enumerate(SETS):
                own = found[net, method, name]
                text = f"{100 * mean(own):.1f} ± {100 * interval(own):.1f} of {len(own)}" if own else "not run"
                cells.append(f"{text} (paper {PAPER[net][method][k]})")
            lines.append(f"| {net} | {method} | " + " | ".join(cells) + " |")
    lines += ["", "| network | method | backward memory, MB | backward M MACs | RAM, MB |", "|---|---|---:|---:|---:|"]
    for (net, method), plan in plans.items():
        arena, macs, batch = plan["arena_bytes"], plan["macs"], plan["batch"]
        backward = plan["state_bytes"] + max(0, arena["train"] - arena["infer"])
        work = max(0, macs["train"] - macs["infer"]) / batch
        lines.append(f"| {net} | {method} | {backward / 1e6:.2f} | {work / 1e6:.2f} | {plan['ram_bytes'] / 1e6:.2f} |")
    return "\n".join(lines) + "\n"


def is_whole() -> bool:
    return all(len(own) == EPISODES for own in known_results(EPISODES)[0].values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, known in (("backbones", NETS), ("sets", SETS), ("methods", METHODS)):
        parser.add_argument(f"--{name}", default=",".join(known))
    parser.add_argument("--episodes", type=int, default=EPISODES)
    parser.add_argument("--lr", type=float, help="instead of the best of a few")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if not args.table:
        settings = Settings(args.episodes, STEPS, support=100, size=PIXELS, batch=1, kernels="fast:2")
        sets = [read_set(str(DATA / "fewshot" / f"{SETS[name]}.npz")) for name in args.sets.split(",")]
        for net in args.backbones.split(","):
            for method in args.methods.split(","):
                rate = args.lr or rate_of(net, method, settings)
                run(net, sets, method, replace(settings, lr=rate), "report")
    print(table(args.episodes))
    if is_whole():
        files.write(OUT, f"# TinyTrain\n\n`python -m benchmarks.tinytrain`\n\n{table(EPISODES)}".encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
