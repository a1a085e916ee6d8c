"""`SharedObjects`: memory that several workers are sent is put into Ray's object store once, and each node fetches it once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

from reap import optional
from reap.workers.messages import Encoded
from reap.workers.ray.channel import as_bytes

LARGE = 100_000
"""Bytes from which on Ray keeps a value in its store, and not in the call."""


class SharedObject:
    """Memory in the store.

    Args:
        memory: this process's own, which is not written to any more.
    """

    def __init__(self, memory: Any) -> None:
        self._memory = memory  # another piece at its address would pass for it
        self.reference = optional.load("ray").put(as_bytes(memory))


class Post:
    """A command that nobody waits for.

    Args:
        encoded: the command; its memory is not written to any more.

    Attributes:
        name: of its type.
        encoded: as given.
        objects: what of it is in the store, once it is on its way.
    """

    def __init__(self, name: str, encoded: Encoded) -> None:
        self.name, self.encoded = name, encoded
        self.objects: Sequence[SharedObject] = ()


class SharedObjects:
    """What is in the store, for as long as a post that refers to it is kept."""

    def __init__(self) -> None:
        self._objects: WeakValueDictionary[tuple[int, int], SharedObject] = WeakValueDictionary()

    def arguments(self, post: Post) -> list[Any]:
        """The memory of a post as arguments of a call: large pieces as references."""
        arrays = [as_bytes(memory) for memory in post.encoded.buffers]
        found = [self._shared(array) if array.nbytes >= LARGE else None for array in arrays]
        post.objects = [one for one in found if one is not None]
        return [array if one is None else one.reference for array, one in zip(arrays, found, strict=True)]

    def _shared(self, array: Any) -> SharedObject:
        key = array.ctypes.data, array.nbytes
        known = self._objects.get(key)
        if known is None:
            known = self._objects[key] = SharedObject(array)
        return known
