"""`NoMailbox` and `NoWeightUpdater`: weights that are not sent, in place of those that are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from reap.recording.layout import Field
from reap.weights.base import WeightUpdaterBase
from reap.weights.packed import PackedWeights
from reap.weights.weight_layout import WeightLayout


class NoMailbox:
    """Nothing goes in, and nothing comes out; see `Mailbox`.

    Args:
        described: the weights that are not sent.

    Attributes:
        described: the same.
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
        """Its other end."""
        return cls(described)

    def descriptors(self) -> list[int]:
        """None are needed."""
        return []

    def check(self, weights: Any) -> None:
        """Anything fits."""

    def write(self, weights: Any, version: int, extra: Mapping[str, Any] | None = None) -> None:
        """Nothing is sent."""

    def send(self, packed: PackedWeights, version: int) -> None:
        """Nothing is sent."""

    def copied(self) -> Self:
        """A mailbox for one more worker."""
        return type(self)(self.described)

    def read_into(self, policy: Any, since: int) -> int:
        """Nothing has come."""
        return since

    def renewed(self) -> Self:
        """Itself."""
        return self

    def close(self) -> None:
        """Nothing is held."""


class NoWeightUpdater(WeightUpdaterBase):
    """Sends nothing; its hooks run all the same.

    Args:
        mailboxes: their keys are the workers.
    """

    def __init__(self, mailboxes: Mapping[Any, Any]) -> None:
        super().__init__()
        self.mailboxes = dict(mailboxes)

    def all_worker_ids(self) -> Sequence[Any]:
        """The workers, who get nothing."""
        return list(self.mailboxes)

    def _get_server_weights(self) -> Any:
        return {}

    def _sync_weights_with_worker(self, *, worker_id: Any, server_weights: Any) -> None:
        pass
