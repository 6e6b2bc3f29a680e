"""smidgen: train neural networks on the device, in a smidgen of memory."""

import importlib
from typing import TYPE_CHECKING, Any

from .errors import SmidgenError
from .runtime.library import load_early
from .train.job import Job
from .train.load import load

if TYPE_CHECKING:
    from . import fleet, methods
    from .api import compile, max_batch, search, sweep
    from .compiler.inputs import Bytes
    from .compiler.optimizers import SGD, Adam, AdamW
    from .compiler.options import Classes, Memory, Replay
    from .compiler.precision import Int8
    from .methods import Update, all_methods
    from .program.plan import Plan
    from .train.history import History

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Bytes",
    "Classes",
    "History",
    "Int8",
    "Job",
    "Memory",
    "Plan",
    "Replay",
    "SmidgenError",
    "Update",
    "all_methods",
    "compile",
    "fleet",
    "load",
    "max_batch",
    "methods",
    "search",
    "sweep",
]

_HOMES = {
    "SGD": "compiler.optimizers", "Adam": "compiler.optimizers", "AdamW": "compiler.optimizers",
    "Bytes": "compiler.inputs", "Classes": "compiler.options", "Int8": "compiler.precision",
    "Memory": "compiler.options", "Replay": "compiler.options",
    "History": "train.history", "Plan": "program.plan",
    "Update": "methods", "all_methods": "methods", "compile": "api", "max_batch": "api", "search": "api",
    "sweep": "api",
}  # fmt: skip


load_early()


def __getattr__(name: str) -> Any:
    """What loading and training a program does not need is imported when first asked for: compiling is most of it."""
    if name not in __all__:
        raise AttributeError(f"module 'smidgen' has no attribute '{name}'")
    home = _HOMES.get(name)  # or a package itself
    value = importlib.import_module(f".{home or name}", __name__)
    value = getattr(value, name) if home else value
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
