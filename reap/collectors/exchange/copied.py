"""`CopiedExchange`: nothing is shared, everything travels with commands and replies.

    collector                                              worker
      mailbox: newest weights --- PutWeights, posted ------->    its mailbox -> policy
                              --- Collect ------------------>    records in a slot of its own
      rows of the slot       <--- Done(parcel, objects) ------    that slot, packed

Each field of a rollout is copied once, into the worker's rows of the collector's slot. If a worker fails, nothing of its
rollout is here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from reap.collectors.exchange.base import MakeEnd, Rows, objects_in, put_objects
from reap.collectors.exchange.landing import LandingSlots, RemoteSlots
from reap.collectors.exchange.slots import Slots
from reap.collectors.worker.commands import AttachSlot, AttachWeights, Done, PutWeights, WorkerInfo
from reap.keys import Key
from reap.recording.buffers import MASK, Slot, slot_layout
from reap.recording.layout import Block, Field, Layout, require_private
from reap.recording.parcel import ParcelLayout
from reap.recording.pool import SlotPool
from reap.weights.copied_mailbox import CopiedMailbox, Parcel
from reap.weights.mailbox_protocol import Mailbox
from reap.weights.no_weights import NoMailbox
from reap.workers.progress import Progress
from reap.workers.remote.group import RemoteGroup


class CopiedEnd:
    """A worker's end, with two slots used in turn, independent of the collector's slot numbers; see `WorkerEnd`.

    One is recorded in while the other is being sent without a copy (`reap.workers.serve.Channel.send`). If the worker writes
    to the replay buffer itself, rollouts stay in slots with the collector's numbers until they are written.

    Args:
        fields: one frame's value under each key of a slot.
        batch_shape: batch dimensions of its rows.
        columns: time steps of a slot.
    """

    def __init__(self, fields: Mapping[Key, Field], batch_shape: tuple[int, ...], columns: int) -> None:
        self._make = partial(Slot, fields, batch_shape, columns)
        self._slots = [self._make(), self._make()]
        self._parcels = ParcelLayout(self._slots[0].block.layout)
        self._turn = 0
        self._keeps = False

    def attach(self, command: AttachSlot, descriptor: int) -> None:
        """Nothing to attach: the worker has its own slots."""

    def slot(self, number: int) -> Slot:
        """The slot that is not being sent."""
        if not self._keeps:
            return self._slots[self._turn]
        while len(self._slots) <= number:
            self._slots.append(self._make())
        return self._slots[number]

    def keep_rollouts(self) -> None:
        """Stop sending rollouts."""
        self._keeps = True

    def reply(self, done: Done, slot: Slot) -> Done:
        """The reply with the packed slot and the objects; if rollouts are kept, with the mask of valid frames instead."""
        if self._keeps:
            return replace(done, objects={MASK: slot.by_row(MASK)} if MASK in slot.fields else None)
        self._turn = 1 - self._turn
        return replace(done, parcel=self._parcels.pack(slot), objects=objects_in(slot))


class CopiedExchange:
    """Copies everything; works with any group. See `Exchange`.

    Args:
        travels: whether a replay buffer can be sent to workers anywhere.
    """

    shares_memory = False

    def __init__(self, travels: Callable[[Any], bool] = lambda _: False) -> None:
        self._group: Any = None
        self._travels = travels
        self._parcels: list[tuple[Any, ParcelLayout]] = []
        self._pools: list[tuple[Any, SlotPool]] = []

    @property
    def make_end(self) -> MakeEnd:
        """`CopiedEnd`."""
        return CopiedEnd

    def bind(self, group: RemoteGroup) -> RemoteGroup:
        """The group itself."""
        self._group = group
        return group

    def make_block(self, layout: Layout) -> Block:
        """A block of this process's own memory."""
        return Block.private(layout)

    def make_slots(
        self,
        infos: Mapping[int, WorkerInfo],
        batch_shape: tuple[int, ...],
        columns: int,
        *,
        device: torch.device | None,
        same: bool,
    ) -> RemoteSlots:
        """Slots for a batch of several workers, or for the incoming rollouts of one worker; see `Exchange`."""
        if len(infos) > 1:
            return Slots(self, infos, batch_shape, columns, device=device, same=same)
        ((worker, info),) = infos.items()
        layout = info.fields, batch_shape, columns, device, same
        pool = next((pool for known, pool in self._pools if known == layout), None)
        if pool is None:
            pool = SlotPool(info.fields, batch_shape, columns, device=device, same=same)
            self._pools.append((layout, pool))
        return LandingSlots(worker, info, pool, self.land)

    def require_memory(self, layouts: Sequence[Layout]) -> None:
        """Raise MemoryError if the largest does not fit: slots are made as results arrive. See `Exchange`."""
        require_private(max(layouts, key=lambda layout: layout.nbytes))

    def attach_slot(self, slot: Slot, first_rows: Mapping[int, int], rows: int) -> None:
        """Nothing to wait for: the workers have their own slots."""

    def mailbox(self, kind: Any, weights: Mapping[str, Field]) -> Mailbox:
        """A mailbox from which weights are copied, unless none are to be sent."""
        return NoMailbox.for_weights(weights) if kind is NoMailbox else CopiedMailbox.for_weights(weights)

    def attach_weights(self, worker: int, mailbox: Any) -> None:
        """Tell a worker to make the other end of its mailbox; see `Exchange`."""
        self._group.request(worker, AttachWeights(type(mailbox)))
        if isinstance(mailbox, CopiedMailbox):
            mailbox.deliver(partial(self._post, worker))

    def _post(self, worker: int, parcel: Parcel) -> None:
        self._group.post(worker, PutWeights(parcel))

    def land(self, done: Done, info: WorkerInfo, rows: Rows) -> Done:
        """Copy a rollout into the slot, field by field; see `Exchange`."""
        if done.parcel is not None:
            self._parcels_of(info).unpack(done.parcel, rows)
        put_objects(done, rows)
        return replace(done, parcel=None, objects=None)

    def _parcels_of(self, info: WorkerInfo) -> ParcelLayout:
        layout = info.fields, info.rows, info.columns
        known = next((parcels for known, parcels in self._parcels if known == layout), None)
        if known is None:
            known = ParcelLayout(slot_layout(*layout))
            self._parcels.append((layout, known))
        return known

    def completed_columns(self, progress: Progress | None, info: WorkerInfo) -> int:
        """0: they were in the worker's memory."""
        return 0

    def can_send(self, buffer: Any) -> bool:
        """Whether the buffer can be sent anywhere; other buffers are shared memory, and this process writes to them."""
        return self._travels(buffer)
