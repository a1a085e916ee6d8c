"""Writers: decide where in a storage new items go."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import ref

import numpy as np
from torch import Tensor

from reap.data.peers import conversion
from reap.data.rows import valid_rows
from reap.data.saving.part import SavedPart
from reap.data.storages.base import Storage
from reap.data.storages.core import require_dims
from reap.errors import CallOrderError, OptionError, shown
from reap.option_values import switch
from reap.system.forks import Forked

_forked: Forked[Streams] = Forked(lambda streams: streams.restart())


class Streams:
    """Numbers of streams: one for each row of a writer, whose frames follow each other.

    A process that receives a copy of the writer starts new streams, and so does a writer that gets another storage.
    """

    def __init__(self) -> None:
        self.restart()
        _forked.add(self)

    def restart(self) -> None:
        """Continue none of the existing streams."""
        self._storage: Callable[[], Storage | None] = lambda: None
        self._first: dict[int, int] = {}
        self._last: tuple[Sequence[int], Any] = (), None

    def origins(self, storage: Storage, lengths: Sequence[int]) -> Any:
        """For each column to write, twice its stream's number, plus one if the stream continues after another write.

        Args:
            storage: the storage to which they are written.
            lengths: columns of each row, if the data have several rows one after the other; one number if rows are a dimension.
        """
        if self._storage() is not storage:
            self.restart()
            self._storage = ref(storage)
        last = self._last
        if lengths != last[0]:
            last = self._last = list(lengths), self._new_origins(storage, lengths)
        return last[1]

    def _new_origins(self, storage: Storage, lengths: Sequence[int]) -> Any:
        rows = len(lengths)
        if rows not in self._first:
            self._first[rows] = storage.ring.new_streams(rows)
        first = self._first[rows]
        if rows == 1:
            origins = np.full(lengths[0], 2 * first, np.int32)
            origins[:1] |= 1
            return origins
        origins = np.repeat(np.arange(2 * first, 2 * (first + rows), 2, dtype=np.int32), lengths)
        starts = np.cumsum((0, *lengths[:-1]))
        origins[starts[starts < len(origins)]] |= 1
        return origins

    def __reduce__(self) -> tuple[Any, ...]:
        return Streams, ()


def _nowhere() -> None:
    """The storage of a writer without a buffer, and of a copy of a writer."""


class Writer(SavedPart):
    """Decides where new items go.

    Args:
        compilable: the default of its buffer's `compilable`; see `ReplayBuffer`.
    """

    def __init__(self, compilable: bool = False) -> None:
        self.compilable = switch(compilable, "compilable")
        self.streams = Streams()
        self._registered: Callable[[], Storage | None] = _nowhere

    def register_storage(self, storage: Any) -> None:
        """Write to this storage, which is not kept alive; a buffer does this with its own.

        Raises:
            OptionError: it cannot write to this storage.
        """
        if not isinstance(storage, Storage):
            raise OptionError(
                f"writer: expected a storage of reap.data, got {type(storage).__name__}: {shown(storage):.100}"
                f"{conversion(storage)}"
            )
        self.check(storage)
        self._registered = ref(storage)

    def add(self, data: Any) -> Any:
        """Write one item to the registered storage, without the transforms of a buffer. Returns its index."""
        storage = self._storage()
        return self._put(storage, storage.single(data))

    def extend(self, data: Any) -> Any:
        """Write several items `[*rows, time]` to the registered storage, without the transforms of a buffer.

        Returns:
            Their indices, as `ReplayBuffer.extend` gives them.

        Raises:
            CallOrderError: no storage is registered.
        """
        storage = self._storage()
        return self._put(storage, storage.together(data))

    def _put(self, storage: Storage, data: Any) -> Any:
        require_dims(data, storage.ndim)
        return storage.as_index(self.write(storage, *valid_rows(data, data, storage.ndim)))

    def _storage(self) -> Storage:
        storage = self._registered()
        if storage is None:
            raise CallOrderError(
                "writer: expected a storage to write to, found none; call register_storage(storage) first, or give it to a "
                "buffer, whose storage it then has"
            )
        return storage

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_registered": _nowhere}

    @abstractmethod
    def write(self, storage: Storage, data: Any, lengths: Sequence[int]) -> Tensor:
        """Write items.

        Args:
            storage: the storage.
            data: `[*rows, columns]`.
            lengths: columns of each row, if the data have several rows one after the other; one number if rows are a dimension.

        Returns:
            Their places, row by row.
        """

    replaces = False
    """Whether it may replace frames other than the oldest."""

    tells_index = False
    """Whether samples and data read from the buffer include the place of each frame under `"index"`."""

    def check(self, storage: Storage) -> None:
        """Raise OptionError for a storage that it cannot write to."""

    def check_sharing(self) -> None:
        """Raise OptionError if it cannot write to a storage that other processes write to."""

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state_dict`."""

    def empty(self) -> None:
        """Forget all items, because the storage was emptied."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class RoundRobinWriter(Writer):
    """Appends items; once there is no room left, it overwrites the oldest."""

    def write(self, storage: Storage, data: Any, lengths: Sequence[int]) -> Tensor:
        """Write items; see `Writer`."""
        return storage.append(data, self.streams.origins(storage, lengths))


class TensorDictRoundRobinWriter(RoundRobinWriter):
    """A `RoundRobinWriter` that adds the place of each frame under `"index"` when data are read or sampled."""

    tells_index = True


class ImmutableDatasetWriter(Writer):
    """Refuses to write: for data that must not change."""

    def write(self, storage: Storage, data: Any, lengths: Sequence[int]) -> Tensor:
        """Raise OptionError: this writer never writes.

        Raises:
            OptionError: always.
        """
        raise OptionError(
            "replay buffer: its writer is an ImmutableDatasetWriter, which writes nothing; set_writer(...) another"
        )
