"""Flower's records and our arrays. What comes from outside is checked before anything is made of it: a header that
promises more than came is refused, and nothing is ever unpickled."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from flwr.app import Array as Packed
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from ..errors import BrokenUpdate
from ..ir import Array
from .client import Reply
from .terms import Terms

ARRAYS: Final = "arrays"
METRICS: Final = "metrics"
CONFIG: Final = "config"
FLEET: Final = "fleet"  # version, name of the client, slices
SLICE: Final = "slice:"
NUMPY: Final = "numpy.ndarray"  # how Flower calls what np.save writes
WHOLE: Final = "whole"  # the server sends whole tensors; a device takes its part
LABELS: Final = "labels"  # classes that a device has samples of, where the strategy asks for them
BASES: Final = "bases"  # base networks of Split-Mix that a device is given
WEIGHT: Final = "num-examples"


def packed(values: Mapping[str, Array]) -> ArrayRecord:
    return ArrayRecord({name: Packed(np.ascontiguousarray(value)) for name, value in values.items()})


def unpacked(record: ArrayRecord, terms: Terms | None = None, client: str = "") -> dict[str, Array]:
    """With terms, BrokenUpdate for any other names or shapes, before their numbers are looked at."""
    if terms is not None and set(record) != set(terms):
        odd = sorted(set(record) ^ set(terms))[0]
        what = f"'{odd}' is missing" if odd in terms else f"'{odd}' is no tensor of this fleet"
        raise BrokenUpdate(what, at=client, why=f"{len(record)} tensors came, {len(terms)} are expected")
    return {name: _read(name, array, client, terms) for name, array in record.items()}


def _read(name: str, array: Packed, client: str, terms: Terms | None) -> Array:
    """As np.load does, but nothing is made before the header has been looked at."""
    data = io.BytesIO(array.data)
    try:
        if array.stype != NUMPY:
            raise ValueError(f"of type '{array.stype}'")
        version = np.lib.format.read_magic(data)
        header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, fortran, dtype = header[version](data)
        rest = memoryview(array.data)[data.tell() :]
        if dtype.kind != "f" or len(rest) != dtype.itemsize * int(np.prod(shape, dtype=object)):
            raise ValueError(f"{dtype} {list(shape)} in {len(rest)} bytes")
    except (ValueError, KeyError, EOFError, TypeError, SyntaxError, OverflowError) as error:
        raise BrokenUpdate(f"'{name}' is not an array of numbers", at=client, why=f"{error}"[:200]) from error
    if terms is not None and shape != terms[name].sent_shape:
        raise BrokenUpdate(f"'{name}' is {list(shape)}, expected {list(terms[name].sent_shape)}", at=client)
    found: Array = np.frombuffer(rest, dtype).reshape(shape, order="F" if fortran else "C")
    return found


def config_of(content: RecordDict) -> dict[str, Any]:
    """What the server says beside the arrays."""
    return {key: value for record in content.config_records.values() for key, value in record.items()}


def reply_of(reply: Reply, name: str, labels: Sequence[int] | None = None) -> RecordDict:
    slices = {
        f"{SLICE}{tensor}": [held.axis, *held.indices]
        for tensor, held in reply.terms.items()
        if held.axis is not None and held.indices is not None
    }
    known = {} if labels is None else {LABELS: list(labels)}
    return RecordDict({
        ARRAYS: packed(reply.values),
        METRICS: MetricRecord(dict(reply.counters)),
        FLEET: ConfigRecord({"version": reply.terms.version, "client": name, **slices, **known}),
    })  # fmt: skip


__all__ = [
    "ARRAYS",
    "BASES",
    "CONFIG",
    "FLEET",
    "LABELS",
    "METRICS",
    "SLICE",
    "WEIGHT",
    "WHOLE",
    "config_of",
    "packed",
    "reply_of",
    "unpacked",
]
