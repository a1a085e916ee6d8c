"""Says who has not moved for long: slow is not dead, so nothing else comes of it."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass

LOOK_EVERY = 1.0


@dataclass
class _Seen:
    control: bytes
    since: float
    warn_at: float


class StallWatch:
    """Warns of workers whose control ints have stayed the same while somebody waited for them.

    Args:
        after: seconds until the first warning, doubled for each further one; None never warns.
        look: a worker's control ints now.
        describe: what a worker is doing and its pid: `"env.step"`, 4711.
    """

    def __init__(self, after: float | None, look: Callable[[int], bytes], describe: Callable[[int], tuple[str, int]]) -> None:
        self._after = math.inf if after is None else after
        self._every = min(LOOK_EVERY, self._after)
        self._look = look
        self._describe = describe
        self._seen: dict[int, _Seen] = {}

    @property
    def timeout(self) -> float:
        """Seconds that a wait may last before the next `check`; -1 for ever."""
        return -1 if self._after == math.inf else self._every

    def moved(self, worker: int) -> None:
        """This worker has replied."""
        self._seen.pop(worker, None)

    def check(self, awaited: Collection[int]) -> None:
        """Look at these workers, and warn of those that have not moved."""
        now = time.monotonic()
        for worker in awaited:
            control = self._look(worker)
            seen = self._seen.get(worker)
            if seen is None or seen.control != control:
                self._seen[worker] = _Seen(control, now, self._after)
            elif now - seen.since >= seen.warn_at:
                seen.warn_at *= 2
                phase, pid = self._describe(worker)
                elapsed = f"{now - seen.since:.{0 if self._after >= 1 else 1}f}"
                text = f"worker {worker} has been in {phase} for {elapsed} s (pid {pid})"
                warnings.warn(text, RuntimeWarning, stacklevel=3)
