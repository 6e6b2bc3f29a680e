"""A value as a rearrangement of a tensor: permutes and reshapes that nobody has carried out yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from ...ir import Batch, Dim, Shape, batch_axis, size

Perm = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class View:
    """Axis i is the merge, in that order, of the axes groups[i] of `name` seen with sizes `dims`.

    `dims` has no axis of size one; it may split axes of the tensor. An axis of size one is an empty group.
    """

    name: str
    dims: Shape
    groups: tuple[Perm, ...]

    @property
    def order(self) -> Perm:
        return tuple(a for group in self.groups for a in group)

    @property
    def natural(self) -> bool:
        """The elements lie in memory in this view's own order: no copy is needed, a reshape will do."""
        return _ascending(len(self.dims), self.groups)

    @property
    def shape(self) -> Shape:
        return _shape(self.dims, self.groups)

    def permuted(self, perm: Sequence[int]) -> View:
        return View(self.name, self.dims, tuple(self.groups[p] for p in perm))

    def reshaped(self, shape: Sequence[Dim]) -> View | None:
        """The same elements under another shape, axes split where needed; None if they do not split evenly."""
        found = _regrouped(self.dims, self.groups, tuple(shape))
        return None if found is None else View(self.name, *found)

    def joined(self) -> View:
        """With axes that are neighbours in memory and in one group made one. Samples keep an axis of their own."""
        return View(self.name, *_joined(self.dims, self.groups))


# Networks repeat their layers, so that what a view leads to is mostly known already.

Arrangement = tuple[Shape, tuple[Perm, ...]]
_KNOWN = 1 << 14


@lru_cache(_KNOWN)
def _ascending(count: int, groups: tuple[Perm, ...]) -> bool:
    order = [a for group in groups for a in group]
    return order == list(range(count))


@lru_cache(_KNOWN)
def _shape(dims: Shape, groups: tuple[Perm, ...]) -> Shape:
    return tuple(size(dims[a] for a in group) for group in groups)


@lru_cache(_KNOWN)
def _regrouped(dims: Shape, groups: tuple[Perm, ...], shape: Shape) -> Arrangement | None:
    if 0 in shape:
        return None
    waiting = [a for group in groups for a in group]
    parts: list[list[Dim]] = [[] for _ in dims]
    found: list[list[tuple[int, int]]] = []
    atom = -1
    left: Dim = 1
    for want in shape:
        group = []
        while want != 1:
            if left == 1:
                if not waiting:
                    return None
                atom = waiting.pop(0)
                left = dims[atom]
            take = left if _divides(left, want) else want
            if not _divides(take, left):
                return None
            want, left = _over(want, take), _over(left, take)
            group.append((atom, len(parts[atom])))
            parts[atom].append(take)
        found.append(group)
    if left != 1 or waiting:
        return None
    first = [sum(len(p) for p in parts[:a]) for a in range(len(parts))]
    split = tuple(part for p in parts for part in p)
    return split, tuple(tuple(first[a] + k for a, k in group) for group in found)


@lru_cache(_KNOWN)
def _joined(dims: Shape, groups: tuple[Perm, ...]) -> Arrangement:
    found: list[Dim] = []
    new: dict[int, int] = {}
    samples = batch_axis(dims)
    pairs = [pair for group in groups for pair in pairwise(group)]
    follows = {b for a, b in pairs if b == a + 1 and samples not in (a, b)}
    for a, dim in enumerate(dims):
        if a in follows:
            found[-1] = size((found[-1], dim))
        else:
            new[a] = len(found)
            found.append(dim)
    return tuple(found), tuple(tuple(new[a] for a in group if a not in follows) for group in groups)


@lru_cache(_KNOWN)
def over(shape: Shape, places: tuple[Perm, ...]) -> Arrangement:
    """Merges of the axes at `places` of a tensor of this shape."""
    index = {p: k for k, p in enumerate(p for p, dim in enumerate(shape) if dim != 1)}
    groups = tuple(tuple(index[p] for p in group if p in index) for group in places)
    return tuple(dim for dim in shape if dim != 1), groups


@lru_cache(_KNOWN)
def plain(shape: Shape, dims: Shape, groups: tuple[Perm, ...]) -> Perm | None:
    """The permutation of a tensor of this shape that `groups` of `dims` are, if they are one."""
    solid = [i for i, dim in enumerate(shape) if dim != 1]
    flat = [i for i, dim in enumerate(shape) if dim == 1]
    empty = sum(not group for group in groups)
    if tuple(shape[i] for i in solid) != dims or any(len(g) > 1 for g in groups) or empty != len(flat):
        return None
    return tuple(solid[group[0]] if group else flat.pop(0) for group in groups)


def inverse(perm: Sequence[int]) -> Perm:
    return tuple(sorted(range(len(perm)), key=lambda i: perm[i]))


def _divides(a: Dim, b: Dim) -> bool:
    if isinstance(b, Batch):
        return b.times % (a.times if isinstance(a, Batch) else a) == 0
    return not isinstance(a, Batch) and b % a == 0


def _over(a: Dim, b: Dim) -> Dim:
    return a // b  # type: ignore[operator]
