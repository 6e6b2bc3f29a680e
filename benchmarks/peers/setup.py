"""Environments of contestants that do not live beside PyTorch. One that cannot be installed is left out, with the
reason."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable

from .table import ENVIRONMENTS, INSTALLS

LONGEST_S = 900


def set_up(names: Iterable[str] = tuple(INSTALLS)) -> dict[str, str]:
    """What went wrong, by environment; nothing for those that are ready."""
    ENVIRONMENTS.mkdir(exist_ok=True)
    problems = {name: _install(name) for name in names}
    return {name: why for name, why in problems.items() if why}


def _install(name: str) -> str:
    folder, failed = ENVIRONMENTS / name, ENVIRONMENTS / f"{name}.failed"
    ready, wanted = folder / "installed", "\n".join(INSTALLS[name])
    if ready.exists() and ready.read_text() == wanted:
        return ""
    print(f"{name}: installing {' '.join(INSTALLS[name])} ...", flush=True)
    try:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, capture_output=True, text=True)
        pip = [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", *INSTALLS[name]]
        subprocess.run(pip, check=True, capture_output=True, text=True, timeout=LONGEST_S)
    except subprocess.TimeoutExpired:
        why = f"installation took longer than {LONGEST_S} s"
    except subprocess.CalledProcessError as error:
        said = [line for line in error.stderr.splitlines() if line.startswith("ERROR")] or error.stderr.splitlines()
        why = f"not installable here: {said[-1] if said else 'pip failed'}"
    else:
        ready.write_text(wanted)
        failed.unlink(missing_ok=True)
        return ""
    failed.write_text(why)
    return why


__all__ = ["set_up"]
