"""`gloo_group`: makes a group whose workers are reached by gloo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from reap.errors import OptionError
from reap.workers.base import MakeHandler
from reap.workers.gloo.carrier import GlooCarrier
from reap.workers.gloo.rendezvous import FileMeeting, Meeting, TcpMeeting, own_addresses
from reap.workers.handler_spec import HandlerSpecs
from reap.workers.launchers.base import Launcher
from reap.workers.remote.group import RemoteGroup


def gloo_group(
    make_handlers: Sequence[MakeHandler],
    launcher: Launcher,
    *,
    phases: Sequence[str] = ("working",),
    name: str = "",
    setup: Sequence[Callable[[], Any]] = (),
    stall_after: float | None = 60.0,
    on_failure: Literal["terminate", "report"] = "terminate",
    address: str | None = None,
    port: int | None = None,
    timeout: float = 60.0,
    lost_after: float = 20.0,
) -> RemoteGroup:
    """A group of handlers, each in a process that a launcher starts; see `reap.workers.group.Group`.

    Args:
        make_handlers: one per worker, called in the worker.
        launcher: starts the processes.
        phases: names of phases, for error messages.
        name: the name of the workers' processes.
        setup: called in each process before its handler is made.
        stall_after: seconds after which a warning names workers that have made no progress; None never warns.
        on_failure: whether an exception or death of a worker ends all workers (`"terminate"`) or only itself (`"report"`).
        address: of the interface by which workers on other machines reach this one; None finds it if there is only one.
        port: the port to listen on if workers are on other machines; None for any free port.
        timeout: seconds within which a worker must connect.
        lost_after: seconds of silence after which another machine counts as lost.

    Raises:
        OptionError: it is not possible to listen at this address.
    """
    specs = HandlerSpecs(name, setup, launcher.context)
    limit = None if launcher.is_local and address is None else lost_after
    meeting = made_meeting(launcher, address, port)
    make_carrier = partial(_carrier, launcher, meeting, name or "reap", timeout, limit)
    try:
        return RemoteGroup(make_handlers, make_carrier, specs, phases=phases, stall_after=stall_after, on_failure=on_failure)
    except BaseException:
        meeting.close()
        raise


def _carrier(
    launcher: Launcher, meeting: Meeting, name: str, timeout: float, lost_after: float | None, _workers: int
) -> GlooCarrier:
    return GlooCarrier(launcher, meeting, name, timeout, lost_after)


def made_meeting(launcher: Launcher, address: str | None, port: int | None) -> Meeting:
    """The meeting place for the workers of a launcher."""
    if address is not None:
        return TcpMeeting(address, port)
    if launcher.is_local:
        return FileMeeting()
    found = own_addresses()
    if len(found) != 1:
        raise OptionError(
            f"address: this machine's hostname resolves to {', '.join(found) or 'no address but its own'}; give the address of "
            'the interface that the workers reach it by, address="10.0.0.1" for example'
        )
    return TcpMeeting(found[0], port)
