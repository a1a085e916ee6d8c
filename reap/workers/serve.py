"""`serve`: the life of a worker, wherever it is: make the handler, answer commands, close.

    channel.receive() -> command, descriptors --> handler --> REPLY or RAISED --> channel.send

It ends when the channel does: then nobody is left who would want a reply.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from reap.errors import add_note
from reap.workers import reports
from reap.workers.base import Command, Handler, Reply
from reap.workers.messages import Encoded, MessageKind, Received
from reap.workers.progress import Control, progress_of

Start = Callable[[], tuple[Control, Handler]]
"""Gives a worker its ints and its handler."""


class Channel(Protocol):
    """A worker's end of the line to its group."""

    def receive(self) -> Received | None:
        """Wait for the next command; None if the group is gone."""
        ...

    def encode(self, reply: Any) -> Encoded:
        """A reply as it travels.

        Raises:
            OptionError: it cannot be sent.
        """
        ...

    def send(self, kind: MessageKind, encoded: Encoded) -> None:
        """Send a message; its buffers are read until the next `send` has returned.

        Raises:
            OSError: the group is gone.
        """
        ...


class TakesDescriptors(Protocol):
    """A handler that is sent commands with descriptors."""

    def handle_with(self, command: Command, fds: Sequence[int]) -> Reply:
        """Carry out a command that came with descriptors; they are the handler's to close."""
        ...


class Terminated(KeyboardInterrupt):
    """The worker is ended from outside, as Ctrl-C ends a program: no code that reports exceptions may catch it."""


def serve(channel: Channel, start: Start, before_close: Callable[[], Any]) -> int:
    """Be a worker until the group is gone or a command has failed.

    Args:
        channel: the line to the group.
        start: makes the handler; the group is told of an exception.
        before_close: called before the handler is closed.

    Returns:
        The exit code: 1 after an exception that ends the worker.
    """
    try:
        control, handler = start()
    except Terminated:
        raise
    except BaseException as error:  # noqa: BLE001  the group is told, whatever it is
        with suppress(OSError):
            channel.send(MessageKind.RAISED, Encoded(reports.write(error, reports.AT_START, is_harmless=False)))
        return 1
    try:
        channel.send(MessageKind.STARTED, Encoded(b""))
        return _answer_all(channel, handler, control)
    except OSError:  # the group is gone
        return 0
    finally:
        before_close()
        try:
            handler.close()
        except Exception as error:  # noqa: BLE001  nobody listens any more
            add_note(error, "reap: raised while a worker was closed; none of its replies are affected")
            sys.stderr.write(reports.trace(error))


def _answer_all(channel: Channel, handler: Handler, control: Control) -> int:
    while (received := channel.receive()) is not None:
        kind, encoded, goes_on = _answer(channel, handler, control, received)
        if received.wants_reply or not goes_on:
            channel.send(kind, encoded)
        if not goes_on:
            return 1
    return 0


def _answer(channel: Channel, handler: Any, control: Control, received: Received) -> tuple[MessageKind, Encoded, bool]:
    """The answer to a command, and whether the worker goes on."""
    is_harmless = False
    try:
        command = received.encoded.load()
        is_harmless = getattr(command, "harmless", False) and received.wants_reply
        found = received.descriptors
        reply = handler.handle_with(command, found) if found else handler.handle(command)
        return MessageKind.REPLY, channel.encode(reply), True
    except Terminated:
        raise
    except BaseException as error:  # noqa: BLE001  the group is told, whatever it is
        is_harmless = is_harmless and isinstance(error, Exception)
        report = reports.write(error, progress_of(control), is_harmless=is_harmless)
        return MessageKind.RAISED, Encoded(report), is_harmless
