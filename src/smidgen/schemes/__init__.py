"""Which parts of a network are worth learning: what each gains alone on the user's data, and the best that fit."""

from . import cache
from .evolve import Part, best_parts
from .find import Found, checked_data, found_scheme
from .gains import Gains, Trial
from .select import Selector, scoring_within, tiny_part

__all__ = [
    "Found", "Gains", "Part", "Selector", "Trial", "best_parts", "cache", "checked_data", "found_scheme",
    "scoring_within", "tiny_part",
]  # fmt: skip
