"""Starts contestants: each in a fresh process of its own environment, on as many processors as it has threads."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from . import machine
from .table import ENVIRONMENTS, INSTALLS, ROOT, Peer, python_of
from .worker import MARK

RUN = "from benchmarks.peers.worker import main; main()"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
PREPARE_S = 600
MEASURE_S = 300
TOO_LONG = "took longer than"

Result = dict[str, Any]


def measured(peer: Peer, case: Path, threads: int, seconds: float, what: str = "measure") -> Result:
    """One measurement, or {"error": ...}. `others` is how many processors other programs kept busy meanwhile."""
    begin, busy, own = time.monotonic(), machine.busy_s(), _children_s()
    result = _worker(peer, peer.environment, threads, MEASURE_S, do=what, case=str(case), seconds=seconds)
    spent = time.monotonic() - begin
    others = (machine.busy_s() - busy - (_children_s() - own)) / spent
    return {**result, "others": round(max(0.0, others), 2), "wall_s": round(spent, 1)}


def checked(peer: Peer, case: Path, steps: int) -> Result:
    return _worker(peer, peer.environment, 1, MEASURE_S, do="check", case=str(case), steps=steps)


def prepared(peer: Peer, case: Path, threads: int) -> Result:
    """Conversion and compilation, once for a case; {"error": ...} if it failed."""
    if not peer.prepares:
        return {}
    sources = [Path(__file__).with_name(f"{name}.py") for name in (peer.module, "protocol", "tf_network")]
    facts = json.loads((case / "case.json").read_text())
    same = [facts[k] for k in ("lr", "momentum", "learns")] + [facts["stamp"]["nets"], INSTALLS.get(peer.environment)]
    key = hashlib.sha256(repr(same).encode() + b"".join(s.read_bytes() for s in sources)).hexdigest()[:16]
    record = case / f"prepared_{peer.name}_{threads if peer.prepares_for_threads else 'any'}.json"
    if record.exists() and json.loads(record.read_text())["key"] == key:
        found: Result = json.loads(record.read_text())
        return found
    environment = peer.prepares_in or peer.environment
    result = _worker(peer, environment, threads, PREPARE_S, pinned=False, do="prepare", case=str(case))
    if "error" not in result:
        record.write_text(json.dumps({**result, "key": key}))
    return result


def installed(peer: Peer) -> Result:
    """Version and bytes of what is installed, or {"error": why it is absent}."""
    for environment in {peer.environment, peer.prepares_in} - {""}:
        if not (ENVIRONMENTS / environment / "installed").exists():
            failed = ENVIRONMENTS / f"{environment}.failed"
            why = failed.read_text().strip() if failed.exists() else "python -m benchmarks.step --setup was not run"
            return {"error": why}
    source = str(ROOT / "src" / "smidgen") if peer.distribution == "smidgen" else ""
    return _worker(peer, peer.environment, 1, 60, do="size", distribution=peer.distribution, source=source)


def _worker(peer: Peer, environment: str, threads: int, timeout_s: float, pinned: bool = True, **given: Any) -> Result:
    variables = {**os.environ, "PYTHONWARNINGS": "ignore", **dict.fromkeys(THREAD_VARIABLES, str(threads))}
    chosen = machine.cpus(threads if pinned else os.cpu_count() or 1)
    given |= {"module": peer.module, "variant": peer.variant, "threads": threads, "start": time.monotonic()}
    command = [python_of(environment, sys.executable), "-c", RUN, json.dumps(given)]
    child = subprocess.Popen(
        command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, preexec_fn=lambda: os.sched_setaffinity(0, chosen),
    )  # fmt: skip
    try:
        out, complaints = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _stop(child)
        return {"error": f"{given['do']} {TOO_LONG} {timeout_s:.0f} s"}
    except BaseException:
        _stop(child)
        raise
    for line in reversed(out.splitlines()):
        if line.startswith(MARK):
            found: Result = json.loads(line.removeprefix(MARK))
            return found
    last = complaints.strip().splitlines()[-1:] or ["it said nothing"]
    return {"error": f"{given['do']} ended with status {child.returncode}: {last[0]}"[:500]}


def _stop(child: subprocess.Popen[str]) -> None:
    """It, and whatever it started: all are in a session of their own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.communicate()


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


__all__ = ["checked", "installed", "measured", "prepared"]
