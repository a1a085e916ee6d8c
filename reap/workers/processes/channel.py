"""Messages over a stream socket: a header (kind, length), a pickle, and descriptors with the header if there are any.

        parent                                     child
        SocketCommand --- COMMAND, descriptors --->     SocketChannel.receive
        Incoming <-- STARTED | REPLY | RAISED ---  SocketChannel.send

The child's end blocks. The parent's never does, because it serves many channels, and both sides may be in the middle of a
long message at once.
"""

from __future__ import annotations

import array
import socket
import struct
from collections.abc import Sequence
from typing import Any

from reap.workers.messages import Encoded, MessageKind, Received
from reap.workers.pickling import encode

HEADER = struct.Struct("<IIQ")
"""Kind, zero, length."""
DESCRIPTORS = 253
"""The maximum number of descriptors that the kernel accepts with one message."""
PIECE = 1 << 20


class SocketChannel:
    """The child's end; see `reap.workers.serve.Channel`."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(True)

    def encode(self, reply: Any) -> Encoded:
        """Encode a reply in one piece."""
        return encode(reply, "the reply")

    def send(self, kind: MessageKind, encoded: Encoded) -> None:
        """Send a message; returns once the kernel has all of it.

        Raises:
            OSError: the parent is gone.
        """
        body = encoded.body
        header = HEADER.pack(kind, 0, len(body))
        sent = self._socket.sendmsg([header, body])
        if sent < len(header) + len(body):  # a signal came in between
            self._socket.sendall(memoryview(header + body)[sent:])

    def receive(self) -> Received | None:
        """The next command; None if the parent is gone."""
        try:
            header, descriptors, *_ = socket.recv_fds(self._socket, HEADER.size, DESCRIPTORS)
            header += self._exactly(HEADER.size - len(header)) if header else b""
            if not header:
                return None
            return Received(Encoded(self._exactly(HEADER.unpack(header)[2])), list(descriptors))
        except (OSError, EOFError):
            return None

    def _exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            got = self._socket.recv_into(view)
            if not got:
                raise EOFError
            view = view[got:]
        return data


class Incoming:
    """A message at the parent's end, complete or partial; see `reap.workers.messages.Message`."""

    def __init__(self) -> None:
        self.order = 0
        self.is_taken = False
        self._parts: list[bytes] = []

    @property
    def kind(self) -> MessageKind:
        """The kind of message."""
        return MessageKind(HEADER.unpack_from(self._head())[0])

    @property
    def encoded(self) -> Encoded:
        """Its value, decoded from one piece."""
        if len(self._parts) > 1:
            self._parts = [b"".join(self._parts)]
        return Encoded(memoryview(self._parts[0])[HEADER.size :])

    def receive(self, end: socket.socket) -> bool:
        """Read the part of the message that has arrived.

        One call both reads from the socket and keeps what it read, so that Ctrl-C cannot come between the two and the
        stream stays in step.

        Returns:
            Whether the message is complete.

        Raises:
            EOFError: the child is gone.
        """
        while missing := self._missing():
            try:
                self._parts.extend(map(end.recv, (min(missing, PIECE),)))
            except BlockingIOError:
                return False
            except OSError as error:
                raise EOFError from error
            if not self._parts[-1]:
                raise EOFError
        return True

    def _head(self) -> bytes:
        return self._parts[0] if len(self._parts[0]) >= HEADER.size else b"".join(self._parts)

    def _missing(self) -> int:
        got = sum(map(len, self._parts))
        if got < HEADER.size:
            return HEADER.size - got
        return HEADER.size + HEADER.unpack_from(self._head())[2] - got


class SocketCommand:
    """A command at the parent's end, before, while and after it is sent.

    Attributes:
        is_sent: whether all of it is sent.
    """

    def __init__(self, body: bytes, descriptors: Sequence[int]) -> None:
        self._header = memoryview(HEADER.pack(MessageKind.COMMAND, 0, len(body)))
        self._body = memoryview(body)
        self._size = HEADER.size + len(body)
        self._descriptors = array.array("i", descriptors)
        self._sent: list[int] = []
        self.is_sent = False

    @property
    def has_begun(self) -> bool:
        """Whether some of it has been sent."""
        return bool(self._sent)

    def send(self, end: socket.socket) -> bool:
        """Send as much as the socket accepts now; as in `Incoming.receive`, Ctrl-C cannot make it lose count.

        Returns:
            Whether all of it is sent.

        Raises:
            ConnectionError: the child is gone.
            OSError: a descriptor cannot be sent.
        """
        while (sent := sum(self._sent)) < self._size:
            ancillary: list[Any] = []
            if self._descriptors and not self._sent:
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, self._descriptors)]
            rest = (self._header[sent:], self._body[max(0, sent - HEADER.size) :])
            try:
                self._sent.extend(map(end.sendmsg, (rest,), (ancillary,)))
            except BlockingIOError:
                return False
        self.is_sent = True
        self._body = memoryview(b"")
        return True
