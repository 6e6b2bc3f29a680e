"""Where every tensor of one entry point lives. Written by `place`, read by `program` and `verify`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Region = Literal["const", "state", "arena", "page"]


@dataclass(frozen=True, slots=True)
class Slot:
    """`bytes` at `offset`; inside a loop the address advances by `stride` bytes with each sample."""

    region: Region
    offset: int
    bytes: int
    stride: int = 0


@dataclass(frozen=True, slots=True)
class Layout:
    """Slots of all tensors but the caller's buffers (views included), and of each node's scratch by position."""

    slots: Mapping[str, Slot]
    scratch: Mapping[int, Slot]
    const_bytes: int
    state_bytes: int
    arena_bytes: int
    lower_bound_bytes: int  # of the arena: the largest sum of bytes alive at one node
    align: int
    page_bytes: int = 0  # of PAGE
    page_state_bytes: int = 0  # the first of them: state, at the same place in all entry points
