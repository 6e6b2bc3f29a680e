"""Deep networks of the field: the published architectures, trained as PyTorch trains them (at reduced size), and
made into programs at full size."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from benchmarks import parity as rows
from benchmarks.nets.large import LARGE, REDUCED, task
from smidgen import api
from smidgen.compiler.assemble import encode
from smidgen.ir import Graph, Role
from smidgen.report import parity
from smidgen.train.job import Job

# As the papers and the libraries that ship these networks count them; BERT with a classifier for two classes.
PARAMETERS = {
    "vgg11": 132_863_336,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "mobilenetv1": 4_231_976,
    "mobilenetv2": 3_504_872,
    "squeezenet": 1_235_496,
    "densenet121": 7_978_856,
    "inceptionv3": 23_834_568,  # 27,161,264 with the auxiliary classifier
    "bert_small": 28_763_648 + 2 * 513,
    "bert_base": 109_482_240 + 2 * 769,
}
STEPS = 2


def built(name: str) -> nn.Module:
    """Without memory for its weights."""
    with torch.device("meta"):
        return {**LARGE, **REDUCED}[name].build()


@pytest.mark.parametrize("name", LARGE)
def test_a_large_network_has_the_published_number_of_parameters(name: str) -> None:
    assert sum(p.numel() for p in built(name).parameters()) == PARAMETERS[name]


@pytest.mark.parametrize("name", LARGE)
def test_a_reduced_network_has_all_layers_of_the_large_one(name: str) -> None:
    def layers(model: nn.Module) -> list[tuple[str, type[nn.Module]]]:
        return [(path, type(module)) for path, module in model.named_modules()]

    assert layers(built(f"{name}_reduced")) == layers(built(name))


TRAINED = [rows.Row(name, "momentum", 2, "full", "frozen") for name in REDUCED]
TRAINED += [
    rows.Row(f"{name}_reduced", "momentum", 4, "full", "batch") for name in ("resnet18", "resnet50", "mobilenetv1")
]


@pytest.mark.parametrize("row", [pytest.param(r, id=str(r), marks=pytest.mark.xdist_group(r.net)) for r in TRAINED])
def test_training_equals_pytorch(row: rows.Row) -> None:
    """Two of the rules of smidgen.report.parity, for few steps; `python -m benchmarks.parity --large` has the rest."""
    case = rows.case_of(row)
    few = case.batches[:STEPS]
    a = parity.free_run(case.entries, case.reference, few)
    assert a.passed, a
    job = Job(encode(case.entries), kernels="exact")
    b = parity.restarted(job, case.reference(torch.float64), case.optimizer, few)
    assert b.passed, b


def test_padding_changes_nothing_in_bert() -> None:
    model, (tokens, mask), loss = task("bert_small_reduced", 4)
    job = smidgen.compile(model, (tokens, mask), loss=loss)
    others = np.where(mask == 1, tokens, (tokens + 1) % 60)
    assert not np.array_equal(others, tokens)
    assert np.array_equal(job.predict((others, mask)), job.predict((tokens, mask)))
    assert not np.array_equal(job.predict((others, np.ones_like(mask))), job.predict((tokens, np.ones_like(mask))))


@pytest.mark.parametrize("name", ["resnet50", "bert_base"])
def test_a_network_of_full_size_becomes_a_program(name: str) -> None:
    """Its plan is the tightest that this order of nodes allows, and what learns is in memory once."""
    model, example, loss = task(name, 1)
    entries = api.build(model, example, loss=loss, optimizer=smidgen.SGD(0.01, momentum=0.9))
    train, infer = entries.graphs["train"], entries.graphs["infer"]
    assert weights(train).keys() == weights(infer).keys()
    assert all(np.shares_memory(value, weights(infer)[name]) for name, value in weights(train).items())
    program = encode(entries)
    learned = sum(-(-4 * p.numel() // 16) * 16 for p in model.parameters())
    assert program.state_bytes - 2 * learned in range(1, 100)  # the momentum, too; learning rate and counter
    plan = program.meta["plan"]
    assert plan["arena_bytes"] == plan["lower_bound_bytes"]
    assert plan["learned_parameters"] == PARAMETERS[name]


def weights(graph: Graph) -> dict[str, np.ndarray]:
    return {t.name: graph.data[t.name] for t in graph.of_role(Role.PARAM) if t.name in graph.data}
