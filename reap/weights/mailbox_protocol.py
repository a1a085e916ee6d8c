"""`Mailbox`: carries the latest weights to one worker.

    sender                                              receiver
      box = kind.for_weights(describe(policy))
          box.descriptors()  ------- sent over ------->   box = kind.attach(describe(policy), *descriptors)
      box.write(weights, version)                          version = box.read_into(policy, version)
      box = box.renewed()                                  (another receiver replaces this one)
      box.close()                                          box.close()

The latest weights win: unread ones are replaced. Kinds: `WeightMailbox` (shared memory), `MessageMailbox` (a pipe),
`CopiedMailbox` (weights are sent like commands), `NoMailbox`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, Self

from reap.recording.layout import Field
from reap.weights.packed import PackedWeights
from reap.weights.weight_layout import WeightLayout


class Mailbox(Protocol):
    """Either end of a mailbox."""

    @property
    def described(self) -> WeightLayout:
        """The layout of the weights that it is made for."""
        ...

    @property
    def version(self) -> int:
        """The version of the latest weights; 0 if there are none."""
        ...

    def descriptors(self) -> list[int]:
        """The descriptors that the other end needs."""
        ...

    def check(self, weights: Any) -> None:
        """Raise OptionError or SpecMismatch if `write` would."""
        ...

    def write(self, weights: Any, version: int, extra: Mapping[str, Any] | None = None) -> None:
        """Replace the latest weights; never waits for the worker's rollout.

        Args:
            weights: a module, a TensorDict of parameters or a state dict, on any device. Missing buffers keep the
                values sent last.
            version: their version number, 1 or more.
            extra: extra state by its name in a state dict; that of `weights` if None.

        Raises:
            OptionError: not weights, or an invalid version.
            SpecMismatch: names or shapes differ; nothing is changed then.
            ClosedError: the mailbox is closed.
        """
        ...

    def send(self, packed: PackedWeights, version: int) -> None:
        """Like `write`, with weights that were packed for all mailboxes of this layout."""
        ...

    def read_into(self, policy: Any, since: int) -> int:
        """Copy the latest weights into a policy, in place, unless it already has them.

        Args:
            policy: a policy (`Held`), a module, or a TensorDict or dict of tensors.
            since: the version that it has; 0 for none.

        Returns:
            The version that the policy has now: `since` if there was nothing newer.
        """
        ...

    def renewed(self) -> Self:
        """The mailbox for a replacement of this one's worker, with the latest weights."""
        ...

    def close(self) -> None:
        """Release this end's resources; a second call does nothing."""
        ...


class MailboxKind(Protocol):
    """Makes both ends; implemented by the class of a mailbox."""

    @property
    def for_weights(self) -> Callable[[Mapping[str, Field]], Mailbox]:
        """Make an empty mailbox for the weights that `describe(policy)` returned in the worker."""
        ...

    @property
    def attach(self) -> Callable[..., Mailbox]:
        """Make the other end from the same description and its descriptors as numbered here, which it then owns."""
        ...
