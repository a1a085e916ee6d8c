"""`DataFolder`: frames on disk, written batch by batch, as `TensorDict.load_memmap` reads them.

There is one file per key, `[E, T, ...]`, made at its full size with the first batch. The folder's own `meta.json` is put in
place last: an unfinished folder does not load, and a killed run is not mistaken for a complete one.

A run that ends early shortens its files, and one that is resumed lengthens them again (file_lengths.py).
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from tensordict import MemoryMappedTensor, TensorDict, TensorDictBase, is_non_tensor

from reap.cli.runs.claim import require_empty
from reap.cli.runs.file_lengths import cut, relaid, with_columns, write_over
from reap.data.datasets.run_folder import META, WITHHELD, name_of, stored_files
from reap.data.dtypes import dtype_named
from reap.errors import OptionError, SpecMismatch, nearest
from reap.keys import Key, NestedKey, nested
from reap.recording.layout import Field
from reap.system.disk import disk_full, free_space, replaced, require_length, reserve, room
from reap.system.interrupts import deferring_interrupts
from reap.tensordicts import make_tensordict


class DataFolder:
    """A new or empty folder.

    Args:
        path: the folder, or a link to one; it is made with its parents.
        columns: number of time steps to store, `T`.

    Raises:
        OptionError: the folder is not empty, is a file, or cannot be written.
    """

    def __init__(self, path: Path, columns: int) -> None:
        self.path = path
        self.columns = columns
        self.written = 0
        """Time steps that are complete."""
        self._dropped: Sequence[Key] = ()
        self._data: TensorDictBase | None = None
        self._names: list[str] = []
        self._place = Path(os.path.realpath(path))
        require_empty(path, self._place)
        self._is_new = not self._place.exists()
        try:
            self._place.mkdir(parents=True, exist_ok=True)
            (self._place / WITHHELD).touch(exist_ok=False)
        except FileExistsError as error:
            raise OptionError(
                f"--out {path}: expected a new or empty folder, but another run is making one there; name another"
            ) from error
        except OSError as error:
            raise OptionError(f"--out {path}: cannot be written: {error.strerror}") from error

    @classmethod
    def resumed(cls, path: Path, columns: int, written: int) -> DataFolder:
        """The folder of a run that was killed or stopped, to which the rest is written.

        Args:
            path: the folder.
            columns: number of time steps to store in all.
            written: number of complete ones.

        Raises:
            DiskFull: there is no room for the rest; the folder is unchanged.
        """
        folder = cls.__new__(cls)
        folder.path, folder.columns, folder.written = path, columns, written
        folder._dropped, folder._is_new, folder._place = (), False, Path(os.path.realpath(path))
        with deferring_interrupts():
            folder._data = folder._lengthened() if written else folder._cleared()
            folder._names = [] if folder._data is None else [str(name) for name in folder._data.keys()]
        return folder

    def _cleared(self) -> None:
        """Remove the files of a run without a complete batch."""
        metas = [self._place / META, *self._place.glob(f"*/{META}")]
        for file in self._place.glob("*.memmap"):
            file.unlink()
        for meta in metas:
            if meta.parent != self._place:
                shutil.rmtree(meta.parent)
        (self._place / META).unlink(missing_ok=True)
        (self._place / WITHHELD).write_text("")

    def _lengthened(self) -> TensorDictBase:
        """The files of a run, at their full length."""
        place = self._place
        if (place / META).exists():
            (place / META).replace(place / WITHHELD)
        values: dict[Key, Any] = {}
        for key, file, entry in stored_files(place):
            for rest in file.parent.glob(f".{file.name}.*"):  # of a process that was killed while it made a copy
                shutil.rmtree(rest)
            rows, _, *item = entry["shape"]
            shape, dtype = torch.Size((rows, self.columns, *item)), dtype_named(entry["dtype"])
            nbytes = math.prod(item) * dtype.itemsize
            relaid(file, rows, file.stat().st_size // rows, self.columns * nbytes)
            values[key] = MemoryMappedTensor.from_filename(str(file), dtype, shape)
        for file in (place / WITHHELD, *place.rglob(META)):
            with replaced(file) as path:
                path.write_text(json.dumps(with_columns(json.loads(file.read_text()), 1, self.columns)))
        rows = next(iter(values.values())).shape[0]
        return make_tensordict(nested(values), torch.Size((rows, self.columns)))

    def expect(self, fields: Mapping[Key, Field], rows: int, drop: Iterable[str] = ()) -> None:
        """Refuse values that cannot be stored, before any are collected.

        Args:
            fields: shape and dtype of one frame's value under each key.
            rows: envs, `E`.
            drop: keys to leave out, at the root and under `"next"`; `"next/a"` leaves out only that one.

        Raises:
            OptionError: there is no such key, no key is left, or a remaining key holds Python objects.
            DiskFull: there is no room for the files.
        """
        kept = kept_fields(fields, drop)
        if self._data is None:
            self._require_room(rows * self.columns * sum(field.nbytes for field in kept.values()))
        self._dropped = tuple(key for key in fields if key not in kept)

    def write(self, batch: TensorDictBase) -> int:
        """Append a batch `[E, T]`; return the number of its columns for which there was room.

        Raises:
            SpecMismatch: a value that is not a tensor.
            DiskFull: there is no room for all columns.
        """
        batch = batch.exclude(*self._dropped)
        if self._data is None:
            self._data = self._allocate(batch)
        columns = min(batch.shape[-1], self.columns - self.written)
        _columns(self._data, self.written, columns).update_(batch[..., :columns])
        self.written += columns
        return columns

    def flush(self) -> None:
        """Do nothing: `write` has written everything."""

    def _require_room(self, needed: int) -> None:
        if needed > free_space(self._place):
            raise disk_full(None, self.path, needed, "--out")

    def _allocate(self, batch: TensorDictBase) -> TensorDictBase:
        for key in _not_tensors(batch):
            raise SpecMismatch(
                f"{key!r} holds Python objects, which cannot be written to a file of numbers; leave it out with --drop"
            )
        layout: Any = batch[..., :1]
        whole: TensorDictBase = layout.expand(*batch.shape[:-1], self.columns)
        self._require_room(whole.bytes())
        self._names = [str(name) for name in batch.keys()]
        try:
            with room(self.path, whole.bytes, "--out"):
                require_length(self._place, max(leaf.nbytes for leaf in whole.values(True, True)))
                data = whole.memmap_like(str(self._place))
                (self._place / META).replace(self._place / WITHHELD)
                for file in self._place.rglob("*.memmap"):
                    reserve(file, 0, file.stat().st_size, "its frames")
        except BaseException:
            self._remove_files()
            raise
        return data

    def finish(self) -> TensorDictBase | None:
        """Make the folder loadable with the complete columns; if there are none, remove the folder and return None.

        Ctrl-C waits until it is done.
        """
        with deferring_interrupts():
            data, self._data = self._data, None
            if data is None or not self.written:
                self._remove_files()
                self._remove()
                return None
            if self.written < self.columns:
                self._shorten(data)
            (self._place / WITHHELD).replace(self._place / META)
            return TensorDict.load_memmap(self._place)

    def _shorten(self, data: TensorDictBase) -> None:
        """Shorten the files to the complete columns."""
        rows = data.shape[:-1].numel()
        leaves: list[Any] = [*data.values(True, True)]
        for file, nbytes in [(Path(leaf.filename), leaf.nbytes // (rows * self.columns)) for leaf in leaves if leaf.nbytes]:
            before, kept = self.columns * nbytes, self.written * nbytes
            try:
                relaid(file, rows, before, kept)
            except OSError:  # no room, most likely; in place it takes none
                cut(file, rows, before, kept)
        for file in (*self._place.rglob(META), self._place / WITHHELD):
            shorter = with_columns(json.loads(file.read_text()), data.ndim - 1, self.written)
            write_over(file, json.dumps(shorter, separators=(",", ":")))

    def _remove(self) -> None:
        (self._place / WITHHELD).unlink(missing_ok=True)
        if self._is_new:
            with suppress(OSError):  # somebody put a file there
                self._place.rmdir()

    def _remove_files(self) -> None:
        """Remove the files of the frames, but no other files."""
        for entry in self._place.iterdir():
            if name_of(entry) not in self._names:
                continue
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.suffix == ".memmap":
                entry.unlink()
        (self._place / META).unlink(missing_ok=True)


def kept_fields(fields: Mapping[Key, Field], drop: Iterable[str]) -> dict[Key, Field]:
    """The fields without the dropped ones; see `DataFolder.expect`."""
    dropped = {key for name in drop for key in _meant(name, fields)}
    kept = {key: field for key, field in fields.items() if key not in dropped}
    if not kept:
        raise OptionError("--drop: expected at least one key to remain, found none")
    for key, field in kept.items():
        if field.is_object:
            name = "/".join(key[1:] if key[0] == "next" else key)
            raise OptionError(
                f"{'/'.join(key)} holds Python objects (text, for example), which cannot be written to a file of numbers; "
                f"leave it out with --drop {name}"
            )
    return kept


def _columns(data: Any, start: int, count: int) -> TensorDictBase:
    return data[..., start : start + count]


def _meant(name: str, fields: Mapping[Key, Field]) -> list[Key]:
    """The keys that `a`, `a/b` or `next/a` refers to."""
    known = ["/".join(key) for key in fields]  # names may have slashes of their own
    meant = [key for key, joined in zip(fields, known, strict=True) if joined in {name, f"next/{name}"}]
    if not meant:
        raise OptionError(f"--drop {name}: expected one of the keys {', '.join(known)}.{nearest(name, known)}")
    return meant


def _not_tensors(batch: TensorDictBase) -> list[NestedKey]:
    leaves = batch.items(include_nested=True, leaves_only=True, is_leaf=lambda kind: not issubclass(kind, TensorDict))
    return [key for key, value in leaves if is_non_tensor(value) or not isinstance(value, torch.Tensor)]


def size(count: float) -> str:
    """A number of bytes in readable form.

    Example:
        >>> size(900), size(13_500_000)
        ('900 B', '13.5 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
