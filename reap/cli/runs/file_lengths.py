"""Changes the length of files `[rows, columns]` whose first columns are complete.

    rows of T columns    aaaaaa......bbbbbb......cccccc......
    complete columns     aaaaaabbbbbbcccccc

A copy replaces the file, so a killed process leaves one or the other. If the disk has no room for a copy, a file is shortened
in place: rows move to the front, the rest is cut off.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from reap.system.disk import replaced, reserve

PIECE = 1 << 20
"""Number of bytes that are moved at a time."""


def relaid(file: Path, rows: int, before: int, after: int, what: str = "--out") -> None:
    """Replace a file by a copy whose rows have another length.

    Args:
        file: the file.
        rows: number of rows.
        before: bytes of a row of it.
        after: bytes of a row of the copy.
        what: whose file it is, for the error.

    Raises:
        DiskFull: there is no room for the copy.
    """
    if before == after:
        return
    with replaced(file) as path, file.open("rb", buffering=0) as source, path.open("w+b", buffering=0) as target:
        reserve(target.fileno(), 0, rows * after, what)
        for row in range(rows):
            _copy(source.fileno(), row * before, target.fileno(), row * after, min(before, after))
        os.ftruncate(target.fileno(), rows * after)


def cut(file: Path, rows: int, nbytes: int, kept: int) -> None:
    """Shorten each row of `nbytes` in a file to its first `kept` bytes, one row after the other, in place."""
    with file.open("r+b", buffering=0) as opened:
        fd = opened.fileno()
        for row in range(1, rows):
            _copy(fd, row * nbytes, fd, row * kept, kept)
        os.ftruncate(fd, rows * kept)


def _copy(source: int, start: int, target: int, place: int, nbytes: int) -> None:
    for offset in range(0, nbytes, PIECE):
        _copy_piece(source, start + offset, target, place + offset, min(PIECE, nbytes - offset))


def _copy_piece(source: int, start: int, target: int, place: int, nbytes: int) -> None:
    moved = 0
    while moved < nbytes:
        piece = os.pread(source, nbytes - moved, start + moved)
        if not piece:
            raise OSError("a file of frames was cut short while it was written")
        moved += os.pwrite(target, piece, place + moved)


def with_columns(meta: Any, dim: int, columns: int) -> Any:
    """The contents of a `meta.json`, with this number of columns in this dimension of all shapes."""
    if not isinstance(meta, dict):
        return meta
    changed = {name: with_columns(value, dim, columns) for name, value in meta.items()}
    if isinstance(shape := meta.get("shape"), list):
        changed["shape"] = [*shape[:dim], columns, *shape[dim + 1 :]]
    return changed


def write_over(file: Path, text: str) -> None:
    """Overwrite a text with one that is not longer, in one call and within its space on the disk."""
    written = text.encode()
    with file.open("r+b", buffering=0) as opened:
        opened.write(written.ljust(os.fstat(opened.fileno()).st_size))
