"""The geometry of streams (runtime/rows.c): what is checked when a program is opened is all that happens in a run."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator

import pytest

from smidgen.program.instructions import StreamTable
from smidgen.runtime.library import library_path

EACH, WINDOW, SPREAD, FORGETS = 0, 1, 2, 16
MOST_ROWS, MOST_REACH, MOST_EDGE = 1 << 15, 256, 64


class Value(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in ("count", "step", "period", "ahead", "kept", "bytes")]
    count: int
    step: int
    period: int
    ahead: int
    kept: int
    bytes: int

    def end(self, i: int) -> int:
        return min(max((i + 1) * self.step // self.period + self.ahead, 0), self.count) if i >= 0 else 0

    def begin(self, i: int) -> int:
        return min(max(i * self.step // self.period + self.kept, 0), self.count)


class Rule(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in ("kind", "reach", "step", "pad", "into", "out", "above")]
    kind: int
    reach: int
    step: int
    pad: int


class Turn(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in ("start", "n", "first", "rows", "above")]
    n: int
    rows: int
    above: int


class Turns(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in ("next", "phase", "middle")]


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    return ctypes.CDLL(str(library_path()))


def needed(rule: Rule, begin: int, end: int, count: int) -> tuple[int, int, int]:
    """First row and end of the input's rows, and the padding above, for rows begin..end: one row at a time."""
    if rule.kind == EACH:
        return begin, end, 0
    read: list[int] = []
    for row in range(begin, end):
        if rule.kind == WINDOW:
            read += [row * rule.step - rule.pad + k for k in range(rule.reach)]
        else:
            read += [
                (row + rule.pad - k) // rule.step for k in range(rule.reach) if (row + rule.pad - k) % rule.step == 0
            ]
    inside = [row for row in read if 0 <= row < count]
    first = max(min(read), 0) if rule.kind == WINDOW else min(inside)
    above = max(0, rule.pad - begin * rule.step) if rule.kind == WINDOW else rule.pad + begin - first * rule.step
    return first, max(inside) + 1, above


def random_case(rng: random.Random) -> tuple[Rule, Value, Value]:
    kind = rng.choice([EACH, WINDOW, WINDOW, SPREAD])
    reach = rng.choice([1, 2, 3, 3, 5, 7, rng.randint(1, 40)])
    step = rng.choice([1, 1, 2, 2, 3, rng.randint(1, 5)])
    pad = rng.choice([0, reach // 2, reach - 1, rng.randint(-2, reach - 1)])
    rule = Rule(kind, reach, step, pad, 0, 1, 2)
    period = rng.choice([1, 1, 2, 4, 3, rng.randint(1, 9)])
    slow = rng.choice([1, 1, 2, 3, rng.randint(1, 9)])
    ahead = -rng.choice([0, 0, 1, 3, rng.randint(0, 50)])
    out = Value(rng.choice([1, 2, 5, rng.randint(1, 90)]), slow, period, ahead, ahead - rng.choice([0, 1, 5, 100]), 4)
    if kind == EACH:
        count, fast = out.count, (slow, period)
    elif kind == WINDOW:
        count, fast = (
            max(1, (out.count - 1) * step - pad + reach - rng.randint(0, max(pad, 0) + step)),
            (slow * step, period),
        )
    else:
        count, fast = (
            max(1, -(-(out.count + pad - reach) // step) + 1 + rng.randint(0, 1)),
            (max(slow // step, 1), period),
        )
        if rng.random() < 0.7:
            out.step, out.period, fast = fast[0] * step, 1, (fast[0], 1)
    whole = rng.random() < 0.2
    into = Value(count, 0, 1, count, 0, 4) if whole else Value(
        count, *fast, -rng.choice([0, 0, 1, rng.randint(0, 50)]), -rng.choice([0, 5, 50, rng.randint(0, 200)]), 4
    )  # fmt: skip
    into.kept = min(into.kept, into.ahead)
    return rule, out, into


def turns(library: ctypes.CDLL, rule: Rule, out: Value, count: int) -> Iterator[tuple[int, int, int]]:
    state, turn = Turns(0, 0, 0), Turn()
    while library.smg_next_turn(ctypes.byref(rule), ctypes.byref(out), count, ctypes.byref(state), ctypes.byref(turn)):
        yield turn.n, turn.rows, turn.above


def is_table(library: ctypes.CDLL, iterations: int, values: list[Value], rules: list[Rule]) -> bool:
    rows = [tuple(getattr(one, field[0]) for field in one._fields_) for one in (*values, *rules)]
    words = StreamTable(iterations, tuple(rows[: len(values)]), tuple(rows[len(values) :])).words
    table = (ctypes.c_int32 * (1 + len(words)))(len(words), *words)
    return bool(library.smg_check_table(table, len(table), len(rules)) == 0)


def last_iteration(*values: Value) -> int:
    return max(-((v.ahead - v.count) * v.period // v.step) for v in values if v.step)


def test_what_is_accepted_finds_its_rows_and_does_what_was_checked(library: ctypes.CDLL) -> None:
    rng, accepted = random.Random(0), dict.fromkeys((EACH, WINDOW, SPREAD), 0)
    for _ in range(40000):
        rule, out, into = random_case(rng)
        iterations = last_iteration(out, into)
        if not is_table(library, iterations, [out, into], [rule]):
            continue
        if not library.smg_check_flow(ctypes.byref(rule), ctypes.byref(out), ctypes.byref(into)):
            continue
        accepted[rule.kind] += 1
        checked, done = set(turns(library, rule, out, into.count)), set()
        for i in range(iterations):
            begin, end = out.end(i - 1), out.end(i)
            assert out.begin(i) <= begin or begin == end
            if begin < end:
                first, stop, above = needed(rule, begin, end, into.count)
                assert into.begin(i) <= first < stop <= (into.end(i) if into.step else into.count)
                done.add((end - begin, stop - first, above))
        assert done <= checked
        assert out.end(iterations - 1) == out.count
        # Nothing that never happens is checked, but for one of the two numbers of rows in the middle.
        assert len(checked - done) <= 1
        assert len(list(turns(library, rule, out, into.count))) <= 3 * MOST_EDGE + 8
    assert min(accepted.values()) > 500


def test_an_input_that_is_so_far_behind_is_never_overwritten(library: ctypes.CDLL) -> None:
    """By one turn of the instruction that reads it; a byte nearer it would be by some rows that could be a turn."""
    library.smg_rows_apart.restype = ctypes.c_int64
    rng, looked_at = random.Random(1), dict.fromkeys((EACH, WINDOW, SPREAD), 0)
    for _ in range(6000):
        rule, out, _ = random_case(rng)
        rule.step = min(rule.step, rule.reach) if rule.kind == SPREAD else rule.step
        rule.pad = max(rule.pad, 0) if rule.kind == SPREAD else rule.pad
        out.bytes, out.count = 4 * rng.randint(1, 9), rng.choice([out.count, rng.randint(300, 900)])
        into = Value(out.count, 0, 1, out.count, 0, 4 * rng.randint(1, 9))
        if rule.kind == WINDOW:
            into.count = out.count * rule.step + rule.reach
        looked_at[rule.kind] += 1
        most = min(-(-out.step // out.period), out.count)
        far = 0
        for begin in range(out.count - most + 1):
            first = begin
            if rule.kind == WINDOW:
                first = max(begin * rule.step - rule.pad, 0)
            if rule.kind == SPREAD:
                first = max(-((rule.reach - 1 - begin - rule.pad) // rule.step), 0)
            far = max(far, (begin + most) * out.bytes - first * into.bytes)
        assert library.smg_rows_apart(ctypes.byref(rule), ctypes.byref(out), ctypes.byref(into)) == far
    assert min(looked_at.values()) > 1000


def value(**changes: int) -> Value:
    usual = {"count": 9, "step": 1, "period": 1, "ahead": -1, "kept": -3, "bytes": 4}
    return Value(*(usual | changes).values())


def rule(**changes: int) -> Rule:
    usual = {"kind": WINDOW, "reach": 3, "step": 1, "pad": 1, "into": 0, "out": 1, "above": 2}
    return Rule(*(usual | changes).values())


WRONG_VALUES = {
    "no rows": value(count=0), "too many rows": value(count=MOST_ROWS + 1), "a negative step": value(step=-1),
    "too large a step": value(step=MOST_ROWS + 1), "no period": value(period=0),
    "too large a period": value(period=MOST_ROWS + 1), "negative rows": value(bytes=-4),
    "huge rows": value(bytes=(1 << 28) + 4), "rows before the first iteration": value(ahead=1),
    "rows that never come": value(ahead=-MOST_ROWS - 1, kept=-MOST_ROWS - 1),
    "rows that are forgotten before they are made": value(kept=0),
    "rows that are kept for longer than any": value(kept=-4 * MOST_ROWS - 1),
    "a whole value without its rows": value(step=0, ahead=8, kept=0),
    "a whole value that forgets": value(step=0, ahead=9, kept=-1),
}  # fmt: skip
WRONG_RULES = {
    "an unknown kind": rule(kind=3), "a negative kind": rule(kind=-1), "other bits": rule(kind=32),
    "no reach": rule(reach=0, pad=-1), "too long a reach": rule(reach=MOST_REACH + 1),
    "too long a reach of a spread": rule(kind=SPREAD, reach=MOST_EDGE + 1), "no step": rule(step=0),
    "too long a step": rule(step=MOST_REACH + 1), "nothing but padding": rule(pad=3),
    "too much padding": rule(reach=MOST_REACH, pad=MOST_EDGE + 1), "a negative pad": rule(pad=-MOST_REACH - 1),
    "a negative number of a parameter": rule(into=-1), "another": rule(out=-1), "a third": rule(above=-1),
}  # fmt: skip


def test_a_table_in_order_is_accepted(library: ctypes.CDLL) -> None:
    assert is_table(library, 10, [value()], [rule()])
    assert is_table(library, 10, [value(), value(step=0, ahead=9, kept=0)], [rule(kind=WINDOW | FORGETS)])
    assert is_table(library, 4 * MOST_ROWS, [value(period=MOST_ROWS)], [])


@pytest.mark.parametrize("name", WRONG_VALUES)
def test_a_wrong_value_is_refused(library: ctypes.CDLL, name: str) -> None:
    assert not is_table(library, 10, [value(), WRONG_VALUES[name]], [rule()])


@pytest.mark.parametrize("name", WRONG_RULES)
def test_a_wrong_rule_is_refused(library: ctypes.CDLL, name: str) -> None:
    assert not is_table(library, 10, [value()], [rule(), WRONG_RULES[name]])


@pytest.mark.parametrize("iterations", [-1, 0, 11, 4 * MOST_ROWS + 1])
def test_a_table_runs_as_long_as_there_are_rows_to_make(library: ctypes.CDLL, iterations: int) -> None:
    """A short file cannot ask for much work."""
    assert not is_table(library, iterations, [value()], [rule()])


def test_a_table_has_the_length_that_it_says(library: ctypes.CDLL) -> None:
    words = [10, 1, *(getattr(value(), field[0]) for field in Value._fields_)]
    for said, given, body in ((8, 8, 1), (8, 7, 0), (7, 8, 0), (9, 9, 0), (1, 8, 0), (8 | 1 << 16, 8, 0)):
        table = (ctypes.c_int32 * (1 + len(words)))(said, *words)
        assert library.smg_check_table(table, 1 + given, body) == -1
    table = (ctypes.c_int32 * (1 + len(words)))(8, *words)
    assert library.smg_check_table(table, 9, 0) == 0
    for count in (-1, 0, 2, 0x10000):
        table[2] = count
        assert library.smg_check_table(table, 9, 0) == -1


WRONG_FLOWS = {
    "each: another number of rows": (rule(kind=EACH), value(), value(count=8)),
    "each: another rate": (rule(kind=EACH), value(), value(step=2)),
    "each: rows that come too late": (rule(kind=EACH), value(), value(ahead=-2)),
    "each: rows that are forgotten": (rule(kind=EACH), value(ahead=-4, kept=-4), value()),
    "each: into what is there": (rule(kind=EACH), value(step=0, ahead=9, kept=0), value()),
    "window: another rate": (rule(), value(), value(step=2, ahead=0)),
    "window: rows that come too late": (rule(), value(), value()),
    "window: rows that are forgotten": (rule(), value(), value(ahead=0, kept=-1)),
    "window: in the padding alone": (rule(), value(count=11), value(ahead=0)),
    "window: far over the end": (rule(reach=MOST_REACH), value(count=80), value(count=80, step=0, ahead=80, kept=0)),
    "spread: narrower than its step": (rule(kind=SPREAD, reach=1, step=2, pad=0), value(step=2), value(ahead=0)),
    "spread: negative padding": (rule(kind=SPREAD, reach=2, step=2, pad=-1), value(step=2), value(ahead=0)),
    "spread: more rows than it makes": (
        rule(kind=SPREAD, reach=2, step=2, pad=0), value(count=20, step=2, ahead=-2, kept=-2), value(ahead=0),
    ),
    "spread: not whole rows": (
        rule(kind=SPREAD, reach=2, step=2, pad=0), value(count=18, period=2), value(step=0, ahead=9, kept=0),
    ),
    "spread: another rate": (rule(kind=SPREAD, reach=2, step=2, pad=0), value(count=18), value(ahead=0)),
    "spread: rows that come too late": (
        rule(kind=SPREAD, reach=2, step=2, pad=0), value(count=18, step=2, ahead=0, kept=0), value(),
    ),
    "spread: rows that are forgotten": (
        rule(kind=SPREAD, reach=2, step=2, pad=0), value(count=18, step=2, ahead=-4, kept=-4), value(ahead=0, kept=-1),
    ),
}  # fmt: skip
FLOWS = {
    "each": (rule(kind=EACH), value(), value()),
    "window": (rule(), value(), value(ahead=0)),
    "spread": (rule(kind=SPREAD, reach=2, step=2, pad=0), value(count=18, step=2, ahead=-2, kept=-2), value(ahead=0)),
    "from a whole value": (rule(), value(), value(step=0, ahead=9, kept=0)),
}


@pytest.mark.parametrize("name", WRONG_FLOWS)
def test_rows_that_are_not_there_are_refused(library: ctypes.CDLL, name: str) -> None:
    assert not library.smg_check_flow(*map(ctypes.byref, WRONG_FLOWS[name]))


@pytest.mark.parametrize("name", FLOWS)
def test_rows_that_are_there_are_accepted(library: ctypes.CDLL, name: str) -> None:
    assert library.smg_check_flow(*map(ctypes.byref, FLOWS[name]))
