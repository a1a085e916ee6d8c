"""`DataFolder`: frames on disk, written batch by batch, as `TensorDict.load_memmap` reads them.

One file per key, `[E, T, ...]`, made at its full size with the first batch. The folder's own `meta.json` is put in place last:
a folder that is not finished does not load, and a killed run is not taken for a whole one.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase, is_non_tensor

from reap.errors import OptionError, SpecMismatch
from reap.keys import NestedKey

META, WITHHELD, WHOLE = "meta.json", "meta.json.unfinished", ".whole"


class DataFolder:
    """A folder that did not exist or was empty.

    Args:
        path: the folder; made with its parents.
        columns: time steps that it will hold, `T`.

    Raises:
        OptionError: it holds something, is a file, or cannot be written.
    """

    def __init__(self, path: Path, columns: int) -> None:
        self.path = path
        self.columns = columns
        self.written = 0
        """Time steps that are complete."""
        self._data: TensorDictBase | None = None
        self._is_new = not path.exists()
        _require_empty(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            probe = path / META
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise OptionError(f"--out {path}: cannot be written: {error.strerror}") from error

    def write(self, batch: TensorDictBase) -> int:
        """Write a batch `[E, T]` behind those before; return how many of its columns still had room.

        Raises:
            SpecMismatch: a value that is not a tensor.
            OSError: no space left, for example.
        """
        if self._data is None:
            self._data = self._allocate(batch)
        columns = min(batch.shape[-1], self.columns - self.written)
        self._columns(self.written, columns).update_(batch[..., :columns])
        self.written += columns
        return columns

    def _allocate(self, batch: TensorDictBase) -> TensorDictBase:
        for key in _not_tensors(batch):
            raise SpecMismatch(
                f"{key!r} holds Python objects, which have no place in a file of numbers; leave it out of what is observed"
            )
        layout: Any = batch[..., :1]
        whole: TensorDictBase = layout.expand(*batch.shape[:-1], self.columns)
        needed, free = whole.bytes(), shutil.disk_usage(self.path).free
        if needed > free:
            raise OptionError(f"--out {self.path}: {size(needed)} are needed there, and {size(free)} are free")
        data = whole.memmap_like(str(self.path))
        (self.path / META).rename(self.path / WITHHELD)
        for file in self.path.rglob("*.memmap"):
            _reserve(file)
        return data

    def _columns(self, start: int, count: int) -> TensorDictBase:
        data: Any = self._data
        return data[..., start : start + count]

    def finish(self) -> TensorDictBase | None:
        """Make the folder loadable with the columns that are complete; None, and no folder, if there are none."""
        if self._data is None or not self.written:
            self._remove()
            return None
        if self.written < self.columns:
            self._keep(self._columns(0, self.written))
        else:
            (self.path / WITHHELD).replace(self.path / META)
        return TensorDict.load_memmap(self.path)

    def _keep(self, complete: TensorDictBase) -> None:
        """Put files of the columns that are complete in place of those of full size; `meta.json` is the last."""
        shorter = self.path / WHOLE
        complete.memmap(str(shorter), copy_existing=True)
        files = [file for file in shorter.rglob("*") if file.is_file() and file != shorter / META]
        for file in [*files, shorter / META]:
            file.replace(self.path / file.relative_to(shorter))
        (self.path / WITHHELD).unlink()
        shutil.rmtree(shorter)

    def _remove(self) -> None:
        self._data = None
        for child in self.path.iterdir():
            shutil.rmtree(child) if child.is_dir() else child.unlink()
        if self._is_new:
            self.path.rmdir()


def _reserve(file: Path) -> None:
    """Have the file's blocks on the disk now: a write to a mapped file for which there is no room kills the process."""
    with file.open("r+b") as opened:
        length = opened.seek(0, os.SEEK_END)
        if length and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(opened.fileno(), 0, length)


def _require_empty(path: Path) -> None:
    if path.is_dir():
        try:
            found = sorted(child.name for child in path.iterdir())
        except OSError as error:
            raise OptionError(f"--out {path}: cannot be read: {error.strerror}") from error
        if found:
            raise OptionError(f"--out {path}: expected a new or empty folder, found {found[0]!r} in it; name another")
    elif path.exists() or path.is_symlink():
        raise OptionError(f"--out {path}: expected a new or empty folder, found a file; name another")


def _not_tensors(batch: TensorDictBase) -> list[NestedKey]:
    leaves = batch.items(include_nested=True, leaves_only=True, is_leaf=lambda kind: not issubclass(kind, TensorDict))
    return [key for key, value in leaves if is_non_tensor(value) or not isinstance(value, torch.Tensor)]


def size(count: float) -> str:
    """A number of bytes for people.

    Example:
        >>> size(900), size(13_500_000)
        ('900 B', '13.5 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
