"""`TensorDictMaxValueWriter`: keeps the items with the highest values.

    room left   items are appended
    none left   an item replaces the one with the lowest value, if its own is higher

A heap finds that one in O(log n). It is built from the contents of the storage, and rebuilt whenever they change elsewhere.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase, is_tensorclass
from torch import Tensor

from reap.data.reductions import REDUCTIONS, Reduction, checked_reduction
from reap.data.storages.base import Storage
from reap.data.storages.items import leaves_of, whole
from reap.data.storages.ring.reading import Reading
from reap.data.storages.trees import Tree
from reap.data.writers import Writer
from reap.errors import OptionError, SpecMismatch
from reap.keys import NestedKey, as_key, plain

DROPPED = -1
"""The index of an item that was not kept."""

_REDUCTIONS: Mapping[str, Reduction] = {"sum": lambda values: values.sum(1), **REDUCTIONS}

Heap = list[tuple[float, int]]
"""Value and place of each kept item, as a heap with the lowest first."""


class TensorDictMaxValueWriter(Writer):
    """Keeps the `max_size` items with the highest values; among equals, those that came first.

    Items are TensorDicts or tensorclasses in a storage of one dimension; an item may be a whole trajectory `[T]`. `extend`
    returns -1 as the index of items that were not kept. A buffer with this writer belongs to one process.

    Args:
        rank_key: the key of an item's value; by default `("next", "reward")`.
        reduction: reduces a value with several elements to one number: `"sum"`, `"max"`, `"min"`, `"mean"` or `"median"`.
        compilable: as with any `Writer`.

    Raises:
        OptionError: an unknown reduction.

    Example:
        >>> from tensordict import TensorDict
        >>> from reap.data.buffers.replay import ReplayBuffer
        >>> from reap.data.storages import LazyTensorStorage
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(2), writer=TensorDictMaxValueWriter("score"))
        >>> buffer.extend(TensorDict({"score": torch.tensor([3, 1, 2])}, [3]))
        tensor([ 0, -1,  1])
        >>> buffer[:]["score"]
        tensor([3, 2])
    """

    replaces = True

    def __init__(self, rank_key: NestedKey | None = None, reduction: str = "sum", compilable: bool = False) -> None:
        super().__init__(compilable)
        self.rank_key = as_key(rank_key) if rank_key is not None else ("next", "reward")
        self.reduction = checked_reduction(reduction, _REDUCTIONS)
        self._heap: Heap = []
        self._known: Reading | None = None

    def check(self, storage: Storage) -> None:
        """Raise OptionError for a storage of several dimensions, or one that other processes write to."""
        if storage.ndim > 1:
            raise OptionError(
                f"TensorDictMaxValueWriter: expected a storage with ndim=1, got ndim={storage.ndim}: it ranks items one by "
                "one. Write trajectories as items, [N, T] into ndim=1, to rank them as a whole"
            )
        if storage.control.is_shared:
            self.check_sharing()

    def check_sharing(self) -> None:
        """Raise OptionError: it does not know the values of other processes' items."""
        raise OptionError(
            "TensorDictMaxValueWriter: expected a buffer of one process, got a shared one: it only knows the values of items "
            "that it wrote itself; use a RoundRobinWriter, or write from one process"
        )

    def write(self, storage: Storage, data: Any, lengths: Sequence[int]) -> Tensor:
        """Write the items with the highest values; see `Writer`.

        Returns:
            Their places; -1 for those that were not kept.

        Raises:
            SpecMismatch: an item without a value, or whose value is NaN; nothing is written.
        """
        self.check(storage)
        values = self._values(data)
        with storage.control.lock:
            heap = self._heap_of(storage)
            self._known = None
            room = storage.ring.capacity - storage.columns_in_use
            owners = self._append(storage, data[:room], values[:room], heap)
            replaced = self._replace(storage, data, values, room, heap)
            self._known = storage.ring.begin_reading()
        places = torch.full((len(values),), DROPPED)
        owners |= replaced
        places[torch.tensor(list(owners.values()), dtype=torch.int64)] = torch.tensor(list(owners), dtype=torch.int64)
        return places

    def _append(self, storage: Storage, data: Any, values: list[float], heap: Heap) -> dict[int, int]:
        """Write as many items as there is room for; return the item at each place."""
        if not values:
            return {}
        first = storage.ring.new_streams(len(values))  # one each: no item follows another
        origins = np.arange(2 * first, 2 * (first + len(values)), 2, dtype=np.int32) | 1
        places = storage.append(data, origins).tolist()
        for item in zip(values, places, strict=True):
            heapq.heappush(heap, item)
        return {place: number for number, place in enumerate(places)}

    def _replace(self, storage: Storage, data: Any, values: list[float], start: int, heap: Heap) -> dict[int, int]:
        """Write those of the rest with a higher value than the lowest; return the item at each of their places."""
        owners: dict[int, int] = {}
        taken = 0
        for number in range(start, len(values)):
            least, place = heap[0]
            if values[number] > least:
                heapq.heapreplace(heap, (values[number], place))
                owners[place] = number
                taken += 1
        if owners:
            numbers = list(owners.values())
            chosen = [data[number] for number in numbers] if isinstance(data, list) else data[torch.tensor(numbers)]
            storage.put(torch.tensor(list(owners)), chosen)
            storage.ring.count(taken)
        return owners

    def _heap_of(self, storage: Storage) -> Heap:
        ring = storage.ring
        if ring.begin_reading() != self._known:
            oldest, claimed = ring.window
            held = np.flatnonzero(ring.filled(oldest, claimed)).tolist()
            values = self._values(storage.together(storage.contents())) if claimed > oldest else []
            self._heap = list(zip(values, held, strict=True))  # contents are without those that were broken off
            heapq.heapify(self._heap)
        return self._heap

    def _values(self, data: Any) -> list[float]:
        """One number for each item."""
        if isinstance(data, list):
            return [value for item in data for value in self._values(_exclusive(item))]
        found = leaves_of(_with_keys(data)).get(self.rank_key)
        if not isinstance(found, Tensor):
            raise SpecMismatch(
                "TensorDictMaxValueWriter: expects data to be a tensor collection with the rank_key "
                f"{plain(self.rank_key)!r}, got the keys {[plain(key) for key in leaves_of(data)]}; nothing was written"
            )
        values = _REDUCTIONS[self.reduction](found.reshape(len(found), -1)) if found.ndim > 1 else found
        if values.isnan().any():
            raise SpecMismatch(f"TensorDictMaxValueWriter: expected numbers, got NaN under {plain(self.rank_key)!r}")
        return values.tolist()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing: the state of the storage is enough."""
        self.empty()

    def empty(self) -> None:
        """Forget the values of the items, which were removed."""
        self._known = None

    def __repr__(self) -> str:
        return f"TensorDictMaxValueWriter(rank_key={plain(self.rank_key)!r}, reduction={self.reduction!r})"


def _with_keys(data: Any) -> Any:
    if isinstance(data, TensorDictBase | Tree) or is_tensorclass(data):
        return data
    raise SpecMismatch(
        "TensorDictMaxValueWriter: expects data to be a tensor collection, whose entries can be ranked, got "
        f"{data!r:.100}; dicts will do too"
    )


def _exclusive(item: Any) -> Any:
    """An item as data `[1]`."""
    return _with_keys(whole(item, 0)).unsqueeze(0)
