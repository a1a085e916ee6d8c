"""`replaced`: a folder that is written beside another and takes its place in one step.

    .name.1f3a5b7c.partial   written, then on the disk (fsync)
    name                     exchanged with it: the old one or the new one, never a part of either

A process that is killed meanwhile leaves its part behind, which the next one removes: nobody holds the lock on it any more.
What else has such a name, or is another user's, stays where it is.

Where folders cannot be exchanged the old one is moved to `.name.1f3a5b7c.before` first; a process that is killed before the new
one is in its place leaves that one, from which `places` says that it is read.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from reap.errors import OptionError

_HERE = -100  # AT_FDCWD
_EXCHANGE = 2  # RENAME_EXCHANGE

_UNKNOWN = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP})
"""What a system answers, or a file system, that cannot exchange two folders."""

_FILLED = frozenset({errno.ENOTEMPTY, errno.EEXIST})
"""What a move answers where another process has put its folder there meanwhile."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Opens a folder, and nothing else that lies there: no link is followed, no FIFO waited for."""

PARTIAL, BEFORE = "partial", "before"


def real(path: str | Path) -> Path:
    """Where a path leads, through links, whether something lies there or not."""
    return Path(os.path.realpath(path))


@contextmanager
def replaced(path: Path, mark: str) -> Generator[Path]:
    """In the body the caller writes files in the folder that it is given; at its end that is what lies at `path`.

    Args:
        path: a folder, or nothing yet.
        mark: a file that every such folder has.

    Raises:
        OptionError: something else lies there.
    """
    _require_ours(path, mark)
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(path, PARTIAL)
    folder, held = _new_folder(path)
    try:
        yield folder
        for file in (*folder.rglob("*"), folder):
            _to_disk(file)
        _take_place(folder, path)
        _to_disk(path.parent)
        _remove_stale(path, BEFORE)
    finally:
        os.close(held)
        shutil.rmtree(folder, ignore_errors=True)  # if it took the other's place, what it holds is the other


def places(path: Path) -> list[Path]:
    """Where what was saved at `path` may lie: there, or beside it, the newest first, if nothing does."""
    if os.path.lexists(path):
        return [path]
    found: list[tuple[float, Path]] = []
    for folder in _beside(path, BEFORE):
        with suppress(OSError):
            found.append((folder.stat().st_mtime, folder))
    return [folder for _, folder in sorted(found, reverse=True)]


def _require_ours(path: Path, mark: str) -> None:
    if not os.path.lexists(path):
        return
    if not path.is_dir() or (any(path.iterdir()) and not (path / mark).is_file()):
        raise OptionError(f"expected an empty folder, a saved buffer, or nothing at {path}, found something else")
    if path.is_mount():
        raise OptionError(f"expected a folder that can be moved at {path}, found a mounted disk; name a folder in it")


def _new_folder(path: Path) -> tuple[Path, int]:
    """A folder of this process beside a path, and a descriptor of it, on which it has the lock."""
    while True:
        folder = _named(path, PARTIAL)
        folder.mkdir()
        held = os.open(folder, _FOLDER)
        is_locked = _lock(held)
        if is_locked is not False and folder.exists() and folder.samefile(f"/proc/self/fd/{held}"):
            return folder, held
        os.close(held)  # another process took it for one that was left behind, before it had the lock


def _named(path: Path, kind: str) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.{kind}")


def _beside(path: Path, kind: str) -> list[Path]:
    """What lies beside a path under the names that `_named` gives; nothing where the folder of both cannot be listed."""
    number = r"\.[0-9a-f]{8}" if kind == PARTIAL else r"(\.[0-9a-f]{8})?"  # earlier versions wrote none there
    name = re.compile(rf"\.{re.escape(path.name)}{number}\.{kind}")
    try:
        return [path.with_name(one) for one in os.listdir(path.parent) if name.fullmatch(one)]
    except OSError:
        return []


def _lock(fd: int) -> bool | None:
    """Take a folder's lock without waiting; False where another has it, None where the file system has no such locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _to_disk(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _take_place(folder: Path, path: Path) -> None:
    while True:
        if path.exists():
            if exchange(folder, path):
                return
            with suppress(FileNotFoundError):  # another process moved it
                path.rename(_named(path, BEFORE))
        try:
            folder.rename(path)
            return
        except OSError as error:
            if error.errno not in _FILLED:
                raise


def exchange(first: Path, second: Path) -> bool:
    """Have each of two folders lie where the other did, in one step; whether the system can do that."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if not rename(_HERE, os.fsencode(first), _HERE, os.fsencode(second), _EXCHANGE):
        return True
    number = ctypes.get_errno()
    if number in _UNKNOWN or number == errno.ENOENT:
        return False
    raise OSError(number, os.strerror(number), str(second))


def _remove_stale(path: Path, kind: str) -> None:
    """Remove folders of this user that were left by processes that were killed, or that were replaced."""
    for folder in _beside(path, kind):
        with suppress(OSError):  # it is no folder, was removed meanwhile, or is another user's
            held = os.open(folder, _FOLDER)
            try:
                if os.fstat(held).st_uid == os.geteuid() and _lock(held):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(held)
