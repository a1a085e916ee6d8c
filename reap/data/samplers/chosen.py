"""`Slices`: the pieces of trajectories in a sample, and the places of their frames."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from reap.data.episodes.trajectories import Numbers, TrajectoryTable
from reap.data.samplers.base import Draw


class Slices(NamedTuple):
    """The chosen slices, `[n]` each.

    Attributes:
        numbers: their trajectories.
        columns: the columns of their first frames, counted from the first ever written.
        lengths: their frames.
        places: the places of all their frames, `[n]`.
    """

    numbers: Numbers
    columns: Numbers
    lengths: Numbers
    places: Numbers

    @property
    def lasts(self) -> Numbers:
        """The position in the sample at which each slice ends."""
        return self.lengths.cumsum() - 1

    def only(self, which: NDArray[np.bool_]) -> Slices:
        """Those selected by the mask `[n]`."""
        kept = np.repeat(which, self.lengths)
        return Slices(self.numbers[which], self.columns[which], self.lengths[which], self.places[kept])

    def together(self, other: Slices) -> Slices:
        """These slices, followed by others."""
        return Slices(*(np.concatenate(pair) for pair in zip(self, other, strict=True)))


def whole_slices(table: TrajectoryTable, numbers: Numbers, starts: Numbers, length: int) -> Slices:
    """Slices of one length that start with these frames of trajectories, `[n]`."""
    places = table.places(numbers, starts, length).ravel()
    return Slices(numbers, table.shift[numbers] + starts, np.full(len(numbers), length), places)


def cut_slices(table: TrajectoryTable, numbers: Numbers, starts: Numbers, length: int) -> Slices:
    """The same, cut at the starts and ends of trajectories."""
    stops = np.minimum(starts + length, table.end[numbers])
    starts = np.maximum(starts, table.first[numbers])
    lengths = stops - starts
    places = table.places(numbers, starts, length)[np.arange(length) < lengths[:, None]]
    return Slices(numbers, table.shift[numbers] + starts, lengths, places)


def as_draw(slices: Slices) -> Draw:
    """The draw of these slices."""
    return Draw(torch.from_numpy(slices.places), note=slices)
