"""STATE of an open program, by name: what learned, running statistics, the optimizer's tensors, settings."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..errors import BadData, BadOption, BadProgram, RunFailed
from ..ir import COUNTER, LR, Array, DType
from ..program.arguments import is_integer, is_number
from ..program.arrays import (
    as_state,
    check_mapping,
    from_integers,
    laid,
    laid_shape,
    of_whole,
    steps_of,
    to_integers,
    unlaid,
    unpacked_map,
)
from ..program.program import Program

Facts = Mapping[str, Mapping[str, Any]]
PART = 1 << 16  # numbers at a time
MOST = {DType.I8: 127, DType.I32: 1 << 30}
"""Of a parameter in integers; as in ops/rounded.py."""
PAGE_HELP = 'page_to="page.bin" on a disk that works'
CHECKSUM = 4  # bytes behind a tensor in PAGE; 0 there stands for none


if TYPE_CHECKING:

    class Pages(Protocol):
        """State in PAGE, as a Machine has it."""

        page_state_bytes: int

        def read_page(self, offset: int, count: int) -> Array: ...
        def write_page(self, offset: int, data: Array) -> None: ...


def checked_facts(program: Program) -> Mapping[str, Mapping[str, Any]]:
    """Where each state tensor lies; the file's checksum does not say that it makes sense."""
    facts: Mapping[str, Mapping[str, Any]] = program.meta["state"]
    for name, fact in facts.items():
        count = math.prod(map(_size, fact["stored"])) * DType(fact["dtype"]).bytes
        room = program.page_state_bytes - CHECKSUM if _is_paged(fact) else program.state_bytes
        if fact["offset"] % 4 or not 0 <= fact["offset"] <= room - count:
            raise BadProgram(f"'{name}' lies outside the program's state")
        owner = facts[fact["owner"]] if fact["role"] == "optim" else fact
        if fact["role"] == "optim" and (owner["role"] != "param" or type(fact["slot"]) is not str):
            raise ValueError(f"'{name}' is not the optimizer's tensor of a parameter")
        if owner["role"] in ("param", "stat"):
            if math.prod(laid_shape(tuple(map(_size, owner["shape"])), steps_of(owner))) != math.prod(fact["stored"]):
                raise ValueError(f"'{name}' does not have the shape of its parameter")
            if ("map" in fact) != (DType(fact["dtype"]) is not DType.F32) and fact["role"] == "param":
                raise ValueError(f"'{name}' does not say what its numbers stand for")
            if "map" in fact and len(_rows(fact)[0]) != fact["stored"][0]:
                raise ValueError(f"the map of '{name}' does not fit its shape")
            for key, count in _rest_bytes(fact).items():
                at, room = fact[key], program.const_bytes - count
                if type(at) is not int or not 0 <= at <= room or at % 4:
                    raise BadProgram(f"what is beside the slice of '{name}' lies outside the program's constants")
            if "part" in fact:
                axis, indices = fact["part"]
                length = _size(fact["shape"][_size(axis)])
                if not indices or any(_size(i) >= length for i in indices):
                    raise ValueError(f"the slice of '{name}' does not fit its shape")
            if any(type(alias) is not str for alias in owner["aliases"]):
                raise ValueError(f"'{name}' has a name that is no text")
    if "train" in program.entries and facts:
        settings = [(facts[name]["dtype"], list(facts[name]["stored"])) for name in (LR, COUNTER)]
        if settings != [("f32", []), ("i32", [2])]:
            raise BadProgram("the program's settings are malformed: expected learning rate f32[] and counter i32[2]")
    return facts


def whole_shape(fact: Mapping[str, Any]) -> tuple[int, ...]:
    """Of a tensor of which a slice learns, as it is stored before that is taken."""
    steps = steps_of(fact)
    before = next(i for i, (kind, _) in enumerate(steps) if kind == "take")
    return laid_shape(tuple(map(_size, fact["shape"])), steps[:before])


def _rows(fact: Mapping[str, Any]) -> Array:
    """Scale and offset of each index of the first axis that is stored."""
    rows, steps = unpacked_map(fact["map"]), steps_of(fact)
    if steps and steps[-1][0] == "take" and steps[-1][1][0] == 0:
        return rows[:, list(steps[-1][1][1:])]
    return rows


def _rest_bytes(fact: Mapping[str, Any]) -> dict[str, int]:
    """Constants beside a slice that learns: all of the tensor, in f32 or as int8 with scales."""
    if "rest" not in fact:
        return {}
    shape = whole_shape(fact)
    if "map" in fact:
        return {"rest": math.prod(shape)}
    if "rest_scale" not in fact:
        return {"rest": 4 * math.prod(shape)}
    return {"rest": math.prod(shape), "rest_scale": 4 * shape[0]}


def _is_near(ours: Array, value: Array, fact: Mapping[str, Any]) -> bool:
    """Do both stand for the same integers, or for neighbours?"""
    rows, steps = unpacked_map(fact["map"]), of_whole(steps_of(fact))
    found = [to_integers(laid(array, steps), rows, MOST[DType(fact["dtype"])]) for array in (ours, value)]
    return bool((np.abs(found[0] - found[1]) <= 1).all())


def _is_paged(fact: Mapping[str, Any]) -> bool:
    return fact.get("region") == "page"


def _size(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r:.40} is not a size")
    return value


class State:
    """Names are the model's own, and so are layouts, wherever arrays come in or go out."""

    def __init__(self, memory: Array, facts: Facts, pages: Pages | None = None, const: bytes = b"") -> None:
        """`const` are the program's constants: what is beside a slice that learns."""
        self.memory = memory  # bytes of the runtime
        self.facts = facts
        self.const = const
        self.pages = pages if pages is not None and pages.page_state_bytes else None
        self.is_partial = False  # a step, or setting the state, stopped halfway and cannot be undone

    def check_whole(self) -> None:
        if self.is_partial:
            raise RunFailed("a step stopped halfway, or setting the state did: the state is incomplete",
                            help='job.resume("run.ckpt"), or load the program again')  # fmt: skip

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Partial from the first write on, until all is written."""
        before, self.is_partial = self.is_partial, True
        yield
        self.is_partial = before

    def view(self, name: str) -> Array:
        """A tensor in its stored layout: in place, or a copy if it lives in PAGE."""
        fact = self.facts[name]
        kind = DType(fact["dtype"]).numpy
        count = math.prod(fact["stored"]) * kind.itemsize
        start = fact["offset"]
        if _is_paged(fact):
            assert self.pages is not None
            return self.pages.read_page(start, count).view(kind).reshape(fact["stored"])
        return self.memory[start : start + count].view(kind).reshape(fact["stored"])

    def parts(self, name: str) -> Iterator[Array]:
        """The same numbers, a few at a time: all of a tensor in PAGE may be more than RAM is for."""
        fact = self.facts[name]
        kind, count = DType(fact["dtype"]).numpy, math.prod(fact["stored"])
        for first in range(0, count, PART):
            start, size = fact["offset"] + first * kind.itemsize, min(PART, count - first) * kind.itemsize
            if _is_paged(fact):
                assert self.pages is not None
                yield self.pages.read_page(start, size).view(kind)
            else:
                yield self.memory[start : start + size].view(kind)

    def put(self, name: str, value: Any) -> None:
        """Set a tensor, in its stored layout."""
        fact = self.facts[name]
        if not _is_paged(fact):
            self.view(name)[...] = value
            return
        assert self.pages is not None
        data = np.ascontiguousarray(np.broadcast_to(value, fact["stored"]), DType(fact["dtype"]).numpy)
        self.pages.write_page(fact["offset"], data.reshape(-1).view(np.uint8))
        self._end_page(name, data.nbytes)

    def clear(self, name: str) -> None:
        """Set a tensor to zero."""
        fact = self.facts[name]
        if not _is_paged(fact):
            self.view(name)[...] = 0
            return
        assert self.pages is not None
        done = 0
        for part in self.parts(name):
            self.pages.write_page(fact["offset"] + done, np.zeros(part.nbytes, np.uint8))
            done += part.nbytes
        self._end_page(name, done)

    def _end_page(self, name: str, count: int) -> None:
        assert self.pages is not None
        end = np.zeros(-count % 4 + CHECKSUM, np.uint8)
        self.pages.write_page(self.facts[name]["offset"] + count, end)

    def copy(self) -> Array:
        """All of it as bytes: STATE, then what is in PAGE."""
        self.check_whole()
        if self.pages is None:
            return self.memory.copy()
        return np.concatenate([self.memory, self.pages.read_page(0, self.pages.page_state_bytes)])

    def copy_to(self, kept: Array) -> None:
        """The same, into what `copy` gave."""
        self.check_whole()
        np.copyto(kept[: len(self.memory)], self.memory)
        if self.pages is not None:
            kept[len(self.memory) :] = self.pages.read_page(0, self.pages.page_state_bytes)

    def set_all(self, state: bytes | memoryview | Array) -> None:
        given = np.frombuffer(state, np.uint8)
        self.is_partial = True
        if self.pages is not None:
            self.pages.write_page(0, np.ascontiguousarray(given[len(self.memory) :]))
        self.memory[:] = given[: len(self.memory)]
        self.is_partial = False

    @property
    def lr(self) -> float:
        return float(self.view(LR)[()])

    @lr.setter
    def lr(self, value: float) -> None:
        help = "job.lr = 0.01, for instance"
        if not is_number(value):
            raise BadOption(f"learning rate {value!r} is not a number", help=help)
        if not 0 <= value < float("inf"):
            raise BadOption(f"learning rate {value} is not a finite number ≥ 0", help=help)
        if value > float(np.finfo(np.float32).max):
            raise BadOption(f"learning rate {value} does not fit single precision", help=help)
        self.view(LR)[...] = value

    @property
    def seed(self) -> int:
        return int(self.view(COUNTER)[0])

    @property
    def step(self) -> int:
        return int(self.view(COUNTER)[1]) if COUNTER in self.facts else 0

    def learned(self) -> dict[str, Array]:
        """Copies of parameters and statistics that change, tied ones under all their names."""
        found: dict[str, Array] = {}
        for name, fact in self.facts.items():
            if fact["role"] in ("param", "stat"):
                value = unlaid(self._numbers(name), fact["shape"], steps_of(fact), self._rest(fact)).copy()
                found |= dict.fromkeys((name, *fact["aliases"]), value)
        return found

    def _numbers(self, name: str) -> Array:
        """A tensor in its stored layout, as real numbers."""
        fact, value = self.facts[name], self.view(name)
        return from_integers(value, _rows(fact)) if "map" in fact else value

    def slices(self) -> dict[str, tuple[int, tuple[int, ...]]]:
        """Parameters of which only a slice learns → its axis and indices, under all their names."""
        found: dict[str, tuple[int, tuple[int, ...]]] = {}
        for name, fact in self.facts.items():
            if "part" in fact:
                found |= dict.fromkeys((name, *fact["aliases"]), (fact["part"][0], tuple(fact["part"][1])))
        return found

    def _check_beside(self, name: str, value: Array, part: Array, fact: Mapping[str, Any]) -> None:
        """What is beside a slice that learns is constant: another value for it would be lost without a word."""
        rest = self._rest(fact)
        if rest is None:
            return
        ours = unlaid(part, fact["shape"], steps_of(fact), rest)
        if not (_is_near(ours, value, fact) if "map" in fact else np.array_equal(ours, value)):
            raise BadData(
                f"'{name}' differs from this program's beside the slice that learns",
                why="only the slice can be set: the rest of it is constant",
                help="compile the model again, from those weights",
            )

    def _rest(self, fact: Mapping[str, Any]) -> Array | None:
        """All of a tensor of which a slice learns, as it is stored before that is taken; None if all of it learns."""
        if "rest" not in fact:
            return None
        shape, kind = whole_shape(fact), np.int8 if {"rest_scale", "map"} & fact.keys() else np.float32
        rest: Array = np.frombuffer(self.const, kind, math.prod(shape), fact["rest"]).reshape(shape)
        if "map" in fact:
            return from_integers(rest, unpacked_map(fact["map"]))
        if "rest_scale" not in fact:
            return rest
        scale = np.frombuffer(self.const, np.float32, shape[0], fact["rest_scale"])
        return rest.astype(np.float32) * scale.reshape(-1, *[1] * (len(shape) - 1))

    def set_learned(self, values: Mapping[str, Any]) -> None:
        """Names that this program does not learn are ignored, but not all of them."""
        check_mapping(values, "load_state_dict", "job.load_state_dict(model.state_dict())")
        new: dict[str, Array] = {}
        for name, fact in self.facts.items():
            if fact["role"] in ("param", "stat"):
                given = next((k for k in (name, *fact["aliases"]) if k in values), None)
                if given is not None:
                    value = as_state(values[given], given, fact["shape"])
                    new[name] = laid(value, steps_of(fact))
                    self._check_beside(given, value, new[name], fact)
        if values and not new:
            why = f"it learns {', '.join(self.learned())}"
            raise BadData("nothing of what is given belongs to this program", why=why)
        with self.changing():
            for name, value in new.items():
                self.put(name, value if "map" not in self.facts[name] else self._integers(name, value))

    def _integers(self, name: str, value: Array) -> Array:
        """The integers that stand for these numbers; of what is dead, those that there are."""
        fact, old = self.facts[name], self.view(name)
        rows = _rows(fact)
        found = to_integers(value, rows, MOST[DType(fact["dtype"])])
        dead = (rows[0] == 0).reshape(-1, *[1] * (value.ndim - 1))
        return np.where(dead, old, found).astype(old.dtype)

    def optimizer(self) -> dict[str, dict[str, Array]]:
        """Parameter → slot → copy of the optimizer's tensor."""
        found: dict[str, dict[str, Array]] = {}
        for name, fact in self.facts.items():
            if fact["role"] == "optim":
                owner = self.facts[fact["owner"]]
                value = unlaid(self.view(name), owner["shape"], steps_of(owner)).copy()
                found.setdefault(fact["owner"], {})[fact["slot"]] = value
        return found

    def set_optimizer(self, values: Mapping[str, Mapping[str, Any]], step: int) -> None:
        """Parameters that are not given keep theirs."""
        example = "job.load_optimizer_state(other.optimizer_state(), other.step)"
        check_mapping(values, "load_optimizer_state", example)
        if not is_integer(step) or not 0 <= step < 2**31:
            raise BadOption(f"step={step!r} is not a number of updates", help=example)
        new: dict[str, Array] = {}
        for name, fact in self.facts.items():
            if fact["role"] == "optim" and fact["owner"] in values:
                owner, slots = self.facts[fact["owner"]], values[fact["owner"]]
                if not isinstance(slots, Mapping) or fact["slot"] not in slots:
                    raise BadData(f"'{fact['owner']}' has no '{fact['slot']}' in the optimizer's state", help=example)
                new[name] = laid(as_state(slots[fact["slot"]], name, owner["shape"]), steps_of(owner))
        with self.changing():
            for name, value in new.items():
                self.put(name, value)
            self.view(COUNTER)[1] = step

    def restart(self, seed: int) -> None:
        """As before the first step: an optimizer that has seen nothing, and randomness from this seed. What was
        learned stays."""
        with self.changing():
            for name, fact in self.facts.items():
                if fact["role"] == "optim":
                    self.clear(name)
            self.view(COUNTER)[...] = seed, 0


__all__ = ["PAGE_HELP", "State", "checked_facts"]
