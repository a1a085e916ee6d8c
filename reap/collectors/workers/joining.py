"""`Joining`: the requests by which a worker that was launched becomes one of the others, and who waits for them.

    launched, DescribeWorker --> (AttachSlot) --> AttachWeights --> ConnectBuffer --> Seed --> joined

`JoinAtOnce` waits for the replies: nobody delivers meanwhile. `JoinLater` takes them among those of others, as they come.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from contextlib import suppress
from typing import Protocol, TypeVar

from reap.workers.base import Reply, WorkerGroup

Joining = Generator[None, Reply, None]
"""Makes a request before each `yield`, and is sent its reply; the first is made where the worker is launched."""

T = TypeVar("T")


class Joins(Protocol):
    """Has workers join.

    Attributes:
        under_way: workers that have not joined yet.
    """

    @property
    def under_way(self) -> Collection[int]:
        """As above."""
        ...

    def begin(self, group: WorkerGroup, worker: int, joining: Joining, then: Callable[[], T | None]) -> T | None:
        """Have a worker join that was launched.

        Args:
            group: of the workers.
            worker: its number.
            joining: makes the requests.
            then: called once it has joined.

        Returns:
            The result of `then`, if the worker has joined; None otherwise.
        """
        ...

    def step(self, worker: int, reply: Reply) -> object | None:
        """Take a reply of a worker that is joining; the result of `then`, if it has joined with it."""
        ...


class JoinAtOnce:
    """See `Joins`."""

    under_way: Collection[int] = ()

    def begin(self, group: WorkerGroup, worker: int, joining: Joining, then: Callable[[], T | None]) -> T | None:
        """Wait until a worker has joined."""
        wait_for(group, worker, joining)
        return then()

    def step(self, worker: int, reply: Reply) -> None:
        """Nobody joins later."""


class JoinLater:
    """See `Joins`."""

    def __init__(self) -> None:
        self._under_way: dict[int, tuple[Joining, Callable[[], object | None]]] = {}

    @property
    def under_way(self) -> Collection[int]:
        """Workers that have not joined yet."""
        return self._under_way.keys()

    def begin(self, group: WorkerGroup, worker: int, joining: Joining, then: Callable[[], T | None]) -> None:
        """Take its replies from now on, and none of the worker before it."""
        next(joining)
        self._under_way[worker] = joining, then

    def step(self, worker: int, reply: Reply) -> object | None:
        """Make the next request; see `Joins`."""
        joining, then = self._under_way[worker]
        try:
            joining.send(reply)
        except StopIteration:
            del self._under_way[worker]
            return then()
        return None


def wait_for(group: WorkerGroup, worker: int, joining: Joining) -> None:
    """Wait until a worker has joined."""
    next(joining)
    with suppress(StopIteration):
        while True:
            joining.send(group.ready([worker])[1])
