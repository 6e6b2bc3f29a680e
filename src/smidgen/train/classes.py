"""Classes of a program that has spare ones. Which are in use and what the added ones are called is part of STATE, so it
survives whatever STATE survives: `save`, checkpoints, slots on a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import BadData, BadOption
from ..ir import CLASS_NAMES, CLASSES, Array
from ..program.program import Program
from .state import State


@dataclass(frozen=True, slots=True)
class Classes:
    """Numbers 0 to known - 1 were there when the program was made; the next ones are added in order."""

    state: State
    known: int
    spare: int
    given: tuple[str, ...]  # names of the known ones, or nothing
    parameters: tuple[str, ...]  # with a row for each class, spare ones included
    outputs: tuple[str, ...]  # with a column for each

    @staticmethod
    def of(program: Program, state: State) -> Classes | None:
        """None for a program without spare classes. ValueError and the like if what it says makes no sense."""
        facts = program.meta.get("classes")
        if facts is None:
            return None
        known, spare = int(facts["known"]), int(facts["spare"])
        own = facts["weight"], facts["bias"], *facts.get("rows", ())
        parameters = tuple(name for name in own if name is not None)
        shapes = [state.facts[name]["shape"][0] for name in parameters if name in state.facts]
        sizes = [list(state.facts[name]["stored"]) for name in (CLASSES, CLASS_NAMES)]
        if known < 1 or spare < 1 or sizes[0] != [known + spare] or sizes[1][0] != spare or sizes[1][1] < 2:
            raise ValueError("its classes are not those of its state")
        if any(shape != known + spare for shape in shapes):
            raise ValueError("its last layer does not have a row for each class")
        return Classes(state, known, spare, tuple(map(str, facts["names"])), parameters, tuple(facts["outputs"]))

    @property
    def count(self) -> int:
        """Those in use."""
        return self.known + int((self.state.view(CLASSES)[self.known :] == 0).sum())

    def names(self) -> list[str]:
        added = self.state.view(CLASS_NAMES)[: self.count - self.known]
        texts = [bytes(row).partition(b"\0")[0].decode(errors="replace") for row in added]
        return [*(self.given or map(str, range(self.known))), *texts]

    def add(self, name: Any) -> int:
        """The number of the new class."""
        room = self.state.view(CLASS_NAMES).shape[1] - 1
        text = name.encode() if isinstance(name, str) else b""
        if not text or b"\0" in text or len(text) > room:
            raise BadOption(f"{name!r:.60} is not a name for a class", why=f"it is a text of 1 to {room} bytes",
                            help='job.add_class("cat")')  # fmt: skip
        if name in self.names():
            raise BadOption(f"there is a class '{name}' already", help=f"its number is {self.names().index(name)}")
        number = self.count
        if number == self.known + self.spare:
            raise BadOption(f"all {self.spare} spare classes are taken",
                            help=f"compile with classes=smidgen.Classes(spare={2 * self.spare})")  # fmt: skip
        row = self.state.view(CLASS_NAMES)[number - self.known]
        row[:] = 0
        row[: len(text)] = np.frombuffer(text, np.uint8)
        self.state.view(CLASSES)[number] = 0  # last: from here on it counts
        return number

    def without_spare(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """Parameters with the rows of classes in use."""
        rows = {*self._rows(), *self.parameters}
        return {name: value[: self.count] if name in rows else value for name, value in values.items()}

    def with_spare(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters with a row for each class: those that are not given stay as they are."""
        found = dict(values)
        present = self.state.learned()
        for name in self._rows() & set(found):
            given, whole = np.asarray(found[name]), present[name].copy()
            if given.shape[1:] != whole.shape[1:] or given.ndim == 0 or len(given) not in (self.count, len(whole)):
                raise BadData(f"'{name}' has shape {given.shape}, the program wants {(self.count, *whole.shape[1:])}")
            whole[: len(given)] = given
            found[name] = whole
        return found

    def _rows(self) -> set[str]:
        facts = self.state.facts
        return {alias for name in self.parameters if name in facts for alias in (name, *facts[name]["aliases"])}


def c_initializer(program: Program) -> str:
    """What `SmgClasses` of runtime/classes.h is initialised with; empty without spare classes."""
    facts = program.meta.get("classes")
    if facts is None:
        return ""
    offsets = [program.meta["state"][name]["offset"] for name in (CLASSES, CLASS_NAMES)]
    width = program.meta["state"][CLASS_NAMES]["stored"][1]
    return f"{{{offsets[0]}, {offsets[1]}, {width}, {facts['known']}, {facts['spare']}}}"
