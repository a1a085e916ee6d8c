"""What a worker is told when it starts, and how it is written down."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from reap.workers import process_context as surroundings
from reap.workers.base import Handler
from reap.workers.pickling import dumps

MakeHandler = Callable[[int, memoryview], Handler]


@dataclass(frozen=True)
class Start:
    """What a worker is to be; the bytes are pickles that can be loaded once the surroundings are restored."""

    worker: int
    workers: int
    control_ints: int
    name: str
    surroundings: surroundings.Surroundings
    setup: bytes
    make_handler: bytes


class Starter:
    """Writes the starts of a group's workers; the surroundings are those at construction.

    Args:
        workers: number of workers.
        control_ints: int32 per worker.
        name: of the workers' processes.
        setup: called in each child before its handler is made.
    """

    def __init__(self, workers: int, control_ints: int, name: str, setup: Sequence[Callable[[], Any]]) -> None:
        self._workers = workers
        self._control_ints = control_ints
        self._name = name
        self._setup = dumps(list(setup), "setup")
        self._surroundings = surroundings.capture()

    def starts(self, make_handlers: Sequence[MakeHandler], first: int = 0) -> list[bytes]:
        """The pickled starts of workers `first`, `first + 1`, ...

        Raises:
            OptionError: a handler cannot be pickled.
        """
        pickles: dict[int, bytes] = {}
        for make_handler in make_handlers:
            if id(make_handler) not in pickles:
                pickles[id(make_handler)] = dumps(make_handler, "make_handler")
        return [self._start(worker, pickles[id(make)]) for worker, make in enumerate(make_handlers, first)]

    def _start(self, worker: int, make_handler: bytes) -> bytes:
        start = Start(worker, self._workers, self._control_ints, self._name, self._surroundings, self._setup, make_handler)
        return pickle.dumps(start)
