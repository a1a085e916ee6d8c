"""`ray_group`: workers in Ray actors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from reap.workers.base import MakeHandler
from reap.workers.handler_spec import HandlerSpecs
from reap.workers.process_context import RemoteContext
from reap.workers.ray.carrier import RayCarrier
from reap.workers.ray.cluster import Cluster
from reap.workers.remote.group import RemoteGroup


class RayGroup(RemoteGroup):
    """A group of handlers, each in a Ray actor; see `reap.workers.group.Group`."""

    carrier: RayCarrier  # pyright: ignore[reportIncompatibleVariableOverride]  it stays the one it was made with


def ray_group(
    make_handlers: Sequence[MakeHandler],
    *,
    cluster: Cluster,
    options: Sequence[Mapping[str, Any]] = ({},),
    needed: int | None = None,
    phases: Sequence[str] = ("working",),
    name: str = "",
    setup: Sequence[Callable[[], Any]] = (),
    stall_after: float | None = 60.0,
    on_failure: Literal["terminate", "report"] = "terminate",
) -> RayGroup:
    """Make a group of handlers in Ray actors.

    Args:
        make_handlers: one per worker, called in its actor.
        cluster: the connection to Ray.
        options: options of the actors, one dict for each worker; workers added later use the last one.
        needed: number of workers that must run before any command is sent; None for all.
        phases: names of phases, for error messages.
        name: the name of the group.
        setup: called in each actor before its handler is made.
        stall_after: seconds after which a warning names workers that have made no progress; None never warns.
        on_failure: whether an exception or death of a worker ends all workers (`"terminate"`) or only itself (`"report"`).
    """
    specs = HandlerSpecs(name, setup, RemoteContext.capture())
    make_carrier = partial(RayCarrier, cluster, options, len(make_handlers) if needed is None else needed)
    return RayGroup(make_handlers, make_carrier, specs, phases=phases, stall_after=stall_after, on_failure=on_failure)
