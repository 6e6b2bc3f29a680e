"""Files that appear complete or not at all: whatever happens while one is written, the old one stays whole.

What is being written is `.name.part` beside the target. A kill may leave it behind; the next write to the same target
takes it over.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from .errors import BadOption, CannotWrite

Bytes = bytes | bytearray | memoryview
HELP: Final = "name a file, in a folder that exists and can be written to"
NAME_BYTES: Final = 255  # the longest name that file systems take
UNSUPPORTED: Final = frozenset({errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})
"""What file systems say that have no locks, or no fsync of folders."""


def checked_path(path: Any, example: str) -> Path:
    if not isinstance(path, (str, os.PathLike)) or "\0" in str(path) or not str(path):
        raise BadOption(f"{path!r} is not a path", help=example)
    return Path(path)


def write(path: str | os.PathLike[str], *parts: Bytes) -> None:
    """Put a file with these bytes in place of `path`, on the disk before this returns. Raises CannotWrite, and then
    `path` is as it was. A symbolic link stays one; permissions of the old file are kept."""
    try:
        target = Path(os.path.realpath(path))
        mode = _mode_of_old(target, path)
        _replace(target, mode, parts)
    except OSError as error:
        raise _cannot(path, error.strerror or str(error)) from error


def read(path: Path) -> bytes:
    """An ordinary file as a whole; anything else is an OSError."""
    with opened(path) as file:
        return file.read()


def mapped(path: Path) -> memoryview:
    """The same, left where it is: it may be replaced, as `write` does, but not written into meanwhile."""
    with opened(path) as file:
        if not os.fstat(file.fileno()).st_size:
            return memoryview(b"")
        import mmap  # a step does without

        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


@contextlib.contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """An ordinary file, to read; anything else is an OSError. Does not wait for a pipe's other end."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not an ordinary file")
        yield file


def check(path: str | os.PathLike[str]) -> None:
    """Raise CannotWrite now if a later `write` could only fail. A file that is there stays as it is."""
    try:
        target = Path(os.path.realpath(path))
        _mode_of_old(target, path)
        partial = target.with_name(_partial_name(target.name))
        file = _locked(partial)
        try:
            partial.unlink()
        finally:
            os.close(file)
    except OSError as error:
        raise _cannot(path, error.strerror or str(error)) from error


def _cannot(path: str | os.PathLike[str], why: str) -> CannotWrite:
    return CannotWrite(f"cannot write '{os.fspath(path)}'", why=why, help=HELP)


def _mode_of_old(target: Path, path: str | os.PathLike[str]) -> int | None:
    """Permissions of the file that will be replaced; nothing but an ordinary file is."""
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise _cannot(path, "it is a folder")
    if not stat.S_ISREG(mode):  # a device, for instance: replaced, it would be gone for everyone
        raise _cannot(path, "it is not an ordinary file")
    return stat.S_IMODE(mode)


def _replace(target: Path, mode: int | None, parts: tuple[Bytes, ...]) -> None:
    partial = target.with_name(_partial_name(target.name))
    file = _locked(partial)
    try:
        try:
            os.ftruncate(file, 0)
            for part in parts:
                _write_all(file, memoryview(part).cast("B"))
            if mode is not None:
                os.fchmod(file, mode)
            os.fsync(file)
            os.replace(partial, target)
        except BaseException:
            with contextlib.suppress(OSError):
                if _is_at(file, partial):
                    partial.unlink()
            raise
        _sync_folder(target.parent)
    finally:
        os.close(file)


def _partial_name(name: str) -> str:
    partial = f".{name}.part"
    if len(os.fsencode(partial)) <= NAME_BYTES:
        return partial
    import hashlib  # takes milliseconds, and nobody needs it who only reads

    return f".{hashlib.sha256(os.fsencode(name)).hexdigest()[:32]}.part"


def _locked(partial: Path) -> int:
    """The file to write into, ours alone: a second writer waits here until the first is done or dead."""
    while True:
        file = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in UNSUPPORTED:
                    raise
            if _is_at(file, partial):
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # another writer has moved it to its target meanwhile


def _is_at(file: int, path: Path) -> bool:
    try:
        named, ours = os.stat(path, follow_symlinks=False), os.fstat(file)
    except FileNotFoundError:
        return False
    return (named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino)


def _write_all(file: int, data: memoryview) -> None:
    while data:
        data = data[os.write(file, data) :]


def _sync_folder(folder: Path) -> None:
    """So that the new name survives a power failure too."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:  # a folder that may be written to but not listed
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
    finally:
        os.close(handle)


__all__ = ["check", "checked_path", "mapped", "opened", "read", "write"]
