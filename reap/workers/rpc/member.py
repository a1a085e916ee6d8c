"""The main function of a worker's process that calls its group by RPC.

After SIGTERM, or the signal with which submitit announces the end of a job, a worker ends its rollout with the current column,
delivers it and exits.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import threading
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from torch.distributed import rpc

from reap.workers.base import Handler
from reap.workers.handler_spec import HandlerSpec
from reap.workers.progress import Control
from reap.workers.remote.guard import Guard
from reap.workers.remote.sockets import connections, watch
from reap.workers.remote.versions import own_versions
from reap.workers.rpc import agent, line
from reap.workers.rpc.agent import Address
from reap.workers.rpc.channel import RpcChannel
from reap.workers.rpc.line import Visitor
from reap.workers.serve import serve

ENTRY = f"{__name__}:live"

GRACE = 4.0
"""Seconds for a worker on another machine to end when its group is gone; on the group's own machine, the group ends it."""


@dataclass(frozen=True)
class Membership:
    """The arguments with which a worker's process is launched.

    Attributes:
        trainer: the address of the group's agent.
        name: the name of the worker's own agent.
        number: the rank of the worker's own agent.
        key: authenticates the worker.
        options: the options of the worker's own agent.
        is_local: whether both are on one machine.
        timeout: seconds for the first call.
        lost_after: seconds of silence after which the group's machine counts as lost; unused if it is this machine.
        spec: a pickled `reap.workers.handler_spec.HandlerSpec`.
    """

    trainer: Address
    name: str
    number: int
    key: str
    options: Mapping[str, Any]
    is_local: bool
    timeout: float
    lost_after: float
    spec: bytes


def live(data: bytes, control: Control) -> int:
    """Run as a worker.

    Args:
        data: a pickled `Membership`.
        control: the worker's control ints.

    Returns:
        The exit code.
    """
    own: Membership = pickle.loads(data)
    address = agent.join(own.trainer, own.name, own.number, own.options, is_local=own.is_local)
    try:
        return _serve(own, address, control)
    finally:
        agent.leave()


def _serve(own: Membership, address: Address, control: Control) -> int:
    visitor = Visitor(os.getpid(), socket.gethostname(), address, own_versions())
    rpc.rpc_sync(own.trainer.name, line.enter, args=(own.key, tuple(visitor)), timeout=own.timeout)
    channel = RpcChannel(own.trainer.name, own.key, control, _wait_for_the_end if own.is_local else _end_soon)
    with contextlib.ExitStack() as stack:
        stack.callback(channel.close)
        if not own.is_local:
            stack.enter_context(_guarded(own.trainer, own.lost_after))
        _leave_on_signals(channel)
        return serve(channel, partial(_start, own.spec, control), lambda: None)


@contextlib.contextmanager
def _guarded(trainer: Address, lost_after: float) -> Generator[None]:
    """Inside the `with` block, end this process when the group's machine is lost, whatever it is doing."""
    with contextlib.ExitStack() as stack:
        found = {ends: stack.enter_context(one) for ends, one in connections(()).items()}
        own = [one for ends, one in found.items() if ends.endswith(f" {trainer.host}:{trainer.port}")]
        for one in own:
            watch(one, lost_after)
        guard = Guard([one.fileno() for one in own])
    try:
        yield
    finally:
        guard.dismiss()


def _start(data: bytes, control: Control) -> tuple[Control, Handler]:
    spec: HandlerSpec = pickle.loads(data)
    spec.context.restore()
    return control, spec.make(control)


def _leave_on_signals(channel: RpcChannel) -> None:
    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, lambda told, _frame: channel.leave(told))


def _wait_for_the_end() -> None:
    """Handle signals of the worker's launcher, which ends it."""


def _end_soon() -> None:
    timer = threading.Timer(GRACE, _end)
    timer.daemon = True
    timer.start()


def _end() -> NoReturn:
    os._exit(0)
