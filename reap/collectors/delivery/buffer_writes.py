"""`PendingWrites`: writes that workers make to the replay buffer, queued and in progress.

    add(worker, done) --> waiting --> under way --> done: the slot is free
                           carry_out    finish

Writes that are waiting or in progress at a Ctrl-C are continued by the next call.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from reap.collectors.delivery.cut import fitting
from reap.collectors.options.collector import CollectorOptions
from reap.collectors.stats import Meter
from reap.collectors.worker.commands import Done, WorkerInfo, Write
from reap.collectors.workers.base import Workers, WorkerSlots
from reap.errors import OptionError, WorkerError, WorkerRaised
from reap.recording.buffers import MASK

log = logging.getLogger("reap.collectors")

Recover = Callable[[WorkerError], None]
"""Handles a worker's failure; raises it if the worker cannot be replaced."""


@dataclass(frozen=True)
class Order:
    """Columns that a worker is to write.

    Attributes:
        worker: the worker.
        slots: the worker's slots.
        slot: the number of the slot.
        columns: number of columns, from the first.
        frames: number of valid frames in them.
    """

    worker: int
    slots: WorkerSlots
    slot: int
    columns: int
    frames: int


class PendingWrites:
    """Makes workers write what they recorded, in the order in which writes are added.

    Args:
        workers: the workers.
        meter: counts frames that are not written.
        at_once: maximum number of concurrent writes; with 1, they reach the buffer in the order in which they were
            added.
        by_column: write a rollout column by column, not in one write.
        are_elsewhere: the rollouts are in the workers' memory only.

    Attributes:
        are_elsewhere: as given.
    """

    def __init__(self, workers: Workers, meter: Meter, at_once: int, *, by_column: bool, are_elsewhere: bool = False) -> None:
        self.are_elsewhere = are_elsewhere
        self._workers, self._group, self._meter = workers, workers.group, meter
        self._at_once, self._by_column = at_once, by_column
        self._waiting: deque[Order] = deque()
        self._under_way: dict[int, Order] = {}
        self._uses: Counter[tuple[int, int]] = Counter()

    @property
    def are_left(self) -> bool:
        """Whether any write is waiting or in progress."""
        return bool(self._waiting or self._under_way)

    @property
    def workers(self) -> list[int]:
        """Workers that are writing."""
        return list(self._under_way)

    def add(self, worker: int, done: Done, most: int | None) -> int:
        """Queue a rollout to be written.

        Args:
            worker: the worker that recorded it.
            done: the worker's reply, already counted by the meter.
            most: maximum number of frames to write; None for all.

        Returns:
            Frames that will be written.
        """
        columns, frames, slots = done.columns, done.frames, self._workers.slots_of(worker)
        if most is not None and most < frames:
            columns, frames = fitting(_valid(worker, slots, done), most)
            self._meter.take_back(done.frames - frames, worker)
        self._uses[id(slots), done.slot] += 1
        self._waiting.append(Order(worker, slots, done.slot, columns, frames))
        return frames

    def carry_out(self, recover: Recover) -> None:
        """Start waiting writes, up to the limit on concurrent writes."""
        while self._waiting:
            if not self._waiting[0].columns:
                self._free(self._waiting.popleft())
                continue
            if len(self._under_way) >= self._at_once or self._waiting[0].worker in self._under_way:
                self._receive(recover)
                continue
            order = self._waiting[0]
            self._group.clear_published(order.worker)
            try:
                self._group.request(order.worker, Write(order.slot, order.columns))
                self._under_way[order.worker] = self._waiting.popleft()
            except WorkerError as failure:
                self.failed(failure, recover)

    def finish(self, recover: Recover) -> None:
        """Wait until everything that was added is written."""
        self.carry_out(recover)
        while self._under_way:
            self._receive(recover)

    def _receive(self, recover: Recover) -> None:
        try:
            worker, _ = self._group.ready(self._under_way)
            self.wrote(worker)
        except WorkerError as failure:
            self.failed(failure, recover)

    def wrote(self, worker: int) -> bool:
        """Handle a worker's reply if it answers a write; return whether it does."""
        order = self._under_way.pop(worker, None)
        if order is not None:
            self._free(order)
        return order is not None

    def failed(self, failure: WorkerError, recover: Recover) -> None:
        """Handle a failure: frames of the interrupted write are lost, except those that the buffer has already.

        Raises:
            WorkerRaised: the user's code raised before the write, or in it.
            WorkerError: the worker cannot be replaced.
        """
        order = self._under_way.pop(failure.worker, None)
        if order is not None:
            self._meter.take_back(order.frames - self._published(order), order.worker)
            self._free(order)
            if isinstance(failure, WorkerRaised):  # the worker continues, with new episodes
                raise failure
        recover(failure)

    def _published(self, order: Order) -> int:
        """Number of frames of a write that reached the buffer although the worker died before it replied."""
        progress = self._group.progress(order.worker)
        published = 0 if progress is None else progress.published
        return min(order.frames, published) if self._by_column or not published else order.frames

    def _free(self, order: Order) -> None:
        slots, slot = order.slots, order.slot
        self._uses[id(slots), slot] -= 1
        if not self._uses[id(slots), slot]:
            slots.give_back(slot)


def end_for_workers(
    options: CollectorOptions, infos: Sequence[WorkerInfo], *, takes_parts: bool, can_send: Callable[[Any], bool]
) -> Any:
    """The writes of workers; None if they cannot write, so that this process does.

    Args:
        options: the collector's.
        infos: about each worker.
        takes_parts: the buffer accepts each worker's rollout by itself.
        can_send: whether a buffer can be sent to the workers.
    """
    buffer: Any = options.replay_buffer
    has_objects = any(field.is_object for info in infos for field in info.fields.values())
    if options.trajs_per_batch is not None:
        reason = "trajs_per_batch takes turns among the episodes of all workers"
    elif not takes_parts:
        reason = "what is written is the batch of all workers"
    elif not options.stores_here:
        reason = f"batches are stored on {options.storing_device}"
    elif has_objects:
        reason = "batches hold Python objects"
    elif not can_send(buffer):
        reason = f"a {type(buffer).__name__} belongs to one process"
    else:
        try:
            return buffer.for_writers()
        except OptionError as error:
            reason = str(error)
    log.info("the collector writes to the replay buffer in place of its workers: %s", reason)
    return None


def _valid(worker: int, slots: WorkerSlots, done: Done) -> torch.Tensor:
    """Which frames `[rows, columns]` of a rollout are valid."""
    rows = slots.rows_of(worker, done.slot)
    if MASK in rows:
        return torch.from_numpy(rows[MASK][:, : done.columns])
    return torch.ones(next(iter(rows.values())).shape[:2], dtype=torch.bool)[:, : done.columns]
