"""Arguments in, text or JSON out, no logic."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from .errors import MissingPart, SmidgenError
from .options import checked_seed


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="smidgen", description="Train neural networks on the device.")
    commands = parser.add_subparsers(dest="command", required=True)
    verify = commands.add_parser("verify", help="prove parity with PyTorch and memory safety for your own model")
    verify.add_argument("model", help="file.py:function or package.module:attribute that gives an nn.Module")
    shapes = "8x3x32x32, batch first; 8x16:int100 for integers below 100; repeat for more inputs"
    verify.add_argument("--input", required=True, action="append", metavar="SHAPE", help=shapes)
    verify.add_argument("--loss", default="cross_entropy", help="cross_entropy, mse, bce_with_logits, l1 or huber")
    verify.add_argument("--method", default="full")
    verify.add_argument("--optimizer", default="sgd", choices=["sgd", "adam"])
    verify.add_argument("--lr", type=float, default=None)
    verify.add_argument("--bn", default="frozen", choices=["frozen", "batch"])
    verify.add_argument("--seed", type=int, default=0)
    verify.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    try:
        return _verify(args)
    except SmidgenError as error:
        print(error, file=sys.stderr)
        return error.exit_status


def _verify(args: argparse.Namespace) -> int:
    checked_seed(args.seed)
    try:
        from .prove import prove
    except ModuleNotFoundError as error:
        raise MissingPart("verify needs PyTorch", why=str(error), help="pip install 'smidgen[compile]'") from error

    proof = prove(
        args.model, args.input, loss=args.loss, method=args.method, optimizer=args.optimizer, lr=args.lr, bn=args.bn,
        seed=args.seed, progress=None if args.json else lambda text: print(text, file=sys.stderr),
    )  # fmt: skip
    print(json.dumps(proof.to_json(), indent=2) if args.json else proof.to_text())
    return 0 if proof.passed else 1


if __name__ == "__main__":
    sys.exit(main())
