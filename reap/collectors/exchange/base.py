"""`Exchange`: how workers get slots and weights, and how rollouts come back. It does not depend on the carrier of commands.

    collector                                                      worker
      Exchange                                                       WorkerEnd
        attach_slot      a slot of the collector's pool   ------>      slot(number)   where to record
        attach_weights   a mailbox                        ------>      (PolicyCopy)   reads it before each rollout
        land             rows of the slot                 <------      reply          data that goes with `Done`
        completed_columns  of a worker that failed

There are two. `SharedExchange`: slots and mailboxes are memory that both processes map, so `Done` carries no data.
`CopiedExchange`: nothing is shared; a worker records in its own memory, which travels with `Done` as one block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from reap.collectors.worker.commands import AttachSlot, Done, WorkerInfo
from reap.keys import Key
from reap.recording.buffers import Slot
from reap.recording.layout import Array, Block, Field, Layout
from reap.rollout.loop import Phase
from reap.weights.mailbox_protocol import Mailbox
from reap.workers.progress import Progress

Rows = Mapping[Key, Array]
"""A worker's rows of a slot, `[rows, T, *value]` under each key; objects are `[rows, T, 1]`."""


class WorkerEnd(Protocol):
    """A worker's end of the exchange."""

    def attach(self, command: AttachSlot, descriptor: int) -> None:
        """Take the next slot."""
        ...

    def slot(self, number: int) -> Slot:
        """The memory in which the worker's rows of a slot are recorded."""
        ...

    def keep_rollouts(self) -> None:
        """Keep rollouts here: from now on the worker writes them to the replay buffer itself."""
        ...

    def reply(self, done: Done, slot: Slot) -> Done:
        """Add to the reply to `Collect` the data that the collector does not have yet."""
        ...


MakeEnd = Callable[[Mapping[Key, Field], tuple[int, ...], int], WorkerEnd]
"""Makes a worker's end, in the worker, from the fields of a frame, the shape of its rows, and its columns. A class, so that it
can be sent."""


class Exchange(Protocol):
    """A collector's end of the exchange, for all of its workers.

    Attributes:
        shares_memory: whether rollouts that a worker keeps, to write them to the replay buffer itself, are in this process too.
    """

    shares_memory: bool

    @property
    def make_end(self) -> MakeEnd:
        """Makes each worker's end."""
        ...

    def bind(self, group: Any) -> Any:
        """Set the group that carries commands to the workers."""
        ...

    def make_block(self, layout: Layout) -> Block:
        """Allocate the memory of a slot."""
        ...

    def make_slots(
        self,
        infos: Mapping[int, WorkerInfo],
        batch_shape: tuple[int, ...],
        columns: int,
        *,
        device: torch.device | None,
        same: bool,
    ) -> Any:
        """Slots for the rollouts of some workers; see `reap.collectors.exchange.slots.Slots`."""
        ...

    def require_memory(self, layouts: Sequence[Layout]) -> None:
        """Raise MemoryError if slots of these layouts do not fit into the available memory."""
        ...

    def attach_slot(self, slot: Slot, first_rows: Mapping[int, int], rows: int) -> None:
        """Give idle workers the next slot, and wait until they have it.

        Args:
            slot: the slot.
            first_rows: the first row of each worker.
            rows: total number of rows.
        """
        ...

    def mailbox(self, kind: Any, weights: Mapping[str, Field]) -> Mailbox:
        """A mailbox for one worker.

        Args:
            kind: the mailbox class of the collector's weight sync scheme.
            weights: what `describe(policy)` returned in the worker.
        """
        ...

    def attach_weights(self, worker: int, mailbox: Any) -> None:
        """Give a worker the other end of a mailbox; its reply is returned by `ready`."""
        ...

    def land(self, done: Done, info: WorkerInfo, rows: Rows) -> Done:
        """Bring a rollout into the collector's slot.

        Args:
            done: the worker's reply.
            info: about the worker.
            rows: its rows of the slot.

        Returns:
            The reply without the data that has landed.
        """
        ...

    def completed_columns(self, progress: Progress | None, info: WorkerInfo) -> int:
        """Number of columns that a failed worker left in the collector's slot, of the rollout in progress.

        Args:
            progress: how far the worker had got (`reap.workers.progress`); None if unknown.
            info: about the worker.
        """
        ...

    def can_send(self, buffer: Any) -> bool:
        """Whether this replay buffer can be sent to workers, so that they write to it themselves."""
        ...


class OwnSlots:
    """The end of a worker in the collector's own process, which records in the collector's slots.

    Args:
        slots: by number; more may be appended later.
    """

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots

    def attach(self, command: AttachSlot, descriptor: int) -> None:
        """Nothing to attach: the slots are in this process."""

    def slot(self, number: int) -> Slot:
        """The slot of this number."""
        return self._slots[number]

    def keep_rollouts(self) -> None:
        """Nothing to do: rollouts stay in the slots."""

    def reply(self, done: Done, slot: Slot) -> Done:
        """The reply unchanged: the rollout is already in the collector's slot."""
        return done


def columns_reached(progress: Progress | None, columns: int) -> int:
    """Number of columns that a worker had completed when it failed.

    Args:
        progress: how far the worker had got; None if unknown.
        columns: number of columns in a whole rollout.
    """
    if progress is None:
        return 0
    phase, column = progress.phase, progress.column
    if phase in (Phase.WRITE, Phase.IDLE):
        return columns if column == columns - 1 else max(0, column)
    return column + 1 if phase == Phase.RESET else max(0, column)


def put_objects(done: Done, rows: Rows) -> None:
    """Put objects that came with a reply into the rows of a slot."""
    for key, objects in (done.objects or {}).items():
        rows[key][...] = objects


def objects_in(slot: Slot) -> dict[Key, Array] | None:
    """The columns of objects of a slot; None if it has none."""
    return {key: slot.by_row(key) for key, field in slot.fields.items() if field.is_object} or None
