"""`Recording`: the frames of a run in an append-only file, from which a Minari data set is made at the end."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from tensordict import TensorDictBase

from reap.cli.folder import kept_fields
from reap.cli.report import Stored
from reap.cli.runs.claim import require_empty
from reap.data.datasets.frames import TRAJECTORY
from reap.data.datasets.record_file import Layout, RecordFile, observed, read_records
from reap.data.datasets.run_folder import RECORDS
from reap.data.datasets.spaces import require_name
from reap.envs import EnvBase
from reap.errors import OptionError
from reap.keys import Key, plain
from reap.recording.layout import Field
from reap.system.disk import disk_full, free_space
from reap.system.interrupts import deferring_interrupts

BATCH_SECONDS = 0.05
"""Approximate duration of a batch in seconds: a killed run loses frames that were not written, and a batch is written as a
whole."""

NEEDED: tuple[Key, ...] = (
    TRAJECTORY,
    ("next", "reward"),
    *(("next", flag) for flag in ("done", "terminated", "truncated")),
)
"""Keys of a data set, besides observations and actions."""


class Recording:
    """The file of a new run, or of one that is resumed.

    Args:
        path: the folder.
        rows: number of envs, `E`.
        columns: number of time steps to store, `T`.
        is_new: the folder must be new or empty.

    Raises:
        OptionError: the folder of a new run is not empty, or cannot be written.

    Attributes:
        written: number of time steps that are complete, or wait to be written.
        checksums: of the file, by its name, once it is finished.
    """

    checksums: Mapping[str, int]

    def __init__(self, path: Path, rows: int, columns: int, *, is_new: bool) -> None:
        self.path, self.rows, self.columns, self.written = path, rows, columns, 0
        self.checksums = {}
        self._place = Path(os.path.realpath(path))
        if is_new:
            require_empty(path, self._place)
            try:
                self._place.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise OptionError(f"--out {path}: cannot be written: {error.strerror}") from error
        self._layout: Layout | None = None
        self._file: RecordFile | None = None

    def expect(self, fields: Mapping[Key, Field], rows: int, drop: Iterable[str] = ()) -> None:
        """Refuse values that cannot be stored, before any are collected; see `DataFolder`.

        Raises:
            OptionError: as there, or a key is left out that tells episodes apart.
            SpecMismatch: a name that a data set cannot hold.
            DiskFull: there is no room for the file.
        """
        kept = kept_fields(fields, drop)
        for key in NEEDED:
            if key not in kept:
                raise OptionError(f"--drop: expected to keep {'/'.join(key)} with --format minari; it tells episodes apart")
        for key in kept:
            require_name(key)
        once = observed(kept, [key for key in kept if key[0] not in {"next", "collector", "done", "terminated", "truncated"}])
        nbytes = sum(field.nbytes for key, field in kept.items() if key not in once)
        needed = rows * (self.columns - self.written) * nbytes
        if needed > free_space(self._place):
            raise disk_full(None, self.path, needed, "--out")
        self._layout = Layout(rows, kept, once)

    def write(self, batch: TensorDictBase) -> int:
        """Append a batch `[E, T]`; return the number of its columns that were still needed.

        Raises:
            DiskFull: there is no room.
        """
        assert self._layout is not None
        if self._file is None:
            self._file = RecordFile(self._place / RECORDS, self._layout)
        columns = min(batch.shape[-1], self.columns - self.written)
        self._file.append({key: batch.get(plain(key))[:, :columns] for key in self._layout.fields})
        self.written += columns
        return columns

    def flush(self) -> None:
        """Write waiting frames.

        Raises:
            DiskFull: there is no room; the file ends with the last batch that is whole.
        """
        if self._file is not None:
            self._file.flush()

    def finish(self) -> Stored | None:
        """Close the file; if it is empty, remove it and return None. Ctrl-C waits until it is done."""
        with deferring_interrupts():
            file, self._file = self._file, None
            if file is not None:
                file.close()
                self.written, self.checksums = file.columns, {RECORDS: file.checksum}
            path = self._place / RECORDS
            if not self.written:
                path.unlink(missing_ok=True)
                return None
            return Stored(self.rows, self.written, path.stat().st_size, len(read_records(path).layout.fields))


def columns_in_time(env: EnvBase, most: int) -> int:
    """Columns of a batch that takes about `BATCH_SECONDS`, at most `most`, at least 1."""
    with torch.random.fork_rng(devices=[]):
        env.rollout(1)
        started = time.perf_counter()
        env.rollout(2, break_when_any_done=False)
        column = (time.perf_counter() - started) / 3  # a reset and two steps
    return max(1, min(most, round(BATCH_SECONDS / column)))
