"""`SharedExchange`: slots and mailboxes are memory that collector and worker both map.

    pool of slots (memfd) --- AttachSlot, its descriptor ---> the worker's rows, as a slot
    mailbox (memfd, pipe) --- AttachWeights, descriptors ---> the other end

A rollout is recorded straight into the collector's slot, column by column, so a failed worker's complete columns are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from reap.collectors.exchange.base import MakeEnd, Rows, columns_reached, objects_in, put_objects
from reap.collectors.exchange.slots import Slots
from reap.collectors.worker.commands import AttachSlot, AttachWeights, Done, WorkerInfo
from reap.keys import Key
from reap.recording.buffers import Slot, map_slot
from reap.recording.layout import Block, Field, Layout, require_shared
from reap.weights.mailbox_protocol import Mailbox
from reap.workers.progress import Progress


class SharedEnd:
    """A worker's end, whose slots are shared memory; see `WorkerEnd`.

    Args:
        fields: one frame's value under each key of a slot.
        batch_shape: batch dimensions of its rows.
        columns: time steps of a slot.
    """

    def __init__(self, fields: Mapping[Key, Field], batch_shape: tuple[int, ...], columns: int) -> None:
        self._fields, self._batch_shape, self._columns = fields, batch_shape, columns
        self._slots: list[Slot] = []

    def attach(self, command: AttachSlot, descriptor: int) -> None:
        """Map the next slot; the descriptor belongs to it from now on."""
        rows, first_row = command.rows, command.first_row
        self._slots.append(map_slot(descriptor, self._fields, rows, self._columns, first_row, self._batch_shape))

    def slot(self, number: int) -> Slot:
        """The worker's rows of a slot."""
        return self._slots[number]

    def keep_rollouts(self) -> None:
        """Nothing to do: rollouts are in the collector's slots."""

    def reply(self, done: Done, slot: Slot) -> Done:
        """The reply with the objects, which shared memory cannot hold."""
        objects = objects_in(slot)
        return done if objects is None else replace(done, objects=objects)


class SharedExchange:
    """Shares memory; for groups that carry descriptors. See `Exchange`."""

    shares_memory = True

    def __init__(self) -> None:
        self._group: Any = None

    @property
    def make_end(self) -> MakeEnd:
        """`SharedEnd`."""
        return SharedEnd

    def bind(self, group: Any) -> Any:
        """The group itself."""
        self._group = group
        return group

    def make_block(self, layout: Layout) -> Block:
        """A block of memory that processes can share."""
        return Block.shared(layout)

    def make_slots(
        self,
        infos: Mapping[int, WorkerInfo],
        batch_shape: tuple[int, ...],
        columns: int,
        *,
        device: torch.device | None,
        same: bool,
    ) -> Slots:
        """Slots that these workers map; see `Exchange`."""
        return Slots(self, infos, batch_shape, columns, device=device, same=same)

    def require_memory(self, layouts: Sequence[Layout]) -> None:
        """Raise MemoryError if slots of these layouts do not fit; see `Exchange`."""
        require_shared(layouts)

    def attach_slot(self, slot: Slot, first_rows: Mapping[int, int], rows: int) -> None:
        """Make these workers map a slot; see `Exchange`."""
        descriptor, workers = slot.block.fd, list(first_rows)
        assert descriptor is not None
        try:
            for worker, first_row in first_rows.items():
                self._group.request(worker, AttachSlot(rows, first_row), fds=[descriptor])
            for _ in workers:
                self._group.ready(workers)
        except BaseException:
            self._group.abandon(workers)
            raise

    def mailbox(self, kind: Any, weights: Mapping[str, Field]) -> Mailbox:
        """A mailbox of this class."""
        return kind.for_weights(weights)

    def attach_weights(self, worker: int, mailbox: Any) -> None:
        """Send a worker the descriptors of its mailbox; see `Exchange`."""
        self._group.request(worker, AttachWeights(type(mailbox)), fds=mailbox.descriptors())

    def land(self, done: Done, info: WorkerInfo, rows: Rows) -> Done:
        """Put objects into the slot, which already holds everything else. See `Exchange`."""
        if done.objects is None:
            return done
        put_objects(done, rows)
        return replace(done, objects=None)

    def completed_columns(self, progress: Progress | None, info: WorkerInfo) -> int:
        """Number of columns that the worker had completed; see `Exchange`."""
        has_objects = any(field.is_object for field in info.fields.values())  # they were in the memory of the worker
        return 0 if has_objects else columns_reached(progress, info.columns)

    def can_send(self, buffer: Any) -> bool:
        """Whether the buffer can be shared with other processes on this machine."""
        return callable(getattr(buffer, "for_writers", None))
