"""The life of a worker's process: made by fork, set up, fed with commands, closed.

Whatever goes wrong with the channel means that the parent is gone: the worker leaves.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import pickle
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any, NamedTuple, NoReturn, Protocol

from reap.errors import add_note
from reap.workers import process_context as surroundings
from reap.workers import reports
from reap.workers.base import Command, Handler, Reply
from reap.workers.pickling import encode
from reap.workers.processes import fork_client as launch
from reap.workers.processes.channel import Channel, MessageKind
from reap.workers.processes.control import ControlBlock
from reap.workers.processes.start import Start

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_libc = ctypes.CDLL(None)


class TakesDescriptors(Protocol):
    """A handler that is sent commands with descriptors."""

    def handle_with(self, command: Command, fds: Sequence[int]) -> Reply:
        """Carry out a command that came with descriptors; they are the handler's to close."""
        ...


class Descriptors(NamedTuple):
    """What a worker starts with."""

    channel: int
    control: int
    start: int
    stdout: int
    stderr: int
    requests: int


class Terminated(KeyboardInterrupt):
    """SIGTERM came: an interruption from outside, as Ctrl-C is, which no code that reports a failure keeps to itself."""


def ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing at a signal; a program started from here gets the default back, as it would not with SIG_IGN."""


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(number, ignore)
    raise Terminated


def name_process(name: str) -> None:
    """The name that ps and top show."""
    _libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def live(descriptors: Descriptors, server: int) -> NoReturn:
    """Be a worker, in a process just forked from the server."""
    code = 1
    try:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == server:
            signal.signal(signal.SIGTERM, _terminate)
            _keep_only(descriptors)
            channel = Channel(descriptors.channel)  # held here: its end is to be seen at the end of the process only
            code = _work(channel, descriptors)
    except Terminated:
        code = -signal.SIGTERM
    finally:
        _leave(code)


def _keep_only(descriptors: Descriptors) -> None:
    os.dup2(descriptors.stdout, 1)
    os.dup2(descriptors.stderr, 2)
    for stream in (sys.stdout, sys.stderr):  # what an env prints is not lost when its worker is killed
        with contextlib.suppress(Exception):
            stream.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue]
    low = 3
    for kept in sorted((descriptors.channel, descriptors.control, descriptors.start, descriptors.requests)):
        os.closerange(low, kept)
        low = kept + 1
    os.closerange(low, os.sysconf("SC_OPEN_MAX"))


def _work(channel: Channel, descriptors: Descriptors) -> int:
    launch.inherit(descriptors.requests)
    try:
        control, handler = _start(descriptors)
    except Terminated:
        raise
    except BaseException as error:  # noqa: BLE001  the parent is told, whatever it is
        with contextlib.suppress(OSError):
            channel.send(MessageKind.RAISED, reports.write(error, reports.START, is_harmless=False))
        return 1
    try:
        channel.send(MessageKind.STARTED)
        return _serve(channel, handler, control)
    except OSError:  # the parent is gone
        return 0
    finally:
        signal.signal(signal.SIGTERM, ignore)  # it ends a command; closing may take until the deadline
        try:
            handler.close()
        except Exception as error:  # noqa: BLE001  nobody listens any more
            add_note(error, "reap: raised while a worker was closed; nothing that it had answered is touched by it")
            sys.stderr.write(reports.trace(error))


def _start(descriptors: Descriptors) -> tuple[memoryview, Handler]:
    with open(descriptors.start, "rb") as file:
        start: Start = pickle.loads(file.read())
    name_process(f"{start.name or 'reap'}-{start.worker}")
    surroundings.restore(start.surroundings)
    _reseed()
    block = ControlBlock(start.workers, start.control_ints, descriptors.control)
    block.close()
    control = block.of(start.worker)
    try:
        setup = pickle.loads(start.setup)
        make_handler = pickle.loads(start.make_handler)
    except Exception as error:
        add_note(
            error,
            "The worker could not load what it is to run. Workers import modules by name, with this process's "
            "sys.path; they never run __main__. For a module that only this process can import, call "
            "cloudpickle.register_pickle_by_value(module) first.",
        )
        raise
    for step in setup:
        step()
    return control, make_handler(start.worker, control)


def _reseed() -> None:
    """Numpy's global generator was copied by the fork; the others are seeded by Python or are the same in any process."""
    if "numpy" in sys.modules:
        importlib.import_module("numpy.random").seed()


def _serve(channel: Channel, handler: Handler, control: memoryview) -> int:
    while (message := channel.receive()) is not None:
        kind, body, goes_on = _answer(handler, control, *message)
        channel.send(kind, body)
        if not goes_on:
            return 1
    return 0


def _answer(handler: Any, control: memoryview, body: bytearray, descriptors: list[int]) -> tuple[MessageKind, bytes, bool]:
    """The answer to a command, and whether the worker goes on."""
    is_harmless = False
    try:
        command = pickle.loads(body)
        is_harmless = getattr(command, "harmless", False)
        reply = handler.handle_with(command, descriptors) if descriptors else handler.handle(command)
        return MessageKind.REPLY, encode(reply, "the reply"), True
    except Terminated:
        raise
    except BaseException as error:  # noqa: BLE001  the parent is told, whatever it is
        is_harmless = is_harmless and isinstance(error, Exception)
        return MessageKind.RAISED, reports.write(error, control[0], is_harmless=is_harmless), is_harmless


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
