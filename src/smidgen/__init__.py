"""smidgen: train neural networks on the device, in a smidgen of memory."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import compile
    from .errors import SmidgenError
    from .history import History
    from .methods import all_methods
    from .optimizers import SGD, Adam, AdamW
    from .plan import Plan
    from .trainer import Job, load

__all__ = ["SGD", "Adam", "AdamW", "History", "Job", "Plan", "SmidgenError", "all_methods", "compile", "load"]

_HOMES = {
    "SGD": "optimizers", "Adam": "optimizers", "AdamW": "optimizers", "History": "history", "Job": "trainer",
    "Plan": "plan", "SmidgenError": "errors", "all_methods": "methods", "compile": "api", "load": "trainer",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Imported when first asked for, so that loading and training a program does not wait for the compiler."""
    if name not in _HOMES:
        raise AttributeError(f"module 'smidgen' has no attribute '{name}'")
    value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
