"""`HandlerSpec`: everything that a worker needs to make its handler, as bytes that any carrier can transport."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from reap.errors import add_note
from reap.workers.base import Handler, MakeHandler
from reap.workers.pickling import dumps
from reap.workers.process_context import Context
from reap.workers.progress import Control


@dataclass(frozen=True)
class HandlerSpec:
    """The instructions with which one worker makes its handler.

    Attributes:
        worker: the worker's number.
        name: the name of the group.
        context: the process context, restored before anything else is loaded.
        setup: functions to call first, pickled.
        make_handler: pickled.
    """

    worker: int
    name: str
    context: Context
    setup: bytes
    make_handler: bytes

    def make(self, control: Control) -> Handler:
        """Run the setup and make the handler.

        Args:
            control: the worker's ints.
        """
        try:
            setup = pickle.loads(self.setup)
            make_handler: MakeHandler = pickle.loads(self.make_handler)
        except Exception as error:
            add_note(
                error,
                "The worker could not load its handler. Workers import modules by name, with the sys.path of the process that "
                "made them; they never run __main__. For a module that only that process can import, call "
                "cloudpickle.register_pickle_by_value(module) first.",
            )
            raise
        for step in setup:
            step()
        return make_handler(self.worker, control)


class HandlerSpecs:
    """Writes the specs for a group's workers.

    Args:
        name: the name of the group.
        setup: functions called in each worker before its handler is made.
        context: the settings that each worker takes over from this process.
    """

    def __init__(self, name: str, setup: Sequence[Callable[[], Any]], context: Context) -> None:
        self._name = name
        self._setup = dumps(list(setup), "setup")
        self._context = context

    def written(self, make_handlers: Sequence[MakeHandler], first: int = 0) -> list[bytes]:
        """The pickled specs for workers `first`, `first + 1`, ...

        Raises:
            OptionError: a handler cannot be pickled.
        """
        pickles: dict[int, bytes] = {}
        for make_handler in make_handlers:
            if id(make_handler) not in pickles:
                pickles[id(make_handler)] = dumps(make_handler, "make_handler")
        return [self._written(worker, pickles[id(make)]) for worker, make in enumerate(make_handlers, first)]

    def _written(self, worker: int, make_handler: bytes) -> bytes:
        return pickle.dumps(HandlerSpec(worker, self._name, self._context, self._setup, make_handler))
