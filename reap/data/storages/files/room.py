"""Memory for a storage: errors that tell how much is missing, before any is taken."""

from __future__ import annotations

from reap.data.storages.ring.control import ORIGIN_BYTES
from reap.keys import plain
from reap.recording.layout import Layout
from reap.system.memory import available_memory, readable


def refuse_many(max_size: int) -> None:
    """Raise MemoryError if there is no memory for the table of origins of this many frames."""
    needed, (free, bound) = max_size * ORIGIN_BYTES, available_memory()
    if needed > free:
        raise MemoryError(
            f"replay buffer: max_size={max_size}: the table of origins needs {readable(needed)}, {bound} has "
            f"{readable(free)} left; expected fewer frames"
        )


def refuse_beyond(max_size: int, layout: Layout, free: float, bound: str) -> None:
    """Raise MemoryError for more bytes than there are.

    Args:
        max_size: frames that there is to be room for.
        layout: their memory.
        free: bytes that there are.
        bound: a description of who sets that bound.
    """
    if layout.nbytes <= free:
        return
    largest = max(layout, key=lambda key: layout[key].nbytes)
    raise MemoryError(
        f"replay buffer: {max_size} frames need {readable(layout.nbytes)}, {bound} has {readable(free)} left; the largest key "
        f"is {plain(largest)!r} with {readable(layout[largest].nbytes)}. Expected max_size of at most "
        f"{int(max_size * free / layout.nbytes)}, or less in each frame"
    )
