"""The seam between a group and the place where its workers are.

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

A carrier moves messages and ends workers. Their order, their meaning, and the consequences of a failure are the group's.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from reap.workers.messages import Message, Outgoing
from reap.workers.progress import Progress

Out = TypeVar("Out", bound=Outgoing)

DROP_TIMEOUT = 1.0
"""Seconds for the workers of a group that nobody stopped: it is collected in the middle of something else."""


class Events(NamedTuple):
    """What a wait ended with; nothing of either kind if it took too long, or was ended by `wake`.

    Attributes:
        arrived: workers that have sent something.
        ended: workers that have ended; their last messages may not have been received yet.
    """

    arrived: Sequence[int]
    ended: Sequence[int]


class Carrier(Protocol[Out]):
    """Starts the workers of one group, carries messages to and from them, and ends them.

    One thread at a time uses it, except for `wake`. It holds no reference to its group. Ctrl-C may be raised in any of its
    methods: called again, they do what is left to do.
    """

    def launch(self, worker: int, spec: bytes) -> None:
        """Start a worker, perhaps in the place of one that was released; does not wait until it has its handler.

        Args:
            worker: its number.
            spec: a pickled `reap.workers.handler_spec.HandlerSpec`.
        """
        ...

    def outgoing(self, command: Any, fds: Sequence[int]) -> Out:
        """A command that has not been sent yet.

        Args:
            command: anything that can be pickled (`reap.workers.pickling`).
            fds: descriptors of this process that go with it; a carrier to elsewhere refuses them.

        Raises:
            OptionError: it cannot be sent.
        """
        ...

    def send(self, worker: int, outgoing: Out) -> bool:
        """Send what can be sent of a command without waiting.

        Returns:
            Whether all of it has left. If not, `wait` returns once there is room for more, or the worker has ended.
        """
        ...

    def receive(self, worker: int) -> Message | None:
        """The next message of a worker if all of it has arrived: the same one until it is accepted."""
        ...

    def accept(self, worker: int) -> None:
        """The message that `receive` returned is kept elsewhere: go on to the next."""
        ...

    def wait(self, timeout: float) -> Events:
        """Wait until something has happened; it is reported again until it is received.

        Args:
            timeout: seconds; -1 for any time.
        """
        ...

    def wake(self) -> None:
        """Have the wait under way, and every later one, return at once; from any thread."""
        ...

    def fileno(self) -> int:
        """A descriptor that is readable when `wait` would return at once."""
        ...

    def exit_code(self, worker: int) -> int | None:
        """Why a worker ended, as multiprocessing has it; None if that cannot be known."""
        ...

    def place(self, worker: int) -> str:
        """Where a person finds a worker, for messages: `"pid 4711"`."""
        ...

    def progress(self, worker: int) -> Progress | None:
        """How far a worker has come, also after it has ended; None if that cannot be seen from here."""
        ...

    def stop_early(self, worker: int) -> None:
        """Ask a worker to end the command under way with the column that it is at."""
        ...

    def clear(self, worker: int) -> None:
        """Forget the column that a worker is at, and what `stop_early` asked for."""
        ...

    def clear_published(self, worker: int) -> None:
        """Count what a worker publishes from zero."""
        ...

    def release(self, worker: int) -> None:
        """Report nothing more of a worker."""
        ...

    def kill(self, workers: Iterable[int]) -> None:
        """End these workers at once, wait until they are gone, and free what they used here."""
        ...

    def end_all(self, timeout: float) -> None:
        """Have all workers close their handlers and end; those that are there after `timeout` seconds are killed."""
        ...

    def close(self) -> None:
        """Free what the carrier itself uses; its workers have ended."""
        ...


def end(carrier: Carrier[Any], timeout: float) -> None:
    """End all workers, and free what the carrier uses."""
    try:
        carrier.end_all(timeout)
    finally:
        carrier.close()


def drop(carrier: Carrier[Any], owner: int) -> None:
    """End the workers of a group that was dropped, in the process that launched them."""
    if os.getpid() == owner:
        end(carrier, DROP_TIMEOUT)
