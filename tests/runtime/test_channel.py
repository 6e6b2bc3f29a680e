"""Inputs and outputs through a channel give the bits of inputs in memory; what cannot be done so is refused first."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from smidgen import api
from smidgen.compiler.assemble import encode
from smidgen.compiler.optimizers import SGD
from smidgen.program.program import Program
from smidgen.runtime.library import BAD_CALL, STOPPED
from smidgen.runtime.machine import Machine
from tests.support.channels import READ, Through


def program(method: str, batch: int = 3) -> Program:
    """Its inputs change their order of axes; with `last_layer` they are fetched sample by sample."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Conv2d(5, 4, 3), nn.Flatten(), nn.Linear(4 * 9 * 5, 3))
    return encode(api.build(model, torch.randn(2, 3, 13, 9), optimizer=SGD(0.1), method=method, batch=batch))


@pytest.mark.parametrize("method", ["full", "last_layer"])
def test_every_choice_of_hidden_buffers_gives_the_same_bits(method: str) -> None:
    made = program(method)
    plain = Machine(made.to_bytes())
    rng = np.random.default_rng(0)
    for hidden in itertools.product([False, True], repeat=3):
        through = Through(made)
        plain.reset()
        for n in (3, 1, 2):
            x, y = rng.standard_normal((n, 3, 13, 9)).astype(np.float32), rng.integers(0, 3, n, np.int32)
            losses = [np.zeros((), np.float32), np.zeros((), np.float32)]
            plain.run("train", [x, y], [losses[0]], n)
            assert through.run("train", [x, y, losses[1]], hidden, n) == (0, "")
            assert losses[0].tobytes() == losses[1].tobytes()
            outputs = [np.zeros((n, 3), np.float32), np.zeros((n, 3), np.float32)]
            plain.run("infer", [x], [outputs[0]], n)
            assert through.run("infer", [x, outputs[1]], hidden[:2], n) == (0, "")
            assert outputs[0].tobytes() == outputs[1].tobytes()
        assert through.machine.state.tobytes() == plain.state.tobytes()
        assert bool(through.pieces) == any(hidden)


def test_a_channel_that_fails_stops_the_step_by_name() -> None:
    through = Through(program("full"), fails=True)
    x, y, loss = np.zeros((1, 3, 13, 9), np.float32), np.zeros(1, np.int32), np.zeros((), np.float32)
    status, said = through.run("train", [x, y, loss], (True, False, False), 1)
    assert status == STOPPED
    assert said == "train, instruction 0, copy_b4: the channel could not read"


def test_nothing_without_a_function_for_it() -> None:
    through = Through(program("full"))
    through.channel.read = READ()
    x, y, loss = np.zeros((1, 3, 13, 9), np.float32), np.zeros(1, np.int32), np.zeros((), np.float32)
    status, said = through.run("train", [x, y, loss], (True, False, False), 1)
    assert (status, said) == (BAD_CALL, "buffer 'input' needs 1404 bytes and has 0")


def test_a_program_that_computes_with_an_input_where_it_lies_is_refused_before_it_runs() -> None:
    """No program of ours does, but one over the air might."""
    from dataclasses import replace

    made = program("full")
    entry = made.entries["infer"]
    feed = next(i for i in entry.code if i.operands and i.operands[1].region == "input")
    negated = replace(feed, kernel="neg_f32", params=(27,))
    code = tuple(negated if i is feed else i for i in entry.code)
    direct = replace(made, entries={**made.entries, "infer": replace(entry, code=code)})
    through = Through(direct)
    state = through.machine.state.tobytes()
    x, y = np.zeros((1, 3, 13, 9), np.float32), np.zeros((1, 3), np.float32)
    status, said = through.run("infer", [x, y], (False, True), 1)
    assert (status, said) == (0, "")
    status, said = through.run("infer", [x, y], (True, False), 1)
    assert status == BAD_CALL
    assert said.endswith(", neg_f32: a buffer without memory can only be copied")
    assert through.machine.state.tobytes() == state
