"""Is the need that an error states the smallest budget? → docs/results/needs.json.

python -m benchmarks.needs                # 200 random cases; goes on where it was interrupted
python -m benchmarks.needs --count 12     # the first of them, nothing is written

A case is a random network (fan-out, broadcasting, odd sizes; or convolutions over windows of motion), a method, an
optimizer, a batch, and the host or a device, with pages or without, all drawn by its number. It holds if
- whatever budget is refused, the error states the same need, and `sweep` the same smallest budget;
- a program is made within the need, as a number of bytes and as the text of the error; `sweep` has a point that fits;
- a budget that is one unit of alignment smaller is refused, and `sweep` has no point that fits.
Status 1 if a case does not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from unittest import mock

import torch

import smidgen
from smidgen import api, files
from smidgen.compiler.fit import misfit, search
from smidgen.compiler.fit.misfit import OverLimit
from smidgen.compiler.fit.search import best_for
from smidgen.compiler.fit.sweep import sweep
from smidgen.compiler.options import checked_budget
from smidgen.compiler.planner.goal import Search
from smidgen.devices.device import Device, device_names, load_device
from smidgen.devices.room import Limit, need_of
from smidgen.errors import SmidgenError
from smidgen.ir import ALIGN
from smidgen.terminal import bytes_text
from tests.support import generated, motion

from .parity import machine

OUT: Final = Path(__file__).parents[1] / "docs" / "results" / "needs.json"
FIRST: Final = 5000  # other networks than those of other benchmarks
COUNT: Final = 200
METHODS: Final = ("full", "last_layer", "last:2", "bias", "bn+last")
Json = dict[str, Any]


def arguments(number: int) -> Json:
    """Of `compile`, without a limit; the device is `devices[…]` of `devices_for`."""
    chance = random.Random(number)
    if chance.random() < 0.4:
        batch = chance.choice((1, 2, 4, 8))
        given: Json = {
            "model": motion.motion_net(chance.randrange(100)), "example": motion.motion_windows(batch),
            "method": chance.choice(METHODS),
        }  # fmt: skip
    else:
        net, method, _, loss, batch = generated.sample(number)
        inputs, _ = generated.data(net, loss, batch, number)
        example = tuple(torch.from_numpy(x) for x in inputs)
        given = {"model": net.eval(), "example": example, "method": method, "loss": loss}
    optimizer = generated.OPTIMIZERS[chance.choice(sorted(generated.OPTIMIZERS))]
    return {**given, "optimizer": optimizer, "kernels": "exact"}


def devices_for(number: int) -> list[Device | None]:
    """In the order in which they are tried until one is large enough; None is the host."""
    chance = random.Random(number + 10**6)
    bare = [device for device in map(load_device, device_names()) if device.is_bare]
    chance.shuffle(bare)
    return [None] if chance.random() < 0.5 else [*bare, None]


def pages(number: int) -> bool:
    return random.Random(number + 2 * 10**6).random() < 0.25


@contextlib.contextmanager
def without_choices() -> Iterator[None]:
    """Errors say what is needed, and do not look for what could be done instead: that takes most of their time."""
    with mock.patch.object(misfit, "TRYING_S", 0.0), mock.patch.object(search, "ANSWER_S", 0.0):
        yield


def row_of(number: int, folder: Path) -> Json:
    """What a case is, what it needs, and what does not hold."""
    page_to = folder / f"{number}.page" if pages(number) else None
    row: Json = {"number": number, "pages": page_to is not None, "faults": []}
    try:
        for device in devices_for(number):
            given = {**arguments(number), "device": device, "memory": smidgen.Memory(1024, page_to, effort=0)}
            with api.prepared(**given) as task:
                need = needs_bytes(task, 1024)
                if device is None or need is None or need <= device.ram_bytes:
                    row |= {"method": str(given["method"]), "device": None if device is None else device.name}
                    return {
                        **row,
                        "needs_bytes": need,
                        "faults": faults(task, need, given) if need else ["1 KB fits"],
                    }
    except SmidgenError as unable:
        return {**row, "refused": unable.code}
    raise AssertionError(number)


def needs_bytes(task: api.Task, budget: int) -> int | None:
    """What is needed for a budget that is refused; None: it fits."""
    try:
        fitted(task, budget)
    except OverLimit as error:
        return error.needs_bytes
    return None


def fitted(task: api.Task, budget: int) -> int:
    """The RAM of the program that `compile` makes for this budget."""
    device = None if task.limit is None else task.limit.device
    limit = Limit.of_budget(budget, device)
    program = best_for(limit, task.lowering, task.options, task.goal, Search(0.0)).program()
    return need_of(device, program).ram_bytes


def faults(task: api.Task, need: int, given: Json) -> list[str]:
    """What does not hold; the case that is refused once more from the beginning, by a compilation of its own."""
    found: list[str] = []
    align = ALIGN if given["device"] is None else given["device"].align
    typed = checked_budget(bytes_text(need, math.ceil).replace(",", "")) or 0
    for budget in (need, typed):
        try:
            taken = fitted(task, budget)
            found += [f"{taken} bytes in a budget of {budget}"] if taken > budget else []
        except OverLimit as error:
            found.append(f"{budget} is refused: {error.what}")
    lower = needs_bytes(task, need * 18 // 19)
    found += [] if lower == need else [f"less needs {lower}"]
    try:
        smidgen.compile(**{**given, "memory": replace(given["memory"], budget=need - align)})
        found.append(f"{need - align} fits, though {need} are needed")
    except OverLimit as error:
        found += [] if error.needs_bytes == need else [f"{need - align}: {error.what}"]
    device = None if given["device"] is None else Limit.of_device(given["device"])
    goal = replace(task.goal, fill=True)
    swept = sweep(
        task.lowering, task.options, device, goal, Search(0.0), budgets=[need - align], shares=[1.0],
    )  # fmt: skip
    found += [] if swept.smallest_bytes == need else [f"the sweep says {swept.smallest_bytes}"]
    found += [] if swept.at("joint", need).fits else ["the sweep does not fit in the need"]
    found += ["the sweep fits in less"] if any(p.fits for p in swept.points if p.budget_bytes < need) else []
    return found


def summary(rows: list[Json]) -> Json:
    judged = [row for row in rows if "refused" not in row]
    return {
        "cases": len(judged), "hold": sum(not row["faults"] for row in judged),
        "on_devices": sum(row.get("device") is not None for row in judged),
        "with_pages": sum(row["pages"] for row in judged),
    }  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, help=f"of cases; default {COUNT}")
    count = parser.parse_args(argv).count
    rows: list[Json] = json.loads(OUT.read_text())["rows"] if count is None and OUT.exists() else []
    number = max((row["number"] for row in rows), default=FIRST - 1)
    with tempfile.TemporaryDirectory() as folder, without_choices():
        while summary(rows)["cases"] < (count or COUNT):
            number += 1
            rows.append(row_of(number, Path(folder)))
            print(rows[-1], flush=True)
            if count is None:
                written(rows)
    print(summary(rows))
    return 0 if all(not row["faults"] for row in rows) else 1


def written(rows: list[Json]) -> None:
    date = time.strftime("%Y-%m-%d")
    report = {"command": "python -m benchmarks.needs", "date": date, "machine": machine(), "summary": summary(rows)}
    files.write(OUT, (json.dumps({**report, "rows": rows}, indent=1) + "\n").encode())


if __name__ == "__main__":
    sys.exit(main())
