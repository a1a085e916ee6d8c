"""`BufferFace`: further methods of torchrl's buffers, which build on others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from reap.data.buffers.assembly import Assembly
from reap.data.buffers.one_by_one import OneByOne
from reap.data.buffers.sample_notes import UNKNOWN, age_stats
from reap.data.storages.edits.fitting import under_key
from reap.errors import OptionError
from reap.option_values import switch


class BufferFace(OneByOne, Assembly):
    """Methods that build on others."""

    def empty(self, empty_write_count: bool = True) -> None:
        """Remove all frames; memory is kept.

        Args:
            empty_write_count: also reset `write_count` to 0.

        Raises:
            OptionError: not a bool.
        """
        forgets = switch(empty_write_count, "empty_write_count")
        with self._without_prefetched():
            self._storage.ring.empty(forget_written=forgets)
            self._sampler.empty()
            self._writer.empty()

    def break_trajectories(self) -> None:
        """Let no trajectory continue into the next write of this process, because frames in between were lost."""
        self._writer.streams.restart()

    def can_sample(self, batch_size: int | None = None) -> bool:
        """Whether there are frames to sample.

        Args:
            batch_size: frames of the sample; that of the buffer if None.

        Raises:
            OptionError: no size is given, here or at construction.
        """
        size = batch_size if batch_size is not None else self.batch_size
        if size is None:
            raise OptionError("can_sample: expected a batch_size, here or where the buffer is made, got none")
        with self._lock:
            return self._sampler.can_sample(self._storage, size)

    def mark_update(self, index: Any) -> None:
        """Tell the sampler that these frames have been replaced; a prioritized one gives them the priority of new frames."""
        self._sampler.mark_update(index, storage=self._storage)

    def stats(self) -> dict[str, int | float | bool]:
        """Its size, capacity and counts, by name.

        `utilization` is the fraction of the capacity in use; `write_count` counts frames written since it was made or emptied;
        `samples` and `sampled_frames` count what this process has sampled. `sample_age_mean`, `_min` and `_max` are about the
        last sample: frames written between a frame and its sample, 0 for the newest. NaN before the first sample, and with
        a writer that replaces other frames than the oldest. (For a buffer of trajectories, read items for frames.)
        """
        if not self.initialized:
            return {"size": 0, "write_count": 0, "initialized": False}
        size, capacity = len(self), self._storage.max_size
        return {
            "size": size,
            "capacity": capacity,
            "utilization": size / capacity,
            "write_count": self._storage.ring.written,
            "initialized": True,
            **self.sampled.counts(),
            **age_stats(self._ages()),
        }

    def _ages(self) -> Tensor:
        """Ages of the frames in the last sample, `[n]`; empty if unknown."""
        return UNKNOWN if not self.initialized or self._writer.replaces else self.sampled.ages(self._storage)

    def read_all_in_order(self, end: int | None = None) -> Any:
        """All frames in storage order, or the first `end`."""
        return self[:] if end is None else self[:end]

    def write_all(self, data: Any, end: int | None = None) -> None:
        """Overwrite the first frames: as many as in the data, or `end`."""
        self[: len(data) if end is None else end] = data

    def set_(self, key: Any, value: Any) -> Self:
        """Overwrite the values of all frames under a key. Returns the buffer."""
        self[key] = value
        return self

    def set_at_(self, key: Any, value: Any, index: Any) -> Self:
        """Overwrite the values of the frames at an index under a key. Returns the buffer."""
        self[index] = under_key(key, value, self[index].batch_size)
        return self

    def update_(self, data: Mapping[Any, Any] | TensorDictBase) -> Self:
        """Overwrite the values of all frames under the keys of data. Returns the buffer."""
        self[:] = data if isinstance(data, TensorDictBase) else TensorDict(dict(data), self[:].batch_size)
        return self

    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError

    def __setitem__(self, index: Any, data: Any) -> None:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError
