"""`SlotPool`: slots that are recorded, lent to the user with a batch, and come back by themselves.

    take() -> slot -> recorded -> deliver() -> TensorDict --- last reference to any leaf dropped ---.
      ^                                                                                             |
      '---------------------------------------------------------------------------------------------'

Fields that are small per frame are cloned into tensors of their own, so that keeping the rewards of a batch does not keep its
pixels; the others are lent. A lease is a numpy array over the slot's memory that every lent tensor holds on to: through the
`memoryview` numpy keeps the lease itself as the base of what is derived from it, and its end gives the slot back.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from reap.buffers import SMALL, Slot
from reap.keys import Key, nested
from reap.layout import Field


class SlotPool:
    """Slots of one layout, made as they are needed.

    Args:
        fields: shape and dtype of one frame's value under each key, in the order of delivery.
        batch_shape: batch dimensions of the env.
        columns: time steps of a rollout.
        device: what the batches give as their device, or None.
        same: deliver the same TensorDict over the same memory each time.
    """

    def __init__(
        self,
        fields: Mapping[Key, Field],
        batch_shape: tuple[int, ...],
        columns: int,
        *,
        device: torch.device | None = None,
        same: bool = False,
    ) -> None:
        self.slots: list[Slot] = []
        self.deliver = self._deliver_same if same else self._deliver_lease
        self._same: TensorDict | None = None
        self._free: list[int] = []
        self._fields, self._batch_shape, self._columns, self._device = fields, batch_shape, columns, device
        self._small = [key for key, field in fields.items() if field.nbytes <= SMALL]
        self._large = [key for key, field in fields.items() if field.nbytes > SMALL]
        self._names = [*[None] * len(batch_shape), "time"]
        self._shape = torch.Size((*batch_shape, columns))

    def take(self) -> int:
        """The number of a free slot; a new one if all are lent."""
        if self._free:
            return self._free.pop()
        self.slots.append(Slot(self._fields, self._batch_shape, self._columns))
        return len(self.slots) - 1

    def give_back(self, index: int) -> None:
        """Return a slot that was taken and is not delivered."""
        self._free.append(index)

    def _deliver_lease(self, index: int) -> TensorDict:
        slot = self.slots[index]
        leaves: dict[Key, torch.Tensor] = {key: slot.tensor(key).clone() for key in self._small}
        if self._large:
            lease: Any = np.frombuffer(memoryview(slot.block.memory), np.uint8)
            weakref.finalize(lease, self._free.append, index).atexit = False
            leaves.update({key: slot.tensor(key, lease) for key in self._large})
        else:
            self._free.append(index)
        return self._tensordict(nested({key: leaves[key] for key in self._fields}))

    def _deliver_same(self, index: int) -> TensorDict:
        self._free.append(index)
        if self._same is None:
            slot = self.slots[index]
            self._same = self._tensordict(nested({key: slot.tensor(key) for key in self._fields}))
        return self._same

    def _tensordict(self, tree: Mapping[str, Any]) -> TensorDict:
        leaves = {name: self._tensordict(value) if isinstance(value, dict) else value for name, value in tree.items()}
        return TensorDict._new_unsafe(leaves, batch_size=self._shape, device=self._device, names=list(self._names))
