"""Checks for free memory before a storage allocates any; errors tell how much is missing."""

from __future__ import annotations

from reap.data.storages.ring.control import ORIGIN_BYTES
from reap.keys import plain
from reap.recording.layout import Layout
from reap.system.memory import available_memory, readable


def refuse_many(max_size: int) -> None:
    """Raise MemoryError if the table of origins for this many frames does not fit."""
    needed, (free, bound) = max_size * ORIGIN_BYTES, available_memory()
    if needed > free:
        raise MemoryError(
            f"replay buffer: max_size={max_size}: the table of origins needs {readable(needed)}, {bound} has "
            f"{readable(free)} left; expected fewer frames"
        )


def refuse_beyond(max_size: int, layout: Layout, free: float, bound: str) -> None:
    """Raise MemoryError if a layout needs more bytes than are free.

    Args:
        max_size: maximum number of frames.
        layout: their memory.
        free: number of free bytes.
        bound: a description of what sets that bound.
    """
    if layout.nbytes <= free:
        return
    largest = max(layout, key=lambda key: layout[key].nbytes)
    raise MemoryError(
        f"replay buffer: {max_size} frames need {readable(layout.nbytes)}, {bound} has {readable(free)} left; the largest key "
        f"is {plain(largest)!r} with {readable(layout[largest].nbytes)}. Expected max_size of at most "
        f"{int(max_size * free / layout.nbytes)}, or less in each frame"
    )
