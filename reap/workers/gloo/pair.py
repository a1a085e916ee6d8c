"""`Pair`: a process group of the collector's process and a worker's, which exchange messages as tensors.

    sender                                            receiver
      |--- head: kind, counts, lengths, text, mark ----->|
      |--- the rest of a long text, mark --------------->|   topic, lengths of the buffers, body
      |--- buffers, without a copy, mark --------------->|   into memory that is reused
      |<-- receipt --------------------------------------|

Marks and receipts are empty, and only they are waited for: gloo reports the end of a connection to those who wait for a
message that has not started, but not to those whose message is half there. Messages keep the order of the connection.

The process group belongs to reap: `torch.distributed.init_process_group` is not called, and a default group of the user is
not touched. Everything in one direction travels in order, because a command must not overtake weights posted before it.
Urgent requests (such as to stop) are handled on arrival, not in their turn.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import socket
import struct
import time
from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import torch
from torch._C._distributed_c10d import ProcessGroupGloo, Store

from reap.workers.gloo.memory import Bytes, Memory
from reap.workers.messages import Encoded
from reap.workers.remote.sockets import connections, sockets, watch

PARTS, MARKS, RECEIPTS = range(3)
"""Tags: messages with one tag arrive in order; all messages do if the receiver asks for them in order."""

NOTHING = np.empty(0, np.uint8)

HEAD = 4096
_NUMBERS = struct.Struct("<IIQQ")
_ROOM = HEAD - _NUMBERS.size

FOREVER = timedelta(days=3650)
"""Timeout of a wait for the other side, which may be busy for any length of time; gloo's default is half an hour."""


class Arrived(NamedTuple):
    """A message.

    Attributes:
        kind: a number that both sides understand.
        topic: a newer message of the same topic may replace it.
        encoded: its value.
    """

    kind: int
    topic: bytes
    encoded: Encoded


class Pair:
    """One side of a pair.

    Args:
        store: the store through which both sides meet.
        rank: 0 or 1.
        address: of this machine's interface to use.
        timeout: seconds within which the other side must connect.

    Raises:
        RuntimeError: it has not connected in time.

    Attributes:
        received_bytes: number of bytes received.
        received_seconds: time spent receiving, without waits for messages to start.
    """

    def __init__(self, store: Store, rank: int, address: str, timeout: float) -> None:
        before = set(sockets().values())
        make: Any = ProcessGroupGloo
        options = make._Options()
        options._devices = [make.create_device(hostname=address, interface="")]
        options._threads = 1
        options._timeout = timedelta(seconds=timeout)
        self._group: Any = make(store, rank, 2, options)
        self._other = 1 - rank
        self._head = np.zeros(HEAD, np.uint8)
        self._receipt: Any = None
        self.received_bytes, self.received_seconds = 0, 0.0
        self._sockets: Sequence[socket.socket] = ()
        try:
            self._find_sockets(before)
        except BaseException:
            self.close()  # not with the exception, whose traceback would keep the connection
            raise

    def _find_sockets(self, before: Collection[str]) -> None:
        """Find the connection between the two processes, which gloo does not show, by exchanging lists of new connections."""
        own = connections(before)
        try:
            mirrored = {" ".join(reversed(one.split(" "))) for one in self._exchanged("\n".join(own)).split("\n")}
            self._sockets = [own.pop(name) for name in mirrored & own.keys()]
        finally:
            for one in own.values():
                one.close()

    def _exchanged(self, text: str) -> str:
        """Send this text to the other side, and return the other side's text."""
        said = Encoded(text.encode())
        if self._other == 0:  # a message leaves when the other side waits for it: one of the two has to wait first
            heard = self.receive(Memory())
            self.send(0, b"", said)
        else:
            self.send(0, b"", said)
            heard = self.receive(Memory())
        return bytes(heard.encoded.body).decode()

    def watch(self, lost_after: float) -> None:
        """Make the kernel end the connection if the other machine is silent for some time; see `sockets.watch`."""
        for one in self._sockets:
            watch(one, lost_after)

    @property
    def descriptors(self) -> list[int]:
        """The descriptors of the connections to the other side."""
        return [one.fileno() for one in self._sockets]

    def send(self, kind: int, topic: bytes, encoded: Encoded) -> None:
        """Send a message; returns when the other side has received all of it.

        Raises:
            ConnectionError: the other side is gone.
        """
        arrays = [_over(part) for part in encoded.buffers]
        body = _over(encoded.body)
        lengths = np.array([len(array) for array in arrays], np.uint64)
        text = np.concatenate([np.frombuffer(topic, np.uint8), lengths.view(np.uint8), body])
        head = np.empty(HEAD, np.uint8)
        head[: _NUMBERS.size] = np.frombuffer(_NUMBERS.pack(kind, len(arrays), len(topic), len(body)), np.uint8)
        fits = text[:_ROOM]
        head[_NUMBERS.size : _NUMBERS.size + len(fits)] = fits
        stages = [[head], [text[_ROOM:]], arrays]
        with self._connected():
            under_way = [self._send(part, tag) for parts in stages for part, tag in _marked(parts)]
            self._receive(RECEIPTS).wait(FOREVER)
            del under_way  # what is not waited for has to be held until here

    def receive(self, memory: Memory) -> Arrived:
        """Wait for a message.

        Args:
            memory: provides memory for its buffers.

        Raises:
            ConnectionError: the other side is gone.
        """
        self._fill([self._head])
        begun = time.monotonic()
        kind, count, topic_length, body_length = _NUMBERS.unpack_from(self._head.data)
        length = topic_length + 8 * count + body_length
        text = np.empty(length, np.uint8)
        text[:_ROOM] = self._head[_NUMBERS.size : _NUMBERS.size + length]
        self._fill([text[_ROOM:]])
        topic, lengths, body = np.split(text, [topic_length, topic_length + 8 * count])
        buffers = [memory.take(int(size)) for size in np.frombuffer(lengths.tobytes(), np.uint64)]
        self._fill(buffers)
        with self._connected():
            self._receipt = self._send(NOTHING, RECEIPTS)
        self.received_bytes += HEAD + length + sum(map(len, buffers))
        self.received_seconds += time.monotonic() - begun
        return Arrived(kind, topic.tobytes(), Encoded(body.data, [buffer.data for buffer in buffers]))

    def _fill(self, parts: Sequence[Bytes]) -> None:
        """Receive one stage of a message, which consists of these parts."""
        with self._connected():
            under_way = [self._group.recv([torch.from_numpy(part)], self._other, tag) for part, tag in _marked(parts)]
            if under_way:
                under_way[-1].wait(FOREVER)

    def _send(self, part: Bytes, tag: int) -> Any:
        return self._group.send([torch.from_numpy(part)], self._other, tag)

    def _receive(self, tag: int) -> Any:
        return self._group.recv([torch.from_numpy(NOTHING)], self._other, tag)

    @contextlib.contextmanager
    def _connected(self) -> Any:
        try:
            yield
        except RuntimeError as error:
            raise ConnectionError(_cause(str(error))) from None

    def finish(self) -> None:
        """Send no more; the other side notices once it has read the last message."""
        self._shut(socket.SHUT_WR)

    def hang_up(self) -> None:
        """End the connections, which ends waits on both sides; callable from any thread."""
        self._shut(socket.SHUT_RDWR)

    def _shut(self, how: int) -> None:
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(how)

    def close(self) -> None:
        """Release everything, once no thread waits any more. A second call does nothing."""
        self.hang_up()
        for one in self._sockets:
            one.close()
        self._sockets, self._group, self._receipt = (), None, None


def _marked(parts: Sequence[Bytes]) -> list[tuple[Bytes, int]]:
    """The non-empty parts of one stage with their tags, and the mark; nothing if all are empty."""
    tagged = [(part, PARTS) for part in parts if len(part)]
    return [*tagged, (NOTHING, MARKS)] if tagged else []


def _over(part: Any) -> Bytes:
    """The bytes of a buffer as an array that torch accepts without a warning; they are only read."""
    array = np.frombuffer(part, np.uint8)
    if array.flags.writeable:
        return array
    memory: Any = (ctypes.c_ubyte * len(array)).from_address(array.ctypes.data)
    return np.frombuffer(memory, np.uint8)


def _cause(text: str) -> str:
    """Gloo's error message without source locations."""
    return re.sub(r"\[/\S+\] ", "", text).partition("This is typically")[0].strip()
