"""How much exact kernels do inside, from their parameters: runtime/kernels/ in numbers. Blocks are rounded up as
kernels round them, and taps in the padding are left out, so that instructions can be told from a few rates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

DEPTHWISE: Final = "depthwise"


class Work(NamedTuple):
    """Multiply-accumulates in blocks and one by one, and how often an inner loop starts. Kernels that have several
    ways through them say which one: each has rates of its own."""

    blocked: int = 0
    single: int = 0
    starts: int = 0
    way: str = ""


def _blocks(size: int, block: int) -> int:
    """Elements that are computed where the last block overlaps the one before."""
    return -(-size // block) * block if size >= block else size


def _wide(size: int) -> tuple[int, int]:
    """Width of a block of smg_wide, and how many there are."""
    width = 16 if size >= 16 else 8 if size >= 8 else size
    return width, -(-size // width)


def _met(size: int, outs: int, taps: int, stride: int, before: int, dilation: int) -> int:
    """Pairs of an output and a tap that meet a pixel of the image."""
    found = 0
    for tap in range(taps):
        at = tap * dilation - before  # of output 0
        first = 0 if at >= 0 else -(at // stride)
        last = (size - 1 - at) // stride
        found += max(0, min(outs - 1, last) - first + 1)
    return found


def _dots(rows: int, outputs: int, length: int) -> Work:
    """`rows` of smg_dot_x4: eight lanes, then the rest of the run, four outputs at a time."""
    done = rows * outputs
    return Work(done * (length // 8 * 8), done * (length % 8), done)


def _sums(count: int, width: int, terms: int) -> Work:
    """smg_rows: four columns at a time, then one by one."""
    return Work(count * (width // 4 * 4) * terms, count * (width % 4) * terms, count * (width // 4 + width % 4))


def conv(p: Sequence[int]) -> Work:
    n, h, w, c, o, oh, ow, kh, kw, sh, sw, top, left, dh, dw, g = p[:16]
    high, wide = _met(h, oh, kh, sh, top, dh), _met(w, ow, kw, sw, left, dw)
    if c == g:  # depthwise: eight channels at a time
        return Work(n * high * wide * _blocks(o, 8), 0, n * high * ow * -(-o // 8) * -(-kw // 8), DEPTHWISE)
    fused = dw == 1 and g == 1
    rows, length = (n * high * ow, round(wide / ow * (c // g))) if fused else (n * high * wide, c // g)
    return _dots(rows, g * _blocks(o // g, 4), max(length, 1))


def conv_dx(p: Sequence[int]) -> Work:
    n, h, w, c, o, oh, ow, kh, kw, sh, sw, top, left, dh, dw, g = p[:16]
    high, wide = _met(h, oh, kh, sh, top, dh), _met(w, ow, kw, sw, left, dw)
    if c == g:
        starts = n * high * w * -(-c // 8) * (o // c) * -(-kw // 8)
        return Work(n * high * wide * _blocks(c, 8) * (o // c), 0, starts, DEPTHWISE)
    width, count = _wide(c // g)
    return _sums(n * high * wide * g * count * -(-(o // g) // 64), width, min(o // g, 64))


def conv_dw(p: Sequence[int]) -> Work:
    n, h, w, c, o, oh, ow, kh, kw, sh, sw, top, left, dh, dw, g = p[:16]
    high = _met(h, oh, kh, sh, top, dh)
    if c == g:
        wide = _met(w, ow, kw, sw, left, dw)
        return Work(n * high * wide * _blocks(o, 8), 0, n * high * -(-o // 8) * -(-kw // 3) * ow, DEPTHWISE)
    taps = kw if dw == 1 and g == 1 else 1
    rows, columns = min(o // g, 4), min(taps * c // g, 8)
    tiles = g * -(-(o // g) // 4) * (kw // taps) * -(-(taps * c // g) // 8)
    inside = max(0, (w - 1 - (kw - 1) * dw + left) // sw - -(-left // sw) + 1) if left > 0 else ow
    inside = min(ow, inside)
    met = _met(w, ow, kw, sw, left, dw) / kw
    edge = max(0, round(met) - inside)
    done = n * high * tiles * rows * columns
    four = rows == 4
    return Work(done * inside if four else 0, done * (edge if four else edge + inside), n * high * tiles)


def linear(p: Sequence[int]) -> Work:
    rows, outputs, inputs = p[:3]
    return _dots(rows, outputs, inputs)


def linear_dx(p: Sequence[int]) -> Work:
    rows, outputs, inputs = p[:3]
    width, count = _wide(inputs)
    return _sums(rows * count * -(-outputs // 64), width, min(outputs, 64))


def linear_dw(p: Sequence[int]) -> Work:
    a, n, r, o, k = p[:5]
    tiles, rows, columns = -(-o // 4) * -(-k // 8), min(o, 4), min(k, 8)
    done = a * n * r * tiles * rows * columns
    blocked, single = (done, 0) if rows == 4 else (0, done)
    if a == r == 1:
        return Work(blocked, single, tiles * columns)
    return Work(blocked, single, tiles * n, "rows")


def matmul(p: Sequence[int]) -> Work:
    b, m, k, n, ta, tb = p[:6]
    if not ta and tb:
        return _dots(b * m, n, k)._replace(way="dots")
    rows, columns = (m, n) if not tb else (n, m)
    width, count = _wide(columns)
    return _sums(b * rows * count * -(-k // 64), width, min(k, 64))._replace(way="columns" if tb else "rows")
