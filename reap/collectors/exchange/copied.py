"""`CopiedExchange`: nothing is shared, everything travels with commands and replies.

    collector                                              worker
      mailbox: newest weights    --- WithWeights(Collect) --->    its mailbox -> policy
                                                                  records in a slot of its own
      rows of the slot   <--- Done(block, objects) -----------    the memory of that slot

One copy per field takes a rollout into the worker's rows of the collector's slot. Of a worker that fails nothing is here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from reap.collectors.exchange.base import MakeEnd, Rows, objects_in, put_objects
from reap.collectors.worker.commands import READ_WEIGHTS, AttachSlot, AttachWeights, Done, WithWeights, WorkerInfo
from reap.keys import Key
from reap.recording.buffers import Slot, slot_layout
from reap.recording.layout import Block, Field, Layout
from reap.weights.copied_mailbox import CopiedMailbox
from reap.weights.mailbox_protocol import Mailbox
from reap.weights.no_weights import NoMailbox
from reap.workers.progress import Progress


class CopiedEnd:
    """A worker's end: one slot, whatever number the collector gives it; see `WorkerEnd`.

    Args:
        fields: one frame's value under each key of a slot.
        batch_shape: batch dimensions of its rows.
        columns: time steps of a slot.
    """

    def __init__(self, fields: Mapping[Key, Field], batch_shape: tuple[int, ...], columns: int) -> None:
        self._slot = Slot(fields, batch_shape, columns)

    def attach(self, command: AttachSlot, descriptor: int) -> None:
        """The worker has its slot; there is nothing to attach."""

    def slot(self, number: int) -> Slot:
        """The worker's slot."""
        return self._slot

    def reply(self, done: Done, slot: Slot) -> Done:
        """The reply, with the memory of the slot and the objects."""
        return replace(done, block=slot.block.memory.copy(), objects=objects_in(slot))


class WeightSendingGroup:
    """A group that sends newer weights along with the commands that act with them; all else is the group's.

    Args:
        group: carries the commands.
        mailboxes: by worker.
    """

    def __init__(self, group: Any, mailboxes: Mapping[int, CopiedMailbox]) -> None:
        self._group, self._mailboxes = group, mailboxes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def request(self, worker: int, command: Any) -> None:
        """Send a command to a worker, with the weights that it lacks."""
        box = self._mailboxes.get(worker)
        parcel = box.unsent if box is not None and isinstance(command, READ_WEIGHTS) else None
        if box is None or parcel is None:
            self._group.request(worker, command)
            return
        self._group.request(worker, WithWeights(command, parcel))
        box.sent(parcel)


class CopiedExchange:
    """See `Exchange`; for any group."""

    def __init__(self) -> None:
        self._group: Any = None
        self._mailboxes: dict[int, CopiedMailbox] = {}

    @property
    def make_end(self) -> MakeEnd:
        """`CopiedEnd`."""
        return CopiedEnd

    def bind(self, group: Any) -> Any:
        """A group that sends weights along; see `WeightSendingGroup`."""
        self._group = group
        return WeightSendingGroup(group, self._mailboxes)

    def make_block(self, layout: Layout) -> Block:
        """A piece of this process's own memory."""
        return Block.private(layout)

    def attach_slot(self, slot: Slot, first_rows: Mapping[int, int], rows: int) -> None:
        """The workers have slots of their own; there is nothing to wait for."""

    def mailbox(self, kind: Any, weights: Mapping[str, Field]) -> Mailbox:
        """A mailbox that weights are copied out of, unless none are to be sent."""
        return NoMailbox.for_weights(weights) if kind is NoMailbox else CopiedMailbox.for_weights(weights)

    def attach_weights(self, worker: int, mailbox: Any) -> None:
        """Have a worker make the other end of its mailbox; see `Exchange`."""
        if isinstance(mailbox, CopiedMailbox):
            self._mailboxes[worker] = mailbox
        self._group.request(worker, AttachWeights(type(mailbox)))

    def land(self, done: Done, info: WorkerInfo, rows: Rows) -> Done:
        """Copy a rollout into the slot, field by field; see `Exchange`."""
        if done.block is None:
            return done
        block = Block(slot_layout(info.fields, info.rows, info.columns), done.block)
        for key in block.layout:
            rows[key][...] = block.array(key)
        put_objects(done, rows)
        return replace(done, block=None, objects=None)

    def completed_columns(self, progress: Progress | None, info: WorkerInfo) -> int:
        """None: they were in the memory of the worker."""
        return 0

    def can_send(self, buffer: Any) -> bool:
        """False: the ends of replay buffers are shared memory; this process writes."""
        return False
