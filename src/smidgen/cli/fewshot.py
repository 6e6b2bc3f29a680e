"""`smidgen fewshot`: methods compared on episodes of few samples."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path

from .. import files, terminal
from ..errors import BadOption
from .model_source import load_model
from .output import check_outputs, print_json, wrote
from .sweep import Bar


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", help="file.py:function of the backbone: images [N,C,H,W] from -1 to 1 in, features out"
    )
    parser.add_argument("--sets", required=True, metavar="A.npz,B.npz", help="labelled images: `images` and `label`")
    usual = "none,full,last_layer,tinytl,tinytrain"
    parser.add_argument("--methods", default=usual, metavar="A,B", help=f"default {usual}")
    for name, kind, start, what in (
        ("episodes", int, 50, "of each set"), ("steps", int, 40, "of an episode"), ("lr", float, 1e-3, "of Adam"),
        ("support", int, 100, "most samples to learn from"), ("batch", int, 8, "samples at a time"),
        ("seed", int, 0, "of episodes"), ("channels", int, 3, "of the backbone's input"),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=kind, default=start, help=f"{what}; default {start}".strip("; "))
    parser.add_argument("--size", type=int, help="images are resized to this; default: as they are")
    parser.add_argument("--budget", help="of RAM for each method, as 1MB")
    parser.add_argument("--kernels", default="fast", help="exact, fast or fast:2")
    parser.add_argument(
        "-o", "--output", metavar="RUN.json", help="results, episode by episode: a run goes on from there"
    )
    parser.add_argument("--svg", metavar="FILE", help="write a picture")


def fewshot(args: argparse.Namespace) -> int:
    from ..fewshot import Settings, compare, read_set
    from ..report import fewshot_text

    names = [name for name in args.methods.split(",") if name]
    sets = [read_set(path) for path in args.sets.split(",") if path]
    if len({one.name for one in sets}) < len(sets):
        raise BadOption("two sets have one name", help="call the files by different names")
    check_outputs(args.output, args.svg, inputs=args.sets.split(","))
    known = _known(args.output)
    settings = Settings(
        args.episodes, args.steps, args.lr, args.support, args.size, args.channels, args.batch, args.seed,
        args.budget, args.kernels,
    )  # fmt: skip

    def keep() -> None:
        if args.output:
            files.write(args.output, (json.dumps(known, indent=1) + "\n").encode())

    with contextlib.redirect_stdout(sys.stderr), Bar(args.model, "learning") as bar:
        found = compare(load_model(args.model), sets, names, settings, known=known, keep=keep, told=bar.told)
    if args.svg:
        files.write(args.svg, fewshot_text.fewshot_svg(found).encode())
    if args.json:
        print_json({"model": args.model, "settings": found["settings"], "plans": found["plans"], "rows": found["rows"]})
    else:
        print(fewshot_text.fewshot_text(found, colour=terminal.has_colour(sys.stdout)))
        wrote(args.output)
        wrote(args.svg)
    return 0


def _known(path: str | None) -> dict[str, object]:
    """What an earlier run has written."""
    if path is None or not Path(path).exists():
        return {}
    try:
        found = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise BadOption(f"'{path}' is not a comparison", why=str(error), help="another file for --output") from error
    if not isinstance(found, dict) or "fingerprint" not in found:
        raise BadOption(f"'{path}' is not a comparison", help="another file for --output")
    return found


__all__ = ["add_options", "fewshot"]
