"""`Served`: the buffer that uses a sampler."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import ref

from reap.data.storages.base import Storage
from reap.errors import CallOrderError


class Served:
    """The storage and the lock of a buffer; copies of its sampler have none.

    Args:
        storage: the buffer's, which is not kept alive.
        lock: the buffer's.

    Attributes:
        lock: excludes other threads that sample.
    """

    def __init__(self, storage: Storage | None = None, lock: AbstractContextManager[Any] | None = None) -> None:
        self._storage: Callable[[], Storage | None] = (lambda: None) if storage is None else ref(storage)
        self.lock = nullcontext() if lock is None else lock

    @property
    def storage(self) -> Storage:
        """The storage of the frames.

        Raises:
            CallOrderError: there is no buffer, or it is gone.
        """
        storage = self._storage()
        if storage is None:
            raise CallOrderError(
                "update_priority: expected a sampler of a buffer, whose frames have priorities, found none that samples with "
                "it; make ReplayBuffer(sampler=sampler, ...) first, or give storage="
            )
        return storage

    def __reduce__(self) -> tuple[Any, ...]:
        return Served, ()
