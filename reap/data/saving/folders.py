"""`replaced`: a folder that is written beside another and takes its place in one step.

    .name.1f3a.partial   written, then on the disk (fsync)
    name                 exchanged with it: the old one or the new one, never a part of either

A process that is killed meanwhile leaves its part behind, which the next one removes: nobody holds the lock on it any more.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from reap.errors import OptionError

_HERE = -100  # AT_FDCWD
_EXCHANGE = 2  # RENAME_EXCHANGE

_UNKNOWN = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP})
"""What a system answers, or a file system, that cannot exchange two folders."""


@contextmanager
def replaced(path: Path, mark: str) -> Generator[Path]:
    """In the body the caller writes files in the folder that it is given; at its end that is what lies at `path`.

    Args:
        path: a folder, or nothing yet.
        mark: a file that every such folder has.

    Raises:
        OptionError: something else lies there.
    """
    if path.exists() and (not path.is_dir() or (any(path.iterdir()) and not (path / mark).exists())):
        raise OptionError(f"expected an empty folder, a saved buffer, or nothing at {path}, found something else")
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(path)
    folder = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    folder.mkdir()
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield folder
        for file in (*folder.rglob("*"), folder):
            _to_disk(file)
        _take_place(folder, path)
        _to_disk(path.parent)
    finally:
        os.close(held)
        shutil.rmtree(folder, ignore_errors=True)  # if it took the other's place, what it holds is the other


def found(path: Path, mark: str) -> Path:
    """Where what was saved at `path` lies: beside it, if the last save was killed where folders cannot be exchanged.

    Raises:
        OptionError: there is none.
    """
    before = _before(path)
    folder = before if before.exists() and not path.exists() else path
    if not (folder / mark).is_file():
        raise OptionError(f"expected a folder that dumps wrote, found none at {path}")
    return folder


def _before(path: Path) -> Path:
    return path.with_name(f".{path.name}.before")


def _to_disk(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _take_place(folder: Path, path: Path) -> None:
    if path.exists():
        if exchange(folder, path):
            return
        shutil.rmtree(_before(path), ignore_errors=True)
        path.rename(_before(path))
    folder.rename(path)
    shutil.rmtree(_before(path), ignore_errors=True)


def exchange(first: Path, second: Path) -> bool:
    """Have each of two folders lie where the other did, in one step; whether the system can do that."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if not rename(_HERE, os.fsencode(first), _HERE, os.fsencode(second), _EXCHANGE):
        return True
    number = ctypes.get_errno()
    if number in _UNKNOWN:
        return False
    raise OSError(number, os.strerror(number), str(second))


def _remove_stale(path: Path) -> None:
    """Remove what was left by processes that were killed."""
    for folder in path.parent.iterdir():
        if not (folder.name.startswith(f".{path.name}.") and folder.name.endswith(".partial")):
            continue
        held = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:  # somebody is writing it
            continue
        finally:
            os.close(held)
