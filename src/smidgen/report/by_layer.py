"""A plan by layer of the user's model, in the order of execution, and the same in fewer rows for long networks.

Sums over rows do not depend on how layers are grouped.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .. import ops
from ..program.plan import Plan
from ..program.timeline import Stored

MOST_ROWS = 40


@dataclass(frozen=True, slots=True)
class Layer:
    """What one module, or several in a row, cost in one step of training with a full batch.

    `saved_bytes` is what it makes in the forward pass and the backward pass reads; `weights_bytes` parameters and
    constants; `state_bytes` what it has in RAM between steps: what learns, its optimizer state, running statistics.
    """

    name: str
    ops: tuple[str, ...]
    forward_macs: int
    backward_macs: int
    saved_bytes: int
    weights_bytes: int
    state_bytes: int
    learns: tuple[str, ...]
    members: tuple[str, ...]  # the layers in this row

    @property
    def counts(self) -> bool:
        """Is there anything to say of it?"""
        return bool(self.saved_bytes or self.forward_macs or self.backward_macs or self.weights_bytes)


def layers_of(plan: Plan, entry: str = "train") -> list[Layer]:
    """One row for each layer that does something in `entry`, or keeps state."""
    timeline = plan.facts.entries.get(entry)
    if timeline is None:
        return []
    moments, stored = timeline.moments, plan.facts.stored
    names = list(dict.fromkeys([m.layer for m in moments] + [s.layer for s in stored if s.role != "const"]))
    found = {name: _Sums() for name in names}
    for m in moments:
        sums = found[m.layer]
        if m.stage in ("forward", "io"):
            sums.forward_macs += m.macs
            sums.ops[m.op] = None
        else:
            sums.backward_macs += m.macs
    for span in timeline.spans:
        if span.kind in ("saved", "mask"):
            found[timeline.maker(span).layer].saved_bytes += span.bytes
    learns = set(plan.learns)
    for tensor in stored:
        if tensor.layer in found:
            found[tensor.layer].keep(tensor, learns)
    return [
        Layer(n, tuple(s.ops), s.forward_macs, s.backward_macs, s.saved_bytes, s.weights_bytes, s.state_bytes,
              tuple(s.learns), (n,))
        for n, s in found.items()
    ]  # fmt: skip


class _Sums:
    def __init__(self) -> None:
        self.ops: dict[str, None] = {}
        self.learns: list[str] = []
        self.forward_macs = self.backward_macs = self.saved_bytes = self.weights_bytes = self.state_bytes = 0

    def keep(self, tensor: Stored, learns: set[str]) -> None:
        self.weights_bytes += tensor.bytes if tensor.role in ("param", "const") else 0
        self.state_bytes += tensor.bytes if tensor.role != "const" else 0
        if tensor.name in learns:
            self.learns.append(tensor.name)


def grouped(layers: Sequence[Layer], most: int = MOST_ROWS) -> list[Layer]:
    """The finest rows of which there are at most `most`: all layers; those without arithmetic beside the one before
    them; the same at the level of larger and larger modules; and in the end even parts."""
    depth = max((layer.name.count(".") + 1 for layer in layers), default=1)
    for level in range(depth, 0, -1):
        rows = list(layers) if level == depth else _joined(layers, lambda row, lv=level: _module(row.name, lv))  # type: ignore[misc]
        if len(rows) <= most:
            return rows
        rows = _with_followers(rows)
        if len(rows) <= most:
            return rows
    sizes = itertools.count(-(-len(rows) // most))
    return next(parts for parts in (_even_parts(rows, size, most) for size in sizes) if len(parts) <= most)


def _even_parts(rows: Sequence[Layer], size: int, most: int) -> list[Layer]:
    """`size` rows in one; what is no module of the user's stays alone, if there is room."""
    apart = sum(_is_outside(row) for row in rows) < most - 1
    parts: list[list[Layer]] = []
    for row in rows:
        alone = apart and (_is_outside(row) or not parts or _is_outside(parts[-1][0]))
        if not parts or alone or len(parts[-1]) == size:
            parts.append([])
        parts[-1].append(row)
    return [_merged(part, _range(part)) for part in parts]


def _is_outside(row: Layer) -> bool:
    return row.name.startswith("(")


def _module(name: str, level: int) -> str:
    return ".".join(name.split(".")[:level])


def _joined(layers: Iterable[Layer], key: Callable[[Layer], str]) -> list[Layer]:
    groups: dict[str, list[Layer]] = {}
    for layer in layers:
        groups.setdefault(key(layer), []).append(layer)
    return [_merged(rows, name) for name, rows in groups.items()]


def _with_followers(layers: Sequence[Layer]) -> list[Layer]:
    """Norms, activations and the like go with the layer whose result they take."""
    runs: list[list[Layer]] = []
    for layer in layers:
        if runs and _follows(layer, runs[-1][0]):
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return [_merged(run, _range(run)) for run in runs]


def _follows(layer: Layer, head: Layer) -> bool:
    """In the same module, without a weight matrix of its own, and much cheaper."""
    parent = head.name.rpartition(".")[0]
    beside = parent in (layer.name.rpartition(".")[0], layer.name)
    outside = _is_outside(layer) or _is_outside(head)
    matrix = any(f"{op}_dw" in ops.all_ops() for op in layer.ops)
    return beside and not outside and not matrix and 4 * layer.forward_macs <= head.forward_macs


def _range(run: Sequence[Layer]) -> str:
    """`features.0–2`: from the first to the last, without repeating the module that both are in."""
    first = run[0].name.partition("–")[0]
    parent = first.rpartition(".")[0]
    beside = [row.name.rpartition("–")[2].removeprefix(f"{parent}.") for row in run[1:] if row.name != parent]
    return f"{first}–{beside[-1]}" if beside else run[0].name


def _merged(rows: Sequence[Layer], name: str) -> Layer:
    if len(rows) == 1 and rows[0].name == name:
        return rows[0]
    return Layer(
        name, tuple(dict.fromkeys(op for r in rows for op in r.ops)),
        sum(r.forward_macs for r in rows), sum(r.backward_macs for r in rows), sum(r.saved_bytes for r in rows),
        sum(r.weights_bytes for r in rows), sum(r.state_bytes for r in rows),
        tuple(name for r in rows for name in r.learns), tuple(name for r in rows for name in r.members),
    )  # fmt: skip
