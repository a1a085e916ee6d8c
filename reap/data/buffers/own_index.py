"""The entry `"index"` of data read from some buffers: the place of each item, which is computed, not stored."""

from __future__ import annotations

from typing import Any

from tensordict import LazyStackedTensorDict, TensorDictBase, lazy_stack
from torch import Tensor

from reap.data.storages.base import Storage
from reap.data.storages.items import Items

INDEX = "index"


def read_with_index(storage: Storage, index: Any) -> Any:
    """The contents of a storage at an index of any kind that a tensor takes; TensorDicts with `"index"`."""
    with storage.control.lock:
        data, places = storage.at(index), storage.places_at(index)
    if not isinstance(data, TensorDictBase):
        return data
    flat = storage.as_index(places.reshape(-1))
    return _with(data, flat.reshape((*places.shape, *flat.shape[1:])), places.ndim)


def _with(data: TensorDictBase, index: Tensor, dims: int) -> TensorDictBase:
    """A shallow copy of data `[*batch, *item]`, to which the index `[*batch, ...]` of each item is added."""
    if isinstance(data, LazyStackedTensorDict):
        parts = zip(data.unbind(data.stack_dim), index.unbind(0), strict=True)
        return lazy_stack([_with(part, one, dims - 1) for part, one in parts], data.stack_dim)
    item, last = data.shape[dims:], index.shape[dims:]
    entry = index.reshape((*index.shape[:dims], *[1] * len(item), *last)).expand((*data.shape, *last))
    return data.copy().set(INDEX, entry)


def without_index(data: Any) -> Any:
    """Data to write, without the index from the buffer that they were read from."""
    if isinstance(data, Items):
        return Items([without_index(item) for item in data])
    return data.exclude(INDEX) if isinstance(data, TensorDictBase) and INDEX in data.keys() else data
