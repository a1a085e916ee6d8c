"""`ProcessGroup`: workers in child processes on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from reap.workers.base import MakeHandler
from reap.workers.group import Group
from reap.workers.handler_spec import HandlerSpecs
from reap.workers.process_context import ProcessContext
from reap.workers.processes.carrier import ProcessCarrier


class ProcessGroup(Group):
    """A group of handlers, each in a child process; see `reap.workers.group.Group`.

    Args:
        make_handlers: one per worker, called in the child with the worker's number and its control ints, which are shared.
        phases: names of phases, for error messages; the handler writes an index of them to `control[PHASE]`.
        name: the name of the workers' processes in ps and top.
        setup: called in each child before its handler is made.
        stall_after: seconds after which a warning names workers that have made no progress; None never warns.
        on_failure: whether an exception or death of a worker ends all workers (`"terminate"`) or only itself (`"report"`).

    Attributes:
        size: number of workers.
        carrier: carries messages to the processes.

    Example:
        >>> class Doubler:
        ...     def handle(self, command):
        ...         return 2 * command
        ...
        ...     def close(self): ...
        >>> workers = ProcessGroup([lambda worker, control: Doubler()] * 2)
        >>> workers.request(1, 21)
        >>> workers.ready({0, 1})
        (1, 42)
        >>> workers.stop()
    """

    carrier: ProcessCarrier

    def __init__(
        self,
        make_handlers: Sequence[MakeHandler],
        *,
        phases: Sequence[str] = ("working",),
        name: str = "",
        setup: Sequence[Callable[[], Any]] = (),
        stall_after: float | None = 60.0,
        on_failure: Literal["terminate", "report"] = "terminate",
    ) -> None:
        specs = HandlerSpecs(name, setup, ProcessContext.capture())
        super().__init__(make_handlers, ProcessCarrier, specs, phases=phases, stall_after=stall_after, on_failure=on_failure)

    @property
    def pids(self) -> list[int]:
        """The workers' process ids."""
        return self.carrier.pids
