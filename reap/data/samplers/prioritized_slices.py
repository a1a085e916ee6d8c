"""`PrioritizedSliceSampler`: samples slices in proportion to the priorities of their first frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from reap.data.episodes.index import EpisodeIndex
from reap.data.episodes.trajectories import NOT_THERE, Numbers
from reap.data.samplers.base import ATTEMPTS, Draw
from reap.data.samplers.chosen import Slices, cut_slices
from reap.data.samplers.prioritized import PrioritizedSampler
from reap.data.samplers.slices import RANDOM, SliceSampler
from reap.data.storages.base import Storage
from reap.data.storages.bits import Mask
from reap.errors import CallOrderError, OptionError


class Beginnings(NamedTuple):
    """Slices that start at some places, `[n]` each. If several start at one place, each further one is cut by one more frame.

    Attributes:
        numbers: their trajectories.
        starts: the frame with which a slice begins; before the first one of its trajectory, where it is cut there.
        ways: number of slices whose first frame is at this place.
    """

    numbers: Numbers
    starts: Numbers
    ways: Numbers

    def chosen(self, which: Any, cut: Numbers | int) -> tuple[Numbers, Numbers]:
        """Trajectories and starts of some, each cut by these numbers of frames."""
        return self.numbers[which], self.starts[which] - cut


class FirstFrames(SliceSampler):
    """The trajectories for slices whose first frames are chosen by another sampler."""

    keeps_owners = True

    def begun_at(self, index: EpisodeIndex, places: Numbers, length: int) -> Beginnings:
        """The slices of this length whose first frames are at these places."""
        numbers, frames = index.at(places)
        table = index.table
        lengths, steps = table.lengths(numbers), frames - table.first[numbers]
        before, beyond = self.span.reach(length)
        last = np.maximum(lengths - length + beyond, -before)
        least_cut = np.maximum(-last, 0)
        ways = np.where(steps == 0, before - least_cut + 1, steps <= last)
        ways[(frames == NOT_THERE) | (bool(self.strict_length) & (lengths < length))] = 0
        return Beginnings(numbers, frames - np.where(steps == 0, least_cut, 0), ways)


class PrioritizedSliceSampler(PrioritizedSampler, FirstFrames):
    """Slices of trajectories; one begins with a frame as often as that frame's priority says.

    Of all slices that there are, each is chosen in proportion to the priority of its first frame. Frames too close
    to the end of a trajectory start no slice, whatever their priority. With `span`, the slices that are cut at the start of a
    trajectory share its first frame, which is chosen that many times more often. If all priorities are equal, this equals a
    `SliceSampler` with `uniform_over="frames"`. All frames of a slice have the weight of the first one.

    Args:
        max_capacity: as for `PrioritizedSampler`, as are `alpha`, `beta`, `eps`, `dtype`, `reduction` and
            `max_priority_within_buffer`.
        options: those of `SliceSampler`; of `uniform_over` only `"frames"`, since priorities belong to frames.

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
        over = options.setdefault("uniform_over", "frames")
        if over != "frames":
            raise OptionError(
                f"PrioritizedSliceSampler: expected uniform_over='frames', got {over!r}: the weights that make up for a choice "
                "of episodes first depend on the priorities of whole episodes, which all change with each write; use a "
                "SliceSampler for that"
            )
        PrioritizedSampler.__init__(self, max_capacity, alpha, beta, eps, dtype, reduction, max_priority_within_buffer)
        FirstFrames.__init__(self, **options)

    def draw(self, storage: Storage, size: int, generator: torch.Generator | None) -> Draw:
        """Choose slices of `size` frames together; see `Sampler`.

        Raises:
            OptionError: the size is not a multiple of the option, or the data have no such keys.
            CallOrderError: nothing was written yet, or no frame that can start a slice has a priority above 0.
        """
        index = self.updated(storage)
        length, count = self.shape_of(size)
        return self._as_draw(self._begun(index, length, count, generator), storage)

    def redraw(self, draw: Draw, bad: Mask, storage: Storage, generator: torch.Generator | None) -> Draw:
        """Replace slices with frames that were being written; see `Sampler`."""
        slices: Slices = draw.note
        index = self.updated(storage)
        lost = self.lost(slices, bad, storage)
        others = self._begun(index, self.length, int(lost.sum()), generator)
        return self._as_draw(slices.only(~lost).together(others), storage)

    def _begun(self, index: EpisodeIndex, length: int, count: int, generator: torch.Generator | None) -> Slices:
        """This number of slices, each with a random start."""
        numbers, starts = np.zeros((2, 0), np.int64)
        most = 1 + self.span.reach(length)[0]  # slices that have one frame as their first one
        for _ in range(ATTEMPTS):
            if len(numbers) >= count:
                break
            places = super().draw(index.storage, 2 * count * most, generator).places.numpy()
            begun = self.begun_at(index, places, length)
            cut = _below(most, len(places), generator)
            fits = cut < begun.ways
            found, at = begun.chosen(fits, cut[fits])
            numbers, starts = np.append(numbers, found), np.append(starts, at)
        if len(numbers) < count:
            numbers, starts = self._sought(index, length, count, generator)
        return cut_slices(index.table, numbers[:count], starts[:count], length)

    def _sought(
        self, index: EpisodeIndex, length: int, count: int, generator: torch.Generator | None
    ) -> tuple[Numbers, Numbers]:
        """Trajectories and starts for as many slices, out of all that there are."""
        tree = self._frames.caught_up(index.storage)
        begun = self.begun_at(index, np.arange(tree.size), length)
        sums = np.cumsum(begun.ways * tree.values)
        if not sums[-1]:
            self.eligible(index, length)
            raise CallOrderError(
                f"replay buffer: expected a frame with a priority above 0 from which a slice of {length} can begin, found none"
            )
        points = torch.rand(count, dtype=torch.float64, generator=generator).numpy()
        chosen = np.searchsorted(sums, points * sums[-1], side="right")
        return begun.chosen(chosen, _below(RANDOM, count, generator) % begun.ways[chosen])

    def _as_draw(self, slices: Slices, storage: Storage) -> Draw:
        firsts = slices.lasts - slices.lengths + 1
        info = self._weighted(self._frames.caught_up(storage), slices.places[firsts]).info
        lengths = torch.from_numpy(slices.lengths)
        known = {name: weights.repeat_interleave(lengths) for name, weights in info.items()}
        return Draw(torch.from_numpy(slices.places), known, slices)

    # ------------------------------------------------------------------ state

    def empty(self) -> None:
        """Forget all frames, their priorities and their trajectories."""
        super().empty()
        self._forget_slices()

    def state_dict(self) -> dict[str, Any]:
        """The state of the sampler, without the contents of the storage."""
        return {**super().state_dict(), "slices": FirstFrames.state_dict(self)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state_dict` of a sampler of a buffer with the same capacity and contents."""
        super().load_state_dict(state)
        FirstFrames.load_state_dict(self, state["slices"])

    def repair(self) -> None:
        """Read all frames again before the next draw, and compute the sums again; see `Sampler`."""
        super().repair()
        self._forget_slices()

    def resume(self, storage: Storage) -> None:
        """Use the loaded index and priorities; see `Sampler`."""
        super().resume(storage)
        FirstFrames.resume(self, storage)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, {FirstFrames.__repr__(self)[len(type(self).__name__) + 1 :]}"


def _below(bound: int, count: int, generator: torch.Generator | None) -> Numbers:
    """This number of random integers from 0 to below a bound."""
    if bound == 1:
        return np.zeros(count, np.int64)
    return torch.randint(bound, (count,), generator=generator).numpy()
