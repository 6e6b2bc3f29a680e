"""One measurement in a fresh process: a JSON object in, one line `RESULT {...}` out. Runs in every environment.

Imports are kept few, because they count as the cold start of whoever is measured.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

MARK = "RESULT "
WARM_S = 0.3
LONGEST_S = 60.0  # no phase goes on for longer than this, whatever a step takes
# A momentum whose gradient has become zero shrinks by a tenth a step: after some 700 it would be a denormal number, and
# arithmetic with those is slow.
MOST_WARM, MOST_TIMED = 200, 400


def main() -> None:
    """The object says what to do: see the functions below."""
    given: dict[str, Any] = json.loads(sys.argv[1])
    jobs = {"measure": measure, "output": output, "check": check, "prepare": prepare, "size": size}
    try:
        result = jobs[given["do"]](given)
    except BaseException as error:  # whatever it is, the row says so
        import traceback

        traceback.print_exc()
        result = {"error": f"{type(error).__name__}: {error}"[:500]}
    print("\n" + MARK + json.dumps(result), flush=True)
    os._exit(0)  # some libraries take seconds to shut down, or crash


def _contestant(given: dict[str, Any]) -> tuple[Any, Any]:
    import importlib

    from .protocol import Options

    module = importlib.import_module(f"benchmarks.peers.{given['module']}")
    return module, Options(given["threads"], given["variant"])


def measure(given: dict[str, Any]) -> dict[str, Any]:
    """Cold start, step time and memory of one contestant."""
    contestant, options = _contestant(given)
    version = contestant.start(options)
    from .protocol import Case

    case = Case.read(Path(given["case"]))
    watched = Watch(case)
    run = contestant.build(case, options)
    losses = [run.step()]
    cold_s = time.monotonic() - given["start"] - watched.spent_s

    warm, begin = 0, time.perf_counter()
    least = getattr(contestant, "WARM_STEPS", 2)
    while warm < least or (time.perf_counter() - begin < WARM_S and warm < MOST_WARM):
        losses.append(run.step())
        warm += 1
    each = (time.perf_counter() - begin) / warm
    watched.first_phase()
    times = timed(run.step, given["seconds"], each)
    memory = watched.through(run.step, 1 if each > 5 else 3)
    final = run.step()
    if not abs(final) < 1e30:
        raise ArithmeticError(f"the loss became {final}")
    return {"version": version, "cold_s": round(cold_s, 4), "losses": losses[:2], "step_s": quartiles(times),
            "steps": len(times), **memory, "facts": getattr(run, "facts", {})}  # fmt: skip


def output(given: dict[str, Any]) -> dict[str, Any]:
    """Time of the network's output alone."""
    contestant, options = _contestant(given)
    version = contestant.start(options)
    from .protocol import Case

    run = contestant.build(Case.read(Path(given["case"])), options)
    run.forward()
    begin = time.perf_counter()
    run.forward()
    times = timed(run.forward, given["seconds"], time.perf_counter() - begin)
    return {"version": version, "step_s": quartiles(times), "steps": len(times), "facts": getattr(run, "facts", {})}


def timed(step: Any, seconds: float, each: float, least: int = 5) -> list[float]:
    """Times of single steps: for `seconds`, but at least `least` steps, or two where each takes long."""
    least = least if each < 1 else 3 if each < 5 else 2
    times: list[float] = []
    begin = now = time.perf_counter()
    while len(times) < least or (now - begin < seconds and len(times) < MOST_TIMED):
        step()
        after = time.perf_counter()
        times.append(after - now)
        now = after
        if now - begin > LONGEST_S and len(times) >= 2:
            break
    return times


def quartiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)

    def at(share: float) -> float:
        place = share * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (place - low) * (ordered[high] - ordered[low])

    return {"min": ordered[0], "q1": at(0.25), "median": at(0.5), "q3": at(0.75)}


class Watch:
    """Memory above the import of the library. The batch itself is loaded before, so that it counts for nobody, and what
    the import left to be freed is freed.

    The peak through settled steps is the kernel's mark of all resident memory, set back before, minus the pages of
    files, which no longer change. The mark is of a counter that is off by some pages; by how many is seen afterwards,
    when all pages are counted.
    """

    def __init__(self, case: Any) -> None:
        self.data = case.data()
        begin = time.perf_counter()
        timed(lambda: None, 0.0, 0.0, MOST_WARM + MOST_TIMED)  # what measuring takes counts for nobody, either
        status(), pages()
        free_unused()
        self.start_bytes = anonymous_bytes()
        self.spent_s = time.perf_counter() - begin  # not part of anybody's cold start
        self.all_bytes = 0

    def first_phase(self) -> None:
        now = status()
        self.all_bytes = now["VmHWM"] - now["RssFile"] - now["RssShmem"] - self.start_bytes

    def through(self, step: Any, count: int) -> dict[str, int]:
        Path("/proc/self/clear_refs").write_text("5")
        for _ in range(count):
            step()
        now, counted = status(), pages()
        above = now["VmHWM"] - now["VmRSS"]  # what was given back since the peak
        return {"anon_start_bytes": self.start_bytes,
                "anon_bytes": counted["Anonymous"] + max(above, 0) - self.start_bytes,
                "anon_first_bytes": self.all_bytes, "file_bytes": now["RssFile"]}  # fmt: skip


def free_unused() -> None:
    import ctypes
    import gc

    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def anonymous_bytes() -> int:
    """Counted page by page; /proc/self/status may lag by some."""
    return pages()["Anonymous"]


def pages() -> dict[str, int]:
    lines = [line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()]
    found = {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words[-1] == "kB"}
    if "Anonymous" not in found:
        raise OSError("the kernel does not say how much memory is anonymous")
    return found


def status() -> dict[str, int]:
    wanted = ("VmHWM", "VmRSS", "RssAnon", "RssFile", "RssShmem")
    lines = [line.split() for line in Path("/proc/self/status").read_text().splitlines()]
    return {name: int(value) * 1024 for name, value, *_ in (line for line in lines if len(line) > 1)
            for name in [name.rstrip(":")] if name in wanted}  # fmt: skip


def check(given: dict[str, Any]) -> dict[str, Any]:
    """The output before any step, and the losses of some steps: what must be the same for all contestants."""
    contestant, options = _contestant(given)
    contestant.start(options)
    from .protocol import Case

    run = contestant.build(Case.read(Path(given["case"])), options)
    return {"output": run.forward().tolist(), "losses": [run.step() for _ in range(given["steps"])]}


def prepare(given: dict[str, Any]) -> dict[str, Any]:
    contestant, options = _contestant(given)
    from .protocol import Case

    begin = time.monotonic()
    contestant.prepare(Case.read(Path(given["case"])), options)
    return {"seconds": round(time.monotonic() - begin, 2)}


def size(given: dict[str, Any]) -> dict[str, Any]:
    """Bytes of a distribution and of all that it requires, without caches; and its version."""
    import re
    from importlib import metadata

    found: dict[str, int] = {}
    todo = [given["distribution"]]
    while todo:
        name = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        if name in found or (name == "setuptools" and found):  # named by some for building only
            continue
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for other systems or optional parts
        files = [Path(str(f.locate())) for f in distribution.files or [] if "__pycache__" not in str(f)]
        found[name] = sum(f.stat().st_size for f in files if f.is_file())
        for requirement in distribution.requires or []:
            if "extra ==" not in requirement:
                match = re.match(r"[A-Za-z0-9._-]+", requirement)
                todo += [match.group()] if match else []
    own = given.get("source")  # of a project that is installed in place
    if own:
        found[given["distribution"]] = source_bytes(Path(own))
    return {"version": metadata.version(given["distribution"]), "bytes": sum(found.values()), "parts": found}


def source_bytes(folder: Path) -> int:
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file() and "__pycache__" not in f.parts)
