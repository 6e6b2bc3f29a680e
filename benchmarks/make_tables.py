"""Tables and a plot from docs/results/step.json: docs/results/step.md and docs/results/step.svg.

python -m benchmarks.make_tables            # write them
python -m benchmarks.make_tables --check    # status 1 unless they are what the JSON says
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.step import OUT
from smidgen.terminal import bytes_text, count_text, seconds_text

Json = dict[str, Any]
NAMES = {
    "lenet5": "LeNet-5, 28 px", "dscnn": "DS-CNN, 49×10", "resnet8": "ResNet-8, 32 px", "mcunet": "MCUNet-5fps, 128 px",
    "mobilenetv2_035": "MobileNetV2-0.35, 128 px", "mobilenetv2_100": "MobileNetV2-1.0, 224 px",
    "resnet18": "ResNet-18, 224 px", "transformer": "Transformer 4×512, 128 long",
    "gemm256": "n = 256", "gemm1024": "n = 1024",
}  # fmt: skip
COLOURS = {
    "smidgen": "#d6232a", "torch": "#ee7733", "torch_channels_last": "#f2b134", "torch_compile": "#8c5a2b",
    "onnxruntime": "#4477aa", "tensorflow": "#228833", "tflite": "#66bb55", "litert": "#117766", "jax": "#aa3377",
    "tinygrad": "#999999", "mnn": "#5566cc",
}  # fmt: skip


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown: the first column is text, the others are numbers."""
    if not rows:
        return "(not measured yet)\n"
    lines = [list(head), ["---", *["--:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def time_text(result: Json) -> str:
    return seconds_text(result["step_s"]) if "step_s" in result else "–"


def memory_text(result: Json) -> str:
    return bytes_text(max(0, result["anon_bytes"])) if "anon_bytes" in result else "–"


def of(row: Json, name: str) -> Json:
    found: Json = row["results"].get(name, {})
    return found


def heading(row: Json) -> list[str]:
    return [NAMES.get(row["net"], row["net"]), str(row["batch"])]


def against_fastest(report: Json, rows: Sequence[Json]) -> str:
    """smidgen beside the fastest other contestant of each row, and beside PyTorch's memory."""
    head = ["network", "batch", "at a time", "smidgen", "fastest other", "", "ratio", "share of peak", "memory",
            "PyTorch's", "of the plan", "in a file", "cold start", "PyTorch's"]  # fmt: skip
    lines = []
    for row in rows:
        ours, torch, fastest = of(row, "smidgen"), of(row, "torch"), row["fastest_other"]
        ratio = f"{row['ratio']:.2f} ×" if row["ratio"] else "–"
        label = report["contestants"].get(fastest, {}).get("label", fastest)
        lines.append([
            *heading(row), str(row.get("at_a_time", "–")), time_text(ours), time_text(of(row, fastest)), label, ratio,
            f"{ours['share_of_peak']:.1%}" if "share_of_peak" in ours else "–", memory_text(ours), memory_text(torch),
            planned(row), bytes_text(row["page_bytes"]) if row.get("page_bytes") else "–",
            *[seconds_text(r["cold_s"]) if "cold_s" in r else "–" for r in (ours, torch)],
        ])  # fmt: skip
    return table(head, lines)


def everyone(report: Json, rows: Sequence[Json], text: Callable[[Json], str]) -> str:
    """One figure of all contestants."""
    names = [n for n in report["contestants"] if any(n in row["results"] for row in rows)]
    head = ["network", "batch", *[report["contestants"][n]["label"] for n in names]]
    return table(head, [[*heading(row), *[text(of(row, n)) for n in names]] for row in rows])


def planned(row: Json) -> str:
    """Memory as a share of the RAM that the plan states."""
    ours = of(row, "smidgen")
    return f"{ours['anon_bytes'] / row['ram_bytes']:.0%}" if "anon_bytes" in ours else "–"


def methods(report: Json) -> str:
    """What learning less saves: time and multiply-accumulates as shares of `full`."""
    full = {(r["net"], r["batch"], r["threads"]): r for r in report["rows"] if r["method"] == "full"}
    head = ["network", "batch", "method", "smidgen", "PyTorch", "time of full", "MACs of full", "memory", "PyTorch's",
            "share", "of the plan"]  # fmt: skip
    lines = []
    for row in report["rows"]:
        whole = full.get((row["net"], row["batch"], row["threads"]))
        if row["method"] not in ("last_layer", "bias") or whole is None:
            continue
        ours, before, torch = of(row, "smidgen"), of(whole, "smidgen"), of(row, "torch")
        share = f"{ours['step_s'] / before['step_s']:.0%}" if "step_s" in ours and "step_s" in before else "–"
        lines.append([
            *heading(row), row["method"], time_text(ours), time_text(torch), share,
            f"{row['macs'] / whole['macs']:.0%}", memory_text(ours), memory_text(torch),
            f"{ours['anon_bytes'] / torch['anon_bytes']:.3f}" if torch.get("anon_bytes") else "–", planned(row),
        ])  # fmt: skip
    return table(head, lines)


def products(report: Json) -> str:
    rows = [r for r in report["rows"] if r["method"] == "output"]
    names = [n for n in report["contestants"] if any("step_s" in of(r, n) for r in rows)]
    head = ["product of n×n matrices", *[f"{report['contestants'][n]['label']}" for n in names], "peak"]
    lines = []
    for row in rows:
        shares = [f"{of(row, n)['share_of_peak']:.0%}" if "step_s" in of(row, n) else "–" for n in names]
        lines.append([heading(row)[0], *shares, f"{row['peak_gflops']:.1f} GFLOP/s"])
    return table(head, lines)


def who(report: Json) -> str:
    lines = []
    for facts in report["contestants"].values():
        size = bytes_text(facts["installed_bytes"]) if "installed_bytes" in facts else "–"
        said = "; ".join([f"absent: {facts['absent']}"] if "absent" in facts else facts["notes"])
        lines.append([facts["label"], facts.get("version", "–"), size, said.replace("|", "/")])
    return table(["contestant", "version", "installed", "notes"], lines)


def markdown(report: Json) -> str:
    rows = [r for r in report["rows"] if r["method"] == "full"]
    one, two = [r for r in rows if r["threads"] == 1], [r for r in rows if r["threads"] == 2]
    cpu = report["machine"]
    starts = sorted(r["numpy_s"] for r in report["rows"])
    middle = seconds_text(starts[len(starts) // 2]) if starts else "–"
    busy = max((x["others"] for r in report["rows"] for x in r["results"].values() if "others" in x), default=0.0)
    macs = {r["net"]: count_text(r["macs"]) for r in one if r["batch"] == 1}
    sizes = ", ".join(f"{NAMES.get(net, net)} {text}" for net, text in macs.items())
    return f"""# A whole training step

Made by `python -m benchmarks.make_tables` from [step.json](step.json), which `python -m benchmarks.step` writes.
{cpu["cpu"]}, {cpu["cores"]} cores, {report["date"]}.
Same network, weights, batch, loss (cross-entropy) and optimizer (SGD, momentum 0.9), batch-norm statistics frozen,
float32. Medians; each measurement is a fresh process, contestants take turns. Other programs kept up to {busy:.2f}
processors busy meanwhile.

- **ratio**: time of the fastest other contestant / time of smidgen; above 1, smidgen is faster.
- **memory**: peak of anonymous memory through settled steps, above what it was after importing the library;
  **of the plan**: as a share of the RAM that smidgen's plan states.
- smidgen has a budget at batch 8 and 32 where by itself it would take more than 30 % of PyTorch's memory, or 9 % where
  less learns; **in a file**: what it keeps outside RAM where its weights and their momentum alone are more than that.
- **at a time**: samples that smidgen takes at once; gradients add up ([why](../decisions/0012-micro-batches.md)).
- **cold start**: from the start of the process to the end of its first step. `import numpy` alone: {middle}.
- **share of peak**: of the fused multiply-adds that the machine was measured to do in the same minute.
- Multiply-accumulates of one step at batch 1: {sizes or "–"}.

![step times](step.svg)

## Everything learns, one thread

{against_fastest(report, one)}
## Everything learns, two threads

{against_fastest(report, two)}
## Step time of every contestant, one thread

{everyone(report, one, time_text)}
## Step time of every contestant, two threads

{everyone(report, two, time_text)}
## Memory of every contestant, one thread

{everyone(report, one, memory_text)}
## Less learns, one thread

{methods(report)}
## Matrix products, one thread

{products(report)}
## Contestants

{who(report)}"""


# -- the plot --------------------------------------------------------------------------------------------------------

LEFT, LINE, WIDE, TOP = 250, 20, 640, 70


def svg(report: Json) -> str:
    """Everything learns, one thread: a line for each row, a dot for each contestant, time on a logarithmic scale."""
    rows = [r for r in report["rows"] if r["method"] == "full" and r["threads"] == 1]
    times = [x["step_s"] for r in rows for x in r["results"].values() if "step_s" in x]
    low, high = (math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))) if times else (-3, 0)
    high = max(high, low + 1)
    height = TOP + LINE * len(rows) + 30

    def place(seconds: float) -> float:
        return LEFT + WIDE * (math.log10(seconds) - low) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDE + 30}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{LEFT + WIDE + 30}" height="{height}" fill="white"/>',
    ]
    parts += legend(report, rows)
    for power in range(low, high + 1):
        x = place(10.0**power)
        parts.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{height - 25}" stroke="#dddddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{height - 8}" text-anchor="middle">{seconds_text(10.0**power)}</text>')
    for number, row in enumerate(rows):
        y = TOP + LINE * (number + 0.5)
        name, batch = heading(row)
        parts.append(f'<text x="{LEFT - 12}" y="{y + 4:.1f}" text-anchor="end">{name}, batch {batch}</text>')
        ordered = sorted(row["results"].items(), key=lambda item: item[0] == "smidgen")  # smidgen on top
        for who_, result in ordered:
            if "step_s" in result:
                size = 6 if who_ == "smidgen" else 4
                title = f"{report['contestants'][who_]['label']}: {time_text(result)}"
                parts.append(f'<circle cx="{place(result["step_s"]):.1f}" cy="{y:.1f}" r="{size}" '
                             f'fill="{COLOURS[who_]}" fill-opacity="0.85"><title>{title}</title></circle>')  # fmt: skip
    return "\n".join([*parts, "</svg>\n"])


def legend(report: Json, rows: Sequence[Json]) -> list[str]:
    parts = []
    names = [n for n in report["contestants"] if any("step_s" in of(r, n) for r in rows)]
    for number, name in enumerate(names):
        x, y = 20 + 150 * (number % 6), 20 + 22 * (number // 6)
        parts.append(f'<circle cx="{x}" cy="{y}" r="5" fill="{COLOURS[name]}"/>')
        parts.append(f'<text x="{x + 10}" y="{y + 4}">{report["contestants"][name]["label"]}</text>')
    return parts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--json", type=Path, default=OUT)
    args = parser.parse_args()
    report = json.loads(args.json.read_text())
    status = 0
    for suffix, text in ((".md", markdown(report)), (".svg", svg(report))):
        path = args.json.with_suffix(suffix)
        if not args.check:
            path.write_text(text)
            print(path)
        elif not path.exists() or path.read_text() != text:
            print(f"{path} is not what the JSON says: python -m benchmarks.make_tables", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
