"""`InlineGroup`: handlers in this process, called directly."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext

from reap.errors import ClosedError, WorkerError
from reap.system.bell import Bell
from reap.system.interrupts import interrupts_allowed
from reap.workers import progress
from reap.workers.base import Command, Handler, MakeHandler, Reply
from reap.workers.progress import PUBLISHED, STOP, STOP_EARLY, Control, Progress, new_control, progress_of


class InlineGroup:
    """Handlers in this process: a request is carried out immediately, and its exception propagates to the caller.

    So no worker of this group ever fails on its own: `failures` is empty, and `failures_only_of` changes nothing.

    Args:
        handlers: one per worker.
        controls: each handler's control ints, to which it writes its progress and in which it sees requests to stop; without
            them `progress` is unknown and `stop_early` has no effect.

    Attributes:
        size: number of workers.
    """

    def __init__(self, handlers: Sequence[Handler], controls: Sequence[Control] = ()) -> None:
        self.size = len(handlers)
        self._handlers = list(handlers)
        self._controls = dict(enumerate(controls))
        self._replies: deque[tuple[int, Reply]] = deque()
        self._bell: Bell | None = None
        self._is_stopped = False

    def replace_handler(self, worker: int, handler: Handler) -> None:
        """Replace a worker's handler, without closing the old one."""
        self._handlers[worker] = handler

    def request(self, worker: int, command: Command) -> None:
        """Carry out the command; Ctrl-C may interrupt it, like a wait for a worker elsewhere."""
        self._check_open()
        with interrupts_allowed():
            reply = self._handlers[worker].handle(command)
        self._replies.append((worker, reply))
        self._set_bell()

    def enqueue(self, worker: int, command: Command) -> None:
        """The same as `request`, since nothing has to be sent."""
        self.request(worker, command)

    def ready(self, among: Collection[int]) -> tuple[int, Reply]:
        """The earliest reply of these workers."""
        reply = self.poll(among)
        if reply is None:
            raise RuntimeError(f"no request is under way to workers {sorted(among)}")
        return reply

    def poll(self, among: Collection[int]) -> tuple[int, Reply] | None:
        """The earliest reply of these workers; None if there is none."""
        for index, (worker, _) in enumerate(self._replies):
            if worker in among:
                reply = self._replies[index]
                del self._replies[index]
                self._set_bell()
                return reply
        return None

    def abandon(self, workers: Collection[int]) -> None:
        """Drop the replies of these workers."""
        self._replies = deque(reply for reply in self._replies if reply[0] not in workers)
        self._set_bell()

    def fileno(self) -> int:
        """A descriptor that is readable while there is a reply."""
        self._check_open()
        if self._bell is None:
            self._bell = Bell()
            self._set_bell()
        return self._bell.fileno()

    def _set_bell(self) -> None:
        if self._bell is None:
            return
        self._bell.ring()
        if not self._replies:
            self._bell.clear()

    def progress(self, worker: int) -> Progress | None:
        """The progress that the handler has written to its control ints."""
        control = self._controls.get(worker)
        return None if control is None else progress_of(control)

    def stop_early(self, worker: int) -> None:
        """Ask the handler, from a hook or another thread, to end its current command."""
        if worker in self._controls:
            self._controls[worker][STOP] = STOP_EARLY

    def clear(self, worker: int) -> None:
        """Reset a handler's column, and cancel a pending `stop_early`."""
        if worker in self._controls:
            progress.clear(self._controls[worker])

    def clear_published(self, worker: int) -> None:
        """Reset the count of published items."""
        if worker in self._controls:
            self._controls[worker][PUBLISHED] = 0

    def failures(self) -> list[WorkerError]:
        """Empty: workers of this group do not fail on their own."""
        return []

    def failures_only_of(self, worker: int) -> AbstractContextManager[None]:
        """Do nothing: there are no failures to hold back."""
        return nullcontext()

    def expect_end(self, worker: int) -> None:
        """Do nothing: workers of this group do not leave."""

    def replace(self, worker: int, make_handler: MakeHandler) -> None:
        """Close a handler and make another one in its place."""
        self._check_open()
        self._handlers[worker].close()
        self.abandon([worker])
        self._controls[worker] = new_control()
        self._handlers[worker] = make_handler(worker, self._controls[worker])

    def withdraw(self, failure: WorkerError) -> None:
        """Raise the failure, which does not belong to this group."""
        raise failure

    def ensure_own(self) -> None:
        """Do nothing: a fork may use its copies of the handlers."""

    def stop(self, timeout: float | None = None) -> None:
        """Close the handlers."""
        if not self._is_stopped:
            self._is_stopped = True
            for handler in self._handlers:
                handler.close()

    def _check_open(self) -> None:
        if self._is_stopped:
            raise ClosedError("these workers are stopped")
