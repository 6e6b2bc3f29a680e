"""What learns. One file a method: every file of this package is imported, which registers what it defines."""

import importlib
import pkgutil

from .contract import Beside, Context, Merge, Method, Update
from .lora import Lora
from .registry import all_methods, named, register
from .scored import Scored
from .selection import (
    Part,
    Wanted,
    adapted,
    check_given,
    checked_updates,
    choose,
    methods_of,
    open_parts,
    settled,
    text_of,
    to_score,
)
from .sparse_update import SparseUpdate
from .tinyol import TinyOL
from .tinytl import TinyTL
from .tinytrain import Choice, TinyTrain

for _found in pkgutil.iter_modules(__path__):
    importlib.import_module(f".{_found.name}", __name__)

__all__ = [
    "Beside", "Choice", "Context", "Lora", "Merge", "Method", "Part", "Scored", "SparseUpdate", "TinyOL", "TinyTL",
    "TinyTrain", "Update", "Wanted", "adapted", "all_methods", "check_given", "checked_updates", "choose", "methods_of",
    "named", "open_parts", "register", "settled", "text_of", "to_score",
]  # fmt: skip
