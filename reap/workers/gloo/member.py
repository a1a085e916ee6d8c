"""The life of a worker's process that is reached by gloo: it goes where it was invited to, and serves.

SIGTERM, and the signal by which submitit announces the end of a job, let a worker end its rollout with the column under way,
deliver it and go.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from reap.workers.base import Handler
from reap.workers.gloo.channel import GlooChannel
from reap.workers.gloo.rendezvous import Invitation, join
from reap.workers.handler_spec import HandlerSpec
from reap.workers.processes.child import ignore
from reap.workers.progress import Control
from reap.workers.serve import Terminated, serve

ENTRY = f"{__name__}:live"

LEAVING = signal.SIGTERM, signal.SIGUSR2

GRACE = 4.0
"""Seconds that a worker on another machine has to end when its group is gone; on the group's machine the group sees to it."""


@dataclass(frozen=True)
class Membership:
    """What a worker's process is told when it is launched.

    Attributes:
        invitation: where to go.
        timeout: seconds for that.
        lost_after: seconds of silence after which the group's machine is lost; None where that is this one.
    """

    invitation: Invitation
    timeout: float
    lost_after: float | None


def live(data: bytes, control: Control) -> int:
    """Be a worker.

    Args:
        data: a pickled `Membership`.
        control: the worker's ints.

    Returns:
        The exit code.
    """
    membership: Membership = pickle.loads(data)
    pair = join(membership.invitation, membership.timeout)
    if membership.lost_after is not None:
        pair.watch(membership.lost_after)
    channel = GlooChannel(pair, control, _end_soon if membership.lost_after is not None else _leave_it)
    _leave_on_signals(channel)
    try:
        return serve(channel, partial(_start, channel, control), _ignore_signals)
    finally:
        channel.close()


def _start(channel: GlooChannel, control: Control) -> tuple[Control, Handler]:
    received = channel.receive()
    if received is None:
        raise Terminated
    spec: HandlerSpec = pickle.loads(received.encoded.body)
    spec.context.restore()
    return control, spec.make(control)


def _leave_on_signals(channel: GlooChannel) -> None:
    def leave(_number: int, _frame: Any) -> None:
        if channel.is_cut_off:
            raise Terminated
        channel.leave()

    for number in LEAVING:
        signal.signal(number, leave)


def _ignore_signals() -> None:
    """They end a command; closing may take until the deadline."""
    for number in LEAVING:
        signal.signal(number, ignore)


def _leave_it() -> None:
    """Whoever launched the worker ends it."""


def _end_soon() -> None:
    timer = threading.Timer(GRACE, _end)
    timer.daemon = True
    timer.start()


def _end() -> NoReturn:
    os._exit(0)
