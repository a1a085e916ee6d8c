"""`Segments`: runs of neighbours that follow each other."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reap.data.episodes.labels import Columns
from reap.data.episodes.trajectories import Numbers


class Segments(NamedTuple):
    """Runs of neighbours that follow each other, row by row; `[n]` each.

    Attributes:
        rows: the row of each.
        firsts: its first column, counted from the first column examined.
        lasts: its last column, likewise.
        goes_on: whether it continues from the frame before these columns.
        may_go_on: whether it ends before the last column, and is not done.
        is_new: whether it continues from no frame: an env was reset, or a frame in it or before it replaced another.
        closes: whether no later frame continues its stream, because of such a frame.
    """

    rows: Numbers
    firsts: Numbers
    lasts: Numbers
    goes_on: NDArray[np.bool_]
    may_go_on: NDArray[np.bool_]
    is_new: NDArray[np.bool_]
    closes: NDArray[np.bool_]

    def only(self, which: Numbers) -> Segments:
        """Select some of them."""
        rows, firsts, lasts, goes_on, may_go_on, is_new, closes = self
        return Segments(
            rows[which], firsts[which], lasts[which], goes_on[which], may_go_on[which], is_new[which], closes[which]
        )


def segments_of(valid: NDArray[np.bool_], done: NDArray[np.bool_], linked: NDArray[np.bool_]) -> Segments:
    """The segments of columns whose frames are `valid` and `done`, and `linked` to their neighbour, `[rows, n]` each."""
    size, columns = valid.size, valid.shape[1]
    breaks = ~linked
    breaks[:, 0] = True
    begins = breaks.ravel().nonzero()[0]
    ends = np.empty_like(begins)
    ends[:-1] = begins[1:]
    ends[-1:] = size
    if not np.logical_and.reduce(valid, None):
        kept = valid.ravel()[begins]
        begins, ends = begins[kept], ends[kept]
    rows = begins // columns
    firsts, lasts = begins - rows * columns, ends - rows * columns - 1
    goes_on = linked.ravel()[begins]
    may_go_on = ~done.ravel()[ends - 1] & (lasts < columns - 1)
    nothing = np.zeros(len(rows), np.bool_)
    return Segments(rows, firsts, lasts, goes_on, may_go_on, nothing, nothing)


def in_doubt(read: Columns) -> NDArray[Any]:
    """Which frames must continue the observation of the previous one, whatever their ids, `[n]` or `[rows, n]`."""
    if read.replaced is None:
        return read.begins
    doubt = read.replaced | (read.begins == 1)
    doubt[:, 1:] |= read.replaced[:, :-1]
    return doubt
