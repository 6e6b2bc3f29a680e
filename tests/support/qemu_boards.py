"""Emulated boards with a serial port on loopback, for a gateway. Needs QEMU and the ARM compiler."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from pathlib import Path

from smidgen.deploy import emulate
from smidgen.deploy.board_member import Member
from smidgen.deploy.firmware import manifest, write_firmware
from smidgen.devices.device import load_device
from smidgen.program.program import Program


class QemuBoard:
    """Firmware of a program on a machine; its slots are in the folder and survive."""

    def __init__(self, folder: Path, program: Program, device: str, member: Member | None = None) -> None:
        self.made = write_firmware(folder, program, load_device(device), member=member or Member())
        emulate.make(folder)
        self.elf = folder / f"{self.made.boards[-1]}.elf"
        self._machine, self._folder = manifest(folder)["machine"], folder
        self.port = free_port()
        self.address = f"tcp:127.0.0.1:{self.port}"
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """As when the power comes back."""
        qemu = shutil.which(emulate.QEMU)
        assert qemu
        self.starts += 1
        self._process = subprocess.Popen(
            [qemu, "-M", self._machine, "-nographic", "-monitor", "none", "-serial",
             f"tcp:127.0.0.1:{self.port},server=on,wait=off,nodelay=on", "-semihosting-config",
             "enable=on,target=native", "-kernel", str(self.elf.resolve())],
            cwd=self._folder, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            assert self._process.poll() is None, "the firmware ended"
            time.sleep(0.05)
        raise AssertionError("the emulator does not listen")

    def cut(self) -> None:
        """Without a warning, as power goes."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def reset(self) -> None:
        self.cut()
        self.start()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


__all__ = ["QemuBoard", "free_port"]
