"""Speed of the fast matrix kernels: `python -m benchmarks.kernels [network …] [--batch 1] [--threads 1]`.

Every convolution and linear layer of the networks of the speed benchmark, forward, input and weight gradient (with the
SGD update), as a share of the arithmetic peak that one core reaches in the same run.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .fast_library import SETS, FastLibrary, aligned, best_set, build

Shape = tuple[int, ...]
PASSES = ("forward", "dx", "dw")


@dataclass(frozen=True)
class Layer:
    """One product; sizes as its kernels take them."""

    name: str
    op: str  # conv2d, linear, matmul
    params: tuple[int, ...]

    @property
    def macs(self) -> int:
        p = self.params
        if self.op == "conv2d":
            n, _, _, c, o, oh, ow, kh, kw, *_, g = p
            return n * oh * ow * o * kh * kw * (c // g)
        return int(np.prod(p[:4] if self.op == "matmul" else p))

    def calls(self) -> Iterator[tuple[str, str, list[Shape], list[int | float]]]:
        """Pass, kernel, shapes of output and inputs, parameters."""
        p = list(self.params)
        if self.op == "conv2d":
            n, h, w, c, o, oh, ow, kh, kw, *_, g = p
            x, weight, y = (n, h, w, c), (o, kh, kw, c // g), (n, oh, ow, o)
            yield "forward", "conv2d_f32", [y, x, weight, (o,)], [*p]
            yield "dx", "conv2d_dx_f32", [x, y, weight], [*p]
            yield "dw", "conv2d_dw_sgd_f32", [weight, y, x, (1,)], [*p, 0.0]
        elif self.op == "linear":
            r, o, k = p
            yield "forward", "linear_f32", [(r, o), (r, k), (o, k), (o,)], [r, o, k]
            yield "dx", "linear_dx_f32", [(r, k), (r, o), (o, k)], [r, o, k]
            yield "dw", "linear_dw_sgd_f32", [(o, k), (r, o), (r, k), (1,)], [1, r, 1, o, k, 0.0]
        else:
            b, m, k, n, tb = p
            right = (b, n, k) if tb else (b, k, n)
            yield "forward", "matmul_f32", [(b, m, n), (b, m, k), right], [b, m, k, n, 0, tb]
            yield "dx", "matmul_f32", [(b, m, k), (b, m, n), right], [b, m, n, k, 0, 1 - tb]
            if tb:
                yield "dw", "matmul_f32", [right, (b, m, n), (b, m, k)], [b, n, m, k, 1, 0]
            else:
                yield "dw", "matmul_f32", [right, (b, m, k), (b, m, n)], [b, k, m, n, 1, 0]


def layers_of(net: str, batch: int) -> list[Layer]:
    """The layers of a network of the speed benchmark, in the order of the forward pass."""
    import torch
    from torch import nn

    from .nets.workloads import WORKLOADS

    found: list[Layer] = []
    model = WORKLOADS[net].build().to("meta").eval()

    def saw(name: str, module: Any, x: Any, y: Any) -> None:
        if isinstance(module, nn.Linear):
            rows = int(np.prod(x.shape[:-1]))
            found.append(Layer(name, "linear", (rows, module.out_features, module.in_features)))
            return
        (n, c, h, w), (_, o, oh, ow) = x.shape, y.shape
        pads = [int(p) for p in module.padding]
        p = (n, h, w, c, o, oh, ow, *module.kernel_size, *module.stride, *pads, *module.dilation, module.groups)
        found.append(Layer(name, "conv2d", p))

    for name, module in model.named_modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            module.register_forward_hook(lambda m, x, y, name=name: saw(name, m, x[0], y))
    model(torch.empty((batch, *WORKLOADS[net].shape), device="meta"))
    if net == "transformer":
        length, width = WORKLOADS[net].shape
        heads = 8 * batch
        found.append(Layer("scores", "matmul", (heads, length, width // 8, length, 1)))
        found.append(Layer("values", "matmul", (heads, length, length, width // 8, 0)))
    return found


def plain_products() -> list[Layer]:
    return [Layer(f"{n}³", "matmul", (1, n, n, n, 0)) for n in (64, 128, 256, 512, 1024)]


def measure(library: FastLibrary, layers: Sequence[Layer], round_s: float, rounds: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    rows = []
    for i, layer in enumerate(layers):
        row: dict[str, Any] = {**asdict(layer), "macs": layer.macs, "seconds": {}}
        for kind, kernel, shapes, params in layer.calls():
            if kind == "dx" and i == 0 and layer.op == "conv2d":
                continue  # nobody asks for the gradient of the input
            arrays = [aligned(shape, rng) for shape in shapes]
            if kernel.endswith("_sgd_f32"):
                arrays[-1][...] = 0.0  # the weights stay as they are
            row["seconds"][kind] = library.seconds(kernel, arrays, params, round_s, rounds)
        rows.append(row)
    return rows


def describe(row: dict[str, Any]) -> str:
    p = row["params"]
    if row["op"] == "conv2d":
        n, h, w, c, o, _, _, kh, kw, sh, *_, g = p
        kind = "dw" if g == c and g > 1 else f"→{o}"
        return f"{n}×{h}×{w}×{c} {kind} {kh}×{kw}" + (f" /{sh}" if sh > 1 else "")
    return "×".join(map(str, p))


def table(title: str, rows: list[dict[str, Any]], peak: float) -> str:
    lines = [f"\n{title}", f"{'layer':34} {'MMAC':>8}  " + "  ".join(f"{k:>18}" for k in PASSES)]
    for row in rows:
        cells = []
        for kind in PASSES:
            s = row["seconds"].get(kind)
            share = f"{s * 1e6:9.1f} µs {2 * row['macs'] / s / peak:4.0%}" if s else ""
            cells.append(f"{share:>18}")
        lines.append(f"{describe(row):34} {row['macs'] / 1e6:8.2f}  " + "  ".join(cells))
    for kind in (*PASSES, "all"):
        kinds = PASSES if kind == "all" else (kind,)
        seconds = sum(row["seconds"].get(k, 0.0) for row in rows for k in kinds)
        macs = sum(row["macs"] for row in rows for k in kinds if k in row["seconds"])
        lines.append(
            f"{kind:8} {macs / 1e6:10.1f} MMAC {seconds * 1e3:9.3f} ms {2 * macs / seconds / peak:4.0%} of peak"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nets", nargs="*", default=["products", "lenet5", "dscnn", "resnet8", "mcunet"])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--set", default=best_set(), choices=list(SETS), help="instruction set")
    parser.add_argument("--cc", default="cc")
    parser.add_argument("--round", type=float, default=0.002, help="seconds of one round")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        library = FastLibrary(build(Path(folder) / "libfast.so", args.set, args.cc), args.threads, wide=True)
        results: dict[str, Any] = {"batch": args.batch, "threads": args.threads, "set": args.set, "nets": {}}
        for net in args.nets:
            peak = library.peak_flops()
            layers = plain_products() if net == "products" else layers_of(net, args.batch)
            rows = measure(library, layers, args.round, args.rounds)
            results["nets"][net] = {"peak_flops": peak, "layers": rows}
            print(
                table(f"{net}, batch {args.batch}, {args.threads} thread(s), peak {peak / 1e9:.1f} GFLOP/s", rows, peak)
            )
        if args.json:
            args.json.write_text(json.dumps(results, indent=1))
        library.close()


if __name__ == "__main__":
    main()
