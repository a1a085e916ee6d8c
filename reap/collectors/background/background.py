"""`Background`: collects in a thread, rollout by rollout, until it is stopped, its budget is used up, or it fails.

    thread      wait while paused -> busy -> step (collect and write) -> not busy -> wait while ahead of the learner -> ...
    pause()     requests a pause and returns once the thread is not busy, so that no write is in flight

The thread keeps nothing alive: it ends when the collector whose step it calls is dropped, or when the interpreter exits.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Generator
from contextlib import contextmanager
from enum import Enum, auto
from threading import Condition, Thread, current_thread
from time import monotonic
from weakref import WeakMethod

from reap.collectors.delivery.throttle import Throttle
from reap.errors import ClosedError, add_note
from reap.system.forks import Forked, References
from reap.system.interrupts import deferring_interrupts

EXIT_SECONDS = 5.0
"""How long interpreter exit waits for rollouts in progress: a thread in native code could crash it."""
LOOK_AGAIN = 0.5
"""Seconds after which a paused thread checks whether the pause still exists: Ctrl-C can interrupt it before it is released."""


class BackgroundState(Enum):
    """What the thread is doing."""

    IDLE = auto()
    HELD = auto()
    BUSY = auto()
    ENDED = auto()


class Pause:
    """A pause of a thread. It lasts as long as this object is referenced."""

    is_over = False


_forked: Forked[Background] = Forked(lambda background: background.restart())


class Background:
    """Calls a step again and again in a thread of its own.

    Args:
        step: a method that does one unit of work and returns whether there is more; its object is not kept alive.
        name: the thread's name.
        throttle: may hold the thread between two steps.
    """

    def __init__(self, step: Callable[[], bool], name: str, throttle: Throttle | None = None) -> None:
        self._step = WeakMethod(step)
        self._throttle = Throttle() if throttle is None else throttle
        self._changed = Condition()
        self._doing = BackgroundState.IDLE
        self._is_stopped = False
        self._pauses: References[Pause] = References()
        self._error: BaseException | None = None
        self._afterwards: Callable[[], None] | None = None
        # A daemon: the end of the interpreter does not wait for it without a limit.
        self._thread = Thread(target=self._run, name=name, daemon=True)
        _forked.add(self)

    def restart(self) -> None:
        """Forget the thread, which does not exist in a forked child."""
        self._changed, self._doing = Condition(), BackgroundState.ENDED
        self._error = ClosedError("this collector works in the background of another process: make one in its fork")

    def start(self) -> None:
        """Start the thread."""
        _RUNNING.add(self)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether the thread is working or paused."""
        # Not whether the thread is alive: of one that was asked and interrupted Python 3.11 says no forever.
        return self._thread.ident is not None and self._doing is not BackgroundState.ENDED

    @property
    def is_abandoned(self) -> bool:
        """Whether the caller stopped waiting for the current step, so that its result is unwanted."""
        return self._afterwards is not None

    @property
    def is_this_thread(self) -> bool:
        """Whether the caller runs in this background thread."""
        return current_thread() is self._thread

    def raise_error(self) -> None:
        """Raise, once, the exception that ended the thread."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def note_sampled(self, frames: int) -> None:
        """Note that the learner has sampled more frames."""
        self._throttle.note_sampled(frames)

    @contextmanager
    def pause(self) -> Generator[None]:
        """No step runs inside the `with` block. In the thread itself, which would wait for its own step, this does nothing.

        The thread gets to run between two pauses, however soon the second one follows.

        Raises:
            Exception: raised by the step that this call waited for.
        """
        if self.is_this_thread:
            yield
            return
        pause = Pause()
        try:
            with self._changed:
                self._changed.wait_for(lambda: self._is_paused or self._doing is not BackgroundState.HELD)
                self._pauses.add(pause)
                self._changed.wait_for(lambda: self._doing is not BackgroundState.BUSY)
            self.raise_error()
            yield
        finally:
            pause.is_over = True
            with deferring_interrupts(), self._changed:
                self._changed.notify_all()

    @property
    def _is_paused(self) -> bool:
        return not all(pause.is_over for pause in self._pauses.alive())

    def stop(self, timeout: float | None, afterwards: Callable[[], None]) -> None:
        """Stop after the current step.

        Args:
            timeout: seconds to wait for that step; None waits without limit.
            afterwards: called once the thread has ended: here, or in the thread if that takes longer than `timeout`.
        """
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        self._throttle.wake()
        if not self.is_this_thread:
            self._thread.join(timeout)
        with self._changed:
            if self._doing is not BackgroundState.ENDED:
                self._afterwards = afterwards
                return
        afterwards()

    def _run(self) -> None:
        try:
            while self._may_go_on() and self._take_step():
                self._rest()
                self._throttle.wait()
        except BaseException as error:  # noqa: BLE001  it is raised in the caller's thread
            add_note(error, f"reap: raised in the background, in the thread of {self._thread.name}()")
            if not self.is_abandoned:
                self._error = error
        finally:
            self._rest()
            self._end()

    def _may_go_on(self) -> bool:
        with self._changed:
            self._doing = BackgroundState.HELD if self._is_paused else BackgroundState.IDLE
            while not self._changed.wait_for(lambda: self._is_stopped or not self._is_paused, LOOK_AGAIN):
                pass
            self._doing = BackgroundState.IDLE if self._is_stopped else BackgroundState.BUSY
            self._changed.notify_all()
            return not self._is_stopped

    def _take_step(self) -> bool:
        step = self._step()
        return step is not None and step()

    def _rest(self) -> None:
        with self._changed:
            self._doing = BackgroundState.IDLE
            self._changed.notify_all()

    def _end(self) -> None:
        with self._changed:
            self._doing = BackgroundState.ENDED
            afterwards = self._afterwards
        if afterwards is not None:
            afterwards()


_RUNNING: References[Background] = References()


@atexit.register
def _stop_all() -> None:
    deadline = monotonic() + EXIT_SECONDS
    for background in _RUNNING.alive():
        background.stop(max(0.0, deadline - monotonic()), lambda: None)
