"""`flwr run` with a home, ports and a SuperLink of its own, which Flower leaves running: it is ended here."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

SECONDS = 420


def run(words: Sequence[str], cwd: Path | None = None) -> tuple[int, str]:
    """Exit status and what `flwr run …` says, without what the machinery says about itself."""
    with home() as env:
        command = [str(Path(sys.executable).with_name("flwr")), *words]
        done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=SECONDS)
    return done.returncode, done.stdout + (done.stderr if done.returncode else "")


@contextlib.contextmanager
def home() -> Iterator[dict[str, str]]:
    """The environment of Flower's commands; at the end, none of its processes is left."""
    with tempfile.TemporaryDirectory(prefix="flwr-", ignore_cleanup_errors=True) as folder:
        ports = [_free() for _ in range(2)]
        env = {
            **os.environ, "FLWR_HOME": folder, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(ports[0]),
            "FLWR_LOCAL_CONTROL_API_PORT": str(ports[1]), "RAY_USAGE_STATS_ENABLED": "0", "NO_COLOR": "1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "200",
        }  # fmt: skip
        try:
            yield env
        finally:
            _end(f"FLWR_HOME={folder}")


def _free() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end(sign: str) -> None:
    """Processes with this in their environment: nobody else has it."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + 10
        while (own := list(_with(sign))) and time.monotonic() < until:
            for pid in own:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, kind)
            time.sleep(0.2)


def _with(sign: str) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if sign.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)
