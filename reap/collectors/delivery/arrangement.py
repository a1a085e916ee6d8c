"""`Arrangement`: where the workers of a batch record, and how their rollouts become one batch.

equal workers      one slot, in which each records its own rows; the batch is a view of it, or joined by one copy
unequal workers    a slot each, joined by one copy
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from tensordict import TensorDictBase

from reap.collectors.delivery.join import Joiner
from reap.collectors.worker.commands import Done
from reap.collectors.workers.base import WorkerSlots


class Arrangement:
    """Slots of the workers of a batch, and how their contents are joined; see above.

    Args:
        slots: one set for all workers, or one for each.
        count: number of workers.
        shape: of a batch.
        frames: frames of a batch.
        join: makes one batch from the workers' results; None if the slot already holds the batch.
        drops_missing: leave out columns that a worker did not record.
        real_rows: the rows of a batch that are not padding; None if all are real.
        delivers_in_parts: whether each worker's part of a batch is delivered by itself.

    Attributes:
        shape: of a batch.
        frames: frames of a batch.
        real_rows: as given.
        delivers_in_parts: as given.
    """

    def __init__(
        self,
        slots: Sequence[WorkerSlots],
        count: int,
        shape: Sequence[int],
        frames: int,
        *,
        join: Joiner | None = None,
        drops_missing: bool = False,
        real_rows: torch.Tensor | None = None,
        delivers_in_parts: bool = False,
    ) -> None:
        self.delivers_in_parts = delivers_in_parts
        self.shape, self.frames, self.real_rows = torch.Size(shape), frames, real_rows
        self._slots, self._count = slots, count
        self._join, self._drops_missing = join, drops_missing

    def take(self) -> list[int]:
        """The numbers of free slots, one for each of `slots`."""
        return [slots.take() for slots in self._slots]

    def give_back(self, numbers: Sequence[int]) -> None:
        """Return slots that were taken but will not be delivered."""
        for slots, number in zip(self._slots, numbers, strict=True):
            slots.give_back(number)

    def by_worker(self, numbers: Sequence[int]) -> list[int]:
        """The number of each worker's slot."""
        return list(numbers) if len(numbers) == self._count else list(numbers) * self._count

    def deliver(self, dones: Mapping[int, Done]) -> TensorDictBase:
        """The batch that the workers recorded."""
        numbers = [dones[worker].slot for worker in range(len(self._slots))]
        results = [slots.deliver(number) for slots, number in zip(self._slots, numbers, strict=True)]
        if self._join is None:
            return results[0]
        parts = results if len(self._slots) > 1 else list(results[0].unbind(0))
        if self._drops_missing:
            parts = [part[..., : dones[worker].columns] for worker, part in enumerate(parts)]
        return self._join(parts)
