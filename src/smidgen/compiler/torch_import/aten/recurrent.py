"""Recurrences, unrolled over time: what depends on the input alone is one product for all steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .emit import Emit
from .matrix import linear
from .writer import Operand, Unsupported, aten

State = tuple[Operand, ...]
Step = Callable[[Emit, Operand, State, Operand, Operand | None], State]
"""(what the input gives, state, weight and bias of the state) → new state; the first of a state is the output."""


def _gates(t: Emit, y: Operand, parts: int) -> list[Operand]:
    size = t.length(y, -1) // parts
    return [t.slice(y, t.rank(y) - 1, k * size, (k + 1) * size) for k in range(parts)]


def _lstm(t: Emit, of_x: Operand, state: State, w: Operand, bias: Operand | None) -> State:
    i, f, g, o = _gates(t, t.plus(of_x, linear(t, state[0], w, bias)), 4)
    kept = t.times(t.add("sigmoid", f), state[1])
    c = t.plus(kept, t.times(t.add("sigmoid", i), t.add("tanh", g)))
    return t.times(t.add("sigmoid", o), t.add("tanh", c)), c


def _gru(t: Emit, of_x: Operand, state: State, w: Operand, bias: Operand | None) -> State:
    (h,) = state
    x, y = _gates(t, of_x, 3), _gates(t, linear(t, h, w, bias), 3)
    r, z = (t.add("sigmoid", t.plus(x[k], y[k])) for k in (0, 1))
    new = t.add("tanh", t.plus(x[2], t.times(r, y[2])))
    return (t.plus(new, t.times(z, t.minus(h, new))),)


def _plain(activation: str) -> Step:
    return lambda t, of_x, state, w, bias: (t.add(activation, t.plus(of_x, linear(t, state[0], w, bias))),)


STEPS: dict[str, Step] = {"lstm": _lstm, "gru": _gru, "rnn_tanh": _plain("tanh"), "rnn_relu": _plain("relu")}


def _along(t: Emit, x: Operand, axis: int, k: int) -> Operand:
    """x[k] along an axis, without that axis."""
    piece = t.slice(x, axis, k, k + 1)
    return t.reshape(piece, (*t.shape(x)[:axis], *t.shape(x)[axis + 1 :]))


def _stacked(t: Emit, parts: Sequence[Operand], axis: int) -> Operand:
    return t.concat([t.reshape(p, (*t.shape(p)[:axis], 1, *t.shape(p)[axis:])) for p in parts], axis)


def _unrolled(
    t: Emit, step: Step, x: Operand, starts: Sequence[Operand], weights: Sequence[Operand], biased: bool, layers: int,
    dropout: float, train: bool, both_ways: bool, batch_first: bool,
) -> tuple[Operand, list[Operand]]:  # fmt: skip
    """(outputs of all steps, last states stacked over layers and directions)."""
    time, ways, each = int(batch_first), 1 + both_ways, 4 if biased else 2
    if len(weights) != layers * ways * each:
        raise Unsupported("a projection of the state", "proj_size=0 and a Linear after it")
    last: list[State] = []
    for layer in range(layers):
        outputs = []
        for way in range(ways):
            k = layer * ways + way
            w_x, w_h, *biases = weights[k * each : (k + 1) * each]
            b_x, b_h = biases if biased else (None, None)
            of_x = linear(t, x, w_x, b_x)
            state: State = tuple(_along(t, s, 0, k) for s in starts)
            made = []
            times = range(t.length(x, time))
            for at in reversed(times) if way else times:
                state = step(t, _along(t, of_x, time, at), state, w_h, b_h)
                made.append(state[0])
            outputs.append(_stacked(t, made[::-1] if way else made, time))
            last.append(state)
        x = t.concat(outputs, t.rank(x) - 1)
        if dropout and train and layer < layers - 1:
            x = t.dropout(x, dropout)
    return x, [_stacked(t, [state[k] for state in last], 0) for k in range(len(starts))]


def _sequence(name: str) -> Any:
    def rule(t: Emit, x: Operand, start: Any, weights: Sequence[Operand], *options: Any) -> Sequence[Operand]:
        starts = start if name == "lstm" else [start]
        y, last = _unrolled(t, STEPS[name], x, starts, weights, *options)
        return y, *last

    return rule


def _cell(name: str) -> Any:
    def rule(
        t: Emit, x: Operand, start: Any, w_x: Operand, w_h: Operand, b_x: Operand | None, b_h: Operand | None
    ) -> Any:
        state = STEPS[name](t, linear(t, x, w_x, b_x), tuple(start) if name == "lstm" else (start,), w_h, b_h)
        return state if name == "lstm" else state[0]

    return rule


for _name in STEPS:
    aten(f"{_name}.input")(_sequence(_name))
    aten(f"{_name}_cell")(_cell(_name))
