"""Reserves room on a disk before it is written to.

A write to a mapped file kills the process (SIGBUS) if the disk has no room left for it. So the blocks are reserved
beforehand, when a lack of room is an error that can be caught.

    reserve(file, offset, nbytes, what)   the file gets these bytes, or DiskFull is raised and the file is unchanged
    give_back(file, offset, nbytes)       frees them on the disk; they read as zeros
    replaced(path)                        a file is replaced atomically

This module makes the system call itself, because `os.posix_fallocate` writes into each block if a file system cannot reserve
any.
"""

from __future__ import annotations

import ctypes
import errno
import math
import os
import re
import stat
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reap.errors import DiskFull
from reap.system.memory import readable
from reap.system.native import libc

if TYPE_CHECKING:
    from collections.abc import Generator

_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # FALLOC_FL_*

_PIECE, _LEAST = 1 << 28, 1 << 20
"""Number of bytes reserved by one call. A call that a signal interrupts is repeated with fewer bytes, so that it ends."""

_UNKNOWN = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM})
"""Errors of a file system, or a sandbox, that cannot reserve anything."""

_FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the user's quota is used up",
    errno.EFBIG: "the file would exceed the largest size allowed there (see ulimit -f)",
}
"""Texts for errors of a system without room."""

fallocate: Any = getattr(libc, "fallocate64", None) or getattr(libc, "fallocate", None)
if fallocate is not None:
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def reserve(file: int | Path, offset: int, nbytes: int, what: str) -> None:
    """Reserve bytes of a file on the disk, so that writes to them cannot fail; the file grows to their end.

    If the file system cannot reserve, only its free space is checked, which others may take before these bytes are written.

    Args:
        file: a descriptor that is open for writing, or the path of an existing file.
        offset: the first byte.
        nbytes: number of bytes. They must not hold data yet, because they are freed again if there is not enough room.
        what: their purpose, for the start of the error message.

    Raises:
        DiskFull: there is no room for them; the file keeps its size and takes no more of the disk than before.
        OSError: the disk fails in another way.
    """
    if nbytes <= 0:
        return
    with _opened(file) as fd:
        before, taken = os.fstat(fd).st_size, 0
        try:
            taken = _take(fd, offset, nbytes)
        except OSError as error:
            give_back(fd, offset, nbytes)
            os.ftruncate(fd, before)
            if error.errno in _FULL:
                raise disk_full(error, _path(file), nbytes, what) from None
            raise
        if taken < nbytes:
            _compare(fd, max(before, offset + nbytes), nbytes - taken, what, _path(file))


def give_back(file: int | Path, offset: int, nbytes: int) -> None:
    """Return bytes of a file to the disk; they then read as zeros, and the size stays. Some file systems keep them."""
    with _opened(file) as fd:
        _fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, offset, nbytes)


def free_space(path: Path) -> float:
    """Free bytes of the file system of an existing or future file or folder; infinite if unknown."""
    status = os.statvfs(next(place for place in (path, *path.absolute().parents) if place.exists()))
    return status.f_bavail * status.f_frsize if status.f_blocks else math.inf


def require_length(folder: Path, nbytes: int) -> None:
    """Raise OSError for a file longer than the system allows in this folder."""
    fd, name = tempfile.mkstemp(dir=folder)
    try:
        os.ftruncate(fd, nbytes)
    finally:
        os.close(fd)
        os.unlink(name)


def disk_full(error: OSError | None, path: Path, nbytes: int, what: str) -> DiskFull:
    """The error for a full disk: how much was needed, how much is free, and what to do."""
    number = error.errno if error and error.errno else errno.ENOSPC
    why = _FULL[number] if error else "too little"
    needed = readable(nbytes) if nbytes else "more"  # objects are written before their size is known
    return DiskFull(
        f"{what}: expected room for {needed} at {path}, found {readable(free_space(path))} free: {why}. "
        "Remove something there, or choose a folder on another disk",
        number,
    )


def full_number(error: BaseException) -> int | None:
    """The error number of a disk without room; None for other errors.

    HDF5 has it in its texts, of errors of several types.
    """
    at: BaseException | None = error
    while at is not None:
        told = re.search(r"errno\W+(\d+)", str(at), re.IGNORECASE)
        for number in (getattr(at, "errno", None), int(told[1]) if told else None):
            if number in _FULL:
                return number
        at = at.__cause__ or at.__context__
    return None


@contextmanager
def room(path: Path, nbytes: int | Callable[[], int], what: str) -> Generator[None]:
    """If the `with` block finds no room for its data, add their total size to the error.

    Args:
        path: where the block writes; it removes its data before it raises.
        nbytes: total number of bytes, or a function that returns it once known.
        what: the data, for the start of the error message.

    Raises:
        DiskFull: there is no room for the data.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise disk_full(error, path, nbytes() if callable(nbytes) else nbytes, what) from error


def _take(fd: int, offset: int, nbytes: int) -> int:
    """Reserve bytes piece by piece; return their number, which is smaller if the file system cannot reserve."""
    taken, piece = 0, _PIECE
    while taken < nbytes:
        count = min(piece, nbytes - taken)
        number = _fallocate(fd, 0, offset + taken, count)
        if number == errno.EINTR:
            piece = max(_LEAST, piece // 2)
        elif number in _UNKNOWN:
            break
        elif number:
            raise OSError(number, os.strerror(number))
        else:
            taken += count
    return taken


def _fallocate(fd: int, mode: int, offset: int, nbytes: int) -> int:
    """The system call; returns its error number, 0 for none."""
    if fallocate is None:
        return errno.ENOSYS
    return ctypes.get_errno() if fallocate(fd, mode, offset, nbytes) else 0


def _compare(fd: int, size: int, nbytes: int, what: str, path: Path) -> None:
    if nbytes > free_space(path):
        raise disk_full(None, path, nbytes, what)
    if os.fstat(fd).st_size < size:
        os.ftruncate(fd, size)


@contextmanager
def _opened(file: int | Path) -> Generator[int]:
    if isinstance(file, int):
        yield file
        return
    fd = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _path(file: int | Path) -> Path:
    """The path of a file, or of its descriptor if the file was removed."""
    if isinstance(file, Path):
        return file
    link = Path(f"/proc/self/fd/{file}")
    path = link.readlink() if link.is_symlink() else link
    return path if path.exists() else link


@contextmanager
def replaced(path: Path) -> Generator[Path]:
    """The path of a new file next to one, which it replaces, with the same permissions, after the `with` block.

    A crash leaves the old file or the new one; after an exception the old one remains.

    Args:
        path: the file, or a link to it. It need not exist.

    Raises:
        OSError: the disk fails.
    """
    target = path.resolve()
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
        new = Path(folder) / target.name
        yield new
        if target.exists():
            new.chmod(stat.S_IMODE(target.stat().st_mode))
        os.replace(new, target)
