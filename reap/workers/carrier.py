"""`Carrier`: the interface between a group and the place where its workers run.

    Group                                   Carrier                               worker (reap.workers.serve)
      | launch(worker, spec)                   |                                      |
      |--------------------------------------->|------------ starts ----------------->| makes its handler
      | send(worker, outgoing)                 |                                      |
      |--------------------------------------->|------------ command ---------------->|
      | wait() -> who sent, who ended          |                                      |
      |<---------------------------------------|<----------- message -----------------| STARTED, REPLY, RAISED
      | receive(worker) -> message             |                                      |
      | accept(worker): it is kept             |                                      |
      | exit_code(worker), kill, end_all       |                                      |

A carrier moves messages and ends workers. The group handles their order and meaning, and the consequences of failures.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from reap.system.interrupts import deferring_interrupts
from reap.workers.messages import Message, Outgoing
from reap.workers.progress import Progress

Out = TypeVar("Out", bound=Outgoing)

DROP_TIMEOUT = 1.0
"""Seconds that workers have to end when their group is garbage-collected without `stop`."""


class Events(NamedTuple):
    """The result of a wait; empty after a timeout or `wake`.

    Attributes:
        arrived: workers that have sent something.
        ended: workers that have ended; their last messages may not have been received yet.
    """

    arrived: Sequence[int]
    ended: Sequence[int]


class Carrier(Protocol[Out]):
    """Starts the workers of one group, carries their messages, and ends them.

    Except for `wake`, it is used by one thread at a time. It holds no reference to its group. Ctrl-C may be raised in any of
    its methods; called again, they finish the interrupted work.
    """

    def launch(self, worker: int, spec: bytes) -> None:
        """Start a worker, perhaps in the place of a released one; does not wait for its handler.

        Args:
            worker: the worker's number.
            spec: a pickled `reap.workers.handler_spec.HandlerSpec`.
        """
        ...

    def outgoing(self, command: Any, fds: Sequence[int]) -> Out:
        """Prepare a command for sending.

        Args:
            command: anything that can be pickled (`reap.workers.pickling`).
            fds: descriptors of this process to send along; carriers to other machines refuse them.

        Raises:
            OptionError: the command cannot be sent.
        """
        ...

    def send(self, worker: int, outgoing: Out) -> bool:
        """Send as much of a command as possible without waiting.

        Returns:
            Whether all of it has been sent. If not, `wait` returns once there is room for more, or the worker has ended.
        """
        ...

    def receive(self, worker: int) -> Message | None:
        """The next complete message of a worker, or None; the same one until it is accepted."""
        ...

    def accept(self, worker: int) -> None:
        """Acknowledge the message that `receive` returned, and move on to the next."""
        ...

    def wait(self, timeout: float) -> Events:
        """Wait for events; each is reported again until it has been received.

        Args:
            timeout: seconds; -1 for no limit.
        """
        ...

    def wake(self) -> None:
        """Make the current wait, and every later one, return at once; callable from any thread."""
        ...

    def fileno(self) -> int:
        """A descriptor that is readable when `wait` would return immediately."""
        ...

    def exit_code(self, worker: int) -> int | None:
        """A worker's exit code, as in multiprocessing; None if unknown."""
        ...

    def place(self, worker: int) -> str:
        """The location of a worker, for messages to people: `"pid 4711"`."""
        ...

    def progress(self, worker: int) -> Progress | None:
        """A worker's progress, also after its end; None if it is not visible from here."""
        ...

    def stop_early(self, worker: int) -> None:
        """Ask a worker to end its current command with the current column."""
        ...

    def clear(self, worker: int) -> None:
        """Reset a worker's column, and cancel a pending `stop_early`."""
        ...

    def clear_published(self, worker: int) -> None:
        """Reset the count of items that a worker has published."""
        ...

    def release(self, worker: int) -> None:
        """Stop reporting events of a worker."""
        ...

    def kill(self, workers: Iterable[int]) -> None:
        """End these workers at once, wait until they are gone, and free their resources here."""
        ...

    def end_all(self, timeout: float) -> None:
        """Ask all workers to close their handlers and end; kill those still running after `timeout` seconds."""
        ...

    def close(self) -> None:
        """Free the carrier's own resources; its workers have ended."""
        ...


def launch(carrier: Carrier[Any], worker: int, spec: bytes) -> None:
    """Launch a worker. Ctrl-C comes before or after it: nobody would end a process that is not known yet."""
    with deferring_interrupts():
        carrier.launch(worker, spec)


def end(carrier: Carrier[Any], timeout: float) -> None:
    """End all workers, and free the carrier's resources."""
    try:
        carrier.end_all(timeout)
    finally:
        carrier.close()


def drop(carrier: Carrier[Any], owner: int) -> None:
    """End the workers of a dropped group, if this process launched them."""
    if os.getpid() == owner:
        end(carrier, DROP_TIMEOUT)
