"""`PendingWeightUpdater`: weights for a policy that acts in another thread, held until it is between two rollouts."""

from __future__ import annotations

from copy import deepcopy
from threading import Lock
from typing import Any

from reap.policy.contents.held import Held, held_by
from reap.weights.attributes import ATTRIBUTES, Changes
from reap.weights.base import WeightUpdaterBase, as_held, check_weights, load_weights
from reap.weights.weight_layout import extra_states, weights_by_name


class PendingWeightUpdater(WeightUpdaterBase):
    """Keeps a copy of the latest weights until they are applied; never waits for a rollout.

    Args:
        policy: the policy that acts.
        source: where weights come from when none are given.
        changes: changes of the source's attributes since the acting policy had them; None if it has them all.
    """

    def __init__(self, policy: Any, source: Any, changes: Changes | None = None) -> None:
        super().__init__()
        self._held, self._source = held_by(policy), held_by(source)
        self._changes = Changes(self._source) if changes is None else changes
        self._lock = Lock()
        self._pending: dict[str, Any] | None = None

    def _get_server_weights(self) -> Any:
        return self._source.policy

    def _sync_weights_with_worker(self, *, worker_id: Any, server_weights: Any) -> None:
        given = as_held(server_weights, self._source)
        check_weights(self._held, given)
        copies: dict[str, Any] = {name: value.detach().clone() for name, value in weights_by_name(given).items()}
        copies |= deepcopy(extra_states(given))
        copies[ATTRIBUTES] = self._changes.found(given if isinstance(given, Held) else None)
        with self._lock:
            self._pending = copies

    def apply(self) -> None:
        """Load the latest weights, if they are not loaded yet."""
        with self._lock:
            pending, self._pending = self._pending, None
        if pending is not None:
            load_weights(self._held, pending)
