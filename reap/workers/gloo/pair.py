"""`Pair`: a process group of two, the collector's process and a worker's: messages pass both ways, as tensors.

    head       kind, number of buffers, lengths of topic and body; then topic, lengths of the buffers and body, if they fit
    rest       what did not fit into the head
    buffers    one after the other, from the memory where they lie, into memory that is used again

The process group is an object of reap's own: `torch.distributed.init_process_group` is not called, and a default group of the
user's is not touched. All of one direction goes through one line, in order: a command must not overtake the weights that were
posted before it, and what has to be acted on at once (a wish to stop) is acted on when it arrives, not when it is its turn.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
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

TAG = 0
HEAD = 4096
_NUMBERS = struct.Struct("<IIQQ")
_ROOM = HEAD - _NUMBERS.size

FOREVER = timedelta(days=3650)
"""Patience of a wait for the other side, which may be busy for as long as it likes; gloo's own would be half an hour."""


class Arrived(NamedTuple):
    """A message.

    Attributes:
        kind: a number that both sides understand.
        topic: what it is about; a newer one of the same topic may replace it.
        encoded: the value that it brings.
    """

    kind: int
    topic: bytes
    encoded: Encoded


class Pair:
    """One side of a pair.

    Args:
        store: where both sides meet.
        rank: 0 or 1.
        address: of the interface of this machine that is used.
        timeout: seconds until the other side must have come.

    Raises:
        RuntimeError: it has not.

    Attributes:
        received_bytes: all that has arrived.
        received_seconds: the time that it took, without the waits for it to begin.
    """

    def __init__(self, store: Store, rank: int, address: str, timeout: float) -> None:
        before = set(_sockets().values())
        make: Any = ProcessGroupGloo
        options = make._Options()
        options._devices = [make.create_device(hostname=address, interface="")]
        options._threads = 1
        options._timeout = timedelta(seconds=timeout)
        self._group: Any = make(store, rank, 2, options)
        self._other = 1 - rank
        self._head = np.zeros(HEAD, np.uint8)
        self.received_bytes, self.received_seconds = 0, 0.0
        self._sockets: Sequence[socket.socket] = ()
        self._find_sockets(before)

    def _find_sockets(self, before: Collection[str]) -> None:
        """Find the connection between the two processes, by exchanging what each has that is new: gloo does not show it."""
        own = connections(before)
        said = Encoded("\n".join(own).encode())
        if self._other == 0:  # a message leaves when the other side waits for it: one of the two has to wait first
            heard = self.receive(Memory())
            self.send(0, b"", said)
        else:
            self.send(0, b"", said)
            heard = self.receive(Memory())
        theirs = bytes(heard.encoded.body).decode().split("\n")
        mirrored = {" ".join(reversed(one.split(" "))) for one in theirs}
        self._sockets = [own.pop(name) for name in mirrored & own.keys()]
        for one in own.values():
            one.close()

    def watch(self, lost_after: float) -> None:
        """Have the kernel end the connections if the other machine is silent for some time.

        The kernels ask and answer each other: it does not matter how busy the processes are.

        Args:
            lost_after: seconds.
        """
        step = max(1, int(lost_after / 4))
        for one in self._sockets:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, step)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, step)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(lost_after * 1000))

    @property
    def descriptors(self) -> list[int]:
        """Those of the connections to the other side."""
        return [one.fileno() for one in self._sockets]

    def send(self, kind: int, topic: bytes, encoded: Encoded) -> None:
        """Send a message; returns when the kernel has all of it.

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
        with self._connected():
            parts = (part for part in (head, text[_ROOM:], *arrays) if len(part))
            works = [self._group.send([torch.from_numpy(part)], self._other, TAG) for part in parts]
            for work in works:
                work.wait(FOREVER)

    def receive(self, memory: Memory) -> Arrived:
        """Wait for a message.

        Args:
            memory: where its buffers are put.

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
        self.received_bytes += HEAD + length + sum(map(len, buffers))
        self.received_seconds += time.monotonic() - begun
        return Arrived(kind, topic.tobytes(), Encoded(body.data, buffers))

    def _fill(self, arrays: Sequence[Bytes]) -> None:
        with self._connected():
            works = [self._group.recv([torch.from_numpy(part)], self._other, TAG) for part in arrays if len(part)]
            for work in works:
                work.wait(FOREVER)

    @contextlib.contextmanager
    def _connected(self) -> Any:
        try:
            yield
        except RuntimeError as error:
            raise ConnectionError(_cause(str(error))) from None

    def hang_up(self) -> None:
        """End the connections: whoever waits here or there is told; from any thread."""
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Release everything; nobody waits any more. A second call does nothing."""
        self.hang_up()
        for one in self._sockets:
            one.close()
        self._sockets, self._group = (), None


def _over(part: Any) -> Bytes:
    """The bytes of a buffer, which are only read, as an array that torch takes without asking."""
    array = np.frombuffer(part, np.uint8)
    if array.flags.writeable:
        return array
    memory: Any = (ctypes.c_ubyte * len(array)).from_address(array.ctypes.data)
    return np.frombuffer(memory, np.uint8)


def _cause(text: str) -> str:
    """What gloo says, without the places in its sources."""
    return re.sub(r"\[/\S+\] ", "", text).partition("This is typically")[0].strip()


def _sockets() -> dict[str, str]:
    """The sockets of this process, by descriptor."""
    found: dict[str, str] = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:"):
                found[name] = target
    return found


def connections(before: Collection[str]) -> dict[str, socket.socket]:
    """TCP connections of this process, by `"here there"`; the sockets are duplicates: whether they block is for all of them.

    Args:
        before: sockets that are left out.
    """
    found: dict[str, socket.socket] = {}
    for name, target in _sockets().items():
        if target not in before:
            with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
                one = stack.enter_context(socket.socket(fileno=os.dup(int(name))))
                if found.setdefault(_ends_of(one), one) is one:  # else another duplicate of it
                    stack.pop_all()
    return found


def _ends_of(one: socket.socket) -> str:
    """The addresses of a connection.

    Raises:
        OSError: it is not connected, or not by TCP.
    """
    if one.family not in {socket.AF_INET, socket.AF_INET6}:
        raise OSError(one.family)
    here, there = one.getsockname(), one.getpeername()
    return f"{here[0]}:{here[1]} {there[0]}:{there[1]}"
