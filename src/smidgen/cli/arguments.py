"""What can be typed. Each command is one function of commands.py."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence
from typing import NoReturn

from ..errors import BadOption, did_you_mean
from . import board, commands, fewshot, fleet, gateway, target
from . import search as searching

SHAPE = (
    "8x3x32x32, batch first; 8x16:int100 for integers below 100; 8x3x32x32:bytes/127.5-1 for bytes, and the numbers "
    "that they stand for; repeat for more inputs"
)
PAGES = "the file to page to, for a program that pages"
MODEL = "file.py:function, package.module:attribute, or a .pt2 file of torch.export.save"


LOSSES = "{losses}, or file.py:function(output, target)"


class Parser(argparse.ArgumentParser):
    """Wrong usage is an error like any other: what, and what to type next."""

    def format_help(self) -> str:
        """The names of losses come from the ops, which are loaded only if someone asks."""
        for action in self._actions:
            if action.help is LOSSES:
                from ..ops import losses

                action.help = LOSSES.format(losses=", ".join(losses()))
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        what, _, choices = message.partition(" (choose from ")
        word = what.rpartition("'")[0].rpartition("'")[2] if "invalid choice: '" in what else ""
        known = [c.strip(" '\")") for c in choices.split(",")] if choices else []
        help = f"{did_you_mean(word, known)}  ({self.prog} --help)" if word and known else f"{self.prog} --help"
        raise BadOption(what, help=help)


def parser() -> Parser:
    made = Parser(prog="smidgen", description="Train neural networks on the device, in a smidgen of memory.")
    made.add_argument("--version", action="version", version=f"smidgen {_version()}")
    known = made.add_subparsers(dest="command", required=True, metavar="command")

    def command(
        name: str,
        run: Callable[[argparse.Namespace], int],
        help: str,
        among: argparse._SubParsersAction[Parser] = known,
    ) -> Parser:
        one: Parser = among.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".")
        one.add_argument("--json", action="store_true", help="print JSON instead of text")
        one.set_defaults(run=run)
        return one

    plan = command("plan", commands.plan, "what training your model takes: bytes, arithmetic, time, and why")
    _add_model(plan)
    plan.add_argument("--html", metavar="FILE", help="write the plan as one page with pictures")
    plan.add_argument("--all-layers", action="store_true", help="one row for every layer")
    swept = "budget against predicted time, for each technique alone and all together"
    plan.add_argument("--sweep", action="store_true", help=swept)
    compared = "a line for each method: RAM, flash, time of a step and of an inference, and whether it fits"
    plan.add_argument("--methods", action="store_true", help=compared)
    plan.add_argument("--max-batch", action="store_true", help="the largest batch that fits, and its samples/s")

    build = command("build", commands.build, "compile your model into a program file")
    _add_model(build, with_target=False)
    build.add_argument("-o", "--output", metavar="NET.smg")
    for_machines = "a machine: writes a binary with the program inside. aarch64-linux, armv7-linux, armv6-linux, "
    for_machines += "riscv64-linux, x86_64-linux, or aarch64-android (a library). A shape: see `plan`"
    build.add_argument("--target", action=target.Target, metavar="MACHINE", help=for_machines)
    board.add_firmware(build)
    build.set_defaults(machine=None)

    found = "which parts of your model are worth learning within a budget: a scheme of sparse updates"
    search = command("search", searching.search, found)
    _add_model(search, with_data=False)
    search.add_argument(
        "--data", required=True, metavar="PROXY.npz", help="arrays x and y, samples of what it will learn"
    )
    search.add_argument("-o", "--output", metavar="SCHEME.json", help="for --method SCHEME.json")
    search.add_argument(
        "--html", metavar="FILE", help="write what each part gains and costs as one page with a picture"
    )

    fewshot.add_options(command("fewshot", fewshot.fewshot, "compare methods on episodes of few samples"))

    train = command("train", commands.train, "train a program on data")
    train.add_argument("program", metavar="NET.smg")
    train.add_argument("--data", required=True, metavar="TRAIN.npz", help="arrays x (or x0, x1, …) and y")
    train.add_argument("--eval", metavar="TEST.npz", help="measured after each epoch")
    train.add_argument("--epochs", type=int, default=1)
    train.add_argument("--add-class", action="append", metavar="NAME", help="takes a spare class; repeat for more")
    train.add_argument("--save", metavar="OUT.smg", help="the program with what it learned")
    train.add_argument("--export", metavar="W.safetensors", help="what was learned, under the model's names")
    _add_kernels(train)
    train.add_argument("--page-to", metavar="FILE", help=PAGES)
    train.add_argument("--batch", type=int, help="samples a step; default: the plan's batch")
    train.add_argument("--lr", type=float, help="default: the rate the program was built with")
    train.add_argument("--schedule", help="constant (default), linear or cosine")
    train.add_argument("--patience", type=int, metavar="EPOCHS", help="stop after this many without improvement")
    train.add_argument("--seed", type=int, help="for the order of samples; default: the program's")
    train.add_argument("--checkpoint", metavar="RUN.ckpt", help="written while training, replaced atomically")
    train.add_argument("--checkpoint-every", type=int, metavar="STEPS", help="default: after each epoch")
    follow = "switch between the rungs of a ladder when free memory changes"
    train.add_argument("--follow-memory", action="store_true", help=follow)
    train.add_argument("--resume", metavar="RUN.ckpt", help="go on where this checkpoint was written")

    together = known.add_parser("fleet", help=fleet.HELP, description=fleet.HELP[0].upper() + fleet.HELP[1:] + ".")
    within = together.add_subparsers(dest="fleet_command", required=True, metavar="command")
    fleet.add(functools.partial(command, among=within), _add_model)

    gateway.add(command("gateway", gateway.gateway, gateway.HELP))

    board.add_run(command("run", board.run, "train firmware on an emulated board"))

    infer = command("infer", commands.infer, "predict with a program")
    infer.add_argument("program", metavar="NET.smg")
    infer.add_argument("--data", required=True, metavar="TEST.npz", help="array x (or x0, x1, …); with y: accuracy")
    _add_kernels(infer)
    infer.add_argument("--page-to", metavar="FILE", help=PAGES)
    infer.add_argument("-o", "--output", metavar="OUT.npz", help="write the predictions")

    inspect = command("inspect", commands.inspect, "what is in a program file")
    inspect.add_argument("program", metavar="NET.smg")
    inspect.add_argument("--html", metavar="FILE", help="write its plan as one page with pictures")

    verify = command("verify", commands.verify, "prove parity with PyTorch and memory safety for your own model")
    verify.add_argument("model", help=MODEL)
    verify.add_argument("--input", required=True, action="append", metavar="SHAPE", help=SHAPE)
    _add_training(verify, optimizers=["sgd", "adam"])

    devices = command("devices", commands.devices, "devices that smidgen knows, and the sources of their figures")
    devices.add_argument("name", nargs="?", help="stm32f746, for instance; without it: all of them")
    command("methods", commands.methods, "what can learn")
    command("ops", commands.ops, "the operators that smidgen knows")
    explain = command("explain", commands.explain, "what an error means and what to do about it")
    explain.add_argument("code", nargs="?", help="E101, for instance; without it: all of them")
    command("demo", commands.demo, "a network learns data it has never seen, in 64 KB of RAM")
    return made


def _add_kernels(parser: Parser, default: str | None = None) -> None:
    how = "exact: the same bits on every machine; fast: this machine's vectors, more memory; default: "
    parser.add_argument("--kernels", default=default, choices=["exact", "fast"], help=how + (default or "fast"))
    parser.add_argument("--threads", type=int, default=1, help="of fast kernels")


def _add_model(parser: Parser, with_target: bool = True, with_data: bool = True) -> None:
    parser.add_argument("model", help=MODEL)
    parser.add_argument("--input", action="append", metavar="SHAPE", help=SHAPE)
    if with_target:
        parser.add_argument("--target", metavar="SHAPE", help="of the target of a loss function, as --input")
    parser.add_argument("--batch", type=int, help="samples of one step, at most; default: the input's")
    micro = "gradient accumulation: split larger batches into micro-batches; default: where fast kernels gain by it"
    parser.add_argument("--accumulate", action=argparse.BooleanOptionalAction, help=micro)
    _add_training(parser, optimizers=["sgd", "adam", "adamw"])
    parser.add_argument("--momentum", type=float, help="of sgd; default 0.9; 0 saves its memory")
    parser.add_argument("--weight-decay", type=float)
    parser.add_argument("--clip-norm", type=float, help="limits the norm of all gradients")
    int8 = "int8: weights that do not learn take a quarter of the flash wherever that loses nothing"
    parser.add_argument("--const", default="f32", choices=["f32", "int8"], help=int8)
    compute = "int8: layers compute and learn in integers of 8 bits, calibrated on the samples of --data"
    parser.add_argument("--precision", default="f32", choices=["f32", "int8"], help=compute)
    ranges = "how int8 tells the range of a value from the samples; default minmax"
    parser.add_argument("--calibrate", choices=["minmax", "percentile", "mse"], help=ranges)
    back = "of values in int8: f32 (the default), or int16 with one exponent for each, in half the memory"
    parser.add_argument("--gradients", choices=["f32", "int16"], help=back)
    if with_data:
        seen = "array x (or x0, x1, …), perhaps y: samples for --precision int8, and for methods that look at them"
        parser.add_argument("--data", metavar="SAMPLES.npz", help=seen)
    parser.add_argument("--spare-classes", type=int, default=0, metavar="N", help="classes that can be added later")
    replay = (
        "keep N samples and learn them again beside new ones; N:inputs, N:f32, N:4 (new ones of a step), or several"
    )
    parser.add_argument("--replay", metavar="N", help=replay)
    where = "where those samples are: page, outside RAM in the file or on the card of --page-to; default ram"
    parser.add_argument("--replay-in", choices=["ram", "page"], help=where)
    at_once = "take samples into the arena at once: for a source that cannot deliver their rows in order"
    parser.add_argument("--whole-inputs", action="store_true", help=at_once)
    parser.add_argument("--device", help="its RAM and flash are hard limits: `smidgen devices`, or a .toml file")
    slots = "flash reserved for each of two slots of saved state; counts in the device's flash"
    parser.add_argument("--slot-bytes", type=int, default=0, metavar="N", help=slots)
    parser.add_argument("--budget", metavar="BYTES", help="a hard limit of RAM: 256KB, 64MB, or a number of bytes")
    parser.add_argument("--page-to", metavar="FILE", help="page tensors to this file, to fit the budget")
    parser.add_argument("--objective", default="time", choices=["time", "energy"], help="what a plan minimises")
    parser.add_argument("--deadline", metavar="TIME", help="of a step: seconds, or 2x the time without a limit")
    parser.add_argument(
        "--effort", type=float, metavar="S", help="how long to search for the best plan; default 5, of a sweep 1"
    )
    timed = "cost of kernels: fixed (the same on every machine) or measured on this one; default fixed"
    parser.add_argument("--prices", default="fixed", choices=["fixed", "measured"], help=timed)
    rungs = "more budgets, as 64MB,32MB: a rung for each in one program, for `train --follow-memory`"
    parser.add_argument("--ladder", metavar="BYTES,…", default="", help=rungs)
    _add_kernels(parser, default="exact")


def _add_training(parser: Parser, optimizers: Sequence[str]) -> None:
    parser.add_argument("--loss", default="cross_entropy", help=LOSSES)
    parser.add_argument(
        "--method", default="full", help="what learns: `smidgen methods`, or names of parameters; default full"
    )
    parser.add_argument("--optimizer", default="sgd", choices=optimizers, help="default sgd, with momentum 0.9")
    rates = "learning rate; default 0.01 for sgd, 0.001 for " + " and ".join(o for o in optimizers if o != "sgd")
    parser.add_argument("--lr", type=float, default=None, help=rates)
    parser.add_argument("--bn", default="frozen", choices=["frozen", "batch"], help="statistics of batch-norm")
    parser.add_argument("--seed", type=int, default=0)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("smidgen")
    except PackageNotFoundError:
        return "(not installed)"
