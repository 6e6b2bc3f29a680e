"""What a method is: `adapt` may change the network, `choose` says what learns, as `Update`s.

A method knows graphs, parameters and prices in bytes; it imports neither planner nor kernels. Nothing else knows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from ..errors import BadMethod, CannotUpdate
from ..ir import Graph, Step

if TYPE_CHECKING:
    from ..devices.device import Device
    from .scored import Scored


@dataclass(frozen=True, slots=True)
class Update:
    """One parameter that learns: whole, or only `indices` along `axis`, in the layout of the user's model. Their order
    does not matter: they are kept ascending."""

    param: str
    axis: int | None = None
    indices: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.param, str) or not self.param:
            raise CannotUpdate(f"Update({self.param!r}) names no parameter", help="Update('head.weight')")
        if (self.axis is None) != (self.indices is None):
            raise CannotUpdate(
                f"Update('{self.param}') has an axis or indices, but not both",
                help=f"Update('{self.param}'), or Update('{self.param}', axis=0, indices=(0, 3))",
            )
        if self.indices is not None:
            self._check_slice(self.indices)

    def _check_slice(self, indices: Any) -> None:
        """Numbers, arrays and tensors are taken as plain ones."""
        given = indices.tolist() if hasattr(indices, "tolist") else indices
        some = isinstance(given, (Sequence, Set)) and not isinstance(given, str)
        axis, *found = [_plain(i) for i in (self.axis, *(given if some else ()))]
        if not found or min(axis, *found) < 0 or len(set(found)) != len(found):
            raise CannotUpdate(
                f"Update('{self.param}', axis={self.axis!r:.20}, indices={indices!r:.40}) is not a valid slice",
                why="an axis is a number from 0, indices are different numbers from 0, at least one of them",
                help=f"Update('{self.param}', axis=0, indices=range(8)), or (0, 3)",
            )
        object.__setattr__(self, "axis", axis)
        object.__setattr__(self, "indices", tuple(sorted(found)))

    @property
    def is_whole(self) -> bool:
        return self.axis is None

    def __str__(self) -> str:
        return self.param if self.indices is None else f"{self.param}[axis {self.axis}, {len(self.indices)} indices]"


def _plain(value: Any) -> int:
    """Of a whole number; -1 of anything else."""
    return int(value) if isinstance(value, (int, np.integer)) and not isinstance(value, bool) else -1


@dataclass(frozen=True, slots=True)
class Merge:
    """Two parameters that a method added beside a weight: the model's weight is `into` + left·right, products of
    matrices whose rows are the first axis of `left` and whose columns the last of `right`."""

    into: str
    left: str
    right: str

    @property
    def learned(self) -> frozenset[str]:
        return frozenset((self.left, self.right))


@dataclass(frozen=True, slots=True)
class Beside:
    """A layer that a method added beside one of the model, on the standardised input of that one (ops/moments.py): the
    model's weight is `into` + weight / deviation, its bias `into_bias` + bias - weight · mean / deviation."""

    into: str
    into_bias: str | None  # None: the model's layer has none
    axis: int  # of `weight`, along which its inputs are
    weight: str
    bias: str
    moments: str
    seen: str
    eps: float
    steps: tuple[Step, ...]  # from the user's layout of `into` to that of `weight`

    @property
    def learned(self) -> frozenset[str]:
        return frozenset((self.weight, self.bias))


@dataclass(frozen=True, slots=True)
class Context:
    """What a method may ask for while it chooses."""

    trainable: tuple[str, ...]  # parameters that may learn: requires_grad=True
    aliases: Mapping[str, str]  # every name of a parameter → the first name of the same tensor
    memory: Callable[[Sequence[Update]], int]  # bytes of RAM of a step in which these learn, planned without a search
    axis: Callable[[str, int], int | None] = lambda param, stored: None  # as it is stored → of the user's model
    device: Device | None = None
    data: Any = None  # the user's samples, or samples and labels
    given: Graph | None = None  # the forward graph of training before any method changed it

    def before(self, graph: Graph) -> Graph:
        """The network that `graph` was made of: layers are counted there."""
        return graph if self.given is None else self.given


def count_of(argument: str, usual: int) -> int:
    """The number that stands behind a method's name, from 1; ValueError if it is none."""
    if argument and (not argument.isdecimal() or int(argument) < 1):
        raise ValueError(argument)
    return int(argument or usual)


class Method:
    """Base of all methods. A subclass has a name and one line of `doc`, and says in `choose` what learns."""

    name: ClassVar[str] = ""
    doc: ClassVar[str] = ""
    keeps: ClassVar[str] = ""  # activations, from the forward to the backward pass
    costs: ClassVar[str] = ""  # what it adds to a step of inference
    after: ClassVar[str] = ""  # whom
    argument: ClassVar[str] = ""  # of a method that takes one: what `name:…` is followed by, as in last:k
    late: ClassVar[int] = 0  # of several methods, those with a smaller number change the network first
    streams: ClassVar[bool] = False  # it learns while inferring: the network runs as in inference, and the program gets
    # entry points for a stream of samples

    @classmethod
    def of(cls, argument: str) -> Self:
        """The method that `name:argument` means; ValueError if that means nothing."""
        if argument:
            raise ValueError(argument)
        return cls()

    @property
    def is_open(self) -> bool:
        """Is what learns still to be searched, with the user's samples?"""
        return False

    def adapt(self, graph: Graph) -> Graph:
        """The network, changed: called for every forward graph (training, inference, evaluation), which share what is
        stored under one name. Parameters that it adds may learn."""
        return graph

    def merges(self, graph: Graph) -> Sequence[Merge | Beside]:
        """What of the changed network can go back into the user's model, which has none of the added parameters."""
        return ()

    def rows(self, graph: Graph) -> Sequence[str]:
        """Added parameters with a row for each result of the last layer: for each class of a classifier."""
        return ()

    def scored(self, graph: Graph, context: Context) -> Sequence[Scored]:
        """Layers of the forward graph of evaluation for whose channels the program computes scores."""
        return ()

    def notes(self) -> Sequence[str]:
        """What the plan says of the choice."""
        return ()

    def choose(self, graph: Graph, context: Context) -> Sequence[Update]:
        """What learns of the forward graph of training. What has requires_grad=False, or what the loss does not
        use, is left out afterwards."""
        raise BadMethod(f"method '{self}' does not say what learns", help="def choose(self, graph, context): …")

    def __str__(self) -> str:
        return self.name


__all__ = ["Beside", "Context", "Merge", "Method", "Update", "count_of"]
