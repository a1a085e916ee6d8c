"""`SharedObjects`: puts memory that goes to several workers into Ray's object store once; each node fetches it once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

from reap import optional
from reap.workers.messages import Encoded
from reap.workers.ray.channel import as_bytes

LARGE = 100_000
"""Size in bytes from which Ray keeps a value in its store instead of in the call."""


class SharedObject:
    """Memory put into the store.

    Args:
        memory: this process's memory, which must no longer be written to.
    """

    def __init__(self, memory: Any) -> None:
        self._memory = memory  # another piece at its address would pass for it
        self.reference = optional.load("ray").put(as_bytes(memory))


class Post:
    """A command without a reply.

    Args:
        encoded: the command; its memory must no longer be written to.

    Attributes:
        name: the name of its type.
        encoded: as given.
        objects: its parts in the store, once it is being sent.
    """

    def __init__(self, name: str, encoded: Encoded) -> None:
        self.name, self.encoded = name, encoded
        self.objects: Sequence[SharedObject] = ()


class SharedObjects:
    """Objects in the store, as long as a post that refers to them is referenced."""

    def __init__(self) -> None:
        self._objects: WeakValueDictionary[tuple[int, int], SharedObject] = WeakValueDictionary()

    def arguments(self, post: Post) -> list[Any]:
        """The memory of a post as arguments of a call, with large parts as references."""
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
