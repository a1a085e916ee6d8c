"""Stage and slot: the inputs of a policy, and the record of a rollout.

                 column t
    Stage  [E, ...]  ----record---->  Slot [E, T, ...]  root
      ^                                                       policy writes its outputs into column t
      '------------carry--------------  Slot [E, T, ...]  next   the envs write column t

The stage stays at one aligned address for the life of a collector; slots come from a pool, are lent to the user with a
batch, and come back when the last part of that batch is dropped (`SlotPool`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from reap.keys import Key
from reap.recording.layout import Array, Block, Field, Layout

WINDOW = 1024
"""Number of column views kept at a time; all views of 100,000 columns would cost 124 MB."""

SMALL = 256
"""Fields of at most this many bytes per frame are cloned at delivery; larger ones are lent."""

DONE, TERMINATED, TRUNCATED = ("done",), ("terminated",), ("truncated",)
FLAGS: tuple[Key, ...] = (DONE, TERMINATED, TRUNCATED)
MARKED = ("done", "truncated")
"""Names of the flags that are set where a trajectory is cut, at the root and below it."""
REWARD: Key = ("reward",)
IDS: Key = ("collector", "traj_ids")
MASK: Key = ("collector", "mask")
VERSION: Key = ("collector", "policy_version")
IS_INIT: Key = ("is_init",)
STEP_COUNT: Key = ("step_count",)

Cuts = tuple[tuple[int, int, tuple[int, ...]], ...]
"""Parts of the rows: for each its first row, the row after its last, and its batch shape."""


def after(key: Key) -> Key:
    """The key of the same value one step later, under `"next"`."""
    return ("next", *key)


class Stage:
    """The policy's inputs for all rows: one contiguous, aligned array per key, at a fixed address.

    `arrays` has `[E, *value]`, or `[*value]` for a single env without batch dimension; `tensors` has the same memory as
    `[*batch_shape, *value]`. Columns of objects have arrays only, `[E, 1]` or `[1]`.

    Args:
        fields: shape and dtype of one row's value under each key.
        batch_shape: batch dimensions of the env; empty for a single env.
        make_block: makes the memory of these fields; fields added later are in the process's own memory.
    """

    def __init__(
        self,
        fields: Mapping[Key, Field],
        batch_shape: tuple[int, ...],
        make_block: Callable[[Layout], Block] = Block.private,
    ) -> None:
        self.batch_shape = batch_shape
        self.rows = int(np.prod(batch_shape, dtype=np.int64))
        self.first_row = 0
        """The index of its first row in the block."""
        self.fields: dict[Key, Field] = {}
        self.arrays: dict[Key, Array] = {}
        self.tensors: dict[Key, torch.Tensor] = {}
        self.initial: dict[Key, Any] = {}
        self._parts: dict[Cuts, list[Stage]] = {}
        """The values of fields other than observations at the start of an episode."""
        self.block = self._add(fields, make_block)
        """The memory of the fields that it was made with."""

    def extend(self, fields: Mapping[Key, Field], initial: Mapping[Key, Any]) -> None:
        """Add fields in a separate block; existing fields stay where they are.

        Args:
            fields: the new fields.
            initial: the values of fields other than observations at the start of an episode.
        """
        self._add(fields, Block.private)
        self._parts.clear()
        self.initial.update(initial)
        for key, value in initial.items():
            self.arrays[key][...] = value

    def _add(self, fields: Mapping[Key, Field], make_block: Callable[[Layout], Block]) -> Block:
        tensors = {key: field for key, field in fields.items() if not field.is_object}
        block = make_block(Layout({key: field.lead(self.rows) for key, field in tensors.items()}))
        lead = (self.rows,) if self.batch_shape else ()
        for key, field in fields.items():
            self.fields[key] = field
            array = np.empty((self.rows, 1), object) if field.is_object else block.array(key)
            self.arrays[key] = array.reshape((*lead, *field.shape))
        for key, field in tensors.items():
            self.tensors[key] = block.tensor(key).view((*self.batch_shape, *field.shape))
        return block

    def begin(self, rows: Sequence[int] | None) -> None:
        """Start an episode in these rows (None: all): fields other than observations get their initial values."""
        chosen: Any = ... if rows is None or not self.batch_shape else rows
        for key, value in self.initial.items():
            self.arrays[key][chosen] = value

    def parts(self, cuts: Cuts) -> list[Stage]:
        """A part for each cut; cached until fields are added."""
        found = self._parts.get(cuts)
        if found is None:
            found = self._parts[cuts] = [self.part(*cut) for cut in cuts]
        return found

    def part(self, start: int, stop: int, batch_shape: tuple[int, ...]) -> Stage:
        """The rows from `start` to `stop` of a batched stage, as a stage over the same memory."""
        part = Stage({}, batch_shape)
        part.fields, part.block, part.first_row = dict(self.fields), self.block, self.first_row + start
        part.initial = dict(self.initial)
        lead = (part.rows,) if batch_shape else ()
        for key, field in self.fields.items():
            part.arrays[key] = self.arrays[key][start:stop].reshape((*lead, *field.shape))
            if field.is_object:
                continue
            rows = self.tensors[key].view((self.rows, *field.shape))[start:stop]
            part.tensors[key] = rows.view((*batch_shape, *field.shape))
        return part


def column_views(tensor: torch.Tensor) -> list[torch.Tensor]:
    """A view of each column of a tensor `[T, ...]`, by index, since views from `unbind` refuse in-place writes."""
    return [tensor[t] for t in range(tensor.shape[0])]


class ColumnViews(Sequence[torch.Tensor]):
    """Views of the columns of a tensor `[T, ...]`, made for a window at a time."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._start = 0
        self._views: list[torch.Tensor] = []

    def __len__(self) -> int:
        return self._tensor.shape[0]

    def __getitem__(self, index: Any) -> Any:
        place = index - self._start
        if 0 <= place < len(self._views):
            return self._views[place]
        return self._move(range(len(self))[index])

    def _move(self, index: int) -> torch.Tensor:
        """Make the views of the window of this column."""
        self._start = index - index % WINDOW
        self._views = column_views(self._tensor[self._start : self._start + WINDOW])
        return self._views[index - self._start]


def slot_layout(fields: Mapping[Key, Field], rows: int, columns: int) -> Layout:
    """The layout of a slot; its flags are next to each other."""
    flags = [key for key in fields if key[-1:] in FLAGS]
    others = [key for key, field in fields.items() if key not in flags and not field.is_object]
    return Layout({key: fields[key].lead(rows, columns) for key in (*flags, *others)})


class Slot:
    """Memory for one rollout: each field is `[E, T, *value]`, rows first, so that a batch flattens without a copy.

    Objects are in separate arrays `[E, T, 1]`, outside the block.

    Args:
        fields: shape and dtype of one frame's value under each key.
        batch_shape: batch dimensions of the env; empty for a single env.
        columns: number of time steps `T`.
        make_block: makes its memory.
    """

    def __init__(
        self,
        fields: Mapping[Key, Field],
        batch_shape: tuple[int, ...],
        columns: int,
        make_block: Callable[[Layout], Block] = Block.private,
    ) -> None:
        self.batch_shape = batch_shape
        self.rows = int(np.prod(batch_shape, dtype=np.int64))
        self.columns = columns
        self.fields = dict(fields)
        layout = slot_layout(fields, self.rows, columns)
        flags = [key for key in self.fields if key[-1:] in FLAGS]
        self.block = make_block(layout)
        self._rowwise: dict[Key, Array] = {
            key: np.empty((self.rows, columns, 1), object) if field.is_object else self.block.array(key)
            for key, field in self.fields.items()
        }
        self._columnwise: dict[Key, Array] = {}
        self._views: dict[Key, Sequence[torch.Tensor]] = {}
        self._flags: list[Array] = [self.block.memory[layout.span(flags)]] if flags else []
        self._first_row: int | None = None
        self._parts: dict[Cuts, list[Slot]] = {}

    @property
    def first_row(self) -> int:
        """The index of its first row in the block."""
        return self._first_row or 0

    def by_row(self, key: Key) -> Array:
        """The field as `[E, T, *value]`."""
        return self._rowwise[key]

    def by_column(self, key: Key) -> Array:
        """The field as `[T, E, *value]`, or `[T, *value]` for a single env without batch dimension."""
        found = self._columnwise.get(key)
        if found is None:
            array = self._rowwise[key]
            found = self._columnwise[key] = array.swapaxes(0, 1) if self.batch_shape else array[0]
        return found

    def tensor(self, key: Key, memory: Any = None) -> torch.Tensor:
        """The field as a tensor `[*batch_shape, T, *value]`."""
        shape = (*self.batch_shape, self.columns, *self.fields[key].shape)
        every_row = self.block.tensor(key, memory)
        if self._first_row is None:
            return every_row.resize_(shape)
        return every_row[self._first_row : self._first_row + self.rows].view(shape)

    def views(self, key: Key) -> Sequence[torch.Tensor]:
        """A view `[*batch_shape, *value]` for each column."""
        found = self._views.get(key)
        if found is None:
            # Made in inference mode, they could not be written outside of it.
            with torch.inference_mode(mode=False):
                columns = self.tensor(key).movedim(len(self.batch_shape), 0)
                found = column_views(columns) if self.columns <= WINDOW else ColumnViews(columns)
            self._views[key] = found
        return found

    def clear_flags(self) -> None:
        """Set all done, terminated and truncated flags to False, by one fill, since they are contiguous."""
        for flags in self._flags:
            flags[...] = 0

    def blank(self, invalid: Array) -> None:
        """Set invalid frames to zero, their objects to None, and their ids to -1.

        Args:
            invalid: boolean `[E, T]`.
        """
        for key, array in self._rowwise.items():
            array[invalid] = -1 if key == IDS else None if self.fields[key].is_object else 0

    def parts(self, cuts: Cuts) -> list[Slot]:
        """A part for each cut; cached."""
        found = self._parts.get(cuts)
        if found is None:
            found = self._parts[cuts] = [self.part(*cut) for cut in cuts]
        return found

    def part(self, start: int, stop: int, batch_shape: tuple[int, ...]) -> Slot:
        """The rows from `start` to `stop`, as a slot over the same memory."""
        part = Slot({}, batch_shape, self.columns)
        part.fields, part.block = self.fields, self.block
        part._first_row = (self._first_row or 0) + start
        part._rowwise = {key: array[start:stop] for key, array in self._rowwise.items()}
        part._flags = [array for key, array in part._rowwise.items() if key[-1:] in FLAGS]
        return part


def map_slot(
    fd: int, fields: Mapping[Key, Field], rows: int, columns: int, first_row: int, batch_shape: tuple[int, ...]
) -> Slot:
    """Map a slot that another process has made, and return the part that holds the rows of this process.

    Args:
        fd: the descriptor of its memory; closed with the slot.
        fields: shape and dtype of one frame's value under each key.
        rows: number of rows of the whole slot.
        columns: number of time steps.
        first_row: the first row that belongs to this process.
        batch_shape: batch dimensions of the rows of this process.
    """
    whole = Slot(fields, (rows,), columns, partial(Block.shared, fd=fd))
    return whole.part(first_row, first_row + math.prod(batch_shape), batch_shape)
