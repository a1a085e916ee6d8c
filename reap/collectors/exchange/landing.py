"""`LandingSlots`: slots for the incoming rollouts of a worker that shares no memory with this process.

    take() -> a number for the worker     no memory yet: the worker records in its own
    land() -> a slot of the common pool   once the rollout is here
    deliver(), give_back()                the slot is lent, or free for the rollouts of others

So memory grows with the number of waiting results and of batches that the user keeps, not with the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

from tensordict import TensorDict

from reap.collectors.exchange.slots import Slots
from reap.collectors.worker.commands import Done, WorkerInfo
from reap.keys import Key
from reap.recording.layout import Array
from reap.recording.pool import SlotPool

Land = Callable[[Done, WorkerInfo, dict[Key, Array]], Done]


class LandingSlots:
    """Incoming rollouts of one worker; see `reap.collectors.workers.base.WorkerSlots`.

    Args:
        worker: its number.
        info: about it.
        pool: slots for the rollouts of all workers of this layout.
        land: copies a rollout into rows of a slot.

    Attributes:
        workers: this worker only.
        pool: as given.
    """

    def __init__(self, worker: int, info: WorkerInfo, pool: SlotPool, land: Land) -> None:
        self.workers: Sequence[int] = [worker]
        self.pool = pool
        self._info, self._land = info, land
        self._taken: dict[int, int | None] = {}

    def take(self) -> int:
        """A number for the next rollout."""
        number = next(number for number in count() if number not in self._taken)
        self._taken[number] = None
        return number

    def make_all(self) -> None:
        """Nothing to allocate before a rollout arrives."""

    def attach_again(self, worker: int) -> None:
        """Nothing to attach: a new worker has its own slots."""

    def give_back(self, slot: int) -> None:
        """Drop a rollout that will not be delivered."""
        landed = self._taken.pop(slot)
        if landed is not None:
            self.pool.give_back(landed)

    def rows_of(self, worker: int, slot: int) -> dict[Key, Array]:
        """The rows of a rollout, `[rows, T, *value]` for each key, without objects."""
        fields = self.pool.fields
        return {key: array for key, array in self._rows_of(slot).items() if not fields[key].is_object}

    def _rows_of(self, slot: int) -> dict[Key, Array]:
        landed = self._taken[slot]
        if landed is None:
            landed = self._taken[slot] = self.pool.take()
        found, shape = self.pool.slot(landed), (self._info.rows, self._info.columns)
        return {key: found.by_row(key).reshape(*shape, *field.shape) for key, field in found.fields.items()}

    def land(self, worker: int, done: Done) -> Done:
        """Copy the data of a worker's reply into a slot; return the reply without them."""
        if done.parcel is None and done.objects is None:
            return done
        return self._land(done, self._info, self._rows_of(done.slot))

    def deliver(self, slot: int) -> TensorDict:
        """The batch of a rollout that has landed."""
        landed = self._taken.pop(slot)
        assert landed is not None
        return self.pool.deliver(landed)


RemoteSlots = Slots | LandingSlots
