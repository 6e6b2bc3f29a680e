"""What leaves a client is what learned, and counters; what is not fit to be learned from is refused, and its client
named, while the run goes on."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_to_proto
from flwr.serverapp.strategy import FedAvg

import smidgen
from smidgen import fleet
from smidgen.errors import SmidgenError, WrongVersion, all_errors
from smidgen.fleet.client import Client
from smidgen.fleet.records import packed, unpacked
from tests.support.fleets import cnn, programmed, samples
from tests.support.fleets import program as compiled

DATA = samples((3, 8, 8), 5, (9, 8, 12))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    return compiled(tmp_path_factory.mktemp("fleet"), cnn().eval(), DATA[0][0][:4])


@pytest.fixture(scope="module")
def sliced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    method = [smidgen.Update("2.conv.weight", axis=1, indices=[0, 3]), "5.bias"]
    return compiled(tmp_path_factory.mktemp("sliced"), cnn().eval(), DATA[0][0][:4], method=method)


def asked(program: Path, app: ClientApp, part: int = 0) -> Message:
    """What a client answers to the first round."""
    grid = fleet.LocalGrid(app, 3)
    record = RecordDict({"arrays": fleet.initial_arrays(program), "config": fleet.train_config(program)})
    (reply,) = grid.send_and_receive([Message(record, part + 2, "train")])
    return reply


# -- what a client returns -------------------------------------------------------------------------------------------


def test_nothing_leaves_a_client_but_what_learned_and_counters(program: Path, sliced: Path) -> None:
    for path in (program, sliced):
        reply = asked(path, programmed(path, DATA))
        terms = fleet.Terms.of(smidgen.load(path))
        assert set(reply.content) == {"arrays", "metrics", "fleet"}
        assert {n: a.shape for n, a in reply.content["arrays"].items()} == {n: h.sent_shape for n, h in terms.items()}
        assert set(reply.content["metrics"]) == {
            "num-examples", "steps", "loss", "ram-bytes", "mapped-bytes", "seconds", "device-seconds", "joules",
        }  # fmt: skip
        slices = {f"slice:{n}" for n, h in terms.items() if h.axis is not None}
        assert set(reply.content["fleet"]) == {"version", "client", *slices}
        wire = message_to_proto(reply).SerializeToString()
        assert len(wire) < terms.sent_bytes + 400 * len(terms) + 1000
        assert not any(sample.tobytes()[:64] in wire for sample in DATA[0][0])


def test_a_slice_travels_as_a_slice_with_its_indices(sliced: Path) -> None:
    reply = asked(sliced, programmed(sliced, DATA))
    assert reply.content["arrays"]["2.conv.weight"].shape == (8, 2, 3, 3)
    assert reply.content["fleet"]["slice:2.conv.weight"] == [1, 0, 3]


def test_the_slice_is_what_the_fleet_learns(sliced: Path) -> None:
    result, checked = fleet.federate(
        fleet.LocalGrid(programmed(sliced, DATA), 3), FedAvg(), sliced, rounds=2, save=sliced.parent / "out.smg"
    )
    before, after = (smidgen.load(path).state_dict()["2.conv.weight"] for path in (sliced, sliced.parent / "out.smg"))
    moved = np.abs(after - before).max(axis=(0, 2, 3))
    assert (moved > 0).tolist() == [True, False, False, True, False, False, False, False]
    assert np.array_equal(after[:, [0, 3]], unpacked(result.arrays)["2.conv.weight"])
    assert checked.refused == []


def test_a_round_begins_anew(program: Path) -> None:
    """Neither the optimizer nor the step of the program's file, nor an earlier round, is seen in what it returns."""
    job = smidgen.load(program)
    job.fit(*DATA[1], epochs=2, progress=False)
    job.save(program.parent / "used.smg")
    start = fleet.Terms.of(job).values_of(smidgen.load(program))
    fresh, used = (Client(path, *DATA[0]) for path in (program, program.parent / "used.smg"))
    first, again, third = fresh.train(start), fresh.train(start), used.train(start)
    assert all(np.array_equal(first.values[n], again.values[n]) for n in start)
    assert all(np.array_equal(first.values[n], third.values[n]) for n in start)


# -- what is refused -------------------------------------------------------------------------------------------------

Values = dict[str, np.ndarray]


def _with(**changed: Any) -> Callable[[RecordDict, Values], None]:
    def change(content: RecordDict, values: Values) -> None:
        content["arrays"] = packed({**values, **{n.replace("__", "."): v for n, v in changed.items()}})

    return change


def _scaled(content: RecordDict, values: Values) -> None:
    content["arrays"] = packed({n: v * np.float32(1e6) for n, v in values.items()})


def _not_a_number(content: RecordDict, values: Values) -> None:
    values = {n: v.copy() for n, v in values.items()}
    values["5.bias"][2] = np.nan
    content["arrays"] = packed(values)


def _without(content: RecordDict, values: Values) -> None:
    content["arrays"] = packed({n: v for n, v in values.items() if n != "5.bias"})


def _raw(data: bytes) -> Callable[[RecordDict, Values], None]:
    def change(content: RecordDict, values: Values) -> None:
        record = ArrayRecord(dict(content["arrays"]))
        record["5.bias"] = Array("float32", (5,), "numpy.ndarray", data)
        content["arrays"] = record

    return change


def _saved(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def _huge() -> bytes:
    """A header that promises a terabyte."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (1 << 38,)})
    return file.getvalue() + bytes(20)


def _counter(**changed: Any) -> Callable[[RecordDict, Values], None]:
    def change(content: RecordDict, values: Values) -> None:
        named = {n.replace("_", "-"): v for n, v in changed.items()}
        content["metrics"] = MetricRecord({**content["metrics"], **named})

    return change


def _version(content: RecordDict, values: Values) -> None:
    content["fleet"] = ConfigRecord({**content["fleet"], "version": "0123456789abcdef"})


def _raises(content: RecordDict, values: Values) -> None:
    raise OSError("the sensor is gone")


FAULTS = {
    "not a number": ("E603", _not_a_number),
    "infinite": ("E603", _with(**{"5__bias": np.full(5, np.inf)})),
    "another shape": ("E602", _with(**{"5__bias": np.zeros(6)})),
    "integers": ("E602", _with(**{"5__bias": np.zeros(5, int)})),
    "one more": ("E602", _with(more=np.zeros(3))),
    "one missing": ("E602", _without),
    "cut off": ("E602", _raw(_saved(np.zeros(5, np.float32))[:-3])),
    "nothing": ("E602", _raw(b"")),
    "an object": ("E602", _raw(_saved(np.array([{}] * 5, object)))),
    "a terabyte": ("E602", _raw(_huge())),
    "another version": ("E601", _version),
    "absurdly large": ("E604", _scaled),
    "no samples": ("E602", _counter(num_examples=0)),
    "samples that are no number": ("E602", _counter(num_examples=np.nan)),
    "a list of samples": ("E602", _counter(num_examples=[1, 2])),
    "a counter more": ("E602", _counter(more=1)),
    "it raises": ("", _raises),
}


def faulty(good: ClientApp, change: Callable[[RecordDict, Values], None]) -> ClientApp:
    """Client 1 of these sends something else."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        reply = good(message, context)
        if context.node_config["partition-id"] == 1:
            change(reply.content, unpacked(reply.content["arrays"]))
        return reply

    return app


@pytest.mark.parametrize("fault", FAULTS)
def test_a_client_is_refused_by_name_and_the_run_goes_on(fault: str, program: Path) -> None:
    code, change = FAULTS[fault]
    app = programmed(program, DATA)
    grid = fleet.LocalGrid(faulty(app, change), 3)
    strategy = FedAvg(fraction_evaluate=0.0)
    result, checked = fleet.federate(grid, strategy, program, rounds=1, seed=3)
    (refused,) = checked.refused
    assert (refused.round, refused.code) == (1, code)
    assert "node 3" in refused.client
    assert code == "" or refused.client.startswith("client 1 ")
    assert f"error[{code}]: " in refused.why if code else "the sensor is gone" in refused.why
    job = smidgen.load(program)
    start = fleet.Terms.of(job).values_of(job)
    good = [Client(program, *DATA[part], part=part).train(start, seed=3) for part in (0, 2)]
    for name, value in unpacked(result.arrays).items():
        mean = (9 * good[0].values[name].astype(float) + 12 * good[1].values[name]) / 21
        assert np.abs(value - mean).max() < 1e-6


def test_every_code_of_fleets_is_provoked_here() -> None:
    assert {code for code in all_errors() if code.startswith("E6")} == {
        "E605",  # test_differ.py
        "E606",
        "E607",  # test_boards.py
        *(code for code, _ in FAULTS.values() if code),
    }


def test_a_round_of_refused_updates_only_changes_nothing(program: Path) -> None:
    def all_wrong(message: Message, context: Context) -> Message:
        raise OSError("gone")

    app = ClientApp()
    app.train()(all_wrong)
    _, checked = fleet.federate(fleet.LocalGrid(app, 3), FedAvg(fraction_evaluate=0.0), program, rounds=2,
                                save=program.parent / "same.smg")  # fmt: skip
    assert len(checked.refused) == 6
    before, after = (smidgen.load(p).state_dict() for p in (program, program.parent / "same.smg"))
    assert all(np.array_equal(before[n], after[n]) for n in before)


def test_a_client_refuses_a_fleet_of_another_version(program: Path, sliced: Path) -> None:
    reply = asked(program, programmed(sliced, DATA))
    assert "error[E601]" in reply.error.reason
    assert "client 0" in reply.error.reason
    with pytest.raises(WrongVersion):
        Client(sliced, *DATA[0]).evaluate({}, version=fleet.Terms.of(smidgen.load(program)).version)


def test_the_version_is_of_names_shapes_and_what_learns_but_not_of_the_plan(program: Path, tmp_path: Path) -> None:
    torch.manual_seed(5)
    model, x = cnn().eval(), DATA[0][0][:4]
    usual = fleet.Terms.of(smidgen.load(program)).version
    same = [{"budget": "40KB", "kernels": "exact"}, {"batch": 2}, {"optimizer": smidgen.Adam(0.1)}]
    assert {fleet.Terms.of(smidgen.compile(model, x, **o)).version for o in same} == {usual}
    methods = ["last_layer", "bias", *([smidgen.Update("5.weight", axis=0, indices=[i])] for i in (0, 1))]
    others = [fleet.Terms.of(smidgen.compile(model, x, method=method)).version for method in methods]
    assert len({usual, *others}) == 5


@pytest.mark.parametrize("limit", [0, -1.0, float("inf")])
def test_a_limit_is_above_zero(limit: float, program: Path) -> None:
    with pytest.raises(SmidgenError, match="above 0"):
        fleet.Checked(FedAvg(), fleet.Terms.of(smidgen.load(program)), max_norm=limit)
