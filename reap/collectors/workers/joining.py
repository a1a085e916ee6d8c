"""`Joining`: the requests with which a newly launched worker joins the others.

    launched, DescribeWorker --> (AttachSlot) --> AttachWeights --> ConnectBuffer --> Seed --> joined

`JoinAtOnce` waits for the replies, and no worker delivers meanwhile. `JoinLater` handles them as they arrive, among the
others' replies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from contextlib import suppress
from typing import Protocol, TypeVar

from reap.workers.base import Reply, WorkerGroup

Joining = Generator[None, Reply, None]
"""A generator that makes a request before each `yield` and receives its reply; the first request is made at launch."""

T = TypeVar("T")


class Joins(Protocol):
    """Makes workers join.

    Attributes:
        under_way: workers that have not joined yet.
    """

    @property
    def under_way(self) -> Collection[int]:
        """Workers that have not joined yet."""
        ...

    def begin(self, group: WorkerGroup, worker: int, joining: Joining, then: Callable[[], T | None]) -> T | None:
        """Make a launched worker join.

        Args:
            group: the workers' group.
            worker: the worker's number.
            joining: makes the requests.
            then: called once it has joined.

        Returns:
            The result of `then`, if the worker has joined; None otherwise.
        """
        ...

    def step(self, worker: int, reply: Reply) -> object | None:
        """Handle a reply of a joining worker; return the result of `then` if the worker has now joined."""
        ...


class JoinAtOnce:
    """See `Joins`."""

    under_way: Collection[int] = ()

    def begin(self, group: WorkerGroup, worker: int, joining: Joining, then: Callable[[], T | None]) -> T | None:
        """Wait until a worker has joined."""
        wait_for(group, worker, joining)
        return then()

    def step(self, worker: int, reply: Reply) -> None:
        """No worker joins later."""


class JoinLater:
    """See `Joins`."""

    def __init__(self) -> None:
        self._under_way: dict[int, tuple[Joining, Callable[[], object | None]]] = {}

    @property
    def under_way(self) -> Collection[int]:
        """Workers that have not joined yet."""
        return self._under_way.keys()

    def begin(self, group: WorkerGroup, worker: int, joining: Joining, then: Callable[[], T | None]) -> None:
        """Handle the worker's replies from now on, and none of its predecessor's."""
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
