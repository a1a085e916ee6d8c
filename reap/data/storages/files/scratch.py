"""`Scratch`: the folder of a storage of files, and the lock on it.

    reap.lock   says whose the files beside it are: a storage, and the process that claimed the folder for it;
                each process that uses them holds it (flock), and the kernel lets go of it when that process is gone

A folder whose lock is free is unused. Temporary ones among these, left behind by killed processes, are removed when the next
storage makes a temporary folder.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import weakref
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from reap.errors import ClosedError, OptionError
from reap.system.disk import room
from reap.system.native import LOCK_EX, LOCK_NB, LOCK_SH, fcntl, require_file_locks
from reap.system.waits import described

LOCK = "reap.lock"

PREFIX = "reap-frames-"
"""Prefix of the names of temporary folders."""

ONCE_FILE = "once.bin"
"""The file for values that a storage with `observations_once` keeps outside its tensors."""

_OURS = frozenset({"meta.json", ONCE_FILE})
_KIND = ".memmap"
"""Patterns of the files of storages and of tensordict."""

_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})
"""Error codes of file systems without locks; folders there cannot be protected, and are never removed."""


class Scratch:
    """A folder.

    Args:
        folder: its path; None makes a temporary folder, which is removed with this object or the process.
        replaces: whether it may replace files of another storage that is no longer in use.
        is_removed: whether the files are removed with this object or the process; by default only in a temporary folder.

    Attributes:
        folder: its path.

    Raises:
        OptionError: the folder is not empty, or `is_removed` is False for a temporary one.
        DiskFull: there is no room for a temporary one.
    """

    def __init__(self, folder: str | Path | None, *, replaces: bool = False, is_removed: bool | None = None) -> None:
        require_file_locks("LazyMemmapStorage", "LazyTensorStorage")
        self._replaces = replaces
        self._owner = uuid4().hex
        self._held = False
        if folder is not None:
            self.folder = Path(folder)
            self._refuse_what_lies_there()
            self.folder.mkdir(parents=True, exist_ok=True)
            if is_removed:
                weakref.finalize(self, _remove_frames_with, self.folder, os.getpid())
            return
        if is_removed is False:
            raise OptionError("auto_cleanup=False: expected a scratch_dir for files that stay; temporary folders are removed")
        remove_abandoned()
        self._make_temporary()
        weakref.finalize(self, _remove_with, self.folder, os.getpid())

    def _make_temporary(self) -> None:
        while not self._held:
            self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
            with suppress(FileNotFoundError):  # another storage removed it as a leftover before it was locked
                self._try_to_claim()

    def claim(self) -> None:
        """Reserve the folder before files are written; files that may be replaced are removed.

        Raises:
            OptionError: another storage uses it, or it is not empty.
            DiskFull: there is no room for a lock.
        """
        if not self._held:
            self._try_to_claim()
        if not self._held:  # by this process; by others that share the storage, maybe
            self._try_to_join()
        if not self._held:
            raise OptionError(self._in_use())

    def _try_to_claim(self) -> None:
        with _locked(self.folder / LOCK, os.O_CREAT, LOCK_EX) as fd:
            if fd is None:
                return
            if _claimed_by(fd)[0] != self._owner:  # else one that shares it was killed in the first write
                self._refuse_what_lies_there()
            remove_frames(self.folder)
            said = f"{self._owner} {os.getpid()}\n".encode()
            with room(self.folder, len(said), "replay buffer: the lock of its folder"):
                os.ftruncate(fd, 0)
                os.pwrite(fd, said, 0)
            # Another may claim it just before: the kernel lets go of a lock before it changes its kind.
            if _is_had(fd, LOCK_SH, without=True):
                self._hold(fd)

    def join(self) -> None:
        """Use the files that were written for the same storage, by this process or another.

        Raises:
            ClosedError: the folder now belongs to another storage, or is gone.
        """
        if not self._held:
            self._try_to_join()
        if not self._held:
            raise ClosedError(f"replay buffer: its files in {self.folder} are gone, or another storage's by now")

    def _try_to_join(self) -> None:
        with suppress(FileNotFoundError), _locked(self.folder / LOCK, 0, LOCK_SH) as fd:
            if fd is not None:
                self._hold(fd)

    def _hold(self, fd: int) -> None:
        """Keep the lock of this descriptor, if the folder belongs to this storage."""
        if _claimed_by(fd)[0] == self._owner:
            weakref.finalize(self, os.close, os.dup(fd)).atexit = False
            self._held = True

    def remove_files(self) -> None:
        """Remove the files that were written since it was claimed."""
        remove_frames(self.folder)

    def _refuse_what_lies_there(self) -> None:
        folder = self.folder
        is_folder = folder.is_dir()
        if folder.exists() and not (is_folder and (self._replaces or all(path.name == LOCK for path in folder.iterdir()))):
            remedy = "; existsok=True replaces the files of a storage that is not in use" if is_folder else ""
            raise OptionError(
                f"scratch_dir: expected an empty folder, found something in {folder}; choose another or empty it{remedy}"
            )

    def _in_use(self) -> str:
        with suppress(OSError), (self.folder / LOCK).open() as lock:
            pid = _claimed_by(lock.fileno())[1]
            return (
                f"scratch_dir: expected a folder that no other storage uses, found {self.folder} in use, claimed by "
                f"{described(pid)}. Choose another folder for this storage; nothing was written"
            )
        return f"scratch_dir: expected a folder that stays, but {self.folder} was removed"

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_held": False}


def remove_abandoned() -> None:
    """Remove this user's temporary folders that no process uses."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            status = folder.lstat()
            if status.st_uid != os.getuid() or folder.is_symlink():
                continue
            with suppress(FileNotFoundError), _locked(folder / LOCK, 0, LOCK_EX, without=False) as fd:
                if fd is None:
                    continue
                remove_whole(folder)
            folder.rmdir()  # of one that was killed before it had a lock: it is empty


def remove_whole(folder: Path) -> None:
    """Remove a folder, its lock last: if the process is killed, others can still see that the folder is unused."""
    for path in folder.iterdir():
        if path.name == LOCK:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    (folder / LOCK).unlink(missing_ok=True)
    folder.rmdir()


def remove_frames(folder: Path) -> None:
    """Remove the files of storages from a folder, but no others."""
    for place, _, names in os.walk(folder, topdown=False):
        for name in names:
            if name in _OURS or name.endswith(_KIND):
                Path(place, name).unlink(missing_ok=True)
        if Path(place) != folder:
            with suppress(OSError):  # there are other files
                Path(place).rmdir()


def _remove_with(folder: Path, pid: int) -> None:
    """Remove a folder; not in a fork of the process that made it."""
    if os.getpid() == pid:
        with suppress(OSError):
            remove_whole(folder)


def _remove_frames_with(folder: Path, pid: int) -> None:
    """Remove the files of a storage, and their folder if nothing else is in it; not in a fork."""
    if os.getpid() == pid:
        with suppress(OSError):
            remove_frames(folder)
            (folder / LOCK).unlink(missing_ok=True)
            folder.rmdir()


@contextmanager
def _locked(path: Path, flags: int, kind: int, *, without: bool = True) -> Generator[int | None]:
    """Hold the lock in this file inside the `with` block; yields its descriptor, or None if others hold it.

    Args:
        path: the file.
        flags: of `os.open`.
        kind: `LOCK_EX` or `LOCK_SH`.
        without: whether the lock counts as held on a file system without locks.
    """
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o666)
    try:
        if not _is_had(fd, kind | LOCK_NB, without):
            yield None
            return
        if not _is_at(fd, path):
            raise FileNotFoundError(errno.ENOENT, "removed while it was opened", str(path))
        yield fd
    finally:
        os.close(fd)


def _is_had(fd: int, kind: int, without: bool) -> bool:
    """Try to take the lock of a file; return whether that succeeded; see `_locked`."""
    try:
        fcntl.flock(fd, kind)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return without
    return True


def _is_at(fd: int, path: Path) -> bool:
    opened, found = os.fstat(fd), path.lstat()
    return (opened.st_dev, opened.st_ino) == (found.st_dev, found.st_ino)


def _claimed_by(fd: int) -> tuple[str, int]:
    """The storage that claimed a folder, and its process, from the lock file."""
    owner, _, pid = os.pread(fd, 100, 0).decode().partition(" ")
    return owner, int(pid or 0)
