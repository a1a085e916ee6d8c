"""`MessageMailbox`: sends weights to one worker through a pipe, each version as one message.

    writer --> the next message --(a thread)--> pipe --> reader
                 (a waiting one is replaced by a newer one)
    number of the latest message: a shared word

Only that word is shared memory. It tells a reader how far to read; the reader waits for a message that is still arriving. A
pipe holds little data, so a thread feeds it; the writer never waits.
"""

from __future__ import annotations

import os
import select
from collections.abc import Mapping
from contextlib import suppress
from threading import Condition, Thread
from typing import Any
from weakref import finalize

import torch

from reap.errors import ClosedError
from reap.keys import Key
from reap.recording.layout import Block, Field, Layout
from reap.system.bell import Bell
from reap.system.native import F_SETPIPE_SZ, fcntl
from reap.weights.half import VERSION, WeightHalf
from reap.weights.mailbox import CLOSED
from reap.weights.packed import PackedWeights, PackingMailbox, checked_version, unpacked
from reap.weights.weight_layout import WeightLayout, describe, load_extra_states

PIPE_BYTES = 1 << 20
"""Size of the pipe, if the system allows it; a large one means fewer switches between its two ends."""

__all__ = ["MessageMailbox", "describe"]

MESSAGE, NUMBER = "message", ("number",)
SERIAL, EXTRA_SIZE = 1, 2
"""Indices in a message's record, in addition to the version's."""


class WeightMessage:
    """One version of the weights: a block, followed by extra states of any size."""

    def __init__(self, described: WeightLayout) -> None:
        self.block = Block.private(Layout(WeightHalf.fields_of(MESSAGE, described)))
        self.stored = WeightHalf(self.block, MESSAGE, described)
        self.extra = b""

    def following(
        self, described: WeightLayout, given: Mapping[str, torch.Tensor], version: int, extra: bytes
    ) -> WeightMessage:
        """The message after this one; weights that are not given stay the same."""
        new = WeightMessage(described)
        new.stored.fill(given, before=self.stored)
        new.extra = extra or self.extra
        new.stored.record[:] = version, self.stored.record[SERIAL] + 1, len(new.extra)
        return new


class Feeder:
    """Writes messages into a pipe, in a separate thread that starts with the first message."""

    def __init__(self, pipe: int) -> None:
        self._pipe, self._wakeup = pipe, Bell()
        self._changed = Condition()
        self._next: WeightMessage | None = None
        self._is_stopped = False
        self._thread: Thread | None = None
        self._process = os.getpid()

    def put(self, message: WeightMessage) -> None:
        """Write this message next, in place of a waiting one."""
        with self._changed:
            self._next = message
            if self._thread is None:
                self._thread = Thread(target=self._run, name="reap-weights", daemon=True)
                self._thread.start()
            self._changed.notify()

    def stop(self) -> None:
        """End the thread; data that fit into the pipe without waiting are still written."""
        if self._process == os.getpid():  # a forked child has neither the thread nor a say in it
            with self._changed:
                self._is_stopped = True
                self._changed.notify()
            self._wakeup.ring()
            if self._thread is not None:
                self._thread.join()
        self._wakeup.close()
        os.close(self._pipe)

    def _run(self) -> None:
        while (message := self._take()) is not None:
            for part in (message.block.memory.data, memoryview(message.extra)):
                if not self._feed(part):
                    return

    def _take(self) -> WeightMessage | None:
        with self._changed:
            self._changed.wait_for(lambda: self._next is not None or self._is_stopped)
            message, self._next = self._next, None
            return message

    def _feed(self, part: memoryview) -> bool:
        """Write all of it; False if the reader is gone, or the write was stopped midway."""
        poll = select.poll()
        poll.register(self._pipe, select.POLLOUT)
        poll.register(self._wakeup, select.POLLIN)
        while part:
            ready = dict(poll.poll())
            if self._pipe not in ready:
                return False
            try:
                part = part[os.write(self._pipe, part) :]
            except OSError:
                return False
        return True


class MessageMailbox(PackingMailbox):
    """The latest weights for one worker, sent as messages.

    It is used like a `WeightMailbox`; the other process needs `descriptors()`. There is one reader: a replacement worker gets
    the `renewed()` mailbox. A message that is not complete when its writer closes the mailbox, or is killed, is dropped.

    Attributes:
        described: the weights.

    Example:
        >>> sender, receiver = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
        >>> mailbox = MessageMailbox.for_weights(describe(sender))
        >>> other = MessageMailbox.attach(mailbox.described, *map(os.dup, mailbox.descriptors()))  # in the other process
        >>> mailbox.write(sender, version=1)
        >>> other.read_into(receiver, since=0), other.read_into(receiver, since=1)
        (1, 1)
        >>> mailbox.close()
    """

    def __init__(self, described: Mapping[str, Field], ends: tuple[int, int | None], number: int | None) -> None:
        self.described = described if isinstance(described, WeightLayout) else WeightLayout(dict(described))
        fields: dict[Key, Field] = {NUMBER: Field((1,), torch.int64)}
        self._shared: Block | None = Block.shared(Layout(fields), number)
        self._number: memoryview[int] = self._shared.memory.data.cast("q")
        self._out, into = ends
        self._close_out = finalize(self, os.close, self._out)
        self._feeder = None if into is None else Feeder(into)
        self._close_feeder = None if self._feeder is None else finalize(self, self._feeder.stop)
        self._latest = WeightMessage(self.described)
        self._version = 0
        self._extra: Mapping[str, Any] = {}

    @classmethod
    def for_weights(cls, described: Mapping[str, Field]) -> MessageMailbox:
        """Make an empty mailbox, with version 0.

        Args:
            described: what `describe(policy)` returned in the worker.
        """
        out, into = os.pipe()
        os.set_blocking(into, False)
        with suppress(OSError):  # more than this user may have: it stays at its 64 kB
            fcntl.fcntl(into, F_SETPIPE_SZ, PIPE_BYTES)
        return cls(described, (out, into), None)

    @classmethod
    def attach(cls, described: Mapping[str, Field], out: int, number: int) -> MessageMailbox:
        """Open the mailbox that another process made.

        Args:
            described: as given there.
            out: the first of its `descriptors()`, in this process; it belongs to the mailbox from now on.
            number: the second, likewise.
        """
        return cls(described, (out, None), number)

    @property
    def version(self) -> int:
        """The last version written or read at this end; 0 if there is none."""
        self._open()
        return self._version

    def descriptors(self) -> list[int]:
        """The descriptors that the worker needs to attach."""
        fd = self._open().fd
        assert fd is not None
        return [self._out, fd]

    def send(self, packed: PackedWeights, version: int) -> None:
        """Send packed weights; see `Mailbox`."""
        checked_version(version)
        self._extra, blob = packed.extra_after(self._extra)
        self._send(self._latest.following(self.described, packed.tensors, version, blob))

    def _send(self, message: WeightMessage) -> None:
        self._open()
        assert self._feeder is not None, "the end that reads does not write"
        self._latest, self._version = message, int(message.stored.record[VERSION])
        self._feeder.put(message)
        self._number[0] = int(message.stored.record[SERIAL])

    def read_into(self, policy: Any, since: int) -> int:
        """Copy the latest weights into a policy, in place, if there are unread ones.

        Waits for a partly received message to be complete.

        Returns:
            The version that the policy has now: `since` if there was nothing newer.
        """
        self._open()
        latest = self._number[0]
        while self._latest.stored.record[SERIAL] < latest:
            message = self._receive()
            if message is None:
                break
            message.stored.load_into(policy)
            if message.extra:
                load_extra_states(policy, unpacked(message.extra))
            since = self._version = int(message.stored.record[VERSION])
        return since

    def _receive(self) -> WeightMessage | None:
        """The next message, in the memory of the previous one; None if the writer is gone."""
        message, before = self._latest, self._latest.stored.record[:].copy()
        is_whole = _read_all(self._out, message.block.memory.data)
        extra = bytearray(int(message.stored.record[EXTRA_SIZE]) if is_whole else 0)
        if not is_whole or not _read_all(self._out, memoryview(extra)):
            message.stored.record[:] = before
            return None
        message.extra = bytes(extra)
        return message

    def renewed(self) -> MessageMailbox:
        """A mailbox for a replacement of this one's worker, with the latest weights; closes this one."""
        new = MessageMailbox.for_weights(self.described)
        if self._version:
            new._send(self._latest)
            new._extra = self._extra
        self.close()
        return new

    def close(self) -> None:
        """End the thread and release the descriptors; a second call does nothing."""
        self._number, self._shared = memoryview(bytes(8)).cast("q"), None
        if self._close_feeder is not None:
            self._close_feeder()
        self._close_out()

    def _open(self) -> Block:
        if self._shared is None:
            raise ClosedError(CLOSED)
        return self._shared


def _read_all(pipe: int, into: memoryview) -> bool:
    """Fill this memory from a pipe; False if its other end is closed first."""
    while into:
        count = os.readv(pipe, [into])
        if not count:
            return False
        into = into[count:]
    return True
