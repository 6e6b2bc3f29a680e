"""The last passes of every entry, and the `train` entry: from gradients to what is placed."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ...ir import Graph, dead_removed, unnamed_removed
from ..optimizers import Optimizer
from .drop_unread import lean
from .feed_late import feed_late
from .few_axes import few_axes
from .sample_loop import sample_loop
from .save_bits import save_bits
from .update import train_entry


def train_graph(
    whole: Graph, grads: Mapping[str, str], optimizer: Optimizer, seed: int = 0, rounding: str = "stochastic",
    *, bits: bool = True, fuse: bool = True, loop: bool = True,
) -> Graph:  # fmt: skip
    """The `train` entry; the switches exist so that each technique's saving can be measured."""
    graph = save_bits(whole) if bits else whole
    return lowered(train_entry(graph, grads, optimizer, seed, fuse, rounding), loop)


def lowered(graph: Graph, loop: bool = True, learns: Collection[str] = ()) -> Graph:
    """Without dead code and unread results, what does not learn in a loop over samples, few axes a walk, inputs fetched
    late."""
    graph = lean(dead_removed(graph))
    return unnamed_removed(feed_late(few_axes(sample_loop(graph, learns) if loop else graph)))
