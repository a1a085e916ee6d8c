"""`Recovery`: replaces a worker that failed; columns that it had completed stay in the batch.

    column      0 ........ c-1 | c ............ T-1
    recorded by the dead       | its successor
                  truncated ---'   new ids

The exchange knows how many columns of a failed worker are here: all complete ones if memory is shared; none if rollouts are
copied, unless the worker left and sent them. Other columns that it had completed are lost, and counted as discarded frames:
by whole columns, idle rows included, and as far as this process knows the worker's progress.

Ids and step counts of a rollout are written when it ends. A rollout that never ends leaves the first of each segment in
its slot (`TrajectoryTracker`), from which `finish` writes the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from reap.collectors.exchange.landing import RemoteSlots
from reap.collectors.stats import Meter
from reap.collectors.worker.commands import Collect, Done, WorkerInfo
from reap.collectors.workers.joining import Joins
from reap.collectors.workers.retries import Retries
from reap.collectors.workers.rollout_workers import RolloutWorkers
from reap.errors import ReapError, SpecMismatch, WorkerError
from reap.keys import Key
from reap.recording.buffers import DONE, IDS, MASK, STEP_COUNT, TERMINATED, TRUNCATED, after
from reap.recording.layout import Array
from reap.recording.trajectories import NO_ID, Episode

Arrays = Mapping[Key, Array]


@dataclass(frozen=True)
class SalvagedColumns:
    """A copy of the columns that failed or leaving workers recorded of the rollout in progress.

    Attributes:
        slot: the slot of the rollout.
        columns: number of columns, from the first.
        values: `[rows, columns, *value]` for each key.
        episodes: the episodes that ended in them, as far as known.
    """

    slot: int
    columns: int
    values: Arrays
    episodes: Sequence[Episode] = ()

    def put_back(self, arrays: Mapping[Key, Any]) -> None:
        """Write the columns back into the rollout's slot."""
        for key, values in self.values.items():
            arrays[key][:, : self.columns] = values


class Recovery:
    """Restarts workers, and completes the rollouts that they had started.

    Args:
        workers: the workers.
        slots: returns the slots of a worker.
        meter: counts restarts and lost frames.
        joins: makes successors join.
        retries: decides whether to try another successor.
    """

    def __init__(
        self,
        workers: RolloutWorkers,
        slots: Callable[[int], RemoteSlots],
        meter: Meter,
        joins: Joins,
        retries: Retries,
    ) -> None:
        self._workers, self._slots, self._meter = workers, slots, meter
        self._joins, self._retries = joins, retries
        self._salvaged: dict[int, SalvagedColumns] = {}
        self._tries: dict[int, int] = {}
        self._begun: dict[int, tuple[WorkerError, float]] = {}

    def restart(self, failure: WorkerError, command: Collect | None) -> Done | None:
        """Restart a worker, and make its successor record the rest of the rollout.

        Args:
            failure: what happened.
            command: the rollout in progress; None if there was none.

        Returns:
            The rollout, if the worker had completed it; None if its reply is still to come, or none was in progress.

        Raises:
            WorkerError: the failure, if no other worker is to be tried (`Retries`), or if its env or policy returned a value
                that does not fit, as it would in another worker too.
        """
        if is_of_data(failure):
            raise failure
        while True:
            try:
                # Failures of others, in the meantime, are recovered from next.
                with self._workers.group.failures_only_of(failure.worker):
                    return self._restart(failure, command)
            except WorkerError as again:
                if again is failure:
                    raise
                failure = again  # of the worker that was launched in its place

    def _restart(self, failure: WorkerError, command: Collect | None) -> Done | None:
        worker = failure.worker
        if self._begun.get(worker, (None,))[0] is not failure:
            self._salvage(failure, command)
        then = partial(self._continue, worker, command)
        before = self._workers.restarts, self._workers.next_leaf
        try:
            joining = self._workers.launch_successor(worker, self._begun[worker][1])
            done = self._joins.begin(self._workers.group, worker, joining, then)
        except ReapError:
            raise
        except BaseException:  # Ctrl-C, while the new worker starts: the next call begins with it again
            self._workers.restarts, self._workers.next_leaf = before
            self._workers.group.withdraw(failure)
            raise
        self._begun.pop(worker, None)
        return done

    def _salvage(self, failure: WorkerError, command: Collect | None) -> None:
        """Keep the columns that a worker had completed, once for each of its failures."""
        worker = failure.worker
        before = self._salvaged.pop(worker, None)
        if command is not None:
            salvaged = self._salvaged[worker] = self._columns_of(worker, command, before)
            if salvaged.columns > (0 if before is None else before.columns):
                self._tries.pop(worker, None)
            self._lose(worker, self._workers.columns_reached(worker) - salvaged.columns)
        tries = self._tries.get(worker, 0)
        pause = self._retries.pause(failure, tries)
        self._tries[worker] = tries + 1
        self._begun[worker] = failure, pause

    def _lose(self, worker: int, columns: int) -> None:
        if columns > 0:
            self._meter.discard(columns * self._workers.infos[worker].rows, worker)

    def _columns_of(self, worker: int, command: Collect, before: SalvagedColumns | None) -> SalvagedColumns:
        arrays, columns = self._slots(worker).rows_of(worker, command.slot), self._workers.completed_columns(worker)
        if before is not None:
            before.put_back(arrays)
            columns = max(columns, before.columns)
        return self._salvaged_of(worker, command.slot, columns, () if before is None else before.episodes)

    def _salvaged_of(self, worker: int, slot: int, columns: int, episodes: Sequence[Episode]) -> SalvagedColumns:
        arrays = self._slots(worker).rows_of(worker, slot)
        if columns:
            finish(arrays, columns, self._workers.infos[worker])
        return SalvagedColumns(slot, columns, {key: array[:, :columns].copy() for key, array in arrays.items()}, episodes)

    def left(self, worker: int, done: Done) -> None:
        """Handle a worker that left during a rollout: its columns are in the slot, and its successor records the rest."""
        before = self._salvaged.pop(worker, None)
        if before is not None:
            before.put_back(self._slots(worker).rows_of(worker, done.slot))
        episodes = (*(() if before is None else before.episodes), *done.episodes)
        self._salvaged[worker] = self._salvaged_of(worker, done.slot, done.columns, episodes)
        self._tries.pop(worker, None)

    def _continue(self, worker: int, command: Collect | None) -> Done | None:
        """Make a successor that has joined record the missing part of the rollout."""
        self._meter.restart(worker)
        salvaged = self._salvaged.get(worker)
        if command is None or salvaged is None:
            return None
        columns = self._workers.infos[worker].columns
        if salvaged.columns == columns:
            return self.completed(worker, Done(command.slot, 0, command.version, [], 0.0, 0.0, columns))
        self._workers.group.request(worker, replace(command, start=salvaged.columns, fresh=False))
        return None

    def completed(self, worker: int, done: Done) -> Done:
        """Complete the rollout in its slot with the columns of failed workers."""
        self._tries.pop(worker, None)
        salvaged = self._salvaged.pop(worker, None)
        if salvaged is None:
            return done
        arrays = self._slots(worker).rows_of(worker, salvaged.slot)
        salvaged.put_back(arrays)
        frames = int(np.count_nonzero(arrays[IDS] != NO_ID))
        return replace(done, frames=frames, episodes=[*salvaged.episodes, *done.episodes])


def is_of_data(failure: BaseException) -> bool:
    """Whether a worker failed because a value did not fit."""
    error: BaseException | None = failure
    while error is not None:
        if isinstance(error, SpecMismatch):
            return True
        error = error.__cause__
    return False


def finish(arrays: Arrays, columns: int, info: WorkerInfo) -> None:
    """Write ids and step counts to the first columns of an unfinished rollout, and truncate the last of these columns."""
    ids = arrays[IDS][:, :columns]
    terminated, truncated, done = (arrays[after(key)][:, :columns, 0] for key in (TERMINATED, TRUNCATED, DONE))
    begins = np.ones(ids.shape, bool)
    begins[:, 1:] = (terminated | truncated)[:, :-1]
    if info.resets_itself:  # the frame after an end is the env's reset step, which is a segment of its own
        begins[:, 1:] |= (begins & (ids == NO_ID))[:, :-1]
    firsts = np.maximum.accumulate(np.where(begins, np.arange(columns), 0), axis=1)
    ids[...] = np.take_along_axis(ids, firsts, 1)
    if info.counts_steps:
        counts, following = arrays[STEP_COUNT][:, :columns, 0], arrays[after(STEP_COUNT)][:, :columns, 0]
        before = np.where(firsts == 0, counts[:, :1], 0)
        counts[...] = np.arange(columns) - firsts + before
        following[...] = counts + 1
    truncated[:, -1] |= (ids[:, -1] != NO_ID) & ~terminated[:, -1]
    done[...] = terminated | truncated
    if MASK in arrays:
        arrays[MASK][:, :columns] = ids != NO_ID
