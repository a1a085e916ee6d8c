"""`ListStorage`: items of any kind in a list; samples are stacked where items allow it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDictBase, is_tensor_collection, is_tensorclass, lazy_stack
from torch import Tensor

from reap.data.saving.hooks import ListStorageCheckpointer
from reap.data.saving.plain import decoded, encoded
from reap.data.storages.base import Storage
from reap.data.storages.core import Mark
from reap.data.storages.items import Items, checked_device
from reap.data.storages.trees import Tree, as_leaf, holds_tensors_only, is_container, is_named, tree_of
from reap.errors import OptionError, SpecMismatch
from reap.keys import Key
from reap.option_values import positive, switch

UNLIMITED = 1 << 40
"""The `max_size` of a storage without limit: more items than fit into any memory."""

AT_FIRST = 1024
"""Initial capacity."""


class ListStorage(Storage):
    """Items of any kind: tensors and TensorDicts of different shapes, strings, objects.

    Tensors, TensorDicts and tensorclasses are copied when they are written, in dicts, tuples and lists too, arrays become
    tensors, and other objects are kept as they are. A sample is stacked if its items are tensors of one shape and dtype,
    TensorDicts (lazily, where their entries differ), or dicts, tuples and lists of tensors that are alike; otherwise it is a
    list of the objects themselves. With `collate_fn` the buffer hands that function the list.

    Args:
        max_size: maximum number of items; no limit by default.
        ndim: must be 1; items in a list have one dimension.
        device: the device to which tensors are moved when written; None leaves them on theirs.
        compilable: the default of its buffer's `compilable`; see `ReplayBuffer`.

    Raises:
        OptionError: an invalid size or number of dimensions.

    Example:
        >>> from reap.data.buffers.replay import ReplayBuffer
        >>> buffer = ReplayBuffer(storage=ListStorage(3))
        >>> buffer.extend(["a", torch.zeros(2), "b", "c"])
        tensor([2, 0, 1, 2])
        >>> buffer[:]
        [tensor([0., 0.]), 'b', 'c']
    """

    default_checkpointer = ListStorageCheckpointer

    def __init__(self, max_size: int | None = None, *, ndim: int = 1, device: Any = None, compilable: bool = False) -> None:
        size = UNLIMITED if max_size is None else positive(max_size, "max_size")
        super().__init__(size, ndim=ndim, columns=min(size, AT_FIRST))
        if ndim != 1:
            raise OptionError(f"ListStorage: expected ndim=1, got {ndim}; use a LazyTensorStorage to keep rows apart")
        self.device = None if device is None else checked_device(device)
        self.compilable = switch(compilable, "compilable")
        self._items: list[Any] = []

    def _make_room(self, columns: int) -> None:
        """Make room for this number of items; with the ring's lock held."""
        if columns > self.control.columns:
            self.control.grow(min(self.max_size, max(columns, 2 * self.control.columns)))
        self._items.extend([None] * (columns - len(self._items)))

    @property
    def places_noted(self) -> int:
        """Number of places whose origin is kept; see `StorageCore`."""
        return self.columns_in_use

    @property
    def is_initialised(self) -> bool:
        """True: no memory is allocated in advance."""
        return True

    @property
    def keys(self) -> tuple[Key, ...]:
        """None: items have no common keys."""
        return ()

    def leaf(self, key: Key) -> Tensor:
        """Raise OptionError: items have no common keys.

        Raises:
            OptionError: always.
        """
        raise OptionError(f"ListStorage: expected a storage of tensors to read {key} from all frames; use a LazyTensorStorage")

    def together(self, data: Any, dims: int | None = None) -> Any:
        """Several of the user's items: data with a first dimension unchanged, anything else as a list.

        A dict or a tuple of tensors is one batch, as for the other storages.
        """
        if isinstance(data, dict | tuple) and holds_tensors_only(data):
            return tree_of(data, 1)
        if isinstance(data, Sequence | np.ndarray) and not isinstance(data, str | bytes):
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
        """One of the user's items: a TensorDict with a first dimension, for transforms; anything else as a list."""
        return item.unsqueeze(0) if is_tensor_collection(item) else Items([item])

    def append(self, data: Any, origins: Any) -> Tensor:
        """Append items; see `Storage`."""
        items = [self._kept(item) for item in data]
        skipped = max(0, len(items) - self.ring.capacity)
        if not items:
            return torch.empty(0, dtype=torch.int64)
        try:
            claim = self.ring.claim(len(items) - skipped, self._make_room)
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
        """Replace the items of some places in those of all; see `Storage`."""
        for number, item in zip(at.tolist(), part, strict=True):
            taken[number] = item

    def built(self, taken: list[Any], count: int, mark: Mark | None = None) -> list[Any]:
        """The items unchanged: `mark` changes tensors by key, and there are none."""
        return taken

    def put(self, places: Tensor, data: Any) -> None:
        """Overwrite the items at these places."""
        with self.ring.editing():
            for place, item in zip(places.tolist(), map(self._kept, data), strict=True):
                self._items[place] = item

    def contents(self) -> list[Any]:
        """All items, in the order of the places."""
        return [self._items[place] for place in self.places_in_use().tolist()]

    def at(self, index: Any) -> Any:
        """The item at a number, or a sample of the items at any other index that a tensor accepts."""
        places = self.places_at(index)
        return self._items[int(places)] if not places.ndim else self.collate(self.copies(places.reshape(-1)))

    def get(self, index: Any) -> Any:
        """The item at a number, or a list of the items at any other index, which `buffer[index]` stacks."""
        places = self.places_at(index)
        return self._items[int(places)] if not places.ndim else self.copies(places.reshape(-1))

    def put_at(self, places: Tensor, data: Any) -> Tensor:
        """Overwrite the items at some places; see `Storage`.

        Raises:
            SpecMismatch: the numbers of items and places differ; nothing is changed.
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
        """The tensorclasses and named tuples in its items, by name."""
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
            self._make_room(columns)
            self._items[:columns] = items
            self._restore(state["control"])

    def collate(self, items: list[Any]) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]  a function in both
        """Collate items to a sample; see `collated`."""
        return collated(items)

    def _kept(self, item: Any) -> Any:
        """An item in stored form: with tensors copied to the storage's device."""
        kept = _copied(item)
        return kept if self.device is None else _moved(kept, self.device)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(max_size={'no limit' if self.max_size == UNLIMITED else self.max_size})"


class LazyStackStorage(ListStorage):
    """A `ListStorage` of TensorDicts whose samples are lazy stacks, whatever the shapes of their entries.

    Args:
        max_size: maximum number of items; no limit by default.
        stack_dim: the dimension along which samples are stacked.
        device: as with a `ListStorage`.
        compilable: as with a `ListStorage`.

    Example:
        >>> from tensordict import TensorDict
        >>> from reap.data.buffers.replay import ReplayBuffer
        >>> buffer = ReplayBuffer(storage=LazyStackStorage(3), batch_size=2)
        >>> _ = buffer.extend([TensorDict({"a": torch.zeros(n)}, []) for n in (1, 2, 3)])
        >>> type(buffer.sample()).__name__, buffer[:2].get("a", as_list=True)
        ('LazyStackedTensorDict', [tensor([0.]), tensor([0., 0.])])
    """

    def __init__(
        self, max_size: int | None = None, *, stack_dim: int = 0, device: Any = None, compilable: bool = False
    ) -> None:
        super().__init__(max_size, device=device, compilable=compilable)
        self.stack_dim = stack_dim

    def get(self, index: Any) -> Any:
        """The item at a number, or a lazy stack of the items at any other index that a tensor accepts."""
        return self.at(index)

    def collate(self, items: list[Any]) -> Any:
        """A lazy stack of items.

        Raises:
            SpecMismatch: they are not TensorDicts, or have different numbers of batch dimensions.
        """
        if not all(isinstance(item, TensorDictBase) or is_tensorclass(item) for item in items):
            kinds = sorted({type(item).__name__ for item in items})
            raise SpecMismatch(f"LazyStackStorage: expected TensorDicts, got {', '.join(kinds)}; a ListStorage holds anything")
        dim = self.stack_dim if self.stack_dim >= 0 else items[0].ndim + 1 + self.stack_dim
        try:
            return lazy_stack(items, dim)
        except RuntimeError as error:
            raise SpecMismatch(
                f"LazyStackStorage: expected items that can be stacked along dimension {dim}: {error}"
            ) from error


def collated(items: list[Any]) -> Any:
    """Items as one tensor, TensorDict, tensorclass, dict, tuple or list, if possible; otherwise the list unchanged.

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


def _copied(item: Any) -> Any:
    """An item with copied tensors."""
    if _is_tensors(item):
        return item.detach().clone()
    if isinstance(item, np.ndarray) and item.dtype.kind in "biufc":
        return as_leaf(item).clone()
    if type(item) is dict:
        return {name: _copied(value) for name, value in item.items()}
    if type(item) in {tuple, list}:
        return type(item)([_copied(value) for value in item])
    return type(item)(*map(_copied, item)) if is_named(type(item)) else item


def _moved(item: Any, device: torch.device) -> Any:
    """An item with its tensors on a device."""
    if _is_tensors(item):
        return item.to(device)
    if type(item) is dict:
        return {name: _moved(value, device) for name, value in item.items()}
    if type(item) in {tuple, list}:
        return type(item)([_moved(value, device) for value in item])
    return type(item)(*(_moved(value, device) for value in item)) if is_named(type(item)) else item


def _classes_in(item: Any) -> Iterator[Any]:
    if is_tensorclass(item) or is_named(type(item)):
        yield type(item)
    if is_container(item):
        for part in item.values() if isinstance(item, dict) else item:
            yield from _classes_in(part)
