"""Storages: the memory of the frames of a buffer."""

from reap.data.storages.base import Storage
from reap.data.storages.given import TensorStorage
from reap.data.storages.lazy import LazyMemmapStorage, LazyTensorStorage
from reap.data.storages.lists import LazyStackStorage, ListStorage

__all__ = ["LazyMemmapStorage", "LazyStackStorage", "LazyTensorStorage", "ListStorage", "Storage", "TensorStorage"]
