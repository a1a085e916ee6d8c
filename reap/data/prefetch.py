"""`Prefetcher`: a thread that makes samples ready ahead, while the training loop works with the last one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from weakref import WeakMethod

Sample = tuple[Any, dict[str, Any]]


class Prefetcher:
    """Samples that are made ahead, in the order in which they were asked for.

    Args:
        make: a method that makes a sample of so many frames; its object is not kept alive.
        ahead: how many are made ahead.
    """

    def __init__(self, make: Callable[[int], Sample], ahead: int) -> None:
        self._make, self._ahead = WeakMethod(make), ahead
        self._size: int | None = None
        self._ready: deque[Future[Sample]] = deque()
        self._thread: ThreadPoolExecutor | None = None

    def next(self, size: int) -> Sample:
        """The sample that was begun first; `ahead` others are under way when this returns.

        Args:
            size: frames; where it is another number than before, what was made ahead is dropped.

        Raises:
            Exception: what making it raised; nothing is under way then.
        """
        if size != self._size:
            self.close()
            self._size = size
        self._fill(size, 1)
        try:
            sample = self._ready.popleft().result()
        except BaseException:
            self.close()
            raise
        self._fill(size, self._ahead)
        return sample

    def _fill(self, size: int, count: int) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="reap-prefetch")
        while len(self._ready) < count:
            self._ready.append(self._thread.submit(_call, self._make, size))

    def close(self) -> None:
        """Drop what was made ahead."""
        for sample in self._ready:
            sample.cancel()
        self._ready.clear()
        if self._thread is not None:
            self._thread.shutdown(wait=True)
            self._thread = None


def _call(make: WeakMethod[Callable[[int], Sample]], size: int) -> Sample:
    method = make()
    if method is None:
        raise ReferenceError("the replay buffer is gone")
    return method(size)
