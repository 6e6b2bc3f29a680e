"""One function for each command: calls what does the work and prints the result; returns the exit status."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING

from .. import terminal
from ..errors import BadOption
from ..program.arguments import checked_seed
from . import board, sweep, target
from .job import compiled, device_of, need_torch, source_files
from .output import check_outputs, metrics_text, print_json, print_table, wrote

if TYPE_CHECKING:
    from ..train.job import Job


def plan(args: argparse.Namespace) -> int:
    from ..report import plan_html, plan_text
    from ..train import step_time

    if args.sweep or args.max_batch or args.methods:
        return sweep.plan(args)
    check_outputs(args.html, inputs=source_files(args))
    job = compiled(args)
    seconds = {
        "seconds_per_step": step_time.measure_step(job),
        "seconds_per_inference": step_time.measure_inference(job),
    }
    if args.html:
        plan_html.write(job.plan, args.html, title=args.model, **seconds)
    if args.json:
        print_json({"model": args.model, **plan_text.plan_json(job.plan, **seconds)})
    else:
        print(plan_text.plan_text(job.plan, title=args.model, **seconds, all_layers=args.all_layers,
                               colour=terminal.has_colour(sys.stdout), width=terminal.width()))  # fmt: skip
        wrote(args.html)
    return 0


def build(args: argparse.Namespace) -> int:
    from ..report.inspect import checked_program

    board.check_firmware(args)
    target.check(args)
    check_outputs(args.output, inputs=source_files(args))
    if args.model.endswith(".smg"):
        program, plan = checked_program(args.model)
    else:
        job = compiled(args)
        program, plan = job.program, job.plan
    made = board.firmware(args, program, device_of(args)) if args.firmware else {}
    if args.machine:
        made = {**made, **target.build(args, program)}
    elif args.output:
        program.save(args.output)
    if args.json:
        size = os.path.getsize(args.output) if args.output else None
        print_json({"model": args.model, "program": args.output, "file_bytes": size,
                     "ram_bytes": plan.ram_bytes, "flash_bytes": plan.flash_bytes, "learns": list(plan.learns),
                     "batch": plan.batch, "method": plan.method, **made})  # fmt: skip
    elif args.output:
        print(f"{args.output}: {terminal.bytes_text(plan.ram_bytes)} of RAM, {terminal.bytes_text(plan.flash_bytes)} "
              f"of flash, batch {plan.batch}, {len(plan.learns)} tensors learn ({plan.method})")  # fmt: skip
    return 0


def _loaded(args: argparse.Namespace) -> Job:
    from ..train.kernel_choice import OverPlan
    from ..train.load import load

    try:
        return load(args.program, kernels=args.kernels, threads=args.threads, page_to=args.page_to)
    except OverPlan as error:
        raise error.in_command_line() from error


def train(args: argparse.Namespace) -> int:
    from ..train.batches import located
    from ..train.npz import read_npz

    check_outputs(args.save, args.export, args.checkpoint, inputs=[args.data, args.eval, args.page_to])
    check_outputs(args.export, args.checkpoint, inputs=[args.program])
    check_outputs(args.save, args.export, inputs=[args.resume])
    job = _loaded(args)
    data = read_npz(args.data)
    held_out = None if args.eval is None else read_npz(args.eval)
    if args.resume is not None:
        job.resume(args.resume)
    if args.lr is not None:
        job.lr = args.lr
    for name in args.add_class or ():
        job.add_class(name)
    progress = None if args.json or terminal.is_terminal(sys.stderr) else True
    evaluated, before = None, None
    if held_out is not None:
        evaluated = held_out.x, held_out.y
        before = located(lambda: job.evaluate(*evaluated), args.eval)
    history = job.fit(
        data.x, data.y, epochs=args.epochs, eval=evaluated, patience=args.patience, schedule=args.schedule,
        seed=args.seed, batch=args.batch, checkpoint=args.checkpoint, checkpoint_every=args.checkpoint_every,
        progress=progress, follow_memory=args.follow_memory,
    )  # fmt: skip
    if args.save:
        job.save(args.save)
    if args.export:
        job.export_weights(args.export)
    if args.json:
        print_json({"program": args.program, "before": before, **history.to_json(), "saved": args.save,
                     "exported": args.export, "step": job.step, "ram_bytes": job.plan.ram_bytes})  # fmt: skip
    else:
        if before:
            print("before   " + metrics_text(before))
        print(history)
        wrote(args.save, args.export)
    return 128 + signal.SIGINT if history.stopped == "interrupted" else 0


def infer(args: argparse.Namespace) -> int:
    import numpy as np

    from ..train.npz import read_npz, write_npz

    check_outputs(args.output, inputs=[args.program, args.data])
    job = _loaded(args)
    data = read_npz(args.data, needs_y=False)
    outputs = job.predict(data.x)
    found = outputs if isinstance(outputs, tuple) else (outputs,)
    metrics = job.evaluate(data.x, data.y) if data.y is not None else None
    if args.output:
        names = ["y"] if len(found) == 1 else [f"y{k}" for k in range(len(found))]
        write_npz(args.output, dict(zip(names, found, strict=True)))
    if args.json:
        print_json({"program": args.program, "samples": len(data), "metrics": metrics, "written": args.output,
                     "outputs": [{"shape": list(o.shape), "dtype": str(o.dtype), "min": float(np.min(o)),
                                  "max": float(np.max(o))} for o in found]})  # fmt: skip
        return 0
    print(f"{len(data)} samples" + (f": {metrics_text(metrics)}" if metrics else ""))
    for o in found:
        print(f"output {list(o.shape)}, from {np.min(o):.4g} to {np.max(o):.4g}")
    first = found[0]
    if first.ndim == 2 and first.shape[1] > 1:
        print("largest of each row: " + " ".join(map(str, first.argmax(1)[:20])) + (" …" if len(first) > 20 else ""))
    wrote(args.output)
    return 0


def inspect(args: argparse.Namespace) -> int:
    from ..report import inspect as contents
    from ..report import plan_html
    from ..report.inspect import checked_program

    check_outputs(args.html, inputs=[args.program])
    program, plan = checked_program(args.program)
    if args.html:
        plan_html.write(plan, args.html, title=args.program)
    if args.json:
        print_json(contents.inspect_json(program, args.program))
    else:
        print(contents.inspect_text(program, args.program, colour=terminal.has_colour(sys.stdout),
                                  width=terminal.width()))  # fmt: skip
        wrote(args.html)
    return 0


def verify(args: argparse.Namespace) -> int:
    checked_seed(args.seed)
    need_torch("verify")
    import numpy as np
    import torch

    from ..report.proof import prove
    from .model_source import example_of, load_model

    rng = np.random.default_rng(args.seed)
    torch.manual_seed(args.seed)
    with contextlib.redirect_stdout(sys.stderr):  # for what the user's code prints
        model = load_model(args.model)
        if args.bn == "batch" and args.model.endswith(".pt2"):
            why = "torch.export has captured the model with its running statistics, so torch cannot train it that way"
            raise BadOption("verify --bn batch needs the model itself", why=why, help="file.py:build, or --bn frozen")
        proof = prove(
            model, args.model, lambda: [example_of(text, rng) for text in args.input], rng, loss=args.loss,
            method=args.method, optimizer=args.optimizer, lr=args.lr, bn=args.bn,
            progress=None if args.json else lambda text: print(text, file=sys.stderr),
        )  # fmt: skip
    print_json(proof.to_json()) if args.json else print(proof.to_text())
    return 0 if proof.passed else 1


def devices(args: argparse.Namespace) -> int:
    from ..devices.device import device_names, load_device
    from ..report.device_text import device_text, devices_text

    if args.name:
        device = load_device(args.name)
        print_json(device.to_json()) if args.json else print(device_text(device, terminal.width()))
        return 0
    all_of_them = [load_device(name) for name in device_names()]
    print_json({"devices": [d.to_json() for d in all_of_them]}) if args.json else print(devices_text(all_of_them))
    return 0


def methods(args: argparse.Namespace) -> int:
    from ..methods import all_methods

    rows = [
        (m.name + (f":{m.argument}" if m.argument else ""), m.doc, m.keeps, m.costs, m.after)
        for m in all_methods().values()
    ]
    rows.append(("names, globs", "parameters by name: head.*, or a list of names and methods from Python", "", "", ""))
    print_table(args.json, "methods", ("name", "doc", "keeps", "costs", "after"), rows)
    return 0


def ops(args: argparse.Namespace) -> int:
    from ..ops import all_ops

    print_table(args.json, "ops", ("name", "doc"), [(op.name, op.doc) for op in all_ops().values()])
    return 0


def explain(args: argparse.Namespace) -> int:
    from ..errors import all_errors
    from ..report.explain import page

    if args.code is None:
        rows = [(code, (kind.__doc__ or "").partition("\n")[0]) for code, kind in sorted(all_errors().items())]
        print_table(args.json, "errors", ("code", "doc"), rows)
    elif args.json:
        print_json({"code": args.code.upper(), "page": page(args.code)})
    else:
        print(page(args.code).rstrip())
    return 0


def demo(args: argparse.Namespace) -> int:
    from ..demo.demo import run

    figures = run(json=args.json, colour=terminal.has_colour(sys.stdout), width=terminal.width())
    if args.json:
        print_json(figures)
    return 0
