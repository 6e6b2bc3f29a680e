"""Lines to boards: a serial device, or a TCP address (a converter, an emulator). Only bytes; frames.py makes sense of
them. A line that breaks is opened again when it is next used."""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
from typing import Final, Protocol

from ..errors import BadOption

HELP: Final = "/dev/ttyACM0, /dev/ttyUSB0@921600 or tcp:127.0.0.1:5555"
BAUD: Final = 115_200
PIECE: Final = 1 << 16


class Line(Protocol):
    """OSError from any of them: the line is broken, and may work again later."""

    def send(self, data: bytes) -> None: ...
    def receive(self, seconds: float) -> bytes:
        """What has come; nothing if nothing comes within so many seconds."""

    def close(self) -> None: ...


class TcpLine:
    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self._socket: socket.socket | None = None

    def send(self, data: bytes) -> None:
        with self._broken_is_closed():
            self._opened().sendall(data)

    def receive(self, seconds: float) -> bytes:
        with self._broken_is_closed():
            own = self._opened()
            if not select.select([own], [], [], seconds)[0]:
                return b""
            data = own.recv(PIECE)
            if not data:
                raise ConnectionResetError("the other side has closed the connection")
            return data

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _opened(self) -> socket.socket:
        if self._socket is None:
            self._socket = socket.create_connection(self._address, timeout=5)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._socket

    @contextlib.contextmanager
    def _broken_is_closed(self):  # type: ignore[no-untyped-def]
        try:
            yield
        except OSError:
            self.close()
            raise


class SerialLine:
    """A serial port or pseudo-terminal, raw: eight bits, no parity, no flow control."""

    def __init__(self, path: str, baud: int = BAUD) -> None:
        self._path, self._baud = path, baud
        self._file: int | None = None

    def send(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self._opened(), left) :]
            except BlockingIOError:
                select.select([], [self._opened()], [], 1)
            except OSError:
                self.close()
                raise

    def receive(self, seconds: float) -> bytes:
        try:
            if not select.select([self._opened()], [], [], seconds)[0]:
                return b""
            data = os.read(self._opened(), PIECE)
        except BlockingIOError:
            return b""
        except OSError:
            self.close()
            raise
        if not data:
            self.close()
            raise ConnectionResetError("the port is gone")
        return data

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _opened(self) -> int:
        if self._file is None:
            import termios
            import tty

            file = os.open(self._path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
            try:
                tty.setraw(file)
                modes = termios.tcgetattr(file)
                modes[2] |= termios.CLOCAL | termios.CREAD
                modes[4] = modes[5] = getattr(termios, f"B{self._baud}")
                termios.tcsetattr(file, termios.TCSANOW, modes)
            except termios.error as error:
                os.close(file)
                raise OSError(*error.args) from error
            self._file = file
        return self._file


def line_to(address: str) -> Line:
    """A line that is opened when it is first used."""
    found = re.fullmatch(r"tcp:(.+):(\d{1,5})", address)
    if found and 0 < int(found[2]) < 65536:
        return TcpLine(found[1].strip("[]"), int(found[2]))
    found = re.fullmatch(r"(/.+?)(?:@(\d+))?", address)
    if not found:
        raise BadOption(f"'{address}' is no address of a board", help=HELP)
    try:
        import termios
    except ImportError:
        raise BadOption(f"'{address}': this system has no serial ports that smidgen knows", help="tcp:…") from None
    baud = int(found[2] or BAUD)
    if not hasattr(termios, f"B{baud}"):
        raise BadOption(f"{baud} is no speed of a serial port", help=f"{found[1]}@{BAUD}")
    return SerialLine(found[1], baud)


__all__ = ["HELP", "Line", "SerialLine", "TcpLine", "line_to"]
