"""What a replay buffer holds of the samples of a step, and its place in STATE."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from .. import ops
from ..errors import BadOption
from ..ir import REPLAY, REPLAY_ROWS, Batch, DType, Graph, Role, Tensor, batch_axis
from ..program.loss import LABELS
from ..program.plan import Decision
from ..runtime.library import REPLAY_PARTS
from ..runtime.replay import Kind, Part, Shape
from .loss_facts import loss_facts
from .options import Replay


def shape_of(train: Graph, wanted: Replay, seed: int) -> Shape:
    """Of the inputs of `train`: features or the model's own, and the target. Classes are balanced if each sample has
    one label."""
    if len(train.inputs) > REPLAY_PARTS:
        why = f"a sample has {len(train.inputs)} tensors, at most {REPLAY_PARTS} can be kept"
        raise BadOption("replay does not work for this model", why=why, help=_other(wanted))
    kind = Kind.INT8 if wanted.precision == "int8" else Kind.F32
    parts = [_part(train[name], kind) for name in train.inputs[:-1]]
    target = train[train.inputs[-1]]
    facts = loss_facts(train)
    one_label = facts["kind"] == LABELS and target.shape == (Batch(1),) and target.dtype is DType.I32
    classes = int(facts["classes"]) if one_label else 0
    if wanted.samples < classes:
        raise BadOption(f"Replay(samples={wanted.samples}) is too small", why=f"there are {classes} classes, and each "
                        "needs a place", help=f"samples={4 * classes}, for instance")  # fmt: skip
    ignore = int(facts["ignore"]) if classes and facts["mean"] and facts.get("alone") else None
    found = Shape(wanted.samples, classes, (*parts, _part(target, Kind.RAW)), seed=seed,
                  is_outside=wanted.where == "page", ignore=ignore)  # fmt: skip
    if not found.bytes:
        raise BadOption(f"Replay(samples={wanted.samples}) is more than a program can address", help="fewer samples")
    return found


def _part(tensor: Tensor, kind: Kind) -> Part:
    if batch_axis(tensor.shape) != 0:
        why, help = "its first axis is not that of samples", "give it an axis of samples, the first one"
        raise BadOption("replay does not work for this model", at=tensor.name, why=why, help=help)
    shape = tuple(d.times if isinstance(d, Batch) else int(d) for d in tensor.shape)
    return Part(shape, tensor.dtype, kind if tensor.dtype is DType.F32 else Kind.RAW)


def _other(wanted: Replay) -> str:
    return "of='inputs'" if wanted.of == "features" else "fewer inputs"


def with_buffer(graph: Graph, shape: Shape) -> Graph:
    """With room for the samples. No instruction reads it, so it comes after all passes, behind all other state: an
    empty buffer is zeros, which a program file leaves out at the end."""
    sizes = {REPLAY: shape.bytes, **({REPLAY_ROWS: shape.page_bytes} if shape.is_outside else {})}
    rooms = {n: Tensor(n, (size,), DType.U8, Role.SETTING, paged=n == REPLAY_ROWS) for n, size in sizes.items()}
    empty = {name: np.broadcast_to(np.uint8(0), (size,)) for name, size in sizes.items()}
    return graph.with_(tensors={**graph.tensors, **rooms}, data={**graph.data, **empty})


def planned(shape: Shape, wanted: Replay, step: int) -> Shape:
    """For steps of so many samples."""
    return replace(shape, step=step, fresh=min(step, wanted.fresh or math.ceil(step / 2)))


def facts_of(shape: Shape, graphs: Any) -> dict[str, Any]:
    """As a program notes it."""
    return {"of": "features" if "features" in graphs else "inputs", **shape.to_json()}


def decision(shape: Shape, train: Graph, is_cut: bool, wanted: Replay) -> Decision:
    numbers = sum(part.elements for part in shape.parts[:-1])
    what = "features" if is_cut else "inputs"
    where = f" before '{_first_reader(train)}'" if is_cut else ""
    nothing = "" if is_cut or wanted.of == "inputs" else ", since nothing before what learns is frozen"
    kinds = " and ".join(dict.fromkeys(part.kind.name.lower() for part in shape.parts[:-1]))
    kept = f"{numbers:,} numbers of {what}{where} each, {kinds}{nothing}; {shape.bytes:,} bytes of state"
    if shape.is_outside:
        kept += f", {shape.page_bytes:,} in pages"
    return Decision("replay", f"keeps {shape.samples:,} samples to learn again: {kept}", 0)


def _first_reader(train: Graph) -> str:
    """The layer that reads the features first."""
    shown = {train.inputs[0]}
    for node in train.nodes:
        if shown & set(node.ins):
            if ops.border(node) != "in" and not ops.get(node.op).is_view:
                return node.src or node.op
            shown.update(node.outs)
    return "the loss"


__all__ = ["decision", "facts_of", "planned", "shape_of", "with_buffer"]
