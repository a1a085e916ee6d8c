"""`PolicyWeights`: the version of a collector's policy, and the updater that makes its weights current in the workers."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any

from reap.errors import OptionError
from reap.weights.base import WeightUpdaterBase, breaking_off, listed
from reap.weights.pending import PendingWeightUpdater


class PolicyWeights:
    """The weights of a collector's policy.

    Args:
        owner: the collector's class, for errors.
        updater: sends weights to the workers; None if there are none.
        refreshes: send the policy's weights before each batch; otherwise only when the user calls for it.

    Attributes:
        version: number of weight updates so far.
        updater: as given, or its replacement.
    """

    def __init__(self, owner: str, updater: WeightUpdaterBase | None, *, refreshes: bool = False) -> None:
        self.version = 0
        self.updater = updater
        self._owner, self._interval = owner, int(refreshes)
        self._batches = 0
        self._sent: dict[Any, int] = {}
        """By worker, the number of batches before its last update."""
        # Weights and their version change together.
        self._lock = Lock()
        self._pending: PendingWeightUpdater | None = None

    def wait_with(self, updater: PendingWeightUpdater) -> None:
        """Hold new weights until the policy is between two rollouts, since it now acts in a thread."""
        self.updater = self._pending = updater

    def push(self, policy_or_weights: Any, worker_ids: Any) -> None:
        """Send weights; see `DataCollectorBase.update_policy_weights_`."""
        if self.updater is None and policy_or_weights is not None:
            raise OptionError(f"weights: this {self._owner} has no policy with weights to update")
        with self._lock, breaking_off(self.updater):
            if self.updater is not None:
                self.updater.push_weights(policy_or_weights, worker_ids)
            self.version += 1
            updated = self._workers() if worker_ids is None else listed(worker_ids)
            self._sent.update(dict.fromkeys(updated, self._batches))

    def increment(self) -> None:
        """Increment the version without sending weights."""
        with self._lock:
            self.version += 1

    def refresh_after(self, batches: int) -> None:
        """Send a worker the policy's weights before the first batch, and when it got none for this number of batches.

        Args:
            batches: of the collector, whoever recorded them; 0 for never.
        """
        self._interval = batches

    def refresh(self) -> None:
        """Called before a batch: send the policy's weights to the workers for which they are due."""
        if self._interval:
            known = self._workers()
            due = [worker for worker in known if self._batches - self._sent.get(worker, -self._interval) >= self._interval]
            if due:
                self.push(None, None if len(due) == len(known) else due)
        self._batches += 1

    def _workers(self) -> Sequence[Any]:
        """The workers that are updated; one without an id where the updater names none, or only the version counts."""
        known = None if self.updater is None else self.updater.all_worker_ids()
        return [None] if known is None else known

    def current(self) -> int:
        """The weights version that a rollout in this process now uses."""
        with self._lock:
            if self._pending is not None:
                self._pending.apply()
            return self.version

    def restore(self, version: int, weights: Any) -> None:
        """Continue with this version; weights held for a thread are replaced by those of the state."""
        self.version = version
        if self._pending is not None:
            self._pending.push_weights(weights)
