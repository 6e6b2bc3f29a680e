"""Steps in micro-batches: gradients accumulate over parts of a batch, with the bits of the undivided step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ... import ops
from ...devices.room import Limit
from ...errors import SmidgenError
from ...ir import Graph, Role, at, ceil_div
from ...program.plan import Decision
from ...terminal import bytes_text
from ..assemble import Sized, sized
from ..entries import Entries, decided
from ..loss_facts import loss_facts
from ..options import Options
from ..passes.additive import counts_labels, takes_statistics
from ..pipeline import Lowering
from ..planner.goal import Goal, Search
from .candidate import Candidate
from .paged_state import paged_state
from .squeeze import may_fit, squeezed

CACHE_BYTES: Final = 2 << 20  # near to one core of most hosts; a constant, so that plans are the same everywhere
ENOUGH_SAMPLES: Final = 4  # to keep a thread busy
MOST_WEIGHTS: Final = 0.25  # bytes of weights for one of values that a step in micro-batches may go through
WORTH: Final = 0.75  # of the RAM: what saves less is not worth it


def micro_batched(lowering: Lowering, options: Options, samples: int, batch: int) -> Entries:
    """A step of so many samples in micro-batches of `batch`. Raises SmidgenError if that is not the same step."""
    entries = lowering.entries(replace(options, batch=batch, accumulate=True))
    sums = sum(t.bytes(1) for t in entries.graphs["zero"].tensors.values() if not t.name.endswith("'"))
    short = f"runs a step of {samples} samples in micro-batches of {batch}"
    why = f"{short}; their gradients accumulate in {bytes_text(sums)}"
    return decided(replace(entries, step_samples=samples), Decision("split", why, 0, short=short))


def one_by_one(lowering: Lowering, options: Options, samples: int) -> Entries | None:
    """The step in micro-batches of one sample; None if that is not the same step, or samples cannot be told apart."""
    try:
        least = micro_batched(lowering, options, samples, 1)
    except SmidgenError:  # a loss that is no sum over samples
        return None
    several = any(at(t.shape, 2)[:1] != (2,) for t in least.graphs["grad"].of_role(Role.INPUT))
    return None if several else least  # several rows for each sample, whose order is not known


def ever_smaller(
    limit: Limit, lowering: Lowering, options: Options, samples: int, goal: Goal, search: Search
) -> list[Candidate]:
    """Steps of as many samples in smaller and smaller micro-batches, until nothing has to be recomputed."""
    tried: list[Candidate] = []
    batch, least = samples, one_by_one(lowering, options, samples)
    if least is None:
        return tried
    if not may_fit(limit, least, goal):  # nor do larger micro-batches
        return [squeezed(limit, least, goal, search)]
    while batch > 1:
        batch = ceil_div(batch, 2)
        if tried and not search.left_s:
            break
        entries = least if batch == 1 else micro_batched(lowering, options, samples, batch)
        if not may_fit(limit, entries, goal):
            continue
        tried.append(squeezed(limit, entries, goal, search))
        search = patient(limit, goal, search, tried)
        if tried[-1].entries is entries and tried[-1].fits(limit):
            break
    return tried


def patient(limit: Limit, goal: Goal, search: Search, tried: list[Candidate]) -> Search:
    """If something fits, and in time, there is time to look for what is better."""
    good = [one for one in tried if one.fits(limit)]
    late = all(goal.is_late(one.step) for one in good)
    return Search(search.effort_s) if good and not late else search


def other_statistics(
    limit: Limit, lowering: Lowering, options: Options, samples: int, goal: Goal
) -> list[Candidate]:  # fmt: skip
    """The largest micro-batches that fit, none of them a single sample, though norms then take their statistics: that
    learns something else than was asked for, so it is done only where nothing else fits, and the plan says it."""
    for batch in _together(lowering, options, samples):
        one = squeezed(limit, _with_statistics(lowering, options, samples, batch), goal)
        tried = [one, *(paged_state(limit, one, goal) if goal.page else [])]
        if any(c.fits(limit) for c in tried):
            return tried
    return []


def fewest_together(lowering: Lowering, options: Options, samples: int) -> Entries | None:
    """The smallest micro-batches that norms may take their statistics of; None if there are none."""
    batch = min(_together(lowering, options, samples), default=None)
    return None if batch is None else _with_statistics(lowering, options, samples, batch)


def _together(lowering: Lowering, options: Options, samples: int) -> Iterator[int]:
    """Ever smaller micro-batches, none of which is or leaves a single sample."""
    batch = samples if one_by_one(lowering, options, samples) else 1
    while batch > 2:
        batch = ceil_div(batch, 2)
        if samples % batch != 1:
            yield batch


def _with_statistics(lowering: Lowering, options: Options, samples: int, batch: int) -> Entries:
    entries = micro_batched(lowering, options, samples, batch)
    short = f"takes statistics of {batch} samples, not of {samples}"
    return decided(entries, Decision("statistics", f"{short}: other weights are learned", 0, short=short))


def for_caches(lowering: Lowering, options: Options, entries: Entries, goal: Goal) -> tuple[Entries, Sized | None]:
    """So few samples at a time that their values come nearer to fit the caches of a processor, which is faster and
    takes less RAM, unless the weights, which every micro-batch goes through, are as large as the values. With what is
    returned comes what it takes, if that was found out."""
    if not goal.cached_threads or goal.deadline_s is not None or not _sample_by_sample(entries):
        return entries, None
    at_once = sized(entries, None)
    whole = at_once.need
    values, weights = _operand_bytes(entries.graphs["train"], entries.batch)
    samples = entries.batch
    while whole.arena_bytes * samples > goal.cached_threads * CACHE_BYTES * entries.batch:
        fewer = ceil_div(samples, 2)
        if fewer < goal.cached_threads * ENOUGH_SAMPLES or weights * entries.batch > MOST_WEIGHTS * values * fewer:
            break
        samples = fewer
    if samples == entries.batch:
        return entries, at_once
    try:
        parts = micro_batched(lowering, options, entries.batch, samples)
    except SmidgenError:  # a loss that is no sum over samples
        return entries, at_once
    split = sized(parts, None)
    return (parts, split) if split.need.ram_bytes < WORTH * whole.ram_bytes else (entries, at_once)


def _sample_by_sample(entries: Entries) -> bool:
    """Every sample has outputs of its own, and labels that are ignored, which a mean does not count, can be left out
    with their samples."""
    infer, train = entries.graphs["infer"], entries.graphs["train"]
    for output in infer.of_role(Role.OUTPUT):
        one, two = at(output.shape, 1), at(output.shape, 2)
        if one[:1] != (1,) or two != (2, *one[1:]):
            return False
    if any(ops.get(node.op).batchwise for node in infer.nodes) or takes_statistics(train):
        return False
    means = [node for node in train.nodes if counts_labels(node)]
    if not all(at(train[n.ins[1]].shape, 2) == (2,) for n in means):
        return False
    return not means or bool(loss_facts(train).get("alone"))


def _operand_bytes(graph: Graph, batch: int) -> tuple[int, int]:
    """What the kernels of a step read and write: of values, and of all that is the same for any batch."""
    values = weights = 0
    for node in graph.nodes:
        if not ops.get(node.op).is_view:
            for tensor in (graph[name] for name in (*node.ins, *node.outs)):
                count = tensor.bytes(batch)
                if tensor.role is Role.VALUE and count != tensor.bytes(1):
                    values += count
                else:
                    weights += count
    return values, weights
