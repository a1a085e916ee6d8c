"""One-hot rows of a choice: views of one band of zeros with a single 1, so that they cost O(n) and not O(n²)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from reap.recording.layout import Array


@lru_cache(maxsize=32)
def one_hot_rows(count: int) -> tuple[Array, ...]:
    """The read-only one-hot vectors of length `count`, int64, shared by all envs.

    Example:
        >>> one_hot_rows(3)[1]
        array([0, 1, 0])
    """
    band = np.zeros(2 * count - 1, np.int64)
    band[count - 1] = 1
    return tuple(np.lib.stride_tricks.sliding_window_view(band, count)[::-1])
