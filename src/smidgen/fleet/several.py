"""Several programs or networks on one device: FeDepth's blocks one after another, and Split-Mix's base networks. Needs
numpy only."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from ..errors import BadData, BadOption
from ..ir import Array
from .client import Client, Counters, Reply
from .terms import Held, Terms

SUMMED: Final = ("steps", "seconds", "device-seconds", "joules")
LARGEST: Final = ("ram-bytes", "mapped-bytes")


class BlockClient(Client):
    """FeDepth (Zhang et al. 2023): the blocks of a model learn one after another, each with a program that learns the
    block and the classifier, and sees what the blocks before it have just learned. It sends back the whole model, as a
    device does that learns all of it at once: any strategy averages both."""

    def __init__(self, programs: Sequence[str | os.PathLike[str]], x: Any, y: Any, **options: Any) -> None:
        if not programs:
            raise BadOption("a device needs a program for each block", help="BlockClient(['0.smg', '1.smg'], x, y)")
        super().__init__(programs[-1], x, y, **options)
        self.programs, self._options = list(programs), options

    def train(self, values: Mapping[str, Array], *, version: str | None = None, **asked: Any) -> Reply:
        terms = Terms({name: Held(value.shape) for name, value in sorted(values.items())})
        if version is not None:
            terms.check_version(version, self.name)
        now = dict(values)
        done = []
        for program in self.programs:
            reply = Client(program, self.x, self.y, **self._options).train(now, **{**asked, "whole": True})
            for name, held in reply.terms.items():
                now[name] = now[name].copy()
                now[name][held.where or ...] = reply.values[name]
            done.append(reply.counters)
        return Reply(terms, now, _together(done))

    def evaluate(self, values: Mapping[str, Array], *, version: str | None = None, whole: bool = False) -> Counters:
        return super().evaluate(values, whole=True)


def train_bases(client: Client, values: Mapping[str, Array], bases: Sequence[int], **asked: Any) -> Reply:
    """Split-Mix (Hong et al. 2022): each of these base networks, one after another. Names are `3/0.weight`: that of the
    third."""
    asked.pop("whole", None)
    replies = {base: client.train(of_base(values, base), **asked) for base in bases}
    if not replies:
        raise BadData("no base networks are asked for", at=client.name)
    terms = {f"{base}/{name}": held for base, reply in replies.items() for name, held in reply.terms.items()}
    found = {f"{base}/{name}": value for base, reply in replies.items() for name, value in reply.values.items()}
    return Reply(Terms(terms), found, _together([reply.counters for reply in replies.values()]))


def evaluate_bases(client: Client, values: Mapping[str, Array], bases: Sequence[int]) -> Counters:
    """Of a classifier: the mean of what the base networks put out."""
    x, y = client.eval or (client.x, client.y)
    outputs = []
    for base in bases:
        job = client.open()
        terms = Terms.of(job)
        own = of_base(values, base)
        terms.check(own, client.name)
        terms.put(job, own)
        outputs.append(np.asarray(job.predict(x), np.float64))
    labels, mean = np.asarray(y), np.mean(outputs, axis=0)
    if labels.dtype.kind not in "iu" or mean.ndim != 2:
        raise BadData("the base networks are not classifiers of one label a sample", at=client.name,
                      help="fraction_evaluate=0.0")  # fmt: skip
    mean -= mean.max(1, keepdims=True)
    loss = np.log(np.exp(mean).sum(1)) - mean[np.arange(len(labels)), labels]
    right = mean.argmax(1) == labels
    return {"loss": float(loss.mean()), "accuracy": float(right.mean()), "num-examples": len(labels)}


def of_base(values: Mapping[str, Array], base: int) -> dict[str, Array]:
    start = f"{base}/"
    return {name.removeprefix(start): value for name, value in values.items() if name.startswith(start)}


def _together(counters: Sequence[Counters]) -> Counters:
    """One after another: times add up, RAM is that of the largest, the loss the last one's."""
    last = dict(counters[-1])
    last |= {name: sum(c[name] for c in counters) for name in SUMMED}
    return last | {name: max(c[name] for c in counters) for name in LARGEST}


__all__ = ["BlockClient", "evaluate_bases", "of_base", "train_bases"]
