"""`Reading`: the state of a ring when a reader started, which later tells which frames must be read again."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Reading(NamedTuple):
    """The state of a ring when a reader started.

    Attributes:
        claimed: number of columns claimed by then.
        edits: number of in-place changes by then.
        writing: first column and number of columns of each write in progress or aborted.
    """

    claimed: int
    edits: int
    writing: tuple[tuple[int, int], ...]

    def touched(self, columns: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these columns `[...]` were being written then, or were claimed since, as a mask `[...]`."""
        bad = columns >= self.claimed
        for start, count in self.writing:
            # Not those of a dead writer that were overwritten in the next round.
            bad |= (columns >= start) & (columns < start + count)
        return bad
