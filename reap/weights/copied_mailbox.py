"""`CopiedMailbox`: the latest weights for one worker without shared memory; they are posted when written.

write --> latest --- deliver(post) ---> put --> read_into
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from reap.errors import ClosedError
from reap.recording.layout import Field
from reap.system.memory import Bytes
from reap.weights.mailbox import CLOSED
from reap.weights.packed import PackedWeights, PackingMailbox, block_of, checked_version, half_in, unpacked
from reap.weights.weight_layout import WeightLayout, load_extra_states


class Parcel(NamedTuple):
    """One version of the weights in transit.

    Attributes:
        version: the version number.
        block: the tensors; workers of the same layout receive the same block.
        extra: extra state.
    """

    version: int
    block: Bytes
    extra: bytes


class CopiedMailbox(PackingMailbox):
    """The latest weights for one worker; see `Mailbox`. The collector's end has `deliver`, the worker's end `put`.

    Args:
        described: the weights.

    Attributes:
        described: the weights.

    Example:
        >>> import torch
        >>> from reap.weights.weight_layout import describe
        >>> sender, receiver = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
        >>> here, there = (CopiedMailbox.for_weights(describe(sender)) for _ in range(2))
        >>> here.deliver(there.put)
        >>> here.write(sender, version=1)
        >>> there.read_into(receiver, since=0), there.read_into(receiver, since=1)
        (1, 1)
        >>> bool((receiver.weight == sender.weight).all())
        True
    """

    def __init__(self, described: Mapping[str, Field]) -> None:
        self.described = described if isinstance(described, WeightLayout) else WeightLayout(dict(described))
        self._latest: Parcel | None = None
        self._read: Parcel | None = None
        self._post: Callable[[Parcel], Any] | None = None
        self._extra: Mapping[str, Any] = {}
        self._is_closed = False

    @classmethod
    def for_weights(cls, described: Mapping[str, Field]) -> CopiedMailbox:
        """A new mailbox; see `Mailbox`."""
        return cls(described)

    @classmethod
    def attach(cls, described: Mapping[str, Field]) -> CopiedMailbox:
        """Make the worker's end; see `Mailbox`."""
        return cls(described)

    @property
    def version(self) -> int:
        """The last version written or put at this end; 0 if there is none."""
        self._ensure_open()
        return 0 if self._latest is None else self._latest.version

    def descriptors(self) -> list[int]:
        """Empty: no descriptors are needed."""
        return []

    def send(self, packed: PackedWeights, version: int) -> None:
        """Replace the latest weights by packed ones; see `Mailbox`."""
        self._ensure_open()
        before = self._latest
        lacks_some = packed.tensors.keys() != self.described.keys()
        block = block_of(self.described, packed.tensors, before.block) if before and lacks_some else packed.block
        extra, blob = packed.extra_after(self._extra)
        self._latest, self._extra = Parcel(checked_version(version), block, blob), extra
        if self._post is not None:
            self._post(self._latest)

    def deliver(self, post: Callable[[Parcel], Any]) -> None:
        """Post the latest weights, if any, and all later ones to the other end.

        Args:
            post: sends a parcel; must return without waiting.
        """
        self._post = post
        if self._latest is not None:
            post(self._latest)

    def put(self, parcel: Parcel) -> None:
        """Put arrived weights into this end."""
        self._latest = parcel

    def read_into(self, policy: Any, since: int) -> int:
        """Copy weights that arrived since the last call into a policy; see `Mailbox`."""
        self._ensure_open()
        parcel = self._latest
        if parcel is None or parcel is self._read:
            return since
        half_in(self.described, parcel.block).load_into(policy)
        if parcel.extra:
            load_extra_states(policy, unpacked(parcel.extra))
        self._read = parcel
        return parcel.version

    def renewed(self) -> CopiedMailbox:
        """A mailbox for a replacement of this one's worker, to which the latest weights are sent again."""
        new = self.copied()
        self._post = new._inherit  # whoever still writes to this one writes to that one
        return new

    def copied(self) -> CopiedMailbox:
        """A mailbox for an additional worker, with the latest weights."""
        new = CopiedMailbox(self.described)
        new._latest, new._extra = self._latest, self._extra
        return new

    def _inherit(self, parcel: Parcel) -> None:
        self._latest = parcel
        if self._post is not None:
            self._post(parcel)

    def close(self) -> None:
        """Drop the weights; a second call does nothing."""
        self._is_closed, self._latest, self._read, self._post = True, None, None, None

    def _ensure_open(self) -> None:
        if self._is_closed:
            raise ClosedError(CLOSED)
