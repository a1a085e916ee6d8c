"""Marks the ends of a rollout in its slot, where its last frames are to count as truncated."""

from __future__ import annotations

import numpy as np

from reap.recording.buffers import DONE, MASK, TRUNCATED, Slot, after


def mark_last(slot: Slot) -> None:
    """Mark the last valid frame of each row truncated and done; flags that are set stay."""
    flags = [slot.by_row(after(key)) for key in (TRUNCATED, DONE)]
    rows = np.arange(slot.rows)
    last = np.full(slot.rows, slot.columns - 1)
    if MASK in slot.fields:
        mask = slot.by_row(MASK)
        last -= np.argmax(mask[:, ::-1], axis=1)
        rows, last = rows[mask.any(1)], last[mask.any(1)]
    for flag in flags:
        flag[rows, last] = True
