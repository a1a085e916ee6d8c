"""`SliceSamplerWithoutReplacement`: samples one slice from each trajectory before any is sampled again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from reap.data.episodes.index import EpisodeIndex
from reap.data.episodes.trajectories import Numbers, TrajectoryTable
from reap.data.samplers.base import Draw
from reap.data.samplers.chosen import Slices, as_draw
from reap.data.samplers.slices import RANDOM, SliceSampler
from reap.data.storages.base import Storage
from reap.data.storages.bits import Mask
from reap.errors import CallOrderError, OptionError
from reap.option_values import switch


class Turns(NamedTuple):
    """An epoch in a form for copies of the sampler, whose index numbers trajectories differently.

    Attributes:
        identity: that of the storage.
        length: frames of a slice.
        rows: the row of each trajectory that has not been sampled, in sampling order.
        columns: the column of its last frame, which is overwritten last.
        ran_out: whether the epoch has ended.
    """

    identity: str
    length: int
    rows: Numbers
    columns: Numbers
    ran_out: bool


class Epoch:
    """The trajectories that have not been sampled in this epoch.

    Args:
        table: all trajectories.
        least: the minimum number of frames; trajectories trimmed below it are skipped.
        numbers: the trajectories in sampling order.
    """

    def __init__(self, table: TrajectoryTable, least: int, numbers: Iterable[int]) -> None:
        self._table, self._least = table, least
        self._waiting = dict.fromkeys(reversed([*numbers]))
        self._given: dict[int, None] = {}

    def __len__(self) -> int:
        """Their number."""
        return len(self._waiting)

    @property
    def numbers(self) -> list[int]:
        """The trajectories in sampling order."""
        return [*reversed(self._waiting)]

    def take(self, count: int) -> Numbers:
        """The next ones, at most `count`."""
        taken = [self._waiting.popitem()[0] for _ in range(min(count, len(self._waiting)))]
        self._given = dict.fromkeys(taken)
        return np.array(taken, np.int64)

    def still(self, numbers: Numbers) -> Numbers:
        """The trajectories taken last that still exist."""
        return np.array([number for number in numbers.tolist() if number in self._given], np.int64)

    def grew(self, numbers: Sequence[int]) -> None:
        """Do nothing: new trajectories are sampled in the next epoch."""

    def shrank(self, left: Sequence[int], gone: Sequence[int]) -> None:
        """Note that some are shorter, and others gone."""
        for number in (*self._table.shorter_than(self._least, left), *gone):
            self._waiting.pop(number, None)
            self._given.pop(number, None)


class SliceSamplerWithoutReplacement(SliceSampler):
    """Samples one slice, at a random position, from each trajectory that is long enough, before any is sampled again.

    An epoch covers the trajectories that exist when it starts; those that are overwritten before they are sampled are skipped.
    Iterating over a buffer ends after the last sample of an epoch. A copy of the sampler continues in the middle of an epoch.
    A `batch_size` that changes the length of slices starts a new one, and so does the storage of another buffer.

    Args:
        drop_last: drop slices that do not fill a sample at the end of an epoch; otherwise its last sample has fewer slices.
        shuffle: in random order; otherwise in the order in which they were written.
        options: options of `SliceSampler`, except `uniform_over`.

    Raises:
        OptionError: as `SliceSampler`.
    """

    def __init__(self, *, drop_last: bool = False, shuffle: bool = True, **options: Any) -> None:
        self.drop_last, self.shuffle = switch(drop_last, "drop_last"), switch(shuffle, "shuffle")
        if "uniform_over" in options:
            raise OptionError("SliceSamplerWithoutReplacement: each trajectory has its turn; expected no uniform_over")
        super().__init__(**options)

    @property
    def needs_size(self) -> bool:
        """Whether the size of a sample must be known before the first one; see `Sampler`."""
        return self.drop_last

    @property
    def ran_out(self) -> bool:
        """Whether the last draw was the last of its epoch."""
        return self._ran_out

    def redraw(self, draw: Draw, bad: Mask, storage: Storage, generator: torch.Generator | None) -> Draw:
        """Choose again in the same trajectories, except those that are gone."""
        slices: Slices = draw.note
        length, index = self.length, self.updated(storage)
        lost = self.lost(slices, bad, storage)
        again = self._epoch.still(slices.numbers[lost]) if self._epoch is not None else slices.numbers[:0]
        kept = slices.only(~lost)
        if not len(kept.numbers) and not len(again):
            return as_draw(self._choose(index, length, len(slices.numbers), generator))
        starts = torch.randint(RANDOM, (len(again),), generator=generator).numpy()
        return as_draw(kept.together(self._cut(index, again, starts, length)))

    def _choose(self, index: EpisodeIndex, length: int, count: int, generator: torch.Generator | None) -> Slices:
        epoch, least = self._epoch, count if self.drop_last else 1
        if epoch is None or self._epoch_length != length or len(epoch) < least:
            epoch = self._begin_epoch(index, length, least, generator)
        numbers = epoch.take(count)
        self._ran_out = len(epoch) < least
        starts = torch.randint(RANDOM, (len(numbers),), generator=generator).numpy()
        return self._cut(index, numbers, starts, length)

    def _begin_epoch(self, index: EpisodeIndex, length: int, least: int, generator: torch.Generator | None) -> Epoch:
        numbers = index.table.in_order(self.eligible(index, length).numbers)
        if len(numbers) < least:
            raise CallOrderError(
                f"slices: expected at least {least} trajectories, a slice of each, for one sample with drop_last; "
                f"found {len(numbers)} that are long enough"
            )
        if self.shuffle:
            numbers = numbers[torch.randperm(len(numbers), generator=generator).numpy()]
        return self._new_epoch(index, length, numbers.tolist())

    def _new_index(self, storage: Storage) -> EpisodeIndex:
        turns = self._turns
        index = super()._new_index(storage)
        if turns is not None and turns.identity == storage.identity:
            index.update()
            numbers = index.table.holding(turns.rows, turns.columns)
            least = turns.length if self.strict_length else 1
            self._new_epoch(index, turns.length, numbers[index.table.lengths(numbers) >= least].tolist())
            self._ran_out = turns.ran_out
        return index

    def _new_epoch(self, index: EpisodeIndex, length: int, numbers: Iterable[int]) -> Epoch:
        if self._epoch is not None:
            index.watchers.remove(self._epoch)
        self._epoch = Epoch(index.table, length if self.strict_length else 1, numbers)
        self._epoch_length = length
        index.watchers.append(self._epoch)
        return self._epoch

    # ------------------------------------------------------------------ state

    def _forget_slices(self) -> None:
        """Forget all trajectories, and the epoch."""
        super()._forget_slices()
        self._epoch: Epoch | None = None
        self._turns: Turns | None = None
        self._epoch_length = 0
        self._ran_out = False

    def state_dict(self) -> dict[str, Any]:
        """The state of the sampler, without the contents of the storage."""
        state = super().state_dict()
        if self._epoch is None:
            return state
        return {**state, "epoch": self._epoch.numbers, "length": self._epoch_length, "ran_out": self._ran_out}

    def _resume(self, index: EpisodeIndex, state: Mapping[str, Any]) -> None:
        super()._resume(index, state)
        if "epoch" in state:
            self._new_epoch(index, state["length"], state["epoch"])
            self._ran_out = state["ran_out"]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_epoch": None, "_turns": self._described()}

    def _described(self) -> Turns | None:
        index, epoch = self._index, self._epoch
        if index is None or epoch is None:
            return self._turns
        numbers, table = np.array(epoch.numbers, np.int64), index.table
        where = table.row[numbers], table.last_columns(numbers)
        return Turns(index.storage.identity, self._epoch_length, *where, self._ran_out)
