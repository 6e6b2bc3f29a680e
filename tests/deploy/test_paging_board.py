"""Programs that page on an emulated Cortex-M board, to a file in the place of a memory card: the same bits as here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from smidgen import api
from smidgen.compiler.assemble import encode
from smidgen.compiler.entries import Entries
from smidgen.compiler.optimizers import SGD
from smidgen.deploy import emulate
from smidgen.deploy.board_run import train_on_board
from smidgen.deploy.firmware import write_firmware
from smidgen.devices.device import load_device
from smidgen.devices.room import Limit
from smidgen.errors import DoesNotFit
from smidgen.ir import Role
from smidgen.train.job import Job
from smidgen.train.npz import Samples
from tests.support.boards import EMULATOR, need
from tests.support.firmware import small
from tests.support.libraries import compiled
from tests.support.paged import optimizer_state, paged

BATCH, STEPS = 2, 3


def deep() -> Entries:
    """Four convolutions whose inputs are kept for the backward pass: 49 KB each."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU()]
    for _ in range(4):
        layers += [nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AvgPool2d(4), nn.Flatten(), nn.Linear(8 * 7 * 7, 5))
    return api.build(model.eval(), torch.zeros(BATCH, 1, 28, 28), optimizer=SGD(0.05, momentum=0.9))


def steps() -> list[tuple[list[np.ndarray], int]]:
    rng = np.random.default_rng(0)
    sizes = [BATCH] * (STEPS - 1) + [1]
    return [
        ([rng.standard_normal((n, 1, 28, 28)).astype(np.float32), rng.integers(0, 5, n).astype(np.int32)], n)
        for n in sizes
    ]


@pytest.mark.parametrize("name", ["netduinoplus2", "mps2-an385", "mps2-an505"])
def test_what_does_not_fit_fits_with_pages_and_gives_the_same_bits(name: str, tmp_path: Path) -> None:
    need(*EMULATOR)
    entries, device = deep(), load_device(name)
    moved = paged(entries, ahead=1, state=optimizer_state(entries.graphs))
    plain, program = encode(entries, Limit.of_device(device)), encode(moved, Limit.of_device(device))
    if name == "netduinoplus2":
        with pytest.raises(DoesNotFit, match="of RAM, netduinoplus2 has"):
            write_firmware(tmp_path / "plain", plain, device)
    made = write_firmware(tmp_path / "fw", program, device)
    assert made.ram_bytes < 0.75 * (plain.state_bytes + plain.arena_bytes)
    emulate.make(tmp_path / "fw")
    run = emulate.run_on_board(tmp_path / "fw", program, steps(), [([x], n) for (x, _), n in steps()[:1]], count=False)
    elf = emulate.sections(tmp_path / "fw" / f"{made.boards[-1]}.elf")
    assert elf.ram_bytes == made.ram_bytes
    assert 0.8 * elf.stack <= run.stack_used <= elf.stack
    here = Job(plain, kernels="exact")
    pages = Job(program, kernels="exact", page_to=tmp_path / "page")
    before = pages.paged
    for i, (arrays, n) in enumerate(steps()):
        loss = np.float32(here.engine.train(arrays, n))
        assert loss.tobytes() == run.losses[i].tobytes() == np.float32(pages.engine.train(arrays, n)).tobytes()
    traffic = pages.plan.paged["train"]
    assert run.paged == tuple(now - then for now, then in zip(pages.paged, before, strict=True))
    assert STEPS * traffic.in_bytes > run.paged.in_bytes > (STEPS - 1) * traffic.in_bytes
    assert run.state == pages.engine.state.copy().tobytes()
    assert {k: v.tobytes() for k, v in pages.state_dict().items()} == {
        k: v.tobytes() for k, v in here.state_dict().items()
    }
    np.testing.assert_array_equal(run.outputs[0][0], here.predict(steps()[0][0][0]))


def test_smidgen_run_pages_and_counts(tmp_path: Path) -> None:
    need(*EMULATOR)
    device = load_device("stm32f746")
    entries = deep()
    program = encode(paged(entries, ahead=0), Limit.of_device(device))
    write_firmware(tmp_path / "fw", program, device)
    emulate.make(tmp_path / "fw")
    (x, y), _ = steps()[0]
    report = train_on_board(tmp_path / "fw", Samples((x,), y), epochs=1, steps=1, check=True, count=False)
    traffic = Job(program, kernels="exact", page_to=tmp_path / "page").plan.paged["train"]
    assert report.to_json()["paged_in_bytes"] == traffic.in_bytes
    assert f"paged     {traffic.in_bytes:,} bytes in, {traffic.out_bytes:,} out" in report.to_text()


def test_firmware_that_does_not_page_has_no_code_for_it(tmp_path: Path) -> None:
    made = write_firmware(tmp_path / "fw", small(), load_device("stm32f746"))
    assert "#define SMG_PAGES 0" in (made.folder / "smidgen_config.h").read_text()
    assert not list(made.folder.rglob("*page*"))
    assert not list(made.folder.rglob("blocks*"))


def all_state(entries: Entries) -> list[str]:
    graph = entries.graphs["train"]
    return [t.name for t in graph.of_role(Role.PARAM, Role.OPTIM) if t.name in graph.data]


def test_a_program_whose_parameters_are_outside_knows_its_optimizer() -> None:
    entries = deep()
    program = encode(paged(entries, state=all_state(entries)))
    assert program.meta["optimizer"] == {"momentum": 0.9, "nesterov": False, "weight_decay": 0.0}


def test_a_build_with_checksums_proves_programs_whose_state_is_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = deep()
    outside = paged(entries, state=all_state(entries))
    library = compiled(flags=("-O1", "-DSMG_PAGE_CHECK"))
    expected = encode(outside).to_bytes()
    monkeypatch.setenv("SMIDGEN_LIBRARY", str(library))
    assert encode(outside).to_bytes() == expected
