"""Says who has not moved for long: slow is not dead, so nothing else comes of it."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Collection, Sequence
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
        control: the control ints of each worker.

    Attributes:
        timeout: seconds that a wait may last before the next `check`; -1 for ever.
    """

    def __init__(self, after: float | None, control: Sequence[memoryview]) -> None:
        self._after = math.inf if after is None else after
        self._every = min(LOOK_EVERY, self._after)
        self._control = control
        self._next = 0.0 if after is not None else math.inf
        self._seen: dict[int, _Seen] = {}
        self.timeout = -1 if after is None else self._every

    def moved(self, worker: int) -> None:
        """This worker has replied."""
        self._seen.pop(worker, None)

    def check(self, awaited: Collection[int], describe: Callable[[int], tuple[str, int]]) -> None:
        """Look at these workers, and warn of those that have not moved.

        Args:
            awaited: the workers.
            describe: what a worker is doing, and its pid: `"env.step"`, 4711.
        """
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self._every / 2  # a wait that lasts its full time is followed by a look
        for worker in awaited:
            control = bytes(self._control[worker])
            seen = self._seen.get(worker)
            if seen is None or seen.control != control:
                self._seen[worker] = _Seen(control, now, self._after)
            elif now - seen.since >= seen.warn_at:
                seen.warn_at *= 2
                phase, pid = describe(worker)
                elapsed = f"{now - seen.since:.{0 if self._after >= 1 else 2}f}"
                warnings.warn(f"worker {worker} has been in {phase} for {elapsed} s (pid {pid})", RuntimeWarning, stacklevel=3)
