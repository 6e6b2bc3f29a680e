"""`smidgen gateway`: Flower's SuperNodes, as processes, with the configuration that makes them speak for boards."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ..errors import BadOption, MissingPart
from ..files import HELP as HELP_FILES

SUPERNODE: Final = "flower-supernode"


def commands(
    boards: Sequence[str], program: str, data: str, by: str, superlink: str, *, together: bool = False, name: str = "",
    flags: Sequence[str] = (),
) -> list[list[str]]:  # fmt: skip
    """Of a SuperNode for each board, or of one for all, which returns their mean.
    `flags` are Flower's: --insecure, --root-certificates …"""
    for what, path in (("--program", program), ("--data", data)):
        if not Path(path).is_file():
            raise BadOption(f"{what} '{path}' is no file", help=HELP_FILES)
    groups = [list(boards)] if together else [[board] for board in boards]
    found = []
    for i, group in enumerate(groups):
        config = {
            "program": str(Path(program).resolve()), "data": str(Path(data).resolve()), "by": by,
            "boards": ",".join(group), "name": f"{name} {i}" if name and len(groups) > 1 else name,
        }  # fmt: skip
        said = [f"{key}={_quoted(value)}" for key, value in config.items()]
        said += [f"partition-id={i}", f"num-partitions={len(groups)}"]
        found.append(
            [_supernode(), "--superlink", superlink, *flags, "--port", _free(), "--node-config", " ".join(said)]
        )
    return found


def _free() -> str:
    """A port for what a SuperNode tells its own processes: each on a machine has another one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _quoted(text: str) -> str:
    if '"' in text or "\n" in text:
        raise BadOption(
            f"Flower takes no quotation marks in a node's configuration: {text}", help="another path or name"
        )
    return f'"{text}"'


def _supernode() -> str:
    beside = Path(sys.executable).with_name(SUPERNODE)
    found = str(beside) if beside.exists() else shutil.which(SUPERNODE)
    if found is None:
        raise MissingPart(
            "a gateway needs Flower", why=f"{SUPERNODE} is not installed", help="pip install 'smidgen[fleet]'"
        )
    return found


def run(all_of_them: Sequence[Sequence[str]]) -> int:
    """Until they end; the first that fails, or an interruption, ends the others."""
    env = {**os.environ, "FLWR_TELEMETRY_ENABLED": os.environ.get("FLWR_TELEMETRY_ENABLED", "0")}
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # through `finally`
    running = [subprocess.Popen(command, env=env) for command in all_of_them]
    try:
        for one in running:
            status = one.wait()
            if status:
                return 1
    except KeyboardInterrupt:
        return 130
    finally:
        for one in running:
            if one.poll() is None:
                one.terminate()
        for one in running:
            one.wait()
    return 0


__all__ = ["commands", "run"]
