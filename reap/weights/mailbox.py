"""`WeightMailbox`: the latest weights for one worker, in memory that it shares with the process that sends them.

    one memfd
    | serial | half 0: record, present, weights | half 1: record, present, weights | extra states, of any size ... |
        |                                              ^
        '--- odd: half 1 is published -----------------'

A writer fills the half that is not published, then stores the serial: one aligned word. So a writer that is killed or
interrupted leaves no trace, and a reader only sees complete versions. A `ProcessLock` is held during each copy only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from reap.errors import ClosedError
from reap.keys import Key
from reap.recording.layout import Block, Field, Layout
from reap.system.locks import ProcessLock
from reap.weights.half import VERSION, WeightHalf
from reap.weights.packed import PackedWeights, PackingMailbox, checked_version, unpacked
from reap.weights.weight_layout import WeightLayout, describe, load_extra_states

__all__ = ["WeightMailbox", "describe"]

SERIAL = ("serial",)
HALVES = ("half 0", "half 1")
EXTRA_START, EXTRA_SIZE = 1, 2
"""Indices in a half's record, in addition to the version's."""

CLOSED = "this weight mailbox is closed"


class WeightMailbox(PackingMailbox):
    """The latest weights for one worker. The worker reads them at any time; a writer waits at most for one copy.

    Made by `for_weights` in the writing process and by `attach` in the reading one, which needs the descriptor `fd`.

    Attributes:
        described: the layout of the weights.

    Example:
        >>> sender, receiver = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
        >>> mailbox = WeightMailbox.for_weights(describe(sender))
        >>> mailbox.write(sender, version=1)
        >>> other = WeightMailbox.attach(mailbox.described, os.dup(mailbox.fd))  # in the other process
        >>> other.read_into(receiver, since=0), other.read_into(receiver, since=1)
        (1, 1)
        >>> bool((receiver.weight == sender.weight).all())
        True
    """

    def __init__(self, described: Mapping[str, Field], fd: int | None = None) -> None:
        self.described = described if isinstance(described, WeightLayout) else WeightLayout(dict(described))
        layout = self._layout(self.described)
        block = Block.shared(layout, fd)
        self._block: Block | None = block
        # The word is read without a lock: a memoryview gives a Python integer at a tenth of the price of an array.
        self._serial: memoryview[int] = block.memory.data[:8].cast("q")
        self._halves: tuple[WeightHalf, ...] = tuple(WeightHalf(block, name, self.described) for name in HALVES)
        self._end = layout.nbytes
        self._lock = ProcessLock(self.fd)
        self._seen: int | None = None
        self._extra: Mapping[str, Any] = {}

    @classmethod
    def for_weights(cls, described: Mapping[str, Field]) -> WeightMailbox:
        """Make an empty mailbox, with version 0.

        Args:
            described: what `describe(policy)` returned in the worker.

        Raises:
            MemoryError: two copies of these weights do not fit into the available memory.
        """
        return cls(described)

    @classmethod
    def attach(cls, described: Mapping[str, Field], fd: int) -> WeightMailbox:
        """Open the mailbox that another process made.

        Args:
            described: as given there.
            fd: its descriptor, in this process; it belongs to the mailbox from now on.
        """
        return cls(described, fd)

    @staticmethod
    def _layout(described: WeightLayout) -> Layout:
        fields: dict[Key, Field] = {SERIAL: Field((1,), torch.int64)}
        for half in HALVES:
            fields |= WeightHalf.fields_of(half, described)
        return Layout(fields)

    @property
    def fd(self) -> int:
        """The descriptor of the memory; open until `close`."""
        fd = None if self._block is None else self._block.fd
        if fd is None:
            raise ClosedError(CLOSED)
        return fd

    @property
    def version(self) -> int:
        """The version of the latest weights; 0 if there are none. No lock is taken."""
        while self._halves:
            serial = self._serial[0]
            version = int(self._halves[serial & 1].record[VERSION])
            # Otherwise the half is about to hold a later version.
            if self._serial[0] == serial:
                return version
        raise ClosedError(CLOSED)

    def descriptors(self) -> list[int]:
        """The descriptors that the worker needs to attach."""
        return [self.fd]

    def send(self, packed: PackedWeights, version: int) -> None:
        """Replace the latest weights by packed ones; see `Mailbox`."""
        checked_version(version)
        fd = self.fd
        self._extra, blob = packed.extra_after(self._extra)
        with self._lock:
            self._write(fd, packed.tensors, version, blob)

    def _write(self, fd: int, given: Mapping[str, torch.Tensor], version: int, blob: bytes) -> None:
        serial = self._serial[0]
        old, new = self._halves[serial & 1], self._halves[~serial & 1]
        new.fill(given, before=old)
        new.record[:] = old.record
        new.record[VERSION] = version
        if blob:
            new.record[EXTRA_START:] = self._place(old, len(blob)), len(blob)
            # Writing beyond its end makes the file longer.
            _write_all(fd, blob, int(new.record[EXTRA_START]))
        self._serial[0] = serial + 1

    def _place(self, published: WeightHalf, size: int) -> int:
        """A place for extra states that does not overlap the published ones."""
        start, taken = int(published.record[EXTRA_START]), int(published.record[EXTRA_SIZE])
        fits_before = not taken or self._end + size <= start
        return self._end if fits_before else start + taken

    def read_into(self, policy: Any, since: int) -> int:
        """Copy the latest weights into a policy, in place, unless it already has them.

        Args:
            policy: a module, or a TensorDict or dict of tensors, with the weights that were described.
            since: the version that it has; 0 for none. Anything written since the last read through this mailbox counts as
                newer, whatever its number, because a collector that loads an old state continues to count from there.

        Returns:
            The version that the policy has now: `since` if there was nothing newer.
        """
        # In this order: what is published in between is noticed, now or at the next read.
        serial, version = self._serial[0], self.version
        is_written_since = serial != self._seen and self._seen is not None
        if is_written_since or version > since:
            return self._read_into(policy)
        self._seen = serial
        return since

    def _read_into(self, policy: Any) -> int:
        fd = self.fd
        with self._lock:
            serial = self._serial[0]
            half = self._halves[serial & 1]
            version, start, size = (int(number) for number in half.record)
            half.load_into(policy)
            blob = _read_all(fd, size, start)
        if blob:
            load_extra_states(policy, unpacked(blob))
        self._seen = serial
        return version

    def renewed(self) -> WeightMailbox:
        """The mailbox for a replacement of this one's worker: this mailbox, with the latest weights."""
        return self

    def close(self) -> None:
        """Release the descriptor and the memory; a second call does nothing."""
        with self._lock.threads:
            # No other thread may be reading or writing now.
            self._serial, self._halves = memoryview(bytes(8)).cast("q"), ()
            self._block = None


def _write_all(fd: int, data: bytes, start: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(fd, rest, start)
        rest, start = rest[written:], start + written


def _read_all(fd: int, size: int, start: int) -> bytes:
    parts: list[bytes] = []
    while size:
        parts.append(os.pread(fd, size, start))
        size, start = size - len(parts[-1]), start + len(parts[-1])
    return b"".join(parts)
