"""The main function of a worker's process that is reached by gloo: connects as invited, and serves.

After SIGTERM, or the signal with which submitit announces the end of a job, a worker ends its rollout with the current column,
delivers it and exits.
"""

from __future__ import annotations

import pickle
import signal
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from reap.workers.base import Handler
from reap.workers.gloo.channel import GlooChannel
from reap.workers.gloo.pair import Pair
from reap.workers.gloo.rendezvous import Invitation, join
from reap.workers.handler_spec import HandlerSpec
from reap.workers.processes.child import ignore
from reap.workers.progress import Control
from reap.workers.remote.guard import Guard
from reap.workers.serve import Terminated, serve

ENTRY = f"{__name__}:live"

LEAVING = signal.SIGTERM, signal.SIGUSR2


@dataclass(frozen=True)
class Membership:
    """The arguments with which a worker's process is launched.

    Attributes:
        invitation: where to connect.
        timeout: seconds to connect.
        lost_after: seconds of silence after which the group's machine counts as lost; None if it is this machine.
    """

    invitation: Invitation
    timeout: float
    lost_after: float | None


def live(data: bytes, control: Control) -> int:
    """Run as a worker.

    Args:
        data: a pickled `Membership`.
        control: the worker's control ints.

    Returns:
        The exit code.
    """
    membership: Membership = pickle.loads(data)
    pair = join(membership.invitation, membership.timeout)
    channel = GlooChannel(pair, control)
    _leave_on_signals(channel)
    with _guarded(pair, membership.lost_after):
        try:
            return serve(channel, partial(_start, channel, control), _ignore_signals)
        finally:
            channel.close()


@contextmanager
def _guarded(pair: Pair, lost_after: float | None) -> Generator[None]:
    """Inside the `with` block, end this process when the group's machine is lost, if it is another machine."""
    if lost_after is None:  # whoever launched this process ends it
        yield
        return
    pair.watch(lost_after)
    guard = Guard(pair.descriptors)
    try:
        yield
    finally:
        guard.dismiss()


def _start(channel: GlooChannel, control: Control) -> tuple[Control, Handler]:
    received = channel.receive()
    if received is None:
        raise Terminated
    spec: HandlerSpec = pickle.loads(received.encoded.body)
    spec.context.restore()
    return control, spec.make(control)


def _leave_on_signals(channel: GlooChannel) -> None:
    def leave(number: int, _frame: Any) -> None:
        if channel.is_cut_off:
            raise Terminated
        channel.leave(number)

    for number in LEAVING:
        signal.signal(number, leave)


def _ignore_signals() -> None:
    """Handle signals: they end a command; closing the handler may take until the deadline."""
    for number in LEAVING:
        signal.signal(number, ignore)
