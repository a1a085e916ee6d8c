"""`Exchange`: how workers get slots and weights, and how rollouts come back. It says nothing of who carries the commands.

    collector                                                      worker
      Exchange                                                       WorkerEnd
        attach_slot      a slot of the collector's pool   ------>      slot(number)   where to record
        attach_weights   a mailbox                        ------>      (PolicyCopy)   reads it before each rollout
        land             rows of the slot                 <------      reply          what goes with `Done`
        completed_columns  of a worker that failed

Two are there. `SharedExchange`: slots and mailboxes are memory that both processes map, so `Done` says only that it is done.
`CopiedExchange`: nothing is shared; a worker records in memory of its own, which comes with `Done` as one block.
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
    """A worker's end."""

    def attach(self, command: AttachSlot, descriptor: int) -> None:
        """Take the next slot."""
        ...

    def slot(self, number: int) -> Slot:
        """Where the worker's rows of a slot are recorded."""
        ...

    def keep_rollouts(self) -> None:
        """From now on the worker writes what it records itself, and nobody else needs it."""
        ...

    def reply(self, done: Done, slot: Slot) -> Done:
        """The reply to `Collect`, with the data that the collector does not have yet."""
        ...


MakeEnd = Callable[[Mapping[Key, Field], tuple[int, ...], int], WorkerEnd]
"""Makes a worker's end, where the worker is, from the fields of a frame, the shape of its rows, and its columns. A class, so
that it can be sent."""


class Exchange(Protocol):
    """A collector's end, for all of its workers."""

    @property
    def make_end(self) -> MakeEnd:
        """Makes each worker's end."""
        ...

    def bind(self, group: Any) -> Any:
        """The group through which commands go to the workers from now on."""
        ...

    def make_block(self, layout: Layout) -> Block:
        """The memory of a slot."""
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
        """Raise MemoryError if slots of these layouts do not fit into the memory that there is."""
        ...

    def attach_slot(self, slot: Slot, first_rows: Mapping[int, int], rows: int) -> None:
        """Give workers that are idle the next slot, and wait until they have it.

        Args:
            slot: the slot.
            first_rows: the workers, and where the rows of each begin.
            rows: rows of all.
        """
        ...

    def mailbox(self, kind: Any, weights: Mapping[str, Field]) -> Mailbox:
        """A mailbox for one worker.

        Args:
            kind: the class of mailboxes that the collector's weight sync scheme asks for.
            weights: what `describe(policy)` returned in the worker.
        """
        ...

    def attach_weights(self, worker: int, mailbox: Any) -> None:
        """Give a worker the other end of a mailbox; its reply comes out of `ready`."""
        ...

    def land(self, done: Done, info: WorkerInfo, rows: Rows) -> Done:
        """Have a rollout in the collector's slot.

        Args:
            done: the worker's reply.
            info: about the worker.
            rows: its rows of the slot.

        Returns:
            The reply without the data that has landed.
        """
        ...

    def completed_columns(self, progress: Progress | None, info: WorkerInfo) -> int:
        """The columns of the rollout under way that a worker which has failed left in the collector's slot.

        Args:
            progress: what is known of how far it had come (`reap.workers.progress`); None for nothing.
            info: about the worker.
        """
        ...

    def can_send(self, buffer: Any) -> bool:
        """Whether workers can have an end of this replay buffer, and write to it themselves."""
        ...


class OwnSlots:
    """The end of a worker that is in the collector's own process: the collector's slots are its slots.

    Args:
        slots: by number; more may be appended later.
    """

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots

    def attach(self, command: AttachSlot, descriptor: int) -> None:
        """The slots are here; there is nothing to attach."""

    def slot(self, number: int) -> Slot:
        """A slot."""
        return self._slots[number]

    def keep_rollouts(self) -> None:
        """They stay where they are in any case."""

    def reply(self, done: Done, slot: Slot) -> Done:
        """The reply: the rollout is where it should be."""
        return done


def columns_reached(progress: Progress | None, columns: int) -> int:
    """The columns of a rollout that a worker had completed when it failed.

    Args:
        progress: what is known of how far it had come; None for nothing.
        columns: columns of a whole rollout.
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
