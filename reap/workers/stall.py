"""Warns of workers that have made no progress for some time. A slow worker may still be alive, so it only warns."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from reap.errors import OptionError

LOOK_EVERY = 1.0


def checked_seconds(stall_after: Any) -> float | None:
    """The option `stall_after`.

    Raises:
        OptionError: it is neither a positive number of seconds nor None.
    """
    is_number = isinstance(stall_after, int | float) and not isinstance(stall_after, bool)
    if stall_after is not None and not (is_number and stall_after > 0):
        raise OptionError(f"stall_after: expected a positive number of seconds or None, got {stall_after!r}")
    return stall_after


@dataclass
class _Seen:
    progress: Any
    since: float
    warn_at: float


class StallWatch:
    """Warns of workers whose progress has not changed while they were waited for.

    Args:
        after: seconds until the first warning, doubled for each further one; None never warns.
        progress: returns a worker's progress as a comparable value; equal values mean no progress.

    Attributes:
        timeout: seconds that a wait may last before the next `check`; -1 for no limit.
    """

    def __init__(self, after: float | None, progress: Callable[[int], Any]) -> None:
        self._after = math.inf if after is None else after
        self._every = min(LOOK_EVERY, self._after)
        self._progress = progress
        self._next = 0.0 if after is not None else math.inf
        self._seen: dict[int, _Seen] = {}
        self.timeout = -1 if after is None else self._every

    def moved(self, worker: int) -> None:
        """Note that this worker has replied."""
        self._seen.pop(worker, None)

    def check(self, awaited: Collection[int], describe: Callable[[int], tuple[str, str]]) -> None:
        """Check these workers, and warn of those that have made no progress.

        Args:
            awaited: the workers being waited for.
            describe: returns what a worker is doing (empty if unknown) and its location, such as `"env.step"` and `"pid 4711"`.
        """
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self._every / 2  # a wait that lasts its full time is followed by a look
        for worker in awaited:
            progress = self._progress(worker)
            seen = self._seen.get(worker)
            if seen is None or seen.progress != progress:
                self._seen[worker] = _Seen(progress, now, self._after)
            elif now - seen.since >= seen.warn_at:
                seen.warn_at *= 2
                phase, place = describe(worker)
                doing = f"in {phase}" if phase else "at work"
                elapsed = f"{now - seen.since:.{0 if self._after >= 1 else 2}f}"
                warnings.warn(f"worker {worker} has been {doing} for {elapsed} s ({place})", RuntimeWarning, stacklevel=3)
