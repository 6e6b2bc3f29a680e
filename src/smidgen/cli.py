"""Arguments in, text or JSON out, no logic."""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from . import terminal
from .errors import BadOption, MissingPart, SmidgenError, did_you_mean
from .options import checked_seed

SHAPE = "8x3x32x32, batch first; 8x16:int100 for integers below 100; repeat for more inputs"
MODEL = "file.py:function, package.module:attribute, or a .pt2 file of torch.export.save"


class Parser(argparse.ArgumentParser):
    """Wrong usage is an error like any other: what, and what to type next."""

    def error(self, message: str) -> NoReturn:
        what, _, choices = message.partition(" (choose from ")
        word = what.rpartition("'")[0].rpartition("'")[2] if "invalid choice: '" in what else ""
        known = [c.strip(" '\")") for c in choices.split(",")] if choices else []
        help = f"{did_you_mean(word, known)}  ({self.prog} --help)" if word and known else f"{self.prog} --help"
        raise BadOption(what, help=help)


def main(argv: Sequence[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without block characters shows question marks
    try:
        args = _parser().parse_args(argv)
        status: int = args.run(args)
        sys.stdout.flush()
        return status
    except SmidgenError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    except BrokenPipeError:  # the reader (head, less) has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


# -- arguments ---------------------------------------------------------------------------------------------------


def _parser() -> Parser:
    parser = Parser(prog="smidgen", description="Train neural networks on the device, in a smidgen of memory.")
    parser.add_argument("--version", action="version", version=f"smidgen {_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")

    def command(name: str, run: Callable[[argparse.Namespace], int], help: str) -> Parser:
        made: Parser = commands.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".")
        made.add_argument("--json", action="store_true", help="print JSON instead of text")
        made.set_defaults(run=run)
        return made

    plan = command("plan", _plan, "what training your model takes: bytes, arithmetic, time, and why")
    _add_model(plan)
    plan.add_argument("--html", metavar="FILE", help="write the plan as one page with pictures")
    plan.add_argument("--all-layers", action="store_true", help="one row for every layer")

    build = command("build", _build, "compile your model into a program file")
    _add_model(build)
    build.add_argument("-o", "--output", required=True, metavar="NET.smg")

    train = command("train", _train, "train a program on data")
    train.add_argument("program", metavar="NET.smg")
    train.add_argument("--data", required=True, metavar="TRAIN.npz", help="arrays x (or x0, x1, …) and y")
    train.add_argument("--eval", metavar="TEST.npz", help="measured after each epoch")
    train.add_argument("--epochs", type=int, default=1)
    train.add_argument("--save", metavar="OUT.smg", help="the program with what it learned")
    train.add_argument("--export", metavar="W.safetensors", help="what was learned, under the model's names")
    _add_kernels(train)
    train.add_argument("--batch", type=int, help="samples a step; default: the plan's batch")
    train.add_argument("--lr", type=float, help="default: the rate the program was built with")
    train.add_argument("--schedule", help="constant (default), linear or cosine")
    train.add_argument("--patience", type=int, metavar="EPOCHS", help="stop when nothing has improved for so long")
    train.add_argument("--seed", type=int, help="of the order of samples; default: the program's")
    train.add_argument("--checkpoint", metavar="RUN.ckpt", help="written while training, replaced atomically")
    train.add_argument("--checkpoint-every", type=int, metavar="STEPS", help="default: after each epoch")
    train.add_argument("--resume", metavar="RUN.ckpt", help="go on where this checkpoint was written")

    infer = command("infer", _infer, "predict with a program")
    infer.add_argument("program", metavar="NET.smg")
    infer.add_argument("--data", required=True, metavar="TEST.npz", help="array x (or x0, x1, …); with y: accuracy")
    _add_kernels(infer)
    infer.add_argument("-o", "--output", metavar="OUT.npz", help="write the predictions")

    inspect = command("inspect", _inspect, "what is in a program file")
    inspect.add_argument("program", metavar="NET.smg")
    inspect.add_argument("--html", metavar="FILE", help="write its plan as one page with pictures")

    verify = command("verify", _verify, "prove parity with PyTorch and memory safety for your own model")
    verify.add_argument("model", help=MODEL)
    verify.add_argument("--input", required=True, action="append", metavar="SHAPE", help=SHAPE)
    _add_training(verify, optimizers=["sgd", "adam"])

    command("methods", _methods, "what can learn")
    command("ops", _ops, "the operators that smidgen knows")
    explain = command("explain", _explain, "what an error means and what to do about it")
    explain.add_argument("code", nargs="?", help="E101, for instance; without it: all of them")
    command("demo", _demo, "a network meets data it has never seen, and learns it in 64 KB")
    return parser


def _add_kernels(parser: Parser) -> None:
    how = "exact: the same bits on every machine; fast: this machine's vectors, more memory"
    parser.add_argument("--kernels", default="exact", choices=["exact", "fast"], help=how)
    parser.add_argument("--threads", type=int, default=1, help="of fast kernels")


def _add_model(parser: Parser) -> None:
    parser.add_argument("model", help=MODEL)
    parser.add_argument("--input", action="append", metavar="SHAPE", help=SHAPE)
    parser.add_argument("--target", metavar="SHAPE", help="of the target of a loss function, as --input")
    parser.add_argument("--batch", type=int, help="the most samples of one step; default: the input's")
    parser.add_argument("--accumulate", action="store_true", help="can take larger batches in parts")
    _add_training(parser, optimizers=["sgd", "adam", "adamw"])
    parser.add_argument("--momentum", type=float, help="of sgd; default 0.9")
    parser.add_argument("--weight-decay", type=float)
    parser.add_argument("--clip-norm", type=float, help="limits the norm of all gradients")
    _add_kernels(parser)


def _add_training(parser: Parser, optimizers: Sequence[str]) -> None:
    losses = "cross_entropy, mse, bce_with_logits, l1, huber, smooth_l1, or file.py:function(output, target)"
    parser.add_argument("--loss", default="cross_entropy", help=losses)
    parser.add_argument("--method", default="full", help="what learns: `smidgen methods`, or names of parameters")
    parser.add_argument("--optimizer", default="sgd", choices=optimizers)
    parser.add_argument("--lr", type=float, default=None)
    parser.add_argument("--bn", default="frozen", choices=["frozen", "batch"], help="statistics of batch-norm")
    parser.add_argument("--seed", type=int, default=0)


# -- commands ----------------------------------------------------------------------------------------------------


def _plan(args: argparse.Namespace) -> int:
    from . import page, report

    _check_outputs(args.html)
    job = _compiled(args)
    seconds = report.measure_step(job)
    if args.html:
        page.write(job.plan, args.html, title=args.model, seconds_per_step=seconds)
    if args.json:
        _print_json({"model": args.model, **report.plan_json(job.plan, seconds)})
    else:
        print(report.plan_text(job.plan, title=args.model, seconds_per_step=seconds, all_layers=args.all_layers,
                               colour=terminal.has_colour(sys.stdout), width=terminal.width()))  # fmt: skip
        _wrote(args.html)
    return 0


def _build(args: argparse.Namespace) -> int:
    _check_outputs(args.output)
    job = _compiled(args)
    job.save(args.output)
    plan = job.plan
    if args.json:
        _print_json({"model": args.model, "program": args.output, "file_bytes": os.path.getsize(args.output),
                     "ram_bytes": plan.ram_bytes, "flash_bytes": plan.flash_bytes, "learns": list(plan.learns),
                     "batch": plan.batch, "method": plan.method})  # fmt: skip
    else:
        print(f"{args.output}: {terminal.bytes_text(plan.ram_bytes)} of RAM, {terminal.bytes_text(plan.flash_bytes)} "
              f"of flash, batch {plan.batch}, {len(plan.learns)} tensors learn ({plan.method})")  # fmt: skip
    return 0


def _train(args: argparse.Namespace) -> int:
    from .data import read_npz
    from .trainer import load

    _check_outputs(args.save, args.export)
    job, data = load(args.program, kernels=args.kernels, threads=args.threads), read_npz(args.data)
    held_out = read_npz(args.eval) if args.eval else None
    if args.resume:
        job.resume(args.resume)
    if args.lr is not None:
        job.lr = args.lr
    show = None if args.json or terminal.is_terminal(sys.stderr) else lambda epoch: print(epoch, file=sys.stderr)
    before = job.evaluate(held_out.x, held_out.y) if held_out else None
    history = job.fit(
        data.x, data.y, epochs=args.epochs, eval=(held_out.x, held_out.y) if held_out else None,
        patience=args.patience, schedule=args.schedule, seed=args.seed, batch=args.batch, checkpoint=args.checkpoint,
        checkpoint_every=args.checkpoint_every, on_epoch=show,
    )  # fmt: skip
    if args.save:
        job.save(args.save)
    if args.export:
        job.export_weights(args.export)
    if args.json:
        _print_json({"program": args.program, "before": before, **history.to_json(), "saved": args.save,
                     "exported": args.export, "step": job.step, "ram_bytes": job.plan.ram_bytes})  # fmt: skip
    else:
        if before:
            print("before   " + _metrics(before))
        print(history)
        _wrote(args.save, args.export)
    return 128 + signal.SIGINT if history.stopped == "interrupted" else 0


def _infer(args: argparse.Namespace) -> int:
    import numpy as np

    from .data import read_npz, write_npz
    from .trainer import load

    _check_outputs(args.output)
    job = load(args.program, kernels=args.kernels, threads=args.threads)
    data = read_npz(args.data, needs_y=False)
    outputs = job.predict(data.x)
    found = outputs if isinstance(outputs, tuple) else (outputs,)
    metrics = job.evaluate(data.x, data.y) if data.y is not None else None
    if args.output:
        names = ["y"] if len(found) == 1 else [f"y{k}" for k in range(len(found))]
        write_npz(args.output, dict(zip(names, found, strict=True)))
    if args.json:
        _print_json({"program": args.program, "samples": len(data), "metrics": metrics, "written": args.output,
                     "outputs": [{"shape": list(o.shape), "dtype": str(o.dtype), "min": float(np.min(o)),
                                  "max": float(np.max(o))} for o in found]})  # fmt: skip
        return 0
    print(f"{len(data)} samples" + (f": {_metrics(metrics)}" if metrics else ""))
    for o in found:
        print(f"output {list(o.shape)}, from {np.min(o):.4g} to {np.max(o):.4g}")
    first = found[0]
    if first.ndim == 2 and first.shape[1] > 1:
        print("largest of each row: " + " ".join(map(str, first.argmax(1)[:20])) + (" …" if len(first) > 20 else ""))
    _wrote(args.output)
    return 0


def _inspect(args: argparse.Namespace) -> int:
    from . import page, report
    from .trainer import load

    _check_outputs(args.html)
    job = load(args.program)
    if args.html:
        page.write(job.plan, args.html, title=args.program)
    if args.json:
        _print_json(report.inspect_json(job.program, args.program))
    else:
        print(report.inspect_text(job.program, args.program, colour=terminal.has_colour(sys.stdout),
                                  width=terminal.width()))  # fmt: skip
        _wrote(args.html)
    return 0


def _verify(args: argparse.Namespace) -> int:
    checked_seed(args.seed)
    _need_torch("verify")
    from .prove import prove

    proof = prove(
        args.model, args.input, loss=args.loss, method=args.method, optimizer=args.optimizer, lr=args.lr, bn=args.bn,
        seed=args.seed, progress=None if args.json else lambda text: print(text, file=sys.stderr),
    )  # fmt: skip
    _print_json(proof.to_json()) if args.json else print(proof.to_text())
    return 0 if proof.passed else 1


def _methods(args: argparse.Namespace) -> int:
    from .methods import all_methods

    rows = [(m.name + (":k" if m.takes_count else ""), m.doc) for m in all_methods().values()]
    rows.append(("names, globs", "parameters by name: head.*, or a list of names and methods from Python"))
    _print_table(args.json, "methods", ("name", "doc"), rows)
    return 0


def _ops(args: argparse.Namespace) -> int:
    from .ops import all_ops

    _print_table(args.json, "ops", ("name", "doc"), [(op.name, op.doc) for op in all_ops().values()])
    return 0


def _explain(args: argparse.Namespace) -> int:
    from .errors import all_errors
    from .pages import page

    if args.code is None:
        rows = [(code, (kind.__doc__ or "").partition("\n")[0]) for code, kind in sorted(all_errors().items())]
        _print_table(args.json, "errors", ("code", "doc"), rows)
    elif args.json:
        _print_json({"code": args.code.upper(), "page": page(args.code)})
    else:
        print(page(args.code).rstrip())
    return 0


def _demo(args: argparse.Namespace) -> int:
    from . import demo

    figures = demo.run(json=args.json, colour=terminal.has_colour(sys.stdout), width=terminal.width())
    if args.json:
        _print_json(figures)
    return 0


# -- what commands share -------------------------------------------------------------------------------------------


def _compiled(args: argparse.Namespace) -> Any:
    """A job for the model and options of a command line."""
    checked_seed(args.seed)
    _need_torch(args.command)
    import numpy as np

    from . import api
    from .optimizers import by_name
    from .source import example_of, load_example, load_function, load_model

    rng = np.random.default_rng(args.seed)
    optimizer = by_name(args.optimizer, lr=args.lr, momentum=args.momentum, weight_decay=args.weight_decay,
                        clip_norm=args.clip_norm)  # fmt: skip
    loss: Any = load_function(args.loss) if ":" in args.loss else args.loss
    target = example_of(args.target, rng) if args.target else None
    model = load_model(args.model)
    example = tuple(example_of(text, rng) for text in args.input) if args.input else load_example(args.model)
    with terminal.Progress(f"compiling {args.model}") as bar:
        bar.advance()
        return api.compile(
            model, example, loss=loss, target=target, optimizer=optimizer, method=args.method, batch=args.batch,
            bn=args.bn, accumulate=args.accumulate, seed=args.seed, kernels=args.kernels, threads=args.threads,
        )  # fmt: skip


def _check_outputs(*paths: str | None) -> None:
    """Before any work: hours of training must not end in an error about a folder."""
    from . import atomic

    for path in paths:
        if path:
            atomic.check(path)


def _need_torch(command: str) -> None:
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        help = "pip install 'smidgen[compile]'"
        raise MissingPart(f"{command} needs PyTorch", why=str(error), help=help) from error


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("smidgen")
    except PackageNotFoundError:
        return "(not installed)"


def _metrics(metrics: dict[str, Any]) -> str:
    parts = [f"{k} {v:.2%}" if k == "accuracy" else f"{k} {v:.4f}" for k, v in metrics.items() if k != "samples"]
    return ", ".join(parts)


def _wrote(*paths: str | None) -> None:
    for path in paths:
        if path:
            print(f"wrote {path}")


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def _print_table(as_json: bool, name: str, keys: tuple[str, str], rows: Sequence[tuple[str, str]]) -> None:
    if as_json:
        return _print_json({name: [dict(zip(keys, row, strict=True)) for row in rows]})
    left = max(len(first) for first, _ in rows)
    for first, second in rows:
        print(f"{terminal.paint(first.ljust(left), 'bold', colour=terminal.has_colour(sys.stdout))}  {second}")


if __name__ == "__main__":
    sys.exit(main())
