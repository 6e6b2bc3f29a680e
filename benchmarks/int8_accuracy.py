"""What calibration costs: accuracy of published networks in f32 and in int8, on pictures that no range was told from.

python -m benchmarks.int8_accuracy              # writes docs/results/int8_accuracy.json; rows that are there stay
python -m benchmarks.int8_accuracy mcunet --again

250 pictures of ImageNet (every fourth class, 128 pixels); calibrated on 64 of miniImageNet, which are other ones.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from PIL import Image

import smidgen
from benchmarks.boards import DATA
from benchmarks.int8 import NETS, Published
from benchmarks.nets import mobile
from benchmarks.parity import machine
from smidgen import files

OUT: Final = Path(__file__).resolve().parents[1] / "docs" / "results" / "int8_accuracy.json"
CALIBRATION, PIXELS, BATCH = 64, 128, 10
WAYS: Final = ("minmax", "percentile", "mse")


def pictures(name: str, which: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Of a pack of JPEGs, as the networks take them, and labels."""
    pack = np.load(DATA / "fewshot" / f"{name}.npz")
    blob, offset = pack["jpeg"], pack["offset"]
    chosen = np.arange(len(offset) - 1) if which is None else which

    def picture(i: int) -> np.ndarray:
        whole = Image.open(io.BytesIO(blob[offset[i] : offset[i + 1]].tobytes())).convert("RGB")
        return np.asarray(whole.resize((PIXELS, PIXELS), Image.Resampling.BICUBIC), np.float32)

    x = np.stack([picture(int(i)) for i in chosen]).transpose(0, 3, 1, 2)
    return np.ascontiguousarray((x / 255 - 0.5) * 2), pack["label"][chosen]


def network(published: Published) -> torch.nn.Module:
    path = DATA / "weights" / f"{published.file}.fp32.npz"
    arrays = {name: torch.from_numpy(value) for name, value in np.load(path).items()}
    classes, stem = len(arrays["classifier.bias"]), len(arrays["stem.weight"])
    made = mobile.Mobile(published.rows, classes, norm=False, stem=stem)
    mobile.load_published(made, arrays)
    return made.eval()


def row(name: str) -> dict[str, Any]:
    model, (x, y) = network(NETS[name]), pictures("imagenet250_check_jpeg128")
    some = np.random.default_rng(0).permutation(5000)[:CALIBRATION]
    data, _ = pictures("miniimagenet_jpeg84", some)
    found: dict[str, Any] = {"net": name, "samples": len(x), "calibrated_on": CALIBRATION}
    scores = {}
    for way in ("f32", *WAYS):
        precision = "f32" if way == "f32" else smidgen.Int8(calibrate=way)
        job = smidgen.compile(model, torch.zeros(BATCH, *x.shape[1:]), precision=precision, data=data,
                              method="last_layer")  # fmt: skip
        scores[way] = job.predict(x)
        found[f"accuracy_{way}"] = float((scores[way].argmax(1) == y).mean())
        found[f"same_answer_{way}"] = float((scores[way].argmax(1) == scores["f32"].argmax(1)).mean())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", metavar="NET", help=", ".join(NETS))
    parser.add_argument("--again", action="store_true", help="measure rows that are there, too")
    args = parser.parse_args()
    known = json.loads(OUT.read_text())["rows"] if OUT.exists() else []
    rows = {one["net"]: one for one in known}
    for name in args.nets or NETS:
        if name in rows and not args.again:
            continue
        rows[name] = row(name)
        print(json.dumps(rows[name]), flush=True)
        report = {"command": "python -m benchmarks.int8_accuracy", "date": time.strftime("%Y-%m-%d"),
                  "machine": machine(), "rows": [rows[net] for net in NETS if net in rows]}  # fmt: skip
        files.write(OUT, (json.dumps(report, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
