"""`SampleNotes`: counts samples of a buffer, and computes the ages of the frames in the last one.

Noting a sample costs two additions and a reference to its index. Ages are computed from these on request:

    columns   ... | oldest | ... | c | ... | claimed - 1      when the sample was drawn
                                   |<----- age ------>|       columns written after c, times the rows of each
"""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import Any

import torch
from torch import Tensor

from reap.data.buffers.prefetch import Sample
from reap.data.storages.base import Storage

Stats = dict[str, int | float | bool]

UNKNOWN = torch.empty(0, dtype=torch.int64)
"""The ages without a sample, or if they are unknown."""

AGES = "sample_age_mean", "sample_age_min", "sample_age_max"


class SampleNotes:
    """Counts of the samples taken from a buffer in this process; copies of the buffer count separately."""

    def __init__(self) -> None:
        self._samples, self._frames = 0, 0
        self._index: Any = None
        self._claimed = 0

    def note(self, sample: Sample) -> None:
        """Note a sample."""
        index = sample.info["index"]
        self._index = index[-1] if isinstance(index, tuple) else index
        self._samples += 1
        self._frames += self._index.numel()
        self._claimed = sample.claimed

    def forget_ages(self) -> None:
        """Forget the last sample, which came from a replaced storage."""
        self._claimed = 0

    def counts(self) -> Stats:
        """Samples and frames so far."""
        return {"samples": self._samples, "sampled_frames": self._frames}

    def ages(self, storage: Storage) -> Tensor:
        """Frames written between each frame of the last sample and the sample, `[n]`; empty if that is unknown."""
        if not self._claimed:
            return UNKNOWN
        last = self._claimed - 1
        return (last - self._index.reshape(-1)) % storage.ring.capacity * storage.rows

    def __reduce__(self) -> tuple[type[SampleNotes], tuple[()]]:
        return SampleNotes, ()


def age_stats(ages: Tensor) -> Stats:
    """Mean, minimum and maximum age; NaN if there are none.

    Example:
        >>> age_stats(torch.tensor([0, 3]))
        {'sample_age_mean': 1.5, 'sample_age_min': 0, 'sample_age_max': 3}
    """
    values = (ages.double().mean().item(), ages.min().item(), ages.max().item()) if len(ages) else (nan, nan, nan)
    return dict(zip(AGES, values, strict=True))


def summed(members: Sequence[Stats], ages: Sequence[Tensor], counts: Stats) -> Stats:
    """The statistics of an ensemble.

    Args:
        members: the statistics of its buffers.
        ages: the ages of each buffer's last sample.
        counts: its own counts of samples.
    """
    size, written = sum(one["size"] for one in members), sum(one["write_count"] for one in members)
    capacity = sum(one.get("capacity", 0) for one in members)
    return {
        "size": size,
        "capacity": capacity,
        "utilization": size / capacity if capacity else 0.0,
        "write_count": written,
        "initialized": all(one["initialized"] for one in members),
        **counts,
        **age_stats(torch.cat(list(ages))),
    }
