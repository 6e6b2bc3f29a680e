"""What programs and checkpoints say of themselves: a good checksum does not say that it makes sense."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import BadCheckpoint, BadProgram
from ..program.loss import LossFacts
from ..program.program import Program
from .state import State, checked_facts

if TYPE_CHECKING:
    from ..runtime.machine import Machine
    from .checkpoint import Checkpoint
    from .classes import Classes
    from .history import Run
    from .replay import Replaying


@contextlib.contextmanager
def meant(program: Program) -> Iterator[None]:
    """A good checksum does not say that a description makes sense."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        why = f"{type(error).__name__}: {error}"
        raise BadProgram("the program does not describe its plan and state", why=why) from error


def described(program: Program) -> tuple[Mapping[str, Mapping[str, Any]], LossFacts, dict[str, Any]]:
    """Where state lies, and facts of loss and optimizer. The plan is looked at when somebody asks for it."""
    with meant(program):
        facts = checked_facts(program)
        loss = LossFacts.from_json(program.meta.get("loss"))
        numbers = {k: v for k, v in program.meta.get("optimizer", {}).items() if isinstance(v, (int, float))}
        if "plan" not in program.meta:
            raise KeyError("plan")
        return facts, loss, numbers


def classes_of(program: Program, state: State) -> Classes | None:
    if "classes" not in program.meta:
        return None
    from .classes import Classes

    try:
        return Classes.of(program, state)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise BadProgram("the program does not describe its classes", why=f"{type(error).__name__}: {error}") from error


def replay_of(program: Program, machine: Machine, state: State) -> Replaying | None:
    if "replay" not in program.meta:
        return None
    from .replay import Replaying, shape_of

    try:
        shape = shape_of(program, state.facts)
        assert shape is not None
        found = Replaying(program, machine, state, shape)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        why = f"{type(error).__name__}: {error}"
        raise BadProgram("the program does not describe its replay buffer", why=why) from error
    if wrong := found.wrong():
        raise BadProgram("the program's replay buffer is damaged", why=wrong, help="compile it again, or load a copy")
    return found


def run_of(found: Checkpoint, path: str) -> Run | None:
    """The run of a checkpoint; a good checksum does not say that it makes sense."""
    if found.run is None:
        return None
    from .history import Position, Run

    try:
        if found.best is not None and len(found.best) != len(found.state):
            raise ValueError("another size")
        return Run(dict(found.run["settings"]), Position.from_json(found.run["position"], found.best), found.step)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        why = f"{type(error).__name__}: {error}"
        raise BadCheckpoint("the checkpoint does not describe its run", at=path, why=why) from error


__all__ = ["classes_of", "described", "meant", "replay_of", "run_of"]
