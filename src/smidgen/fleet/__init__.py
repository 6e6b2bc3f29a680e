"""Fleets: many devices learn one model together. A client needs numpy alone; what speaks Flower is imported when it is
first asked for, and nothing else in smidgen imports Flower."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from ..errors import MissingPart
from .board import Board
from .boards import BoardClient, Gateway, gateway
from .client import Client, Reply
from .several import BlockClient
from .share import Share, share
from .terms import Held, Terms, check_norm, distance, norm_limit

if TYPE_CHECKING:
    from .apps import client_app
    from .checked import Checked, Refused
    from .local import LocalGrid
    from .server import federate, initial_arrays, train_config
    from .split_mix import SplitMix
    from .strategies import Elementwise, HeteroFL
    from .within import blocks_within, width_within

__all__ = [
    "BlockClient",
    "Board",
    "BoardClient",
    "Checked",
    "Client",
    "Elementwise",
    "Gateway",
    "Held",
    "HeteroFL",
    "LocalGrid",
    "Refused",
    "Reply",
    "Share",
    "SplitMix",
    "Terms",
    "blocks_within",
    "check_norm",
    "client_app",
    "distance",
    "federate",
    "gateway",
    "initial_arrays",
    "norm_limit",
    "share",
    "train_config",
    "width_within",
]

_HOMES = {
    "Checked": "checked", "Refused": "checked", "LocalGrid": "local", "client_app": "apps", "federate": "server",
    "initial_arrays": "server", "train_config": "server", "Elementwise": "strategies", "HeteroFL": "strategies",
    "SplitMix": "split_mix", "blocks_within": "within", "width_within": "within",
}  # fmt: skip

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'smidgen.fleet' has no attribute '{name}'")
    try:
        home = importlib.import_module(f".{_HOMES[name]}", __name__)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "flwr":
            raise
        raise MissingPart("a fleet needs Flower", why=str(error), help="pip install 'smidgen[fleet]'") from error
    value = globals()[name] = getattr(home, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
