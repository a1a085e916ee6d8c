"""`serve`: the main loop of a worker on any carrier: make the handler, answer commands, close.

    channel.receive() -> command, descriptors --> handler --> REPLY or RAISED --> channel.send

It ends when the channel does, since no one is left to receive replies.
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
from reap.workers.progress import Control, Progress, progress_of

Start = Callable[[], tuple[Control, Handler]]
"""Makes a worker's control ints and its handler."""


class Channel(Protocol):
    """A worker's end of the line to its group."""

    def receive(self) -> Received | None:
        """Wait for the next command; None if the group is gone."""
        ...

    def encode(self, reply: Any) -> Encoded:
        """Encode a reply.

        Raises:
            OptionError: the reply cannot be sent.
        """
        ...

    def send(self, kind: MessageKind, encoded: Encoded) -> None:
        """Send a message; its buffers are read until the next `send` has returned.

        Raises:
            OSError: the group is gone.
        """
        ...


class TakesDescriptors(Protocol):
    """A handler that accepts commands with descriptors."""

    def handle_with(self, command: Command, fds: Sequence[int]) -> Reply:
        """Carry out a command that came with descriptors, which the handler must close."""
        ...


class Terminated(KeyboardInterrupt):
    """Raised to end the worker from outside, as Ctrl-C ends a program; code that reports exceptions must not catch it."""


def serve(channel: Channel, start: Start, before_close: Callable[[], Any]) -> int:
    """Serve commands until the group is gone or a command has failed.

    Args:
        channel: the connection to the group.
        start: makes the handler; an exception is reported to the group.
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
            channel.send(MessageKind.RAISED, Encoded(_reported(error, reports.AT_START, is_harmless=False)))
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
    """Answer a command; return the answer and whether the worker continues."""
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
        is_harmless = is_harmless and issubclass(type(error), Exception)
        report = _reported(error, progress_of(control), is_harmless=is_harmless)
        return MessageKind.RAISED, Encoded(report), is_harmless


def _reported(error: BaseException, progress: Progress, *, is_harmless: bool) -> bytes:
    """The report of an exception, whatever its own code does meanwhile: a KeyboardInterrupt of that code is no Ctrl-C here."""
    try:
        return reports.write(error, progress, is_harmless=is_harmless)
    except Terminated:
        raise
    except BaseException:  # noqa: BLE001  as above
        return reports.write_bare(error, progress, is_harmless=is_harmless)
