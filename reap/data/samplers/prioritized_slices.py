"""`PrioritizedSliceSampler`: slices that begin in proportion to the priorities of their first frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from reap.data.episodes.index import EpisodeIndex
from reap.data.episodes.trajectories import NOT_THERE, Numbers
from reap.data.samplers.base import Draw
from reap.data.samplers.chosen import Slices, cut_slices
from reap.data.samplers.prioritized import PrioritizedSampler
from reap.data.samplers.slices import SliceSampler
from reap.data.storages.base import Storage
from reap.data.storages.bits import Mask
from reap.data.storages.items import Leaves
from reap.errors import CallOrderError, OptionError

ATTEMPTS = 8
"""Draws from all frames before those with which a slice can begin are sought out."""


class FirstFrames(SliceSampler):
    """What is known of trajectories, for slices whose first frames somebody else chooses."""

    keeps_owners = True

    def may_begin(self, index: EpisodeIndex, places: Numbers, length: int) -> tuple[Numbers, Numbers, Any]:
        """Trajectories and frames at these places, and whether a slice can begin there, each `[n]`."""
        numbers, frames = index.at(places)
        left = index.table.end[numbers] - frames
        wanted = length if self.strict_length else np.minimum(length, index.table.lengths(numbers))
        return numbers, frames, (frames != NOT_THERE) & (left >= wanted)


class PrioritizedSliceSampler(PrioritizedSampler):
    """Slices of trajectories; one begins with a frame as often as that frame's priority says.

    Frames from which on a trajectory is shorter than a slice begin none, whatever their priority. All frames of a slice have
    the weight of the first one.

    Args:
        max_capacity: as for `PrioritizedSampler`, as are `alpha`, `beta`, `eps`, `dtype`, `reduction` and
            `max_priority_within_buffer`.
        options: those of `SliceSampler`, but `span` and `uniform_over`.

    Raises:
        OptionError: as these.
    """

    def __init__(
        self,
        max_capacity: int,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float,
        reduction: str = "max",
        *,
        max_priority_within_buffer: bool = False,
        **options: Any,
    ) -> None:
        surplus = [name for name in ("span", "uniform_over") if options.get(name)]
        if surplus:
            raise OptionError(f"PrioritizedSliceSampler: priorities say where slices begin; expected no {surplus[0]}")
        self._slices = FirstFrames(**options)
        super().__init__(max_capacity, alpha, beta, eps, dtype, reduction, max_priority_within_buffer)

    def draw(self, storage: Storage, size: int, generator: torch.Generator | None) -> Draw:
        """Choose slices of `size` frames together; see `Sampler`.

        Raises:
            OptionError: the size is no multiple of what was asked for, or the data have no such keys.
            CallOrderError: nothing was written yet, or no frame that a slice can begin with has a priority above 0.
        """
        index = self._slices.updated(storage)
        length, count = self._slices.shape_of(size)
        return self._as_draw(self._begun(index, length, count, generator), storage)

    def redraw(self, draw: Draw, bad: Mask, storage: Storage, generator: torch.Generator | None) -> Draw:
        """Choose others for slices with frames that were being written; see `Sampler`."""
        slices: Slices = draw.note
        index = self._slices.updated(storage)
        lost = self._slices.lost(slices, bad, storage)
        others = self._begun(index, self._slices.length, int(lost.sum()), generator)
        return self._as_draw(slices.only(~lost).together(others), storage)

    def _begun(self, index: EpisodeIndex, length: int, count: int, generator: torch.Generator | None) -> Slices:
        """So many slices, each of which begins somewhere by chance."""
        numbers, frames = np.zeros((2, 0), np.int64)
        for _ in range(ATTEMPTS):
            if len(numbers) >= count:
                break
            places = super().draw(index.storage, 2 * count, generator).places.numpy()
            found, at, fits = self._slices.may_begin(index, places, length)
            numbers, frames = np.append(numbers, found[fits]), np.append(frames, at[fits])
        if len(numbers) < count:
            numbers, frames = self._sought(index, length, count, generator)
        return cut_slices(index.table, numbers[:count], frames[:count], length)

    def _sought(
        self, index: EpisodeIndex, length: int, count: int, generator: torch.Generator | None
    ) -> tuple[Numbers, Numbers]:
        """Trajectories and frames for as many slices, out of all that can begin one."""
        tree = self._catch_up(index.storage)
        numbers, frames, fits = self._slices.may_begin(index, np.arange(tree.size), length)
        sums = np.cumsum(np.where(fits, tree.values, 0.0))
        if not sums[-1]:
            self._slices.members_of(index, length)
            raise CallOrderError(
                f"replay buffer: expected a frame with a priority above 0 from which a slice of {length} can begin, found none"
            )
        points = torch.rand(count, dtype=torch.float64, generator=generator).numpy()
        chosen = np.searchsorted(sums, points * sums[-1], side="right")
        return numbers[chosen], frames[chosen]

    def _as_draw(self, slices: Slices, storage: Storage) -> Draw:
        firsts = slices.lasts - slices.lengths + 1
        info = self._weighted(self._catch_up(storage), slices.places[firsts]).info
        lengths = torch.from_numpy(slices.lengths)
        known = {name: weights.repeat_interleave(lengths) for name, weights in info.items()}
        return Draw(torch.from_numpy(slices.places), known, slices)

    def mark(self, draw: Draw, leaves: Leaves, storage: Storage) -> None:
        """Mark the ends of slices; see `SliceSampler`."""
        self._slices.mark(draw, leaves, storage)

    # ------------------------------------------------------------------ state

    def empty(self) -> None:
        """Forget all frames, their priorities and their trajectories."""
        super().empty()
        self._slices.empty()

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on, with what is in the storage."""
        return {**super().state_dict(), "slices": self._slices.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`, of a sampler of a buffer with the same room and contents."""
        super().load_state_dict(state)
        self._slices.load_state_dict(state["slices"])

    def mend(self) -> None:
        """Look at all frames anew before the next draw, and sum up the priorities; see `Sampler`."""
        super().mend()
        self._slices.mend()

    def resume(self, storage: Storage) -> None:
        """Have the index and the priorities of what was loaded; see `Sampler`."""
        super().resume(storage)
        self._slices.resume(storage)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, {self._slices!r})"
