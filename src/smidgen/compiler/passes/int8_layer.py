"""The numbers of one layer in int8: weight, bias, multipliers, made from those in f32 and what was joined with it.

A norm goes into the weight, which changes no number of it in int8: only its scale. A channel whose weight is much
smaller than the others' is dead: it gets the least scale that its bias allows, and its weights are 0 or next to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ... import ops
from ...ir import Array, Graph, Node, Quant, Role
from ...ops.fixed_point import HIGH, LOW, fixed_point
from ...ops.qlayers import MOST_BIAS, MOST_TERMS
from .identity import Chain

TOP: Final = 127
LEAST_FROZEN: Final = 2.0**-16  # of the largest scale of a layer
LEAST_LEARNED: Final = 2.0**-8  # so that a channel that is zero has room to grow


@dataclass(frozen=True, slots=True)
class Slice:
    """Of a weight that learns in part: indices along an axis of the stored layout."""

    axis: int
    index: Array
    frozen: str
    index_name: str


@dataclass(frozen=True, slots=True)
class Source:
    """The weight as it is in f32: its name if it learns, and all of its numbers."""

    value: Array
    name: str
    learns: bool
    part: Slice | None = None


@dataclass(frozen=True, slots=True)
class Numbers:
    """Of a layer in int8."""

    weight: Array
    weight_quant: Quant
    bias: Array
    bias_quant: Quant
    multipliers: Array
    shift: int
    learned_bias: str  # the parameter that the bias is, or nothing
    fixed: tuple[str, ...] = field(default=())  # parameters that are constant now: part of another one
    dead: int = 0  # outputs


def source_of(graph: Graph, made: Mapping[str, Node], name: str) -> Source | None:
    """The weight of that name; None if it is computed from something else."""
    tensor = graph[name]
    if tensor.role in (Role.CONST, Role.PARAM) and name in graph.data:
        return Source(np.asarray(graph.data[name], np.float64), name, tensor.role is Role.PARAM)
    maker = made.get(name)
    if maker is None or ops.get(maker.op).slices != "put":
        return None
    frozen, learned, index = maker.ins
    if graph[frozen].role is not Role.CONST or graph[learned].role is not Role.PARAM or index not in graph.data:
        return None
    axis, places = int(maker.attrs["axis"]), np.asarray(graph.data[index])
    whole = np.array(graph.data[frozen], np.float64)
    whole[(slice(None),) * axis + (places,)] = graph.data[learned]
    return Source(whole, learned, True, Slice(axis, places, frozen, index))


def can_take_norm(graph: Graph, chain: Chain, learns: bool) -> bool:
    """Its factor is constant, or learns beside a weight that does: then the weight learns for both."""
    if chain.norm is None:
        return True
    gamma, _, mean, variance = _norm_operands(chain.norm)
    fixed = all(graph[name].role is Role.CONST for name in (mean, variance))
    return fixed and (graph[gamma].role is Role.CONST or (graph[gamma].role is Role.PARAM and learns))


def _norm_operands(norm: Node) -> tuple[str, ...]:
    found = {role: norm.ins[i] for i, role in ops.get(norm.op).operands.items()}
    return tuple(found[role] for role in ("scale", "shift", "mean", "variance"))


def numbers_of(graph: Graph, chain: Chain, source: Source, x: Quant, y: Quant) -> Numbers | None:
    """None if the layer has too many inputs for a sum in 32 bits."""
    record, value = ops.get(chain.layer.op), source.value
    outputs = len(value)
    if math.prod(value.shape[1:]) > MOST_TERMS or record.scaled_weight is None or not np.isfinite(value).all():
        return None
    factor, parts, fixed = _parts(graph, chain, outputs)
    learned = [name for name, _, _ in parts if graph[name].role is Role.PARAM]
    bias_name = learned[-1] if learned else ""
    fixed += tuple(learned[:-1])
    bias = np.sum([by * np.asarray(graph.data[name], np.float64).reshape(-1) + at for name, by, at in parts], axis=0)
    bias = np.broadcast_to(bias, (outputs,))
    whole = record.scaled_weight(value, factor, chain.layer.attrs).reshape(outputs, -1)
    scales, dead = _scales(np.abs(whole).max(axis=1, initial=0.0), np.abs(bias), x.scales[0], source, whole.shape[1])
    q = np.clip(np.floor(whole / scales[:, None] + 0.5), -TOP, TOP).astype(np.int8).reshape(value.shape)
    steps = scales * x.scales[0]
    bias_q = np.clip(np.floor(bias / steps + 0.5), -MOST_BIAS, MOST_BIAS).astype(np.int32)
    m, shift = fixed_point(steps / y.scales[0])
    factors = tuple(factor.tolist()) if chain.norm is not None else ()
    zeros = (0,) * outputs
    return Numbers(
        q, Quant(tuple(scales.tolist()), zeros, 0, factors), bias_q,
        _bias_quant(graph, steps, parts, bias_name, outputs), m, shift, bias_name, fixed, dead,
    )  # fmt: skip


def _parts(graph: Graph, chain: Chain, outputs: int) -> tuple[Array, list[tuple[str, Array, Array]], tuple[str, ...]]:
    """Factor of the weight; what the bias is the sum of, as (name, factor, shift); parameters that no longer learn."""
    own = chain.layer.ins[2:]
    if chain.norm is None:
        return np.ones(outputs), [(name, np.ones(1), np.zeros(1)) for name in (*own, *chain.added)], ()
    gamma, beta, mean, variance = _norm_operands(chain.norm)
    values = {name: np.asarray(graph.data[name], np.float64) for name in (gamma, mean, variance)}
    factor = values[gamma] / np.sqrt(values[variance] + chain.norm.attrs["eps"])
    below = -values[mean] * factor
    parts = [(name, factor, below if k == 0 else np.zeros(1)) for k, name in enumerate(own)]
    parts.append((beta, np.ones(1), below if not own else np.zeros(1)))
    parts += [(name, np.ones(1), np.zeros(1)) for name in chain.added]
    return factor, parts, (gamma,) if graph[gamma].role is Role.PARAM else ()


def _scales(largest: Array, bias: Array, x_scale: float, source: Source, terms: int) -> tuple[Array, int]:
    """Of each output, numbers that f32 has; and how many outputs are dead."""
    natural = largest / TOP
    top = natural.max(initial=0.0) or 1 / (TOP * math.sqrt(terms))
    least = top * (LEAST_LEARNED if source.learns else LEAST_FROZEN)
    least = np.maximum(least, bias / (x_scale * MOST_BIAS) * (1 + 2.0**-20))
    scales = np.maximum(natural, least)
    return scales.astype(np.float32).astype(np.float64), int((natural < top * LEAST_FROZEN).sum())


def _bias_quant(
    graph: Graph, steps: Array, parts: Sequence[tuple[str, Array, Array]], learned: str, outputs: int
) -> Quant:
    """Of the parameter that the bias stands for: all else is a shift of it."""
    steps = steps.astype(np.float32).astype(np.float64)
    zeros = (0,) * outputs
    if not learned:
        return Quant(tuple(steps.tolist()), zeros, 0)
    rest = np.zeros(outputs)
    by = np.ones(outputs)
    for name, factor, shift in parts:
        rest = rest + shift
        if name == learned:
            by = np.broadcast_to(factor, (outputs,))
        else:
            rest = rest + factor * np.asarray(graph.data[name], np.float64).reshape(-1)
    plain = bool((by == 1).all() and not rest.any())
    return Quant(
        tuple(steps.tolist()), zeros, 0, () if plain else tuple(by.tolist()), () if plain else tuple(rest.tolist())
    )


def cut_off(bounds: tuple[float, float] | None, y: Quant) -> dict[str, int]:
    """The bounds of a result in integers."""
    scale, zero = y.scales[0], y.zero_points[0]
    found = {"lo": LOW, "hi": HIGH}
    for key, bound in zip(found, bounds or (), strict=False):
        if math.isfinite(bound):
            found[key] = min(max(math.floor(bound / scale + 0.5) + zero, LOW), HIGH)
    return found


__all__ = ["Numbers", "Slice", "Source", "can_take_norm", "cut_off", "numbers_of", "source_of"]
