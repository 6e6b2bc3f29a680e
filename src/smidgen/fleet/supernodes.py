"""`smidgen gateway`: Flower's SuperNode, as a process, with the configuration that makes it speak for boards."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ..errors import BadOption, MissingPart
from ..files import HELP as HELP_FILES

SUPERNODE: Final = "flower-supernode"


def commands(
    boards: Sequence[str], program: str, data: str, by: str, superlink: str, *, apart: bool = False, name: str = "",
    flags: Sequence[str] = (),
) -> list[list[str]]:  # fmt: skip
    """Of one SuperNode for all boards, or of one for each. `flags` are Flower's: --insecure, --root-certificates …"""
    for what, path in (("--program", program), ("--data", data)):
        if not Path(path).is_file():
            raise BadOption(f"{what} '{path}' is no file", help=HELP_FILES)
    groups = [[board] for board in boards] if apart else [list(boards)]
    found = []
    for i, group in enumerate(groups):
        config = {
            "program": str(Path(program).resolve()), "data": str(Path(data).resolve()), "by": by,
            "boards": ",".join(group), "name": f"{name} {i}".strip() if name and apart else name,
        }  # fmt: skip
        said = [f"{key}={_quoted(value)}" for key, value in config.items()]
        said += [f"partition-id={i}", f"num-partitions={len(groups)}"]
        port = ["--port", str(FIRST_PORT + i)] if apart else []
        found.append([_supernode(), "--superlink", superlink, *flags, *port, "--node-config", " ".join(said)])
    return found


FIRST_PORT: Final = 9094
"""Of what a SuperNode tells its own processes; each on a machine has another one."""


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
