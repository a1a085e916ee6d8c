"""`rpc_group`: handlers in processes that call this one by torch.distributed.rpc."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from reap.workers.base import MakeHandler
from reap.workers.handler_spec import HandlerSpecs
from reap.workers.launchers.base import Launcher
from reap.workers.launchers.mp import MpLauncher
from reap.workers.remote.group import RemoteGroup
from reap.workers.rpc.carrier import RpcCarrier, RpcOptions


def rpc_group(
    make_handlers: Sequence[MakeHandler],
    *,
    phases: Sequence[str] = ("working",),
    name: str = "",
    setup: Sequence[Callable[[], Any]] = (),
    stall_after: float | None = 60.0,
    on_failure: Literal["terminate", "report"] = "terminate",
    launcher: Launcher | None = None,
    options: RpcOptions | None = None,
) -> RemoteGroup:
    """A group of handlers, each in a process that calls this one; see `reap.workers.group.Group`.

    Args:
        make_handlers: one per worker, called in the worker.
        phases: names of phases, for error messages.
        name: the name of the workers' processes.
        setup: called in each worker before its handler is made.
        stall_after: seconds after which a warning names workers that have made no progress; None never warns.
        on_failure: whether a failure ends all workers (`"terminate"`) or only itself (`"report"`).
        launcher: starts the processes; None starts them on this machine.
        options: how they are reached.

    Example:
        >>> class Doubler:
        ...     def handle(self, command):
        ...         return 2 * command
        ...
        ...     def close(self): ...
        >>> workers = rpc_group([lambda worker, control: Doubler()])
        >>> workers.request(0, 21)
        >>> workers.ready({0})
        (0, 42)
        >>> workers.stop()
    """
    started_by = launcher or MpLauncher()
    specs = HandlerSpecs(name, setup, started_by.context)

    def carrier(_workers: int) -> RpcCarrier:
        return RpcCarrier(started_by, options or RpcOptions(), name)

    return RemoteGroup(make_handlers, carrier, specs, phases=phases, stall_after=stall_after, on_failure=on_failure)
