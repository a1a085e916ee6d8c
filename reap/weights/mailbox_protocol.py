"""`Mailbox`: where the weights for one worker go, and where it finds them.

    sender                                              receiver
      box = kind.for_weights(describe(policy))
          box.descriptors()  ------- get across ------->   box = kind.attach(describe(policy), *descriptors)
      box.write(weights, version)                          version = box.read_into(policy, version)
      box = box.renewed()                                  (another receiver takes this one's place)
      box.close()                                          box.close()

The latest weights win: those that nobody has read are replaced. Kinds: `WeightMailbox` (shared memory), `MessageMailbox` (a
pipe), `CopiedMailbox` (weights go along with commands), `NoMailbox`.
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
        """The weights that it is made for."""
        ...

    @property
    def version(self) -> int:
        """The version of the latest weights; 0 if there are none."""
        ...

    def descriptors(self) -> list[int]:
        """What the other end needs."""
        ...

    def check(self, weights: Any) -> None:
        """Raise OptionError or SpecMismatch if `write` would."""
        ...

    def write(self, weights: Any, version: int, extra: Mapping[str, Any] | None = None) -> None:
        """Put weights in place of the latest ones; never waits for the worker's rollout.

        Args:
            weights: a module, a TensorDict of parameters or a state dict, on any device. Buffers that it lacks stay as they
                were sent last.
            version: a number for them, 1 or more.
            extra: state beyond tensors by its name in a state dict; that of `weights` if None.

        Raises:
            OptionError: these are no weights, or no such version.
            SpecMismatch: names or shapes differ; nothing is changed then.
            ClosedError: the mailbox is closed.
        """
        ...

    def send(self, packed: PackedWeights, version: int) -> None:
        """As `write`, with weights that were packed for all mailboxes of this layout."""
        ...

    def read_into(self, policy: Any, since: int) -> int:
        """Copy the latest weights into a policy, in place, if it does not have them.

        Args:
            policy: a policy (`Held`), a module, or a TensorDict or dict of tensors.
            since: the version that it has; 0 for none.

        Returns:
            The version that the policy has now: `since` if there was nothing newer.
        """
        ...

    def renewed(self) -> Self:
        """The mailbox for a worker that takes the place of this one's, with the latest weights in it."""
        ...

    def close(self) -> None:
        """Give back what this end holds; a second call does nothing."""
        ...


class MailboxKind(Protocol):
    """Makes both ends: the class of a mailbox."""

    @property
    def for_weights(self) -> Callable[[Mapping[str, Field]], Mailbox]:
        """Makes a new mailbox, with nothing in it, for the weights that `describe(policy)` returned in the worker."""
        ...

    @property
    def attach(self) -> Callable[..., Mailbox]:
        """Makes the other end, from the same description and the numbers that these descriptors have here: it owns them."""
        ...
