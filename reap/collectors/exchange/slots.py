"""`Slots`: memory in which workers record, each in its own rows, and which becomes batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from tensordict import TensorDict

from reap.collectors.exchange.base import Exchange
from reap.collectors.worker.commands import Done, WorkerInfo
from reap.keys import Key
from reap.recording.layout import Array
from reap.recording.pool import SlotPool

SLOTS = 3
"""Slots of a worker: one being recorded, one being read, one waiting."""


class Slots:
    """Slots in which workers record, each in its own rows.

    Args:
        exchange: brings the slots to the workers.
        infos: descriptions of these workers, in the order of their rows.
        batch_shape: how their rows are arranged in a batch.
        columns: time steps of a batch.
        device: the `device` attribute of the batches.
        same: deliver the same memory each time.

    Attributes:
        workers: the workers.
        pool: the slots.
    """

    def __init__(
        self,
        exchange: Exchange,
        infos: Mapping[int, WorkerInfo],
        batch_shape: tuple[int, ...],
        columns: int,
        *,
        device: torch.device | None,
        same: bool,
    ) -> None:
        self.workers: Sequence[int] = list(infos)
        self._exchange, self._infos = exchange, infos
        *starts, self._rows = np.cumsum([0, *(info.rows for info in infos.values())]).tolist()
        self._first_rows: dict[int, int] = dict(zip(infos, starts, strict=True))
        self._attached = 0
        self.pool = SlotPool(
            infos[self.workers[0]].fields,
            batch_shape,
            columns,
            device=device,
            same=same,
            limit=SLOTS,
            make_block=exchange.make_block,
        )

    def take(self) -> int:
        """The number of a free slot that the workers have attached; they must be idle."""
        slot = self.pool.take()
        if slot == self._attached:
            self._attached += 1
            try:
                self._exchange.attach_slot(self.pool.slot(slot), self._first_rows, self._rows)
            except BaseException:
                self.pool.give_back(slot)
                raise
        return slot

    def give_back(self, slot: int) -> None:
        """Return a slot that was taken but will not be delivered."""
        self.pool.give_back(slot)

    def make_all(self) -> None:
        """Make all slots now, and give them to the workers."""
        for slot in [self.take() for _ in range(SLOTS)]:
            self.pool.give_back(slot)

    def attach_again(self, worker: int) -> None:
        """Give a new worker all existing slots."""
        if worker in self._infos:
            for slot in self.pool.slots[: self._attached]:
                self._exchange.attach_slot(slot, {worker: self._first_rows[worker]}, self._rows)

    def rows_of(self, worker: int, slot: int) -> dict[Key, Array]:
        """A worker's own rows of a slot, `[rows, T, *value]` for each key, without objects."""
        fields = self.pool.fields
        return {key: array for key, array in self._rows_of(worker, slot).items() if not fields[key].is_object}

    def _rows_of(self, worker: int, slot: int) -> dict[Key, Array]:
        whole, info, start = self.pool.slot(slot), self._infos[worker], self._first_rows[worker]
        shape, rows = (self._rows, info.columns), slice(start, start + info.rows)
        return {key: whole.by_row(key).reshape(*shape, *field.shape)[rows] for key, field in whole.fields.items()}

    def land(self, worker: int, done: Done) -> Done:
        """Copy the data of a worker's reply into its rows of the slot; return the reply without them."""
        if done.parcel is None and done.objects is None:
            return done
        return self._exchange.land(done, self._infos[worker], self._rows_of(worker, done.slot))

    def deliver(self, slot: int) -> TensorDict:
        """The batch that these workers recorded in a slot, once all of it has arrived."""
        return self.pool.deliver(slot)
