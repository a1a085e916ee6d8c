"""`Recovery`: another worker in the place of one that failed; the columns that it had completed stay in the batch.

    column      0 ........ c-1 | c ............ T-1
    recorded by the dead       | its successor
                  truncated ---'   new ids

The exchange knows how many columns of a failed worker are here: where its memory was shared, those that were complete; where
rollouts are copied, none. Ids and step counts of a rollout are written when it ends. A rollout that never ends leaves the first
ones of each segment in its slot (`TrajectoryTracker`), from which `finish` writes the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reap.collectors.exchange.slots import Slots
from reap.collectors.worker.commands import Collect, Done, WorkerInfo
from reap.collectors.workers.rollout_workers import RolloutWorkers
from reap.errors import ReapError, SpecMismatch, WorkerError
from reap.keys import Key
from reap.recording.buffers import DONE, IDS, MASK, STEP_COUNT, TERMINATED, TRUNCATED, after
from reap.recording.layout import Array
from reap.recording.trajectories import NO_ID

Arrays = Mapping[Key, Array]


@dataclass(frozen=True)
class SalvagedColumns:
    """The columns that failed workers recorded of the rollout under way, copied.

    Attributes:
        command: the rollout.
        columns: number of columns, from the first.
        values: `[rows, columns, *value]` under each key.
    """

    command: Collect
    columns: int
    values: Arrays

    def put_back(self, arrays: Mapping[Key, Any]) -> None:
        """Write the columns to their place."""
        for key, values in self.values.items():
            arrays[key][:, : self.columns] = values


class Recovery:
    """Restarts workers, and completes the rollouts that they had begun.

    Args:
        workers: the workers.
        slots: gives the slots of a worker.
        note: is told of each worker that was restarted.
    """

    def __init__(self, workers: RolloutWorkers, slots: Callable[[int], Slots], note: Callable[[int], None]) -> None:
        self._workers, self._slots, self._note = workers, slots, note
        self._salvaged: dict[int, SalvagedColumns] = {}
        self._begun: dict[int, WorkerError] = {}

    def restart(self, failure: WorkerError, command: Collect | None) -> Done | None:
        """Restart a worker, and have the rest of its rollout recorded.

        Args:
            failure: what happened.
            command: the rollout under way; None if there was none.

        Returns:
            The rollout, if the worker had completed it; None if its reply will come, or none was under way.

        Raises:
            WorkerError: the failure, where the worker has not completed a column since it was last restarted, or where its env
                or policy returned a value that does not fit: another worker would do the same.
        """
        if is_of_data(failure):
            raise failure
        # Failures of others, in the meantime, are recovered from next.
        with self._workers.group.failures_only_of(failure.worker):
            return self._restart(failure, command)

    def _restart(self, failure: WorkerError, command: Collect | None) -> Done | None:
        worker = failure.worker
        if self._begun.get(worker) is not failure:
            self._salvage(failure, command)
        self._replace(failure)
        self._note(worker)
        salvaged = self._salvaged.get(worker)
        if command is None or salvaged is None:
            return None
        columns = self._workers.infos[worker].columns
        if salvaged.columns == columns:
            return self.completed(worker, Done(command.slot, 0, command.version, [], 0.0, 0.0, columns))
        self._workers.group.request(worker, replace(command, start=salvaged.columns, fresh=False))
        return None

    def _salvage(self, failure: WorkerError, command: Collect | None) -> None:
        """Keep what a worker had completed, once for each of its failures."""
        worker = failure.worker
        reached, before = self._workers.columns_reached(worker), self._salvaged.pop(worker, None)
        if before is not None and reached <= before.columns:
            raise failure
        if command is not None:
            self._salvaged[worker] = self._columns_of(worker, command, before)
        self._begun[worker] = failure

    def _columns_of(self, worker: int, command: Collect, before: SalvagedColumns | None) -> SalvagedColumns:
        arrays, columns = self._slots(worker).rows_of(worker, command.slot), self._workers.completed_columns(worker)
        if before is not None:
            before.put_back(arrays)
        if columns:
            finish(arrays, columns, self._workers.infos[worker])
        return SalvagedColumns(command, columns, {key: array[:, :columns].copy() for key, array in arrays.items()})

    def _replace(self, failure: WorkerError) -> None:
        try:
            self._workers.replace_worker(failure.worker)
        except ReapError:
            raise
        except BaseException:  # Ctrl-C, while the new worker starts: the next call begins with it again
            self._workers.group.withdraw(failure)
            raise
        del self._begun[failure.worker]

    def completed(self, worker: int, done: Done) -> Done:
        """The rollout, which is in its slot, with the columns of failed workers in their place."""
        salvaged = self._salvaged.pop(worker, None)
        if salvaged is None:
            return done
        arrays = self._slots(worker).rows_of(worker, salvaged.command.slot)
        salvaged.put_back(arrays)
        frames = int(np.count_nonzero(arrays[IDS] != NO_ID))
        return replace(done, frames=frames)


def is_of_data(failure: BaseException) -> bool:
    """Whether a worker failed because a value did not fit."""
    error: BaseException | None = failure
    while error is not None:
        if isinstance(error, SpecMismatch):
            return True
        error = error.__cause__
    return False


def finish(arrays: Arrays, columns: int, info: WorkerInfo) -> None:
    """Write to the first columns of a rollout what its end would have written there, and truncate the last of them."""
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
