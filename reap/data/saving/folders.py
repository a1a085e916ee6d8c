"""`replaced`: writes a folder next to an existing one, then replaces that atomically.

    .name.1f3a5b7c.partial   written, then on the disk (fsync)
    name                     exchanged with it: either the old one or the new one, always complete

If a process is killed, the next one removes its partial folder, whose lock is free then. Anything else with such a name, or
of another user, is left alone.

If folders cannot be exchanged, the old one is moved to `.name.1f3a5b7c.before` first. A process that is killed before the new
one is in place leaves that folder, which `places` finds for reading.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import secrets
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from reap.errors import OptionError
from reap.system.native import LOCK_EX, LOCK_NB, fcntl, folder_flags, libc, require_file_locks

_HERE = -100  # AT_FDCWD
_EXCHANGE = 2  # RENAME_EXCHANGE

_UNKNOWN = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP})
"""Error codes of systems and file systems that cannot exchange two folders."""

_FILLED = frozenset({errno.ENOTEMPTY, errno.EEXIST})
"""Error codes of a move if another process has put its folder there first."""

_FOLDER = folder_flags()
"""Flags that open a folder only: links are not followed, FIFOs do not block."""

PARTIAL, BEFORE = "partial", "before"


def real(path: str | Path) -> Path:
    """The target of a path, with links resolved, whether it exists or not."""
    return Path(os.path.realpath(path))


@contextmanager
def replaced(path: Path, mark: str) -> Generator[Path]:
    """A context in which the caller fills a new folder, which then replaces the one at `path`.

    Args:
        path: a folder, or nothing yet.
        mark: a file that every such folder has.

    Raises:
        OptionError: something else is at this path.
    """
    require_file_locks("a save of a replay buffer", "torch.save(buffer.state_dict(), file)")
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
        shutil.rmtree(folder, ignore_errors=True)  # if they were exchanged, it holds the old files


def places(path: Path) -> list[Path]:
    """The places to look for a save of `path`: the path itself, or if nothing is there, folders next to it, newest first."""
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
    """Make a folder of this process next to a path; return it with a locked descriptor."""
    while True:
        folder = _named(path, PARTIAL)
        folder.mkdir()
        held = os.open(folder, _FOLDER)
        is_locked = _lock(held)
        if is_locked is not False and folder.exists() and os.path.samestat(folder.stat(), os.fstat(held)):
            return folder, held
        os.close(held)  # another process removed it as a leftover before it was locked


def _named(path: Path, kind: str) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.{kind}")


def _beside(path: Path, kind: str) -> list[Path]:
    """The folders next to a path with names from `_named`; none if the parent folder cannot be listed."""
    number = r"\.[0-9a-f]{8}" if kind == PARTIAL else r"(\.[0-9a-f]{8})?"  # earlier versions wrote none there
    name = re.compile(rf"\.{re.escape(path.name)}{number}\.{kind}")
    try:
        return [path.with_name(one) for one in os.listdir(path.parent) if name.fullmatch(one)]
    except OSError:
        return []


def _lock(fd: int) -> bool | None:
    """Take a folder's lock without waiting; False if another process has it, None if the file system has no such locks."""
    try:
        fcntl.flock(fd, LOCK_EX | LOCK_NB)
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
    """Exchange two folders atomically; return whether the system supports that."""
    rename = getattr(libc, "renameat2", None)
    if rename is None:
        return False
    if not rename(_HERE, os.fsencode(first), _HERE, os.fsencode(second), _EXCHANGE):
        return True
    number = ctypes.get_errno()
    if number in _UNKNOWN or number == errno.ENOENT:
        return False
    raise OSError(number, os.strerror(number), str(second))


def _remove_stale(path: Path, kind: str) -> None:
    """Remove this user's folders that were replaced, or left by killed processes."""
    for folder in _beside(path, kind):
        with suppress(OSError):  # it is not a folder, is already removed, or belongs to another user
            held = os.open(folder, _FOLDER)
            try:
                if os.fstat(held).st_uid == os.geteuid() and _lock(held):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(held)
