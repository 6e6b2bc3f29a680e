"""Firmware as a C project: what is written, how much RAM it takes, and what the linker says to a byte less."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.boards import CASES, bytes_per_instruction, measured, planned, tools
from benchmarks.parity import machine
from smidgen import api, cli
from smidgen.compiler.assemble import encode
from smidgen.compiler.optimizers import SGD
from smidgen.deploy import board_memory, emulate
from smidgen.deploy.firmware import write_firmware
from smidgen.devices import cores, overhead, room, stack
from smidgen.devices.device import Bank, load_device
from smidgen.devices.firmware_sources import COMPILER_FLAGS, PORT
from smidgen.errors import BadOption, CannotWrite, DoesNotFit, MissingPart, RunFailed
from tests.support.boards import COMPILER, EMULATOR, need
from tests.support.firmware import small

# -- memory protection -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protection", ["v7", "v8"])
def test_regions_cover_exactly_the_memory_of_the_device(protection: cores.Protection) -> None:
    rng = random.Random(0)
    plain = load_device("mps2-an500")
    sizes = [32, 64, 96, 224, 256, 288, 320 * 1024, 264 * 1024, *(32 * rng.randrange(1, 30_000) for _ in range(200))]
    for size in sizes:
        device = replace(plain, ram_banks=(Bank("RAM", 0x2000_0000, size),), flash_bytes=1 << 20)
        found = board_memory.regions(device, protection)
        ram = [p for p in board_memory.covered(found, protection) if 0x2000_0000 <= p[0] < 0x4000_0000]
        assert sum(end - start for start, end in ram) == size
        assert (min(p[0] for p in ram), max(p[1] for p in ram)) == (0x2000_0000, 0x2000_0000 + size)


def test_every_device_with_a_port_has_regions_and_a_stand_in() -> None:
    for name in ("stm32f746", "stm32f746-disco", "stm32f405", "stm32h743", "rp2040", "nrf52840", "mkr1000"):
        device = load_device(name)
        emulated = board_memory.standin(device)
        assert [b.bytes for b in emulated.ram_banks] == [b.bytes for b in device.ram_banks]
        for one in (device, emulated):
            found = board_memory.covered(board_memory.regions(one, "v7"), "v7")
            for bank in one.ram_banks:
                assert (
                    sum(max(0, min(e, bank.origin + bank.bytes) - max(s, bank.origin)) for s, e in found) == bank.bytes
                )


def test_a_core_without_a_port_is_refused_with_those_that_have_one() -> None:
    with pytest.raises(BadOption, match="no firmware for esp32-s3") as caught:
        cores.core_of(load_device("esp32-s3"))
    assert "stm32f746" in caught.value.help
    assert "raspberry" not in caught.value.help


# -- the project -----------------------------------------------------------------------------------------------------


def test_only_the_sources_that_the_program_needs_are_copied(tmp_path: Path) -> None:
    made = write_firmware(tmp_path / "fw", small(), load_device("stm32f746"))
    kernels = {path.name for path in (tmp_path / "fw" / "smidgen" / "kernels").glob("*.c")}
    assert "matrix.c" in kernels
    assert "conv.c" not in kernels
    assert made.boards == ("stm32f746", "mps2-an500")
    table = (tmp_path / "fw" / "kernels.c").read_text()
    assert sum(f"&smg_kernel_{name}," in table for name in small().kernels) == len(small().kernels)
    assert "conv2d" not in table


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(CannotWrite, match="not a firmware project"):
        write_firmware(tmp_path, small(), load_device("stm32f746"))
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_an_edited_main_stays_and_another_device_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "fw"
    write_firmware(folder, small(), load_device("stm32f746"))
    (folder / "main.c").write_text("/* mine */")
    write_firmware(folder, small(), load_device("stm32f746"))
    assert (folder / "main.c").read_text() == "/* mine */"
    with pytest.raises(CannotWrite, match="firmware for stm32f746"):
        write_firmware(folder, small(), load_device("nrf52840"))


@pytest.mark.parametrize("prefix", ["2nd", "a b", "smg", "board", ""])
def test_a_prefix_that_is_no_name_in_c_is_refused(prefix: str, tmp_path: Path) -> None:
    with pytest.raises(BadOption):
        write_firmware(tmp_path / "fw", small(), load_device("stm32f746"), prefix or "-")


def test_what_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(DoesNotFit, match="needs 273,056 bytes of RAM, netduinoplus2 has 196,608"):
        write_firmware(tmp_path / "fw", planned(CASES["lenet5-full"])[0], load_device("netduinoplus2"))
    assert not (tmp_path / "fw").exists()


def test_flash_for_slots_is_kept_free_and_counts(tmp_path: Path) -> None:
    device, sector = load_device("stm32f746"), 256 * 1024
    program = planned(CASES["lenet5-full"])[0]
    made = write_firmware(tmp_path / "fw", program, replace(device, slot_bytes=sector))
    assert made.flash_bytes == program.flash_bytes + 2 * sector
    script = (tmp_path / "fw" / "boards" / "stm32f746" / "link.ld").read_text()
    assert f"FLASH (rx) : ORIGIN = 0x08000000, LENGTH = {device.flash_bytes - 2 * sector}\n" in script
    assert (
        f"SLOTS (r) : ORIGIN = 0x{0x0800_0000 + device.flash_bytes - 2 * sector:08x}, LENGTH = {2 * sector}" in script
    )
    assert f"#define NET_SLOT_BYTES {sector} " in (tmp_path / "fw" / "net_program.h").read_text()
    with pytest.raises(BadOption, match="a slot of 131,072 bytes is too small"):
        write_firmware(tmp_path / "small", program, replace(device, slot_bytes=sector // 2))
    with pytest.raises(DoesNotFit, match="bytes of flash besides the code, stm32f746 has 1,048,576") as caught:
        write_firmware(tmp_path / "large", program, replace(device, slot_bytes=2 * sector))
    assert "two slots 1,048,576" in caught.value.why
    assert not (tmp_path / "large").exists()
    if shutil.which("arm-none-eabi-gcc"):
        emulate.make(tmp_path / "fw")


def test_programs_of_one_firmware_share_its_slots(tmp_path: Path) -> None:
    device = replace(load_device("stm32f746"), slot_bytes=4096)
    write_firmware(tmp_path, small(), device)
    with pytest.raises(BadOption, match="keeps two slots of 4,096 bytes free, not 0") as caught:
        write_firmware(tmp_path, small(5), load_device("stm32f746"), "other")
    assert caught.value.help == "--slot-bytes 4096"
    write_firmware(tmp_path, small(), load_device("stm32f746"))
    write_firmware(tmp_path, small(5), load_device("stm32f746"), "other")


def test_a_slot_holds_the_state_that_is_in_pages_too(tmp_path: Path) -> None:
    paged = replace(small(), page_bytes=4096, page_state_bytes=4096)
    device = replace(load_device("stm32f746"), slot_bytes=paged.state_bytes + 4096)
    with pytest.raises(BadOption, match="too small"):
        room.check_slots(device, paged)
    room.check_slots(device, small())


def slots_of(tmp_path: Path, command: str, slot_bytes: int, device: str = "--device mkr1000") -> int:
    (tmp_path / "nets.py").write_text(
        "from torch import nn\ndef build(): return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))\n"
    )
    words = f"{command} {tmp_path / 'nets.py'}:build --input 2x4 {device} --slot-bytes {slot_bytes}"
    return cli.main(words.split() + (["--firmware", str(tmp_path / "fw")] if command == "build" else []))


@pytest.mark.parametrize("command", ["plan", "build"])
def test_plan_and_build_agree_about_slots(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An MKR1000 has 256 KB of flash."""
    assert slots_of(tmp_path, command, 128 * 1024) == 1
    said = capsys.readouterr().err
    assert "error[E201]: needs 259 KB of flash, mkr1000 has 256 KB" in said
    assert "two slots 256 KB" in said
    assert slots_of(tmp_path, command, 256) == 2
    assert "a slot of 256 bytes is too small" in capsys.readouterr().err
    assert slots_of(tmp_path, command, 4096, "") == 2
    assert "--device stm32f746" in capsys.readouterr().err
    assert slots_of(tmp_path, command, 4096) == 0
    text = "; two slots of 4,096 for saved state" if command == "plan" else "of flash with two slots besides the code"
    assert text in " ".join(capsys.readouterr().out.split())


def test_state_and_arena_go_to_the_banks_that_hold_them(tmp_path: Path) -> None:
    """An STM32F405 has 128 KB and 64 KB that are not side by side."""
    need(*EMULATOR)
    device = load_device("stm32f405")
    program = planned(CASES["lenet5-bias-last2"])[0]
    made = write_firmware(tmp_path / "fw", program, device)
    header = (tmp_path / "fw" / "net_program.h").read_text()
    assert ".ram_CCM" in header
    emulate.make(tmp_path / "fw")
    for board in made.boards:
        assert emulate.sections(tmp_path / "fw" / f"{board}.elf").ram_bytes == made.ram_bytes
    sizes = {"STATE": program.state_bytes, "ARENA": program.arena_bytes}
    second = sum(sizes[region] for region in re.findall(r"NET_(\w+)_BANK .*\.ram_CCM", header))
    first = made.ram_bytes - second
    scripts = [tmp_path / "fw" / "boards" / board / "link.ld" for board in made.boards]
    for less, status in ((0, "links"), (8, "region `CCM' overflowed by 8 bytes")):
        for script in scripts:
            script.write_text(re.sub(r"(CCM .* LENGTH = )\d+", rf"\g<1>{second - less}", script.read_text()))
        assert status in linking(tmp_path / "fw", first)
    for script in scripts:
        script.write_text(re.sub(r"(CCM .* LENGTH = )\d+", rf"\g<1>{second}", script.read_text()))
    assert "overflowed by 8 bytes" in linking(tmp_path / "fw", first - 8)


def linking(folder: Path, ram_bytes: int) -> str:
    """With so much RAM in the first bank: `links`, or what the linker says."""
    try:
        emulate.make(folder, f"RAM_BYTES={ram_bytes}")
    except RunFailed as error:
        return error.why
    return "links"


def test_instructions_take_at_most_64_bytes() -> None:
    from benchmarks.nets import NETS

    net = NETS["mcunet"]
    mcunet = encode(api.build(net.model(), net.data(2)[0], optimizer=SGD(0.01), batch=1, method="last_layer"))
    for program in (planned(CASES["lenet5-full"])[0], mcunet):
        assert bytes_per_instruction(program) <= 64


# -- RAM -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c.tight or len(load_device(c.device).ram_banks) == 1])
def test_the_plan_is_what_is_linked_and_eight_bytes_less_do_not_link(name: str, tmp_path: Path) -> None:
    need(*COMPILER)
    program, device = planned(CASES[name])
    made = write_firmware(tmp_path / "fw", program, device)
    assert program.meta["plan"]["ram_bytes"] == made.ram_bytes
    emulate.make(tmp_path / "fw", f"RAM_BYTES={made.ram_bytes}")
    for board in made.boards:
        linked = emulate.sections(tmp_path / "fw" / f"{board}.elf")
        assert linked.ram_bytes == linked.data + linked.bss + linked.stack == made.ram_bytes
        (tmp_path / "fw" / f"{board}.elf").unlink()
    with pytest.raises(RunFailed, match="does not build") as caught:
        emulate.make(tmp_path / "fw", f"RAM_BYTES={made.ram_bytes - 8}")
    assert "overflowed by 8 bytes" in caught.value.why


ONE_OF_EACH = {
    "cortex-m0": "mps2-an385", "cortex-m0plus": "mps2-an385", "cortex-m3": "mps2-an385", "cortex-m4": "mps2-an386",
    "cortex-m7": "mps2-an500", "cortex-m7-double": "mps2-an500", "cortex-m33": "mps2-an505", "cortex-m55": "mps3-an547",
}  # fmt: skip


@pytest.mark.parametrize("core", cores.CORES)
def test_lenet_takes_at_most_33_kb_of_code_on_every_core(core: str, tmp_path: Path) -> None:
    """Also where all floating point is software."""
    need(*COMPILER)
    fpu = "fpv5-d16" if core == "cortex-m7-double" else ""
    device = replace(load_device(ONE_OF_EACH[core]), core=core.removesuffix("-double"), fpu=fpu)
    assert cores.core_of(device).name == core
    made = write_firmware(tmp_path / "fw", planned(CASES["lenet5-full"])[0], device)
    assert "warning" not in emulate.make(tmp_path / "fw")
    assert emulate.sections(tmp_path / "fw" / f"{made.boards[-1]}.elf").text <= 33 * 1024


def test_arithmetic_in_software_has_the_bits_of_hardware(tmp_path: Path) -> None:
    """Special values with each other, denormals, ties, and numbers at random: float and double."""
    flags = ("-O2", "-std=c11", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined", "-fno-sanitize-recover=all")
    source = Path(__file__).parents[1] / "c" / "soft_float.c"
    subprocess.run(["gcc", *flags, f"-I{PORT}", source, "-o", tmp_path / "check"], check=True)
    done = subprocess.run([tmp_path / "check", "100000"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout) > 9_000_000


def test_the_table_of_stack_use_is_that_of_the_sources(tmp_path: Path) -> None:
    need(*COMPILER)
    version = subprocess.run(["arm-none-eabi-gcc", "-dumpfullversion"], capture_output=True, text=True).stdout.strip()
    if overhead.table()["compiler"] != f"gcc {version}":
        pytest.skip(f"the table is of {overhead.table()['compiler']}, this is {version}")
    facts, sources = stack.measured("cortex-m4", tmp_path)
    assert json.loads(json.dumps(facts)) == overhead.table()["cores"]["cortex-m4"], "python -m tools.measure_stack"
    assert sources == overhead.table()["sources"]
    assert set(overhead.table()["cores"]) == set(cores.CORES)


def test_a_kernel_that_is_not_in_the_table_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for an op that was added a minute ago."""
    need(*COMPILER)
    program = small()
    known = overhead.table()
    facts = known["cores"]["cortex-m4"]
    fewer = {**facts, "kernels": {k: v for k, v in facts["kernels"].items() if k != program.kernels[0]}}
    older = {**known, "cores": {**known["cores"], "cortex-m4": fewer}, "sources": {}}
    wanted = overhead.stack_bytes([program], "cortex-m4"), overhead.kernel_sources([program], "cortex-m4")
    monkeypatch.setattr(overhead, "table", lambda: older)
    found = overhead.stack_bytes([program], "cortex-m4"), overhead.kernel_sources([program], "cortex-m4")
    assert found[1] == wanted[1]
    assert abs(found[0] - wanted[0]) <= 64  # another version of the compiler


def test_without_a_compiler_a_new_kernel_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "table", lambda: {"cores": {"cortex-m4": {"kernels": {}}}, "sources": {}})
    monkeypatch.setattr(stack, "CROSS", "no-such-")
    stack.measured_now.cache_clear()
    with pytest.raises(MissingPart, match=r"tools\.measure_stack"):
        overhead.stack_bytes([small()], "cortex-m4")


def test_the_makefile_has_the_flags_that_the_table_was_made_with(tmp_path: Path) -> None:
    write_firmware(tmp_path / "fw", small(), load_device("stm32f746"))
    for name in ("Makefile", "CMakeLists.txt"):
        words = (tmp_path / "fw" / name).read_text().replace(")", " ").split()
        missing = set(COMPILER_FLAGS) - set(words) - {"-g0"}
        assert not missing, (name, missing)


def test_other_options_of_make_link_again(tmp_path: Path) -> None:
    """Also when nothing else has changed; and an image without main.c is not waited for."""
    need(*COMPILER)
    folder, own = tmp_path / "fw", tmp_path / "own.c"
    own.write_text("int main(void) { for (;;) {} }\n")
    made = write_firmware(folder, small(), load_device("nrf52840"))
    image = folder / f"{made.boards[-1]}.elf"
    emulate.make(folder)
    first = image.read_bytes()
    assert "Nothing to be done" in emulate.make(folder)
    with pytest.raises(RunFailed, match="does not build"):
        emulate.make(folder, f"RAM_BYTES={made.ram_bytes - 8}")
    emulate.make(folder, f"MAIN={own}")
    assert image.read_bytes() != first
    with pytest.raises(RunFailed, match=r"is built with .*own\.c") as caught:
        emulate.run_on_board(folder, small(), [])
    assert caught.value.help == f"make -C {folder}"
    emulate.make(folder)
    assert image.read_bytes() == first


def test_cmake_builds_it_too(tmp_path: Path) -> None:
    need(*COMPILER, "cmake")
    write_firmware(tmp_path / "fw", small(), load_device("stm32f746"))
    build = ["cmake", "-B", "build-cmake", "-DCMAKE_TOOLCHAIN_FILE=toolchain.cmake"]
    for command in (build, ["cmake", "--build", "build-cmake"]):
        done = subprocess.run(command, cwd=tmp_path / "fw", capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    assert emulate.sections(tmp_path / "fw" / "build-cmake" / "mps2-an500.elf").data == 0


# -- the command line ------------------------------------------------------------------------------------------------


def test_firmware_needs_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["build", "nets.py:build", "--firmware", "fw"]) == 2
    assert "error[E304]: --firmware needs --device" in capsys.readouterr().err


def test_a_folder_that_is_no_firmware_is_said_to_be_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import numpy as np

    np.savez(tmp_path / "d.npz", x=np.zeros((1, 4), np.float32), y=np.zeros(1, np.int64))
    assert cli.main(["run", str(tmp_path), "--data", str(tmp_path / "d.npz")]) == 2
    assert "is not a firmware project" in capsys.readouterr().err


def test_the_measured_case_is_complete(tmp_path: Path) -> None:
    """benchmarks/boards.py writes what the documentation quotes."""
    need(*EMULATOR)
    row = measured(CASES["lenet5-m55"], 1, tmp_path / "fw")
    assert row["losses_equal"]
    assert row["state_equal"]
    assert row["instructions_per_step"] > 1_000_000
    assert row["accuracy_held_out"] is None
    assert {"cpu", "emulator", "compiler"} <= set(machine() | tools())
