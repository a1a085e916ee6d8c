"""`Background`: collects in a thread, rollout by rollout, until it is told to stop, its budget is used up, or it fails.

thread      wait while paused -> busy -> step (collect and write) -> not busy -> ...
pause()     asks for a pause and returns when the thread is not busy: no write is in flight then
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Condition, Thread


class Background:
    """Calls a step again and again in a thread of its own.

    Args:
        step: does a piece of work; returns whether there is more to do.
        name: the thread's name.
    """

    def __init__(self, step: Callable[[], bool], name: str) -> None:
        self._step = step
        self._state = Condition()
        self._pauses = 0
        self._is_busy = self._is_stopped = False
        self._error: BaseException | None = None
        # A daemon: the end of the interpreter does not wait for a rollout.
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether the thread works, or waits in a pause."""
        return self._thread.is_alive()

    def raise_error(self) -> None:
        """Raise, once, the exception that ended the thread."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    @contextmanager
    def pause(self) -> Generator[None]:
        """No step is under way in the body."""
        with self._state:
            self._pauses += 1
            self._state.wait_for(lambda: not self._is_busy)
        try:
            yield
        finally:
            with self._state:
                self._pauses -= 1
                self._state.notify_all()

    def stop(self, timeout: float | None = None) -> bool:
        """Stop behind the present step; return whether the thread has ended.

        Args:
            timeout: seconds to wait for that; None waits until it has.
        """
        with self._state:
            self._is_stopped = True
            self._state.notify_all()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while self._may_go_on() and self._step():
                self._rest()
        except BaseException as error:  # noqa: BLE001  it is raised in the caller's thread
            self._error = error
        finally:
            self._rest()

    def _may_go_on(self) -> bool:
        with self._state:
            self._state.wait_for(lambda: self._is_stopped or not self._pauses)
            self._is_busy = not self._is_stopped
            return self._is_busy

    def _rest(self) -> None:
        with self._state:
            self._is_busy = False
            self._state.notify_all()
