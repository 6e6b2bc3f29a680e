"""Values that live in PAGE, not in RAM: out of the arena and back, at once or while other nodes run.

All are the identity on bits. `page_wait` names its page again, so that nobody takes the page's place in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..ir import Array
from .registry import NOT_DIFFERENTIABLE, Call, N, Param, case, define, same_shape
from .traits import Page

_KERNELS = {"out": "page_out", "write": "page_out", "in": "page_in", "start": "page_start", "wait": "page_wait"}


def _bytes(call: Call) -> Sequence[Param]:
    return [call.outs[0].size * call.outs[0].dtype.bytes]


def _bits(shape: tuple[int, ...]) -> Any:
    return lambda rng, n: rng.integers(0, 256, shape).astype(np.uint8)


def _int8(shape: tuple[int, ...]) -> Any:
    return lambda rng, n: rng.integers(-128, 128, shape).astype(np.int8)


def _define(name: str, doc: str, page: Page, ref: Callable[..., Sequence[Array]], inputs: int = 1) -> None:
    define(
        name, doc=doc, infer=same_shape, ref=ref, vjp=NOT_DIFFERENTIABLE, params=_bytes, page=page,
        kernels=dict.fromkeys(("f32", "i32", "i16", "u8", "i8"), _KERNELS[page]), shares={0: 0} if inputs == 2 else {},
        cases=[case(*[(N, 3, 5)] * inputs), case(*[_bits((4, 7))] * inputs),
               case(*[_int8((3, 7))] * inputs)],
    )  # fmt: skip


_define("page_out", "writes a value to PAGE", "out", lambda x: (np.array(x),))
_define("page_write", "puts x where the page is, which it replaces", "write", lambda page, x: (np.array(x),), inputs=2)
_define("page_in", "brings a page into the arena", "in", lambda page: (np.array(page),))
_define(
    "page_start", "begins to bring a page into the arena; page_wait ends it", "start", lambda page: (np.array(page),)
)
_define(
    "page_wait", "waits until the page is in `started`", "wait", lambda started, page: (np.array(started),), inputs=2
)
