"""`Prefetcher`: a thread that makes samples ahead, while the training loop works with the last one.

    the thread  -->  | being made | ready | ready |  -->  next()

If samples come in epochs, it makes none after the last of an epoch until the next one is requested, because the buffer may
hold other frames by then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from itertools import takewhile
from threading import Event, Lock, local
from typing import Any, NamedTuple
from weakref import WeakMethod

from reap.errors import CallOrderError
from reap.system.forks import Forked


class Sample(NamedTuple):
    """A sample of a buffer.

    Attributes:
        data: the frames.
        info: information about each frame.
        is_last: whether it completes an epoch.
        claimed: number of columns claimed in the buffer's ring when it was drawn; 0 if unknown.
    """

    data: Any
    info: dict[str, Any]
    is_last: bool
    claimed: int = 0


class _Thread(local):
    """The role of a thread."""

    makes_ahead = False


_thread = _Thread()


def is_ahead() -> bool:
    """Whether this thread makes samples ahead for another one."""
    return _thread.makes_ahead


def _begin_thread() -> None:
    _thread.makes_ahead = True


_forked: Forked[Prefetcher] = Forked(lambda prefetcher: prefetcher.restart())


class Prefetcher:
    """Samples made ahead, in order.

    Args:
        make: a method that makes a sample of a number of frames; its object is not kept alive.
        ahead: number of samples made ahead; with 0, only samples that were `put` here are returned ahead.
    """

    def __init__(self, make: Callable[[int], Sample], ahead: int) -> None:
        self._make, self._ahead = WeakMethod(make), ahead
        self._size = 0
        self._ready: deque[Future[Sample]] = deque()
        self._ended = Event()
        self._thread: ThreadPoolExecutor | None = None
        self._lock = Lock()
        _forked.add(self)

    def next(self, size: int) -> Sample:
        """The oldest sample; when this returns, `ahead` others are being made.

        Args:
            size: number of frames; if it differs from the last one, samples made ahead are dropped.

        Raises:
            Exception: an error that occurred while it was made; no sample is being made then.
        """
        if is_ahead():  # a transform of the sample that is made here samples too: this thread cannot wait for itself
            return _alive(self._make)(size)
        with self._lock:
            if size != self._size:
                self._drop()
                self._size = size
            try:
                sample = self._first()
            except BaseException:
                self._drop()
                raise
            if sample.is_last:
                self._ready.clear()
                self._ended = Event()
            else:
                self._fill(self._ahead)
            return sample

    def _first(self) -> Sample:
        """The oldest sample, except samples that failed before they were requested."""
        while self._ready:
            with suppress(CallOrderError):  # there was too little at that moment: all was being written, say
                return self._ready.popleft().result()
        if not self._ahead:
            return _alive(self._make)(self._size)
        self._fill(1)
        return self._ready.popleft().result()

    def restart(self) -> None:
        """Forget the thread and its unfinished sample, which do not exist in a forked child."""
        self._lock, self._thread, self._ended = Lock(), None, Event()
        self._ready.clear()

    def _fill(self, count: int) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "reap-prefetch", _begin_thread)
        while len(self._ready) < count:
            self._ready.append(self._thread.submit(_made, self._make, self._size, self._ended))

    @contextmanager
    def at_rest(self) -> Generator[None]:
        """Inside the `with` block no sample is started or being made."""
        with self._lock:
            wait(self._ready)
            yield

    def made(self) -> tuple[int, list[Sample]]:
        """Frames of a sample, and the samples made ahead, up to one that failed; while it is `at_rest`."""
        wanted = [sample for sample in self._ready if not isinstance(sample.exception(), CallOrderError)]
        done = takewhile(lambda sample: sample.exception() is None, wanted)
        return self._size, [made for sample in done if (made := sample.result())]

    def put(self, size: int, samples: Sequence[Sample]) -> None:
        """Replace the samples made ahead by these, of this number of frames; while it is `at_rest`."""
        self._drop()
        self._size = size
        for sample in samples:
            self._ready.append(Future())
            self._ready[-1].set_result(sample)
            if sample.is_last:
                self._ended.set()

    def close(self) -> None:
        """Drop the samples made ahead; no sample is being made when this returns."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        # None that is cancelled may stay where Ctrl-C comes in between, nor a thread that is not waited for.
        given_up, self._ready = self._ready, deque[Future[Sample]]()
        thread, self._thread, self._ended = self._thread, None, Event()
        for sample in given_up:
            sample.cancel()
        if thread is not None:
            thread.shutdown(wait=True)


def _made(make: WeakMethod[Callable[[int], Sample]], size: int, ended: Event) -> Any:
    """Make the next sample; none if the epoch ended before it, since nothing waits for it then."""
    if ended.is_set():
        return None
    sample = _alive(make)(size)
    if sample.is_last:
        ended.set()
    return sample


def _alive(make: WeakMethod[Callable[[int], Sample]]) -> Callable[[int], Sample]:
    method = make()
    if method is None:
        raise ReferenceError("the replay buffer is gone")
    return method
