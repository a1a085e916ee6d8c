"""`SlotPool`: slots that are recorded, lent to the user with a batch, and returned automatically.

    take() -> slot -> recorded -> deliver() -> TensorDict --- last reference to any leaf dropped ---.
      ^                                                                                             |
      '---------------------------------------------------------------------------------------------'

Fields that are small per frame are cloned into separate tensors, so that keeping the rewards of a batch does not keep its
pixels; the others are lent. A lease is a numpy array over the slot's memory that every lent tensor references: through a
`memoryview`, numpy keeps the lease itself as the base of derived arrays. When the lease is freed, the slot is returned: a
reference with its number is appended to the free list by a function written in C (`reap.system.endings`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from reap.errors import ClosedError
from reap.keys import Key, Sizes, is_private, nested
from reap.recording.buffers import SMALL, Slot, slot_layout
from reap.recording.layout import Block, Field, Layout, sizes_of
from reap.recording.objects import copies_of, stacked
from reap.system.endings import Numbered, numbered
from reap.tensordicts import make_tensordict

Node = tuple[TensorDict, dict[str, Any]]
Shape = tuple[int, ...]


class SlotPool:
    """Slots of one layout, made when needed. Batches hold all fields except private ones.

    Args:
        fields: shape and dtype of one frame's value under each key, in the order of delivery.
        batch_shape: batch dimensions of the env.
        columns: number of time steps in a rollout.
        device: the device of the batches, or None.
        same: deliver the same TensorDict over the same memory each time.
        limit: maximum number of slots: a batch that would take the last free one is copied, not lent. None for no limit.
        make_block: makes the memory of a slot.

    Attributes:
        slots: the slots made so far, by number.
        fields: shape and dtype of one frame's value under each key.
        columns: number of time steps in a rollout.
    """

    def __init__(
        self,
        fields: Mapping[Key, Field],
        batch_shape: tuple[int, ...],
        columns: int,
        *,
        device: torch.device | None = None,
        same: bool = False,
        limit: int | None = None,
        make_block: Callable[[Layout], Block] = Block.private,
    ) -> None:
        self.slots: list[Slot] = []
        # A function, no bound method: that would be a cycle, and keep the slots until the garbage collector runs.
        self._deliver = SlotPool._deliver_same if same else SlotPool._deliver_lease
        self._same: dict[int, list[Node]] = {}
        self._limit, self._make_block = limit, make_block
        self._free: list[Numbered[Any]] = []
        self._own: list[Numbered[Slot]] = []
        self._leases: dict[int, Numbered[Any]] = {}
        self._sources: list[dict[Key, torch.Tensor]] = []  # per slot, the fields that are cloned
        self.fields, self.columns, self._sizes = dict(fields), columns, sizes_of(fields)
        self._batch_shape, self._device = batch_shape, device
        self._shape = (*batch_shape, columns)
        self._shown = [key for key in fields if not is_private(key)]
        tensors = {key: fields[key] for key in self._shown if not fields[key].is_object}
        self._small = [key for key, field in tensors.items() if field.nbytes <= SMALL]
        self._large = [key for key, field in tensors.items() if field.nbytes > SMALL]
        self._objects = [key for key in self._shown if key not in tensors]

    @property
    def lent(self) -> int:
        """Number of slots that are taken, or of whose batch the user still holds a part."""
        return len(self.slots) - len(self._free)

    def take(self) -> int:
        """The number of a free slot; a new one if all are lent.

        Raises:
            MemoryError: there is not enough memory for another slot.
        """
        if self._free:
            return self._free.pop().number
        try:
            slot = Slot(self.fields, self._batch_shape, self.columns, self._make_block)
        except MemoryError as error:
            if self.lent:
                error.add_note(f"reap: {self.lent} earlier batches are still kept, each in a block of this size")
            raise
        with torch.inference_mode(False):
            self._sources.append({key: slot.tensor(key) for key in self._small})
        self._own.append(numbered(slot, len(self.slots)))
        self.slots.append(slot)
        return len(self.slots) - 1

    @property
    def layout(self) -> Layout:
        """The place of each field in the memory of a slot."""
        return slot_layout(self.fields, math.prod(self._batch_shape), self.columns)

    def slot(self, index: int) -> Slot:
        """A slot that was taken.

        Raises:
            ClosedError: the pool has been cleared since.
        """
        try:
            return self.slots[index]
        except IndexError:
            raise ClosedError("the memory of these batches is dropped: another thread has shut their collector down") from None

    def give_back(self, index: int) -> None:
        """Return a slot that was taken but will not be delivered; one taken before the pool was cleared is already dropped."""
        if index < len(self._own):
            self._free.append(self._own[index])

    def clear(self) -> None:
        """Drop all slots: the memory of a lent one is freed with the last part of its batch, that of the others now."""
        for kept in (self.slots, self._sources, self._same, self._free, self._own, self._leases):
            kept.clear()

    def deliver(self, index: int) -> TensorDict:
        """The batch recorded in a taken slot, in ordinary tensors even in inference mode.

        Raises:
            ClosedError: the pool has been cleared since the slot was taken.
        """
        with torch.inference_mode(False):
            return self._deliver(self, index)

    def _deliver_lease(self, index: int) -> TensorDict:
        slot = self.slot(index)
        try:
            leaves: dict[Key, Any] = {key: source.clone() for key, source in self._sources[index].items()}
            leaves.update({key: objects_of(slot, key) for key in self._objects})
        except BaseException:
            self.give_back(index)
            raise
        # Whether a slot remains for the next rollout if this one is lent.
        can_lend = self._limit is None or self._free or len(self.slots) < self._limit
        if self._large and not can_lend:
            leaves.update({key: slot.tensor(key).clone() for key in self._large})
            self.give_back(index)
        elif self._large:
            memory: Any = slot.block.memory
            lease: Any = np.frombuffer(memoryview(memory), np.uint8)
            self._leases[index] = numbered(lease, index, self._free.append)
            leaves.update({key: slot.tensor(key, lease) for key in self._large})
        else:
            self.give_back(index)
        return as_batch({key: leaves[key] for key in self._shown}, self._shape, self._device, self._sizes)

    def _deliver_same(self, index: int) -> TensorDict:
        self.give_back(index)
        nodes = self._same.get(index)
        if nodes is None:
            slot = self.slot(index)
            tensors = {key: slot.tensor(key) for key in self._shown if key not in self._objects}
            nodes = self._same[index] = _nodes(as_batch(tensors, self._shape, self._device, self._sizes))
        for node, entries in nodes:
            # Entries that the user replaced or added belong to the last batch.
            own = node._tensordict  # pyright: ignore[reportPrivateUsage]  a locked node refuses every other way
            own.clear()
            own.update(entries)
        for key in self._objects:
            nodes[0][0].set(key, objects_of(self.slot(index), key))
        return nodes[0][0]


def as_batch(leaves: Mapping[Key, Any], shape: Shape, device: torch.device | None, sizes: Sizes) -> TensorDict:
    """Make a batch from leaves `[*batch_shape, T, *value]`.

    Args:
        leaves: values by key.
        shape: `[*batch_shape, T]`.
        device: the device of the batch, or None.
        sizes: the additional batch dimensions of nested TensorDicts.
    """
    names = [*[None] * (len(shape) - 1), "time"]
    return make_tensordict(nested(leaves, sizes), torch.Size(shape), names=names, device=device)


def objects_of(slot: Slot, key: Key) -> Any:
    """A column of objects as `[*batch_shape, T]`.

    Objects under `"next"` are copied, because the stage and the next frame's root hold the same ones.
    """
    objects = slot.by_row(key)
    if key[0] == "next":
        objects = copies_of(objects)
    return stacked(objects.reshape((*slot.batch_shape, slot.columns)))


def _nodes(tensordict: TensorDict) -> list[Node]:
    """Make a TensorDict with the TensorDicts nested in it."""
    entries: dict[str, Any] = dict(tensordict.items())
    inner = (_nodes(value) for value in entries.values() if isinstance(value, TensorDict))
    return [(tensordict, entries), *chain.from_iterable(inner)]
