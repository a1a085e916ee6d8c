"""`Failures`: the failures of a group's workers, each raised once, and the workers that are down because of one.

add ---> down ---------------------> replaced
     `-> waiting ---> due: raised
                 `--> take_all: handed out together
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from contextlib import contextmanager

from reap.errors import WorkerError


class Failures:
    """The failures of workers.

    Attributes:
        down: the failure of each worker that has failed and is not replaced, whether it was raised or not.
    """

    def __init__(self) -> None:
        self.down: dict[int, WorkerError] = {}
        self._waiting: deque[WorkerError] = deque()
        self._only_of: int | None = None

    def add(self, failure: WorkerError) -> None:
        """Note that a worker is down; its failure waits to be raised."""
        self.down[failure.worker] = failure
        self._waiting.append(failure)

    def due(self) -> WorkerError | None:
        """The first failure that is to be raised now, which waits no longer; None if there is none."""
        for failure in self._waiting:
            if self._only_of in (None, failure.worker):
                self._waiting.remove(failure)
                return failure
        return None

    def take_all(self) -> list[WorkerError]:
        """The failures of all workers that are down; none of them waits any longer."""
        self._waiting.clear()
        return list(self.down.values())

    def check(self, worker: int) -> None:
        """Raise the failure of a worker that is down."""
        if failure := self.down.get(worker):
            raise failure

    def drop(self, worker: int) -> None:
        """Do not raise the failure of a worker that is about to be replaced."""
        self._waiting = deque(failure for failure in self._waiting if failure.worker != worker)

    def replaced(self, worker: int) -> None:
        """Note that another worker has been launched in this one's place."""
        self.down.pop(worker, None)

    @contextmanager
    def only_of(self, worker: int) -> Generator[None]:
        """Hold back the failures of other workers inside the `with` block; they are raised later."""
        self._only_of = worker
        try:
            yield
        finally:
            self._only_of = None
