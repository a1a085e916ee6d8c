"""`ListStorage`: items of any kind in a list; samples are stacked where items allow it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDictBase, is_tensorclass, lazy_stack
from torch import Tensor

from reap.data.saving.plain import decoded, encoded
from reap.data.storages.base import Mark, Storage
from reap.data.storages.items import Items
from reap.data.storages.trees import Tree, as_leaf, holds_tensors_only, is_container, is_named, tree_of
from reap.errors import OptionError, SpecMismatch
from reap.keys import Key


class ListStorage(Storage):
    """Items of any kind: tensors and TensorDicts of different shapes, strings, objects.

    Tensors, TensorDicts and tensorclasses are copied when they are written, in dicts, tuples and lists too, arrays become
    tensors, and other objects are kept as they are. A sample is stacked if its items are tensors of one shape and dtype,
    TensorDicts (lazily, where their entries differ), or dicts, tuples and lists of tensors that are alike; otherwise it is a
    list of the objects themselves. With `collate_fn` the buffer hands that function the list.

    Args:
        max_size: items that there is room for.
        ndim: 1; items in a list have one dimension.

    Raises:
        OptionError: no such size or number of dimensions.

    Example:
        >>> from reap.data.buffers.replay import ReplayBuffer
        >>> buffer = ReplayBuffer(storage=ListStorage(3))
        >>> buffer.extend(["a", torch.zeros(2), "b", "c"])
        tensor([2, 0, 1, 2])
        >>> buffer[:]
        [tensor([0., 0.]), 'b', 'c']
    """

    def __init__(self, max_size: int, *, ndim: int = 1) -> None:
        super().__init__(max_size, ndim=ndim)
        if ndim != 1:
            raise OptionError(f"ListStorage: expected ndim=1, got {ndim}; use a LazyTensorStorage to keep rows apart")
        self._items: list[Any] = [None] * self.max_size

    @property
    def is_initialised(self) -> bool:
        """True: it needs no memory ahead."""
        return True

    @property
    def keys(self) -> tuple[Key, ...]:
        """None: the keys of items are their own."""
        return ()

    def leaf(self, key: Key) -> Tensor:
        """Refuse.

        Raises:
            OptionError: always.
        """
        raise OptionError(f"ListStorage: expected a storage of tensors to read {key} from all frames; use a LazyTensorStorage")

    def together(self, data: Any, dims: int | None = None) -> Any:
        """Several items of the user: data with a first dimension as they are, anything else as a list.

        A dict or a tuple of tensors is one batch, as for the other storages.
        """
        if isinstance(data, dict | tuple) and holds_tensors_only(data):
            return tree_of(data, 1)
        if isinstance(data, list | tuple | np.ndarray):
            return Items(data)
        if isinstance(data, Tree):
            return data
        given: Any = data
        if _is_tensors(given) and given.ndim:
            return given
        raise SpecMismatch(
            "ListStorage: expected a list of items, or a tensor, TensorDict or dict of tensors of one dimension at least, got "
            f"{data!r:.100}"
        )

    def single(self, item: Any, dims: int | None = None) -> Any:
        """One item of the user."""
        return Items([item])

    def append(self, data: Any, origins: Any) -> Tensor:
        """Write items after those written last; see `Storage`."""
        items = [_kept(item) for item in data]
        skipped = max(0, len(items) - self.ring.capacity)
        if not items:
            return torch.empty(0, dtype=torch.int64)
        try:
            claim = self.ring.claim(len(items) - skipped)
            places = self.ring.places(claim.start - skipped, len(items))
            for place, item in zip(places[skipped:].tolist(), items[skipped:], strict=True):
                self._items[place] = item
            self.control.origins[places[skipped:]] = origins[skipped:]
            self.ring.publish(claim, len(items))
        except BaseException:
            self.ring.give_up_broken()
            raise
        return torch.from_numpy(places)

    def take(self, places: Tensor) -> list[Any]:
        """The items at these places `[B]`."""
        return [self._items[place] for place in places.tolist()]

    def merge(self, taken: list[Any], at: NDArray[np.int64], part: list[Any]) -> None:
        """Put the items of some places among those of all; see `Storage`."""
        for number, item in zip(at.tolist(), part, strict=True):
            taken[number] = item

    def built(self, taken: list[Any], count: int, mark: Mark | None = None) -> list[Any]:
        """The items; `mark`, which changes tensors by key, finds none."""
        return taken

    def put(self, places: Tensor, data: Any) -> None:
        """Overwrite the items at these places."""
        with self.ring.editing():
            for place, item in zip(places.tolist(), map(_kept, data), strict=True):
                self._items[place] = item

    def contents(self) -> list[Any]:
        """All items, in the order of the places."""
        return [self._items[place] for place in self.places_in_use().tolist()]

    def at(self, index: Any) -> Any:
        """The item at a number; a sample of those at any other kind of index that a tensor takes."""
        places = self.places_at(index)
        return self._items[int(places)] if not places.ndim else collated(self.get(places.reshape(-1)))

    def put_at(self, places: Tensor, data: Any) -> Tensor:
        """Write over the items at some places; see `Storage`.

        Raises:
            SpecMismatch: not as many items as places; nothing is changed.
        """
        if len(data) != places.numel():
            raise SpecMismatch(f"ListStorage: expected {places.numel()} items for this index, got {len(data)}")
        self.put(places.reshape(-1), data)
        return places.reshape(-1)

    @property
    def item_dims(self) -> int:
        """Batch dimensions of the first item; see `Storage`."""
        whole = self.ring.whole()
        first = self._items[int(whole.start if isinstance(whole, slice) else whole[0])]
        return first.ndim if isinstance(first, TensorDictBase) else 0

    @property
    def classes(self) -> Mapping[str, Any]:
        """The tensorclasses and named tuples that its items are made of, by name."""
        return {kind.__name__: kind for item in self.contents() for kind in _classes_in(item)}

    def state(self) -> dict[str, Any]:
        """Its items as plain data; see `Storage`."""
        return {**super().state(), "items": [encoded(item) for item in self._items[: self.columns_in_use]]}

    def load_state(self, state: Mapping[str, Any], frames: Mapping[Key, Tensor]) -> None:
        """Load the state of another storage; see `Storage`."""
        columns = self.columns_in(state, self.max_size)
        known = self.classes
        items = [decoded(item, known) for item in state["items"]]
        if len(items) != columns:
            raise SpecMismatch(f"ListStorage: expected {columns} items in the state, got {len(items)}; nothing was changed")
        with self.ring.replacing():
            self._items[:columns] = items
            self._restore(state["control"])

    @staticmethod
    def collate(items: list[Any]) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]  a function in both
        """A sample of items; see `collated`."""
        return collated(items)

    def __repr__(self) -> str:
        return f"ListStorage(max_size={self.max_size})"


def collated(items: list[Any]) -> Any:
    """Items as one tensor, TensorDict, tensorclass, dict, tuple or list where they can be; else the list as it is.

    Example:
        >>> collated([torch.tensor(1), torch.tensor(2)]), collated([torch.tensor(1), torch.tensor(2.0)])
        (tensor([1, 2]), [tensor(1), tensor(2.)])
        >>> collated([{"a": (torch.tensor(1),)}, {"a": (torch.tensor(2),)}])
        {'a': (tensor([1, 2]),)}
    """
    if items and all(map(holds_tensors_only, items)):
        return _collated_trees(items)
    if not items or not all(map(_is_tensors, items)) or len({type(item) for item in items}) > 1:
        return items
    if isinstance(items[0], Tensor):
        fits = len({(item.shape, item.dtype, item.device) for item in items}) == 1
        return torch.stack(items) if fits else items
    if len({item.batch_size for item in items}) > 1:
        return items
    try:
        return torch.stack(items)
    except (RuntimeError, KeyError):  # entries of several shapes, or not the same in all
        return lazy_stack(items)


def _collated_trees(items: list[Any]) -> Any:
    trees = [tree_of(item, 0) for item in items]
    first = trees[0]
    leaves = {key: collated([tree.leaves.get(key) for tree in trees]) for key in first.leaves}
    fits = all(tree.form == first.form for tree in trees) and all(isinstance(leaf, Tensor) for leaf in leaves.values())
    return first.form.joined(leaves) if fits else items


def _is_tensors(data: Any) -> bool:
    return isinstance(data, Tensor | TensorDictBase) or is_tensorclass(data)


def _kept(item: Any) -> Any:
    """An item in the form in which it is kept: with tensors in memory of their own."""
    if _is_tensors(item):
        return item.detach().clone()
    if isinstance(item, np.ndarray) and item.dtype.kind in "biufc":
        return as_leaf(item).clone()
    if type(item) is dict:
        return {name: _kept(value) for name, value in item.items()}
    if type(item) in {tuple, list}:
        return type(item)([_kept(value) for value in item])
    return type(item)(*map(_kept, item)) if is_named(type(item)) else item


def _classes_in(item: Any) -> Iterator[Any]:
    if is_tensorclass(item) or is_named(type(item)):
        yield type(item)
    if is_container(item):
        for part in item.values() if isinstance(item, dict) else item:
            yield from _classes_in(part)
