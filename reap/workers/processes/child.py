"""The main function of a worker's process: set-up after the fork, commands (`reap.workers.serve`), exit.

    live ---> read(descriptors.life) ---> answer, or the function that the file names: its result is the exit code

A channel error means that the parent is gone, and the worker exits.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import signal
import sys
from functools import partial
from types import FrameType
from typing import NamedTuple, NoReturn

from reap.system.native import libc
from reap.workers.base import Handler
from reap.workers.handler_spec import HandlerSpec
from reap.workers.processes import fork_client
from reap.workers.processes.channel import SocketChannel
from reap.workers.processes.control import ControlBlock
from reap.workers.processes.life import read
from reap.workers.progress import Control
from reap.workers.serve import Terminated, serve

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_kept: list[object] = []


class Descriptors(NamedTuple):
    """The file descriptors of a worker's process at its start."""

    channel: int
    control: int
    life: int
    stdout: int
    stderr: int
    requests: int


def ignore(number: int, frame: FrameType | None) -> None:
    """Ignore a signal. Unlike with SIG_IGN, programs started from here get the default handler back."""


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(number, ignore)
    raise Terminated


def name_process(name: str) -> None:
    """The name that ps and top show."""
    libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def live(descriptors: Descriptors, server: int) -> NoReturn:
    """Run as a worker, in a process just forked from the server."""
    code = 1
    try:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == server:
            signal.signal(signal.SIGTERM, _terminate)
            _keep_only(descriptors)
            fork_client.inherit(descriptors.requests)
            function, data = read(descriptors.life)
            code = function(descriptors, data)
    except Terminated:
        code = -signal.SIGTERM
    finally:
        _leave(code)


def answer(descriptors: Descriptors, spec: bytes) -> int:
    """Answer the commands of a group.

    Args:
        descriptors: the process's file descriptors.
        spec: a pickled `reap.workers.handler_spec.HandlerSpec`.
    """
    channel = SocketChannel(descriptors.channel)
    _kept.append(channel)  # its end is to be seen at the end of the process only
    return serve(channel, partial(_start, descriptors, spec), _ignore_sigterm)


def _keep_only(descriptors: Descriptors) -> None:
    os.dup2(descriptors.stdout, 1)
    os.dup2(descriptors.stderr, 2)
    for stream in (sys.stdout, sys.stderr):  # what an env prints is not lost when its worker is killed
        with contextlib.suppress(Exception):
            stream.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue]
    low = 3
    for kept in sorted((descriptors.channel, descriptors.control, descriptors.life, descriptors.requests)):
        os.closerange(low, kept)
        low = kept + 1
    os.closerange(low, os.sysconf("SC_OPEN_MAX"))


def _start(descriptors: Descriptors, data: bytes) -> tuple[Control, Handler]:
    spec: HandlerSpec = pickle.loads(data)
    name_process(f"{spec.name or 'reap'}-{spec.worker}")
    spec.context.restore()
    reseed()
    block = ControlBlock(spec.worker + 1, descriptors.control)
    block.close()
    control = block.of(spec.worker)
    return control, spec.make(control)


def _ignore_sigterm() -> None:
    """Handle SIGTERM: it ends a command; closing the handler may take until the deadline."""
    signal.signal(signal.SIGTERM, ignore)


def reseed() -> None:
    """Seed numpy's global generator, which the fork copied; Python seeds others, or they are equal in any process."""
    if "numpy" in sys.modules:
        importlib.import_module("numpy.random").seed()


def _leave(code: int) -> NoReturn:
    try:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        if code < 0:
            signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
    finally:  # nothing may come back from here: what is above is the server
        os._exit(abs(code))
