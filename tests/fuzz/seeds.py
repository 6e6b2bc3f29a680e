"""Writes corpus/seed-*.smg: training programs of small real networks, and programs made of every op's own cases; and
corpus/found-*.smg: what fuzzing and review found, one program each.

The seeds together run every kernel. The networks need torch; running it again gives the same files.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from smidgen import api, ops
from smidgen.compiler.assemble import encode
from smidgen.compiler.entries import Entries
from smidgen.compiler.optimizers import SGD, Adam, AdamW, Optimizer
from smidgen.ir import DType, Graph
from smidgen.methods import TinyTrain
from smidgen.program.buffer import Buffer
from smidgen.program.instructions import Entry, Instruction, Operand
from smidgen.program.program import Program
from tests.fuzz.build import CORPUS
from tests.support import generated_learning, small
from tests.support.encoded import RUNNABLE, chain, encoded, looped, one_op
from tests.support.op_cases import SAMPLES, inputs_of
from tests.support.paged import paged
from tests.support.streams import Restored, Signal, Varied, streamed, with_all_streams

OPS_PER_PROGRAM = 6
LARGEST = 7000
"""Bytes of a seed: what is larger teaches a fuzzer little and costs it time."""


@dataclass(frozen=True)
class Net:
    """A network with everything that `smidgen.compile` wants to know."""

    model: nn.Module
    example: tuple[Tensor, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


class Attention(nn.Module):
    """A transformer block over words, one head."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.project = nn.Linear(4, 12)
        self.norm = nn.LayerNorm(4)
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x)
        q, k, v = self.project(self.norm(h)).chunk(3, dim=-1)
        weights = torch.softmax(q @ k.transpose(1, 2) * 0.5, dim=-1)
        y: Tensor = self.out(nn.functional.gelu(h + weights @ v).mean(dim=1))
        return y


class Decoder(nn.Module):
    """Down and up again: pooling, group norm, transposed convolution, both kinds of upsampling, concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)
        self.up = nn.ConvTranspose2d(4, 2, 2, stride=2)
        self.last = nn.Conv2d(6, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.avg_pool2d(nn.functional.silu(self.norm(self.first(x))), 2)
        near = nn.functional.interpolate(h[:, :2], scale_factor=2)
        smooth = nn.functional.interpolate(h[:, 2:], size=(4, 4), mode="bilinear")
        y: Tensor = self.last(torch.cat([self.up(h), near, smooth], dim=1))
        return y


class Unusual(nn.Module):
    """Arithmetic that no layer has."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 6)
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 6))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        h = self.inner(x)
        h = torch.where(mask > 0, h * self.scale, h / (1 + h.abs())) + torch.cumsum(h, 1) * 0.1
        return torch.maximum(h, h.flip(1)).amax(1, keepdim=True) + torch.log1p(torch.exp(-h * h)).sum(1, keepdim=True)


def convnet() -> nn.Module:
    """Dense, depthwise and grouped convolutions with batch norm."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.BatchNorm2d(4), nn.ReLU6(),
        nn.Conv2d(4, 6, 1, groups=2), nn.Hardswish(), nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(), nn.LazyLinear(3),
    )  # fmt: skip


def networks() -> Iterator[tuple[str, Net]]:
    """Each model is made right after the seed is set, so that its weights are always the same."""
    image, words = torch.zeros(2, 1, 8, 8), torch.zeros(2, 4, dtype=torch.long)
    optimizers: dict[str, Optimizer] = {
        "momentum": SGD(0.05, momentum=0.9, weight_decay=1e-4, nesterov=True),
        "adam": Adam(1e-3),
        "clipped": AdamW(1e-3, clip_norm=1.0),
    }
    for name, optimizer in optimizers.items():
        torch.manual_seed(0)
        model = convnet()
        model(image)  # the lazy layer gets its size
        yield f"convnet-{name}", Net(model, (image,), {"optimizer": optimizer, "bn": "batch"})
        torch.manual_seed(0)
        yield f"attention-{name}", Net(Attention(), (words,), {"optimizer": optimizer})
    for method in ("last_layer", "bias", "bn"):
        torch.manual_seed(0)
        model = convnet()
        model(image)
        yield f"convnet-{method}", Net(model, (image,), {"optimizer": SGD(0.1), "method": method})
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 3))
    yield "parts", Net(model, (torch.zeros(3, 6),), {"optimizer": Adam(1e-3), "accumulate": True})
    for loss in ("mse", "bce_with_logits"):
        torch.manual_seed(0)
        model, target = Decoder(), torch.zeros(2, 1, 4, 4)
        yield f"decoder-{loss}", Net(model, (torch.zeros(2, 2, 4, 4),), {"loss": loss, "target": target})
    torch.manual_seed(0)
    two = (torch.zeros(3, 5), torch.zeros(3, 6))
    yield "unusual", Net(Unusual(), two, {"loss": "mse", "target": torch.zeros(3, 1)})


def streaming() -> Iterator[tuple[str, nn.Module, Tensor]]:
    """Each model is made right after the seed is set, as in `networks`."""
    torch.manual_seed(0)
    yield "image", Varied(), torch.zeros(2, 1, 10, 6)
    torch.manual_seed(0)
    yield "restored", Restored(1), torch.zeros(2, 1, 8, 4)
    torch.manual_seed(0)
    yield "signal", Signal(), torch.zeros(2, 1, 17)


def only(entries: Entries, *names: str) -> Entries:
    return replace(entries, graphs={name: entries.graphs[name] for name in names})


def op_graphs() -> Iterator[tuple[str, Graph]]:
    """The first two cases of every op (one if it updates state), and one for each kernel that they do not use."""
    for op in RUNNABLE:
        used: set[str] = set()
        for i, case in enumerate(op.cases):
            arrays = inputs_of(op, case)
            # Indices of a slice ascend: others are refused before the kernel does anything.
            lists = [k for k, array in enumerate(arrays) if array.dtype == np.int32] if "_put" in op.name else []
            graph, _ = one_op(op, case, arrays, lists)
            kernels = set(encoded({"one": graph}, SAMPLES).kernels)
            if i < (1 if graph.data else 2) or kernels - used:
                yield f"{op.name}-{i}", graph
            used |= kernels


def programs() -> Iterator[tuple[str, Program]]:
    for name, net in networks():
        entries = api.build(net.model, net.example, **net.options)
        yield name, encode(entries)
    yield "residual", encode(small.entries(learn=("w3", "b3"), dropout=0.3, accumulate=True))
    yield "pages", encode(paged(small.entries(("w2", "b3")), ahead=2, state=["w2", "w2:momentum"], only=["v.relu"]))
    for rows in (1, 3):
        for name, model, image in streaming():
            entries = api.build(model, (image,), optimizer=SGD(0.1), method="last_layer")
            yield f"streams-{name}-{rows}", encode(only(with_all_streams(entries, rows), "train", "infer"))
    yield "streams-bytes", encoded({"infer": streamed(looped(DType.U8, 1)), "train": streamed(looped(per_sample=1))}, 3)
    for seed in (29, 16):  # every kind of sum over rows
        yield (
            f"streams-learning-{seed}",
            generated_learning.program(
                generated_learning.streamed(generated_learning.network(seed), random.Random(seed))
            ),
        )
    yield "bytes", encoded({"infer": chain(), "train": looped(DType.U8, 1)}, 3)
    graphs = list(op_graphs())
    yield from ((f"op-{name}", encoded({name: graph}, SAMPLES)) for name, graph in graphs if graph.data)
    rest = [(name, graph) for name, graph in graphs if not graph.data]  # nothing stored: names cannot collide
    for at in range(0, len(rest), OPS_PER_PROGRAM):
        some = dict(rest[at : at + OPS_PER_PROGRAM])
        yield f"ops-{next(iter(some))}", encoded(some, SAMPLES)
    scored = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    entries = api.build(scored, (torch.randn(2, 1, 5, 5),), method=TinyTrain(layers=1))
    yield "scores", encode(only(entries, "clear_scores", "score", "scores"))


def by_hand(*code: Instruction, inputs: Sequence[Buffer] = (), outputs: Sequence[Buffer] = ()) -> Program:
    """Batch 1; 64 bytes of CONST, 64 of STATE, 128 of ARENA; one entry point."""
    entry = Entry((*inputs, *outputs), code)
    return Program(1, 16, {"train": entry}, bytes(64), b"", 64, 128)


def findings() -> Iterator[tuple[str, Program]]:
    """Two overflowed an int32 in a kernel that was given more than eight gigabytes by its caller, one with a parameter
    that is infinite; one pages nothing to nowhere, which opened and could not be run."""
    most = 2**31 - 1
    wide = Buffer("x", DType.F32, (most,), "input")
    place = Operand("input", 0)
    yield (
        "cross_entropy-of-two-billion-classes",
        by_hand(
            Instruction("cross_entropy_f32", (Operand("arena", 0), place, Operand("arena", 4)), (1, most, -100, 1, 0)),
            inputs=[wide],
        ),
    )
    ties = Instruction("amax_dx_f32", (Operand("output", 1), Operand("arena", 0), place, Operand("arena", 4)), (
        0, 2, 2, most, most, 1,
    ))  # fmt: skip
    both = [Buffer(name, DType.F32, (2, most), "input" if name == "x" else "output") for name in ("x", "dx")]
    yield "amax_dx-of-four-billion-ties", by_hand(ties, inputs=both[:1], outputs=both[1:])
    restart = Instruction(
        "restart_moments_f32", (Operand("state", 0), Operand("arena", 0)), (0, -(1 << 23), 0x3F800000)
    )
    yield "restart_moments-of-minus-infinity", by_hand(restart)
    yield "page_out-without-pages", by_hand(Instruction("page_out", (Operand("page", 0), Operand("arena", 0)), (0,)))


def main() -> None:
    for old in [*CORPUS.glob("seed-*.smg"), *CORPUS.glob("found-*.smg")]:
        old.unlink()
    for name, program in findings():
        (CORPUS / f"found-{name}.smg").write_bytes(program.to_bytes())
    total, used = 0, set()
    for name, program in programs():
        data = replace(program, meta={}).to_bytes()
        if len(data) > LARGEST:
            print(f"left out: {name}, {len(data)} bytes")
            continue
        total, used = total + len(data), used | set(program.kernels)
        (CORPUS / f"seed-{name}.smg").write_bytes(data)
    wanted = {kernel for op in ops.all_ops().values() for kernel in op.kernels.values()}
    print(f"{total} bytes, {len(used)} kernels; in no seed: {sorted(wanted - used)}")


if __name__ == "__main__":
    main()
