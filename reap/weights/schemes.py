"""Weight sync schemes on one machine: shared memory, messages, or no transfer.

In a collector a scheme is an option, `weight_sync_schemes={"policy": scheme}`. The collector makes the mailboxes itself, of the
kind that the scheme names:

    collector   box = scheme.mailbox.for_weights(describe(policy))         one for each worker
                updater = scheme.updater(policy, {worker: box, ...})       its `weight_updater`
    worker      box = scheme.mailbox.attach(describe(policy), *descriptors)    box.descriptors(), in this process
                version = box.read_into(policy, version)                   before each rollout
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reap.weights.mailbox import WeightMailbox
from reap.weights.messages import MessageMailbox
from reap.weights.no_weights import NoMailbox, NoWeightUpdater
from reap.weights.scheme import Role, WeightSyncScheme


class SharedMemWeightSyncScheme(WeightSyncScheme):
    """Weights in shared memory, which holds the latest; one copy to send, one to receive.

    Args:
        strategy: "tensordict" or "state_dict"; see `WeightSyncScheme`.
        sync: see `WeightSyncScheme`.
        per_worker_weights: accepted for compatibility with torchrl; each receiver always has its own memory.

    Example:
        >>> from torch import nn
        >>> scheme = SharedMemWeightSyncScheme()
        >>> scheme.init_on_sender(model=nn.Linear(2, 1))
        >>> scheme.connect()  # once Process(target=..., args=(scheme,)) runs, or before
        >>> scheme.send()
        >>> scheme.shutdown()
    """

    mailbox = WeightMailbox

    def __init__(self, strategy: str = "tensordict", sync: bool = True, per_worker_weights: bool = False) -> None:
        super().__init__(strategy, sync)


class MultiProcessWeightSyncScheme(WeightSyncScheme):
    """Weights in messages through a pipe; a waiting message is replaced by a newer one.

    Args:
        strategy: "tensordict" or "state_dict"; see `WeightSyncScheme`.
        sync: see `WeightSyncScheme`.
    """

    mailbox = MessageMailbox


class NoWeightSyncScheme(WeightSyncScheme):
    """Sends nothing: receivers keep their weights.

    Args:
        strategy: "tensordict" or "state_dict"; ignored.
        sync: ignored.
    """

    mailbox = NoMailbox
    sends = False

    def init_on_sender(self, *, model: Any = None, weights: Any = None, **options: Any) -> None:
        """Make this end the sender, which sends nothing."""
        super().init_on_sender(weights={}, **options)
        self.model = model

    def updater(self, policy: Any, mailboxes: Mapping[int, Any]) -> Any:
        """An updater that sends nothing."""
        return NoWeightUpdater(mailboxes)

    def updater_here(self, policy: Any, source: Any) -> Any:
        """An updater that sends nothing."""
        return NoWeightUpdater({0: None})

    def receive(self, timeout: float | None = None) -> None:
        """Return None immediately, since nothing is ever sent."""
        self._require("receive", Role.CONNECTED_RECEIVER)

    def _connect_receiver(self, worker_idx: int | None) -> None:
        self.worker_idx = self.worker_idx if worker_idx is None else worker_idx
        self._role = Role.CONNECTED_RECEIVER
