"""Another process in the place of a worker that failed; the columns that it had completed stay in the batch.

    column      0 ........ c-1 | c ............ T-1
    recorded by the dead       | its successor
                  truncated ---'   new ids

Ids and step counts of a rollout are written when it ends. A rollout that never ends leaves the first ones of each segment in
its slot (`TrajectoryTracker`), from which `finish` writes the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reap.collectors.rollout_workers import RolloutWorkers, Slots
from reap.collectors.worker.handler import Collect, Done
from reap.collectors.worker.worker import WorkerInfo
from reap.errors import ReapError, SpecMismatch, WorkerError
from reap.keys import Key
from reap.recording.buffers import DONE, IDS, MASK, STEP_COUNT, TERMINATED, TRUNCATED, after
from reap.recording.layout import Array
from reap.recording.trajectories import NO_ID
from reap.rollout.loop import Phase
from reap.workers.progress import Progress

Arrays = Mapping[Key, Array]


@dataclass(frozen=True)
class SalvagedColumns:
    """What failed workers recorded of the rollout under way: columns before `columns`, copied."""

    command: Collect
    columns: int
    values: Arrays


class Recovery:
    """Restarts workers of a crew, and completes what they had begun.

    Args:
        crew: the workers.
        slots: gives the slots of a worker.
        note: is told of each worker that was restarted.
    """

    def __init__(self, crew: RolloutWorkers, slots: Callable[[int], Slots], note: Callable[[int], None]) -> None:
        self._crew, self._slots, self._note = crew, slots, note
        self._kept: dict[int, SalvagedColumns] = {}
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
                or policy returned what does not fit: another process would do the same.
        """
        if is_of_data(failure):
            raise failure
        # What others fail with meanwhile is mended next.
        with self._crew.group.failures_only_of(failure.worker):
            return self._restart(failure, command)

    def _restart(self, failure: WorkerError, command: Collect | None) -> Done | None:
        worker, columns = failure.worker, self._crew.infos[failure.worker].columns
        if self._begun.get(worker) is not failure:
            self._take_over(failure, command)
        self._revive(failure)
        self._note(worker)
        kept = self._kept.get(worker)
        if command is None or kept is None:
            return None
        if kept.columns == columns:
            return self.completed(worker, Done(command.slot, 0, command.version, [], 0.0, 0.0, columns))
        self._crew.group.request(worker, replace(command, start=kept.columns, fresh=False))
        return None

    def _take_over(self, failure: WorkerError, command: Collect | None) -> None:
        """Keep what a worker had completed, once for each of its failures."""
        worker = failure.worker
        columns = completed_columns(self._crew.group.progress(worker), self._crew.infos[worker])
        kept = self._kept.pop(worker, None)
        if kept is not None and columns <= kept.columns:
            raise failure
        if command is not None:
            self._kept[worker] = self._keep(worker, command, columns, kept)
        self._begun[worker] = failure

    def _revive(self, failure: WorkerError) -> None:
        try:
            self._crew.replace_worker(failure.worker)
        except ReapError:
            raise
        except BaseException:  # Ctrl-C, while the new process starts: the next call begins with it again
            self._crew.group.withdraw(failure)
            raise
        del self._begun[failure.worker]

    def _keep(self, worker: int, command: Collect, columns: int, before: SalvagedColumns | None) -> SalvagedColumns:
        facts = self._crew.infos[worker]
        arrays = self._slots(worker).rows_of(worker, command.slot)
        if any(field.is_object for field in facts.fields.values()):
            columns = 0  # objects were in the memory of the dead
        if before is not None:
            put_back(arrays, before)
        if columns:
            finish(arrays, columns, facts)
        return SalvagedColumns(command, columns, {key: array[:, :columns].copy() for key, array in arrays.items()})

    def completed(self, worker: int, done: Done) -> Done:
        """The rollout with the columns of the dead in their place."""
        kept = self._kept.pop(worker, None)
        if kept is None:
            return done
        arrays = self._slots(worker).rows_of(worker, kept.command.slot)
        put_back(arrays, kept)
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


def completed_columns(progress: Progress | None, facts: WorkerInfo) -> int:
    """Columns of the rollout under way that a worker is known to have completed."""
    if progress is None:
        return 0
    phase, column = Phase(progress.phase), progress.column
    if phase in (Phase.WRITE, Phase.IDLE):
        return facts.columns if column == facts.columns - 1 else max(0, column)
    return column + 1 if phase is Phase.RESET else max(0, column)


def finish(arrays: Arrays, columns: int, facts: WorkerInfo) -> None:
    """Write what the end of a rollout would have written to its first columns, and truncate the last of them."""
    ids = arrays[IDS][:, :columns]
    terminated, truncated, done = (arrays[after(key)][:, :columns, 0] for key in (TERMINATED, TRUNCATED, DONE))
    begins = np.ones(ids.shape, bool)
    begins[:, 1:] = (terminated | truncated)[:, :-1]
    if facts.resets_itself:  # the frame behind an end is the env's reset step, which is a segment of its own
        begins[:, 1:] |= (begins & (ids == NO_ID))[:, :-1]
    firsts = np.maximum.accumulate(np.where(begins, np.arange(columns), 0), axis=1)
    ids[...] = np.take_along_axis(ids, firsts, 1)
    if facts.counts_steps:
        counts, following = arrays[STEP_COUNT][:, :columns, 0], arrays[after(STEP_COUNT)][:, :columns, 0]
        before = np.where(firsts == 0, counts[:, :1], 0)
        counts[...] = np.arange(columns) - firsts + before
        following[...] = counts + 1
    truncated[:, -1] |= (ids[:, -1] != NO_ID) & ~terminated[:, -1]
    done[...] = terminated | truncated
    if MASK in arrays:
        arrays[MASK][:, :columns] = ids != NO_ID


def put_back(arrays: Mapping[Key, Any], kept: SalvagedColumns) -> None:
    """Write what was kept to its place."""
    for key, values in kept.values.items():
        arrays[key][:, : kept.columns] = values
