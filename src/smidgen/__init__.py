"""smidgen: train neural networks on the device, in a smidgen of memory."""

from .api import compile
from .errors import SmidgenError
from .history import History
from .methods import all_methods
from .optimizers import SGD, Adam, AdamW
from .plan import Plan
from .trainer import Job, load

__all__ = ["SGD", "Adam", "AdamW", "History", "Job", "Plan", "SmidgenError", "all_methods", "compile", "load"]
