"""Finds the last valid frame of each row of a rollout, and marks it truncated."""

from __future__ import annotations

import numpy as np
import torch

from reap.recording.buffers import MARKED, MASK, Slot
from reap.recording.layout import Array


def last_frames(rows: int, columns: int, mask: Array | None) -> tuple[Array, Array]:
    """The rows that have valid frames, and the column of the last of each.

    Args:
        rows: number of rows.
        columns: number of columns.
        mask: valid frames, `[rows, columns]`; None if all are.
    """
    places, last = np.arange(rows), np.full(rows, columns - 1)
    if mask is None:
        return places, last
    last -= np.argmax(mask[:, ::-1], axis=1)
    has_frames = mask.any(1)
    return places[has_frames], last[has_frames]


def mark_last(slot: Slot) -> None:
    """Mark the last valid frame of each row truncated and done, those flags below the root too; flags that are set stay."""
    mask = slot.by_row(MASK) if MASK in slot.fields else None
    rows, last = last_frames(slot.rows, slot.columns, mask)
    for key, field in slot.fields.items():
        if key[0] == "next" and key[-1] in MARKED and field.dtype is torch.bool:
            slot.by_row(key)[rows, last] = True
