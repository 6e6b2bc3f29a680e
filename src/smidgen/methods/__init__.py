"""What learns. One file a method; importing it registers it."""

from . import bias, bn, full, last  # noqa: F401
from .registry import Method, Update, all_methods, choose

__all__ = ["Method", "Update", "all_methods", "choose"]
