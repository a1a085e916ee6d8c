"""`PolicyCopy`: the policy of a worker, whose weights come from the collector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reap.collectors.state import policy_state
from reap.policy.contents.held import Held
from reap.recording.layout import Field
from reap.weights.attributes import applied_attributes, loaded, set_attributes
from reap.weights.base import check_weights, load_weights
from reap.weights.weight_layout import describe

ANY_VERSION = 2**62
"""More than any version: a mailbox that is asked for newer weights then gives those written since it was read last."""


class PolicyCopy:
    """A policy and the mailbox through which its weights come.

    Args:
        held: the policy and what it holds.
        attributes: plain attributes of a policy that was made here, before it was called.

    Attributes:
        version: the version of its weights.
        attributes: as given.
    """

    def __init__(self, held: Held, attributes: Mapping[str, Any]) -> None:
        self.version = 0
        self.attributes = attributes
        self._held = held
        self._mailbox: Any = None
        self._since = 0

    @property
    def has_mailbox(self) -> bool:
        """Whether weights are sent to it; one without weights never has older ones than the collector."""
        return self._mailbox is not None

    @property
    def weights(self) -> Mapping[str, Field] | None:
        """Shape and dtype of each weight; None if it has none."""
        return describe(self._held) if self._held else None

    def attach(self, kind: Any, *descriptors: int) -> None:
        """Take this end of a mailbox.

        Args:
            kind: its class.
            *descriptors: what the other end gave; they belong to the mailbox.
        """
        self._mailbox = kind.attach(describe(self._held), *descriptors)

    def put(self, weights: Any) -> None:
        """Put weights that have arrived into the mailbox."""
        self._mailbox.put(weights)

    def read(self) -> bool:
        """Load the weights that came since the last time, if any did; return whether any did.

        Their version may be a lower one, of a collector that has loaded an earlier state.
        """
        if self._mailbox is None:
            return False
        found = self._mailbox.read_into(self._held, self._since)
        is_new = found != self._since
        if is_new:
            self.version = found
        self._since = ANY_VERSION
        return is_new

    def state(self) -> dict[str, Any]:
        """Its own weights: those of the collector's policy may be newer, and one that a factory made is here only."""
        return {"policy": policy_state(self._held), "attributes": applied_attributes(self._held), "version": self.version}

    def check(self, state: Mapping[str, Any]) -> None:
        """Raise SpecMismatch for a state whose weights are not those of the policy."""
        if self._held:
            check_weights(self._held, state["policy"])

    def load(self, state: Mapping[str, Any]) -> None:
        """Take the weights of a state."""
        if self._held:
            load_weights(self._held, state["policy"])
            set_attributes(self._held, loaded(state.get("attributes", {})))
        self.version = state["version"]
