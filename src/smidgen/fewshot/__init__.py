"""Few-shot learning: sets of images, episodes, a classifier of prototypes, methods compared on the same episodes."""

from .compare import Settings, compare
from .prototypes import Prototypical, prototype_loss, prototypes
from .sets import ImageSet, read_set

__all__ = ["ImageSet", "Prototypical", "Settings", "compare", "prototype_loss", "prototypes", "read_set"]
