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
"""Higher than any version: asked with it, a mailbox returns weights written since the last read, whatever their version."""


class PolicyCopy:
    """A policy and the mailbox that brings its weights.

    Args:
        held: the policy with its weights and buffers.
        attributes: plain attributes of a policy that was made here, from before its first call.

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
        """Whether weights are sent to this policy."""
        return self._mailbox is not None

    @property
    def weights(self) -> Mapping[str, Field] | None:
        """Shape and dtype of each weight; None if it has none."""
        return describe(self._held) if self._held else None

    def attach(self, kind: Any, *descriptors: int) -> None:
        """Open this end of a mailbox.

        Args:
            kind: the mailbox's class.
            *descriptors: from the other end; they belong to the mailbox.
        """
        self._mailbox = kind.attach(describe(self._held), *descriptors)

    def put(self, weights: Any) -> None:
        """Put arrived weights into the mailbox."""
        self._mailbox.put(weights)

    def read(self) -> bool:
        """Load weights that arrived since the last call, if any; return whether there were any.

        Their version may be lower than the last, if the collector has loaded an earlier state.
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
        """The worker's own weights: the collector's may be newer, and a policy made by a factory exists only here."""
        return {"policy": policy_state(self._held), "attributes": applied_attributes(self._held), "version": self.version}

    def check(self, state: Mapping[str, Any]) -> None:
        """Raise SpecMismatch for a state whose weights do not fit the policy."""
        if self._held:
            check_weights(self._held, state["policy"])

    def load(self, state: Mapping[str, Any]) -> None:
        """Load the weights of a state."""
        if self._held:
            load_weights(self._held, state["policy"])
            set_attributes(self._held, loaded(state.get("attributes", {})))
        self.version = state["version"]
