"""`SavedFolder`: reads the files of one save, even if another save replaces it at the same time.

    whole(path, read)   opens the folder at `path`; files are opened in it, by its descriptor, not by their path
                        if it was replaced and removed before all of them were open, starts again

An open file stays readable when its folder is removed.
"""

from __future__ import annotations

import errno
import os
import stat
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from reap.data.saving.folders import places
from reap.errors import OptionError, SpecMismatch
from reap.system.native import folder_flags

T = TypeVar("T")

_FOLDER = folder_flags()
_INSIDE = _FOLDER & ~getattr(os, "O_DIRECTORY", 0)
"""Flags that open a file in a folder: links are not followed, FIFOs do not block."""

_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENAMETOOLONG})
"""Errors of a place where nothing of the wanted kind is: links and sockets among them."""

PIECE = 1 << 20
"""Number of bytes read at a time for a checksum."""


class SavedFolder:
    """An open folder.

    Args:
        path: its path, for messages.
        fd: its descriptor.
        files: closes the descriptors of everything opened in it.
    """

    def __init__(self, path: Path, fd: int, files: ExitStack) -> None:
        self.path = path
        self._fd = fd
        self._files = files
        self._opened: dict[str, int] = {}
        self._folders: dict[str, SavedFolder] = {}

    def folder(self, name: str) -> SavedFolder:
        """Open a subfolder.

        Raises:
            SpecMismatch: there is none.
            OSError: it cannot be opened.
        """
        if name in self._folders:
            return self._folders[name]
        fd = self._open(name, _FOLDER, "a folder")
        self._files.callback(os.close, fd)
        made = self._folders[name] = SavedFolder(self.path / name, fd, self._files)
        return made

    def has(self, name: str) -> bool:
        """Whether it has a file with this name."""
        with suppress(SpecMismatch):
            return self.file(name) >= 0
        return False

    def file(self, name: str) -> int:
        """Open a file in it; the descriptor is closed with the folder.

        Raises:
            SpecMismatch: it is missing, not a regular file, or outside the folder.
            OSError: it cannot be opened.
        """
        if name in self._opened:
            return self._opened[name]
        *folders, last = Path(name).parts or ("",)
        if ".." in folders or Path(name).is_absolute():
            raise SpecMismatch(f"{self.path / name}: expected a file in the folder; nothing was changed")
        if folders:
            return self.folder(folders[0]).file(str(Path(*folders[1:], last)))
        fd = self._open(name, _INSIDE, "a file")
        self._files.callback(os.close, fd)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise SpecMismatch(f"{self.path / name}: expected a file, found something else; nothing was changed")
        self._opened[name] = fd
        return fd

    def _open(self, name: str, flags: int, what: str) -> int:
        try:
            return os.open(name, flags, dir_fd=self._fd)
        except OSError as error:
            path = self.path / name
            if error.errno not in _ABSENT:  # no permission, no descriptors left
                raise type(error)(error.errno, error.strerror, str(path)) from None
            raise SpecMismatch(f"{path}: expected {what}, found none; nothing was changed") from error

    def size(self, name: str) -> int:
        """The size of a file in it, in bytes; see `file`."""
        return os.fstat(self.file(name)).st_size

    def pieces(self, name: str) -> Iterator[bytes]:
        """The bytes of a file in it, piece by piece; see `file`."""
        fd, start = self.file(name), 0
        while piece := os.pread(fd, PIECE, start):
            start += len(piece)
            yield piece

    def read(self, name: str) -> bytes:
        """The bytes of a file in it; see `file`."""
        return b"".join(self.pieces(name))

    def checksum(self, name: str) -> int:
        """The CRC-32 of a file in it; see `file`."""
        total = 0
        for piece in self.pieces(name):
            total = zlib.crc32(piece, total)
        return total


def whole(path: Path, mark: str, read: Callable[[SavedFolder], T]) -> T:
    """Call `read` with the folder saved at a path, such that all data come from one save.

    Args:
        path: the path of the save.
        mark: a file that every such folder has.
        read: reads it; must open all of its files before doing anything slow.

    Raises:
        OptionError: nothing was saved there.
        SpecMismatch: raised by `read`.
    """
    while True:
        before = _lying(path)
        try:
            with _opened(path, mark) as folder:
                return read(folder)
        except (OptionError, SpecMismatch):
            if _lying(path) == before:
                raise


def _lying(path: Path) -> list[tuple[int, int, int]]:
    """The folders in the places of saves; the list changes when a save is replaced."""
    found: list[tuple[int, int, int]] = []
    for place in places(path):
        with suppress(OSError):
            status = place.stat()
            found.append((status.st_dev, status.st_ino, status.st_ctime_ns))
    return found


@contextmanager
def _opened(path: Path, mark: str) -> Generator[SavedFolder]:
    with ExitStack() as files:
        for place in places(path):
            try:
                fd = os.open(place, _FOLDER & ~getattr(os, "O_NOFOLLOW", 0))  # a link to a save will do
            except OSError as error:
                if error.errno not in _ABSENT:
                    raise
                continue
            files.callback(os.close, fd)
            folder = SavedFolder(place, fd, files)
            if folder.has(mark):
                yield folder
                return
        raise OptionError(f"expected a folder that dumps wrote, found none at {path}")
