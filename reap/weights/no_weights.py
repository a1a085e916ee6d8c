"""`NoMailbox` and `NoWeightUpdater`: stand-ins used when no weights are sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from reap.recording.layout import Field
from reap.weights.base import WeightUpdaterBase
from reap.weights.packed import PackedWeights
from reap.weights.weight_layout import WeightLayout


class NoMailbox:
    """A mailbox that is always empty; see `Mailbox`.

    Args:
        described: the weights that are not sent.

    Attributes:
        described: as given.
        version: 0.
    """

    version = 0

    def __init__(self, described: Mapping[str, Field]) -> None:
        self.described = described if isinstance(described, WeightLayout) else WeightLayout(dict(described))

    @classmethod
    def for_weights(cls, described: Mapping[str, Field]) -> Self:
        """A mailbox for these weights."""
        return cls(described)

    @classmethod
    def attach(cls, described: Mapping[str, Field]) -> Self:
        """The other end."""
        return cls(described)

    def descriptors(self) -> list[int]:
        """Empty: no descriptors are needed."""
        return []

    def check(self, weights: Any) -> None:
        """Accept anything."""

    def write(self, weights: Any, version: int, extra: Mapping[str, Any] | None = None) -> None:
        """Do nothing."""

    def send(self, packed: PackedWeights, version: int) -> None:
        """Do nothing."""

    def copied(self) -> Self:
        """A mailbox for an additional worker."""
        return type(self)(self.described)

    def read_into(self, policy: Any, since: int) -> int:
        """Return `since`: there are never newer weights."""
        return since

    def renewed(self) -> Self:
        """This mailbox."""
        return self

    def close(self) -> None:
        """Nothing to release."""


class NoWeightUpdater(WeightUpdaterBase):
    """Sends nothing, but runs its hooks.

    Args:
        mailboxes: their keys are the workers.
    """

    def __init__(self, mailboxes: Mapping[Any, Any]) -> None:
        self.mailboxes = dict(mailboxes)

    def all_worker_ids(self) -> Sequence[Any]:
        """The workers, which receive nothing."""
        return list(self.mailboxes)

    def _get_server_weights(self) -> Any:
        return {}

    def _sync_weights_with_worker(self, *, worker_id: Any, server_weights: Any) -> None:
        pass
