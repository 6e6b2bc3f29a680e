"""The geometry of streams (runtime/rows.c): what is checked when a program is opened is all that happens in a run."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator

import pytest

from smidgen.program.instructions import StreamTable
from smidgen.runtime.library import library_path

EACH, WINDOW, SPREAD, PLACED, SUM, FORGETS = 0, 1, 2, 3, 4, 16
MOST_ROWS, MOST_REACH, MOST_EDGE, MOST_CYCLE = 1 << 15, 256, 64, 256


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
    _fields_ = [(name, ctypes.c_int32) for name in ("kind", "reach", "step", "by", "pad", "into", "out", "above")]
    kind: int
    reach: int
    step: int
    by: int
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
    """First row and end of the input's rows, and the padding above, for rows begin..end: counted, not divided."""
    if rule.kind == EACH:
        return begin, end, 0
    if rule.kind in (WINDOW, SUM):
        read = [row * rule.step - rule.pad + k for row in range(begin, end) for k in range(rule.reach)]
        first, stop = (min(max(row, 0), count) for row in (min(read), max(read) + 1))
        return first, stop, max(0, rule.pad - begin * rule.step)
    rows = range(count)
    if rule.kind == SPREAD:  # windows that end before the first row, and those that begin until the last one
        first = sum(row * rule.step - rule.pad + rule.reach <= begin for row in rows)
        stop = sum(row * rule.step - rule.pad < end for row in rows)
        return first, stop, rule.pad + begin - first * rule.step
    first = sum((row + 1) * rule.step <= begin * rule.by - rule.pad for row in rows)
    return first, sum(row * rule.step < (end - 1) * rule.by - rule.pad + rule.reach for row in rows), 0


def random_case(rng: random.Random) -> tuple[Rule, Value, Value]:
    kind = rng.choice([EACH, WINDOW, WINDOW, SPREAD, SPREAD, PLACED, PLACED, SUM])
    reach = rng.choice([1, 2, 3, 3, 5, 7, rng.randint(1, 40)])
    step = rng.choice([1, 1, 2, 2, 3, rng.randint(1, 5)])
    by = rng.choice([1, 1, 1, 2, 3]) if kind == PLACED else 1
    pad = rng.choice([0, reach // 2, reach - 1, rng.randint(-2, reach - 1), reach + 2])
    rule = Rule(kind, reach, step, by, pad, 0, 1, 2)
    period = rng.choice([1, 1, 2, 4, 3, rng.randint(1, 9)])
    slow = rng.choice([1, 1, 2, 3, rng.randint(1, 9)])
    ahead = -rng.choice([0, 0, 1, 3, rng.randint(0, 50)])
    out = Value(rng.choice([1, 2, 5, rng.randint(1, 90)]), slow, period, ahead, ahead - rng.choice([0, 1, 5, 100]), 4)
    if kind == EACH:
        count, fast = out.count, (slow, period)
    elif kind in (WINDOW, SUM):
        count, fast = (
            max(1, (out.count - 1) * step - pad + reach - rng.randint(0, max(pad, 0) + step)),
            (slow * step, period),
        )
    else:
        count, fast = (
            max(1, -(-(out.count + pad - reach) * by // step) + 1 + rng.randint(0, 1)),
            (slow * by, period * step),
        )
    whole = rng.random() < 0.2
    into = Value(count, 0, 1, count, 0, 4) if whole else Value(
        count, *fast, -rng.choice([0, 0, 1, rng.randint(0, 50)]), -rng.choice([0, 5, 50, rng.randint(0, 200)]), 4
    )  # fmt: skip
    into.kept = min(into.kept, into.ahead)
    return rule, out, into


def flows(library: ctypes.CDLL, rule: Rule, out: Value, into: Value, operand: int = 0) -> bool:
    """By default as the operand that the rule is about."""
    operand = operand or (2 if rule.kind == SUM else 1)
    return bool(library.smg_check_flow(ctypes.byref(rule), ctypes.byref(out), ctypes.byref(into), operand))


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
    rng, accepted = random.Random(0), dict.fromkeys((EACH, WINDOW, SPREAD, PLACED, SUM), 0)
    for _ in range(45000):
        rule, out, into = random_case(rng)
        iterations = last_iteration(out, into)
        if not is_table(library, iterations, [out, into], [rule]):
            continue
        if not flows(library, rule, out, into):
            continue
        accepted[rule.kind] += 1
        checked, done = set(turns(library, rule, out, into.count)), set()
        for i in range(iterations):
            begin, end = out.end(i - 1), out.end(i)
            assert out.begin(i) <= begin or begin == end
            if begin < end:
                first, stop, above = needed(rule, begin, end, into.count)
                assert into.begin(i) <= first <= stop <= (into.end(i) if into.step else into.count)
                done.add((end - begin, stop - first, above))
        assert done <= checked
        assert out.end(iterations - 1) == out.count
        # Nothing that never happens is checked, but for one of the two numbers of rows in the middle.
        assert len(checked - done) <= 1
        assert len(list(turns(library, rule, out, into.count))) <= 3 * MOST_EDGE + 8 + 2 * MOST_CYCLE
    assert min(accepted.values()) > 500


def test_an_input_that_is_so_far_behind_is_never_overwritten(library: ctypes.CDLL) -> None:
    """By one turn of the instruction that reads it; a byte nearer it would be by some rows that could be a turn."""
    library.smg_rows_apart.restype = ctypes.c_int64
    rng, looked_at = random.Random(1), dict.fromkeys((EACH, WINDOW, SPREAD, PLACED), 0)
    for _ in range(6000):
        rule, out, into = random_case(rng)
        if rule.kind == SUM:  # it is there as a whole, and never written over anything
            continue
        last = rule.reach - 1 - rule.pad
        by, over, low = {
            EACH: (1, 1, 0), WINDOW: (rule.step, 1, -rule.pad), SPREAD: (1, rule.step, rule.step - 1 - last),
            PLACED: (rule.by, rule.step, -rule.pad),
        }[rule.kind]  # fmt: skip
        if rng.random() < 0.5:  # a long one, with as many rows as it needs
            out.count = rng.randint(300, 900)
            into.count = out.count if rule.kind == EACH else max(1, (out.count * by + low) // over + rule.reach)
        out.bytes = 4 * rng.randint(1, 9)
        into = Value(into.count, 0, 1, into.count, 0, 4 * rng.randint(1, 9))
        looked_at[rule.kind] += 1
        most = min(-(-out.step // out.period), out.count)
        far = 0
        for begin in range(out.count - most + 1):
            first = min(max((begin * by + low) // over, 0), into.count)
            far = max(far, (begin + most) * out.bytes - first * into.bytes)
        assert library.smg_rows_apart(ctypes.byref(rule), ctypes.byref(out), ctypes.byref(into)) == far
    assert min(looked_at.values()) > 600


def value(**changes: int) -> Value:
    usual = {"count": 9, "step": 1, "period": 1, "ahead": -1, "kept": -3, "bytes": 4}
    return Value(*(usual | changes).values())


def rule(**changes: int) -> Rule:
    usual = {"kind": WINDOW, "reach": 3, "step": 1, "by": 1, "pad": 1, "into": 0, "out": 1, "above": 2}
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
    "an unknown kind": rule(kind=5), "a negative kind": rule(kind=-1), "other bits": rule(kind=32),
    "no reach": rule(reach=0, pad=-1), "too long a reach": rule(reach=MOST_REACH + 1),
    "too long a reach of a spread": rule(kind=SPREAD, reach=MOST_EDGE + 1), "no step": rule(step=0),
    "too long a step": rule(step=MOST_REACH + 1),
    "too much padding": rule(reach=MOST_REACH, pad=MOST_EDGE + 1), "a negative pad": rule(pad=-MOST_REACH - 1),
    "a negative number of a parameter": rule(into=-1), "another": rule(out=-1), "a third": rule(above=-1),
    "a window that is not told of rows between": rule(by=2), "a spread neither": rule(kind=SPREAD, by=2),
    "nothing for a row": rule(kind=PLACED, by=0), "too much for a row": rule(kind=PLACED, by=MOST_REACH + 1),
    "too many rows for one": rule(kind=PLACED, step=MOST_EDGE + 1),
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


WHOLE = value(step=0, ahead=9, kept=0)
TWICE = rule(kind=SPREAD, reach=2, step=2, pad=0)
BETWEEN = rule(kind=PLACED, reach=4, step=3, by=2)
WRONG_FLOWS = {
    "each: another number of rows": (rule(kind=EACH), value(), value(count=8)),
    "each: another rate": (rule(kind=EACH), value(), value(step=2)),
    "each: rows that come too late": (rule(kind=EACH), value(), value(ahead=-2)),
    "each: rows that are forgotten": (rule(kind=EACH), value(ahead=-4, kept=-4), value()),
    "each: into what is there": (rule(kind=EACH), value(step=0, ahead=9, kept=0), value()),
    "window: another rate": (rule(), value(), value(step=2, ahead=0)),
    "window: rows that come too late": (rule(), value(), value()),
    "window: rows that are forgotten": (rule(), value(), value(ahead=0, kept=-1)),
    "window: far in the padding alone": (rule(), value(count=80), value(ahead=0)),
    "window: far over the end": (rule(reach=MOST_REACH), value(count=80), value(count=80, step=0, ahead=80, kept=0)),
    "spread: far behind the input": (TWICE, value(count=18 + MOST_EDGE + 1, step=2, ahead=-2, kept=-2), value(ahead=0)),
    "spread: rows between that come too late": (TWICE, value(count=18), value(period=2)),
    "spread: rows between that are forgotten": (TWICE, value(count=18, ahead=-2), value(period=2, ahead=0, kept=0)),
    "spread: too many different turns": (TWICE, value(count=18, period=MOST_CYCLE), WHOLE),
    "spread: another rate": (TWICE, value(count=18), value(ahead=0)),
    "spread: rows that come too late": (
        TWICE, value(count=18, step=2, ahead=0, kept=0), value(),
    ),
    "spread: rows that are forgotten": (
        TWICE, value(count=18, step=2, ahead=-4, kept=-4), value(ahead=0, kept=-1),
    ),
    "placed: another rate": (BETWEEN, value(step=3), value()),
    "placed: rows that come too late": (BETWEEN, value(count=13, step=3, ahead=-3, kept=-3), value(step=2, ahead=-2)),
    "placed: rows that are forgotten": (
        BETWEEN, value(count=13, step=3, ahead=-3, kept=-3), value(step=2, ahead=0, kept=-1),
    ),
    "placed: far behind the input": (BETWEEN, value(count=14 + MOST_EDGE, step=3, ahead=-3, kept=-3), WHOLE),
    "placed: too many different turns": (BETWEEN, value(count=13, step=1, period=MOST_CYCLE), WHOLE),
}  # fmt: skip
FLOWS = {
    "each": (rule(kind=EACH), value(), value()),
    "window": (rule(), value(), value(ahead=0)),
    "spread": (TWICE, value(count=18, step=2, ahead=-2, kept=-2), value(ahead=0)),
    "spread: rows between": (TWICE, value(count=18, ahead=-2), value(period=2, ahead=0, kept=-1)),
    "spread: narrower than its step": (
        rule(kind=SPREAD, reach=1, step=2, pad=0), value(count=17, step=2, ahead=-2, kept=-2), value(ahead=0),
    ),
    "placed": (BETWEEN, value(count=13, step=3, ahead=-3, kept=-3), value(step=2, ahead=0, kept=-3)),
    "from a whole value": (rule(), value(), WHOLE),
    "in the padding alone": (rule(), value(count=11), value(ahead=0)),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_FLOWS)
def test_rows_that_are_not_there_are_refused(library: ctypes.CDLL, name: str) -> None:
    assert not flows(library, *WRONG_FLOWS[name])


@pytest.mark.parametrize("name", FLOWS)
def test_rows_that_are_there_are_accepted(library: ctypes.CDLL, name: str) -> None:
    assert flows(library, *FLOWS[name])


def test_a_sum_takes_its_own_rows_from_one_operand_and_windows_from_the_next(library: ctypes.CDLL) -> None:
    one, late = rule(kind=SUM), value(ahead=0)
    assert flows(library, one, value(), late, 2)
    assert flows(library, one, value(), value(), 1)
    assert not flows(library, one, value(), value(), 2)  # a row of the window is missing
    assert not flows(library, one, value(), value(ahead=-2), 1)
    assert not flows(library, one, value(), value(count=8), 1)
