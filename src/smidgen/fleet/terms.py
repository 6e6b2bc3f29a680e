"""What a program exchanges with its fleet: the tensors that learn, by the model's own names and in its layout. Of a
tensor of which a slice learns, the slice travels. Needs numpy only."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..errors import BrokenUpdate, UpdateNotFinite, UpdateTooLarge, WrongVersion
from ..ir import Array
from ..train.job import Job

AGAIN = "build the client's program from the same model, method and options as the server's"


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor of `shape`; only `indices` along `axis` learn and travel, unless they are None."""

    shape: tuple[int, ...]
    axis: int | None = None
    indices: tuple[int, ...] | None = None

    @property
    def sent_shape(self) -> tuple[int, ...]:
        if self.axis is None or self.indices is None:
            return self.shape
        return (*self.shape[: self.axis], len(self.indices), *self.shape[self.axis + 1 :])

    @property
    def where(self) -> tuple[Any, ...]:
        """The index of what travels, in the whole tensor."""
        if self.axis is None or self.indices is None:
            return ()
        return (*[slice(None)] * self.axis, list(self.indices))


@dataclass(frozen=True)
class Terms(Mapping[str, Held]):
    """Name → what travels of it. Programs of one model that learn the same have equal terms, however they were made to
    fit."""

    held: Mapping[str, Held]

    @staticmethod
    def of(job: Job) -> Terms:
        """Tied parameters travel once, under their first name."""
        aliases = {alias for fact in job.engine.state.facts.values() for alias in fact.get("aliases", ())}
        whole = job.state_dict()
        found = {}
        for name, part in sorted(job.state_dict(learned=True).items()):
            if name not in aliases:
                found[name] = Held(whole[name].shape, part.axis, part.indices)
        return Terms(found)

    @functools.cached_property
    def version(self) -> str:
        """Of names, shapes and what learns of them."""
        facts = [[name, h.shape, h.axis, h.indices] for name, h in sorted(self.held.items())]
        return hashlib.sha256(json.dumps(facts, separators=(",", ":")).encode()).hexdigest()[:16]

    @property
    def sent_bytes(self) -> int:
        """Of one exchange in one direction, without headers."""
        return sum(4 * int(np.prod(h.sent_shape)) for h in self.held.values())

    def __getitem__(self, name: str) -> Held:
        return self.held[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.held)

    def __len__(self) -> int:
        return len(self.held)

    def values_of(self, job: Job) -> dict[str, Array]:
        """What travels, as it is now."""
        learned = job.state_dict(learned=True)
        return {name: np.ascontiguousarray(learned[name].value) for name in self.held}

    def put(self, job: Job, values: Mapping[str, Array]) -> None:
        """Set what travels. Nothing is set unless everything fits."""
        self.check_shapes(values)
        whole = job.state_dict() if any(h.axis is not None for h in self.held.values()) else {}
        given = {}
        for name, held in self.held.items():
            given[name] = values[name]
            if held.axis is not None:
                given[name] = whole[name]
                given[name][held.where] = values[name]
        job.load_state_dict(given)

    def check_version(self, version: str, client: str = "") -> None:
        """`version` is what the other side has."""
        if version != self.version:
            raise WrongVersion(
                f"the client's program is of version {version or 'none'}, the fleet's of {self.version}", at=client,
                why="names, shapes, or what learns of them are not the same", help=AGAIN,
            )  # fmt: skip

    def check(self, values: Mapping[str, Array], client: str = "") -> None:
        """Raise unless these are all tensors that travel, in their shapes, and all numbers are finite."""
        self.check_shapes(values, client)
        for name in self.held:
            wrong = ~np.isfinite(values[name])
            if wrong.any():
                place = ", ".join(map(str, np.argwhere(wrong)[0]))
                raise UpdateNotFinite(
                    f"'{name}' is {values[name][wrong][0]} at [{place}], and {int(wrong.sum())} of "
                    f"{wrong.size} numbers are not finite", at=client,
                    help="look at this client's data; a lower learning rate: train_config(lr=0.001)",
                )  # fmt: skip

    def check_shapes(self, values: Mapping[str, Array], client: str = "") -> None:
        for name, held in self.held.items():
            if name not in values:
                raise BrokenUpdate(f"'{name}' is missing", at=client, why=f"{len(values)} tensors came", help=AGAIN)
            value = values[name]
            if value.dtype.kind != "f" or value.shape != held.sent_shape:
                raise BrokenUpdate(
                    f"'{name}' is {value.dtype} {list(value.shape)}, expected float32 {list(held.sent_shape)}",
                    at=client, help=AGAIN,
                )  # fmt: skip
        if others := sorted(set(values) - set(self.held)):
            raise BrokenUpdate(f"'{others[0]}' is no tensor of this fleet", at=client, help=AGAIN)


MOST_TIMES: Final = 20.0
FEW: Final = 3  # updates, below which their median says little


def norm_limit(
    norms: Sequence[float], sent: Mapping[str, Array], most_times: float = MOST_TIMES, max_norm: float | None = None
) -> float:
    """The largest norm that an update of this round may have: `most_times` the median of all, or the norm of what was
    sent, if there are few; and at most `max_norm`."""
    zero = {name: np.zeros((), np.float32) for name in sent}
    usual = float(np.median(norms)) if len(norms) >= FEW else distance(sent, zero)
    limit = most_times * usual if usual > 0 else math.inf
    return limit if max_norm is None else min(limit, max_norm)


def check_norm(norm: float, limit: float, client: str = "") -> None:
    if not norm <= limit:
        raise UpdateTooLarge(
            f"the update has a norm of {norm:.4g}, at most {limit:.4g} is taken", at=client,
            help="if it is right: Checked(strategy, terms, most_times=100)",
        )  # fmt: skip


def distance(values: Mapping[str, Array], before: Mapping[str, Array]) -> float:
    """The norm of the change, over all tensors."""
    squares = (np.square(values[name].astype(np.float64) - before[name]).sum() for name in before)
    return float(np.sqrt(sum(squares)))


__all__ = ["MOST_TIMES", "Held", "Terms", "check_norm", "distance", "norm_limit"]
