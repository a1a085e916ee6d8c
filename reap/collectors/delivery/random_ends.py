"""Ends episodes when random actions give way to a policy with a recurrent state, which starts new episodes."""

from __future__ import annotations

from collections.abc import Callable

from reap.collectors.worker.last_frames import last_frames
from reap.keys import Key
from reap.recording.buffers import DONE, MASK, TRUNCATED, after
from reap.recording.layout import Array


def end_episodes(array: Callable[[Key], Array], *, has_mask: bool) -> None:
    """Mark the last frame of episodes that are unfinished at the end of a rollout, and will not continue, truncated and done.

    Args:
        array: the rollout's values `[rows, columns, *value]` under a key.
        has_mask: the rollout may hold invalid frames.
    """
    truncated, done = (array(after(key))[..., 0] for key in (TRUNCATED, DONE))
    rows, last = last_frames(done.shape[0], done.shape[1], array(MASK) if has_mask else None)
    going_on = ~done[rows, last]
    for flag in (truncated, done):
        flag[rows[going_on], last[going_on]] = True
