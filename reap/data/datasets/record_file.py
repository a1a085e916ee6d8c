"""`RecordFile`: an append-only file of batches; a killed run loses only the batch that was being written.

    head      REAPREC1 | length | fields as JSON
    record    BTCH | columns | ends | bytes  ||  each field, at a multiple of 8 bytes  ||  checksum of the file up to here
    record    ...

A thread writes while the next batch is being collected. If the last record is incomplete, readers skip it, and it is removed
before anything is appended.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reap.data.datasets.frames import NEXT, TRAJECTORY, Frames, ends_of
from reap.data.dtypes import dtype_named
from reap.errors import SpecMismatch
from reap.keys import Key
from reap.recording.layout import Field
from reap.system.disk import room

MAGIC, RECORD = b"REAPREC1", b"BTCH"
_HEAD, _RECORD, _CHECKSUM = struct.Struct("<8sQ"), struct.Struct("<4sIIIQ"), struct.Struct("<Q")

WAITING = 1
"""Number of batches that can wait while one is being written."""

_ZEROS = bytes(8)


class Layout(NamedTuple):
    """The layout of a file.

    Attributes:
        rows: rows of a batch.
        fields: shape and dtype of one frame's value under each key.
        once: keys under `"next"` that are stored at the ends of trajectories only.
    """

    rows: int
    fields: Mapping[Key, Field]
    once: frozenset[Key]

    def counts(self, columns: int, ends: int) -> Iterator[tuple[Key, Field, int]]:
        """Number of values in a record for each key."""
        for key, field in self.fields.items():
            yield key, field, ends if key in self.once else self.rows * columns


class RecordFile:
    """A file to which batches are appended.

    Args:
        path: a new file, or one that was written with the same layout, which is continued.
        layout: its layout.

    Raises:
        OSError: it cannot be written.
        SpecMismatch: it is a file of another layout.

    Attributes:
        columns: columns in it.
        next_id: the first number that is not the id of a trajectory in it.
    """

    def __init__(self, path: Path, layout: Layout) -> None:
        self.layout, self.columns, self.next_id = layout, 0, 0
        self._path = path
        self._end = self._checksum = 0
        self._queue: deque[Future[None]] = deque()
        self._failure: BaseException | None = None
        kept = read_records(path) if path.exists() and path.stat().st_size else None
        if kept is not None:
            if kept.layout != layout:
                raise SpecMismatch(f"{path}: expected records of the keys {_names(layout)}, found {_names(kept.layout)}")
            self._end, self._checksum = kept.nbytes, kept.checksum
            self.columns = sum(frames.shape[1] for frames in kept.frames)
            self.next_id = 1 + max((int(frames.ids.max()) for frames in kept.frames), default=-1)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._thread = ThreadPoolExecutor(1, "reap-record")
        os.ftruncate(self._fd, self._end)
        os.lseek(self._fd, self._end, os.SEEK_SET)
        if kept is None:
            head = _head(layout)
            self._put([head], zlib.crc32(head))

    @property
    def nbytes(self) -> int:
        """Bytes written."""
        return self._end

    @property
    def checksum(self) -> int:
        """The CRC-32 of the file."""
        return self._checksum

    def append(self, values: Mapping[Key, Tensor]) -> None:
        """Append a batch, which must not change before it is written; another may be waiting.

        Args:
            values: `[rows, columns, *item]` by key.

        Raises:
            DiskFull: there was no room for this batch or the previous one; the file ends with the last complete batch.
        """
        while len(self._queue) > WAITING:
            self._next()
        self._queue.append(self._thread.submit(self._write, values))

    def flush(self) -> None:
        """Wait until everything is written.

        Raises:
            DiskFull: there was no room.
        """
        while self._queue:
            self._next()

    def _next(self) -> None:
        """Wait for the oldest waiting batch; after an error, later ones are not written."""
        try:
            self._queue.popleft().result()
        except BaseException:
            self._queue.clear()
            raise

    def close(self) -> None:
        """Write waiting batches, sync to disk, and close the file.

        Raises:
            DiskFull: there was no room.
        """
        try:
            if self._failure is None:  # it was raised by then
                self.flush()
            os.fsync(self._fd)
        finally:
            self._thread.shutdown(wait=True)
            os.close(self._fd)

    def _write(self, values: Mapping[Key, Tensor]) -> None:
        if self._failure is None:
            try:
                self._write_record(values)
            except BaseException as error:
                self._failure = error
                raise

    def _write_record(self, values: Mapping[Key, Tensor]) -> None:
        ids = values[TRAJECTORY].numpy()
        columns, ends = ids.shape[1], ends_of(ids)
        chosen = torch.from_numpy(ends)
        parts: list[Any] = []
        for key, _, _ in self.layout.counts(columns, int(ends.sum())):
            value = values[key][chosen] if key in self.layout.once else values[key]
            raw = value.contiguous().reshape(-1).view(torch.uint8).numpy()
            parts += [raw, _ZEROS[: -len(raw) % 8]]
        parts = [_RECORD.pack(RECORD, columns, int(ends.sum()), 0, sum(map(len, parts))), *parts]
        checksum = self._checksum
        for part in parts:
            checksum = zlib.crc32(part, checksum)
        written = _CHECKSUM.pack(checksum)
        self._put([*parts, written], zlib.crc32(written, checksum))
        self.columns += columns
        self.next_id = max(self.next_id, int(ids.max()) + 1)

    def _put(self, parts: Sequence[Any], checksum: int) -> None:
        """Write all of these, or none; the file then has this CRC-32."""
        nbytes = sum(map(len, parts))
        try:
            with room(self._path, nbytes, "--out"):
                _write_all(self._fd, parts)
        except BaseException:
            os.ftruncate(self._fd, self._end)
            os.lseek(self._fd, self._end, os.SEEK_SET)
            raise
        self._end += nbytes
        self._checksum = checksum


def _write_all(fd: int, parts: Iterable[Any]) -> None:
    left = [memoryview(part) for part in parts if len(part)]
    while left:
        written = os.writev(fd, left[:512])
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if written:
            left[0] = left[0][written:]


def _head(layout: Layout) -> bytes:
    fields = [
        {"key": list(key), "shape": list(field.shape), "dtype": str(field.dtype), "once": key in layout.once}
        for key, field in layout.fields.items()
    ]
    text = json.dumps({"rows": layout.rows, "fields": fields}).encode()
    text += b" " * (-len(text) % 8)
    return _HEAD.pack(MAGIC, len(text)) + text


class Records(NamedTuple):
    """The complete records of a file.

    Attributes:
        layout: what they hold.
        frames: their frames, mapped.
        nbytes: where the last of them ends.
        checksum: the CRC-32 of the file up to there.
    """

    layout: Layout
    frames: list[Frames]
    nbytes: int
    checksum: int


def read_records(path: Path, *, verify: bool = False) -> Records:
    """Map the complete records of a file.

    Args:
        path: the file.
        verify: compare the checksums, which reads all of it.

    Raises:
        SpecMismatch: not a file of this kind, or a record is damaged.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < _HEAD.size:
            raise SpecMismatch(f"{path}: expected a file of records, found {size} bytes")
        memory = mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE)  # private: tensors want memory that can be written
    layout, start = _read_head(path, memory)
    checksum = zlib.crc32(memoryview(memory)[:start])
    frames: list[Frames] = []
    while start + _RECORD.size <= size:
        magic, columns, ends, _, nbytes = _RECORD.unpack_from(memory, start)
        end = start + _RECORD.size + nbytes
        after = end + _CHECKSUM.size
        if magic != RECORD or after > size:
            break
        (found,) = _CHECKSUM.unpack_from(memory, end)
        if verify and zlib.crc32(memoryview(memory)[start:end], checksum) != found:
            raise SpecMismatch(f"{path}: the record at byte {start} is damaged; verify=False reads it all the same")
        checksum = zlib.crc32(memory[end:after], found)
        frames.append(_record(memory, start + _RECORD.size, layout, columns, ends))
        start = after
    return Records(layout, frames, start, checksum)


def _read_head(path: Path, memory: mmap.mmap) -> tuple[Layout, int]:
    magic, length = _HEAD.unpack_from(memory, 0)
    if magic != MAGIC:
        raise SpecMismatch(f"{path}: expected a file of records, found another kind of file")
    head = json.loads(memory[_HEAD.size : _HEAD.size + length])
    fields = {tuple(one["key"]): Field(tuple(one["shape"]), dtype_named(one["dtype"])) for one in head["fields"]}
    once = frozenset(tuple(one["key"]) for one in head["fields"] if one["once"])
    return Layout(head["rows"], fields, once), _HEAD.size + length


def _record(memory: mmap.mmap, start: int, layout: Layout, columns: int, ends: int) -> Frames:
    values: dict[Key, Tensor] = {}
    stored: dict[Key, Tensor] = {}
    for key, field, count in layout.counts(columns, ends):
        lead = (count,) if key in layout.once else (layout.rows, columns)
        nbytes = count * field.nbytes
        flat = (
            torch.frombuffer(memory, dtype=torch.uint8, offset=start, count=nbytes)
            if nbytes
            else torch.empty(0, dtype=torch.uint8)
        )
        (stored if key in layout.once else values)[key] = flat.view(field.dtype).view(*lead, *field.shape)
        start += nbytes + -nbytes % 8
    return Frames(values, values[TRAJECTORY].numpy(), stored)


def observed(fields: Mapping[Key, Field], names: Iterable[Key]) -> frozenset[Key]:
    """Of these observations, the keys under `"next"` that repeat the next column's: what is there can be stored once."""
    return frozenset((NEXT, *key) for key in names if key in fields and fields[key] == fields.get((NEXT, *key)))


def _names(layout: Layout) -> list[str]:
    return ["/".join(key) for key in layout.fields]
