"""Weight updaters by engine: `RemoteModuleWeightUpdater`, `RPCWeightUpdater`, `DistributedWeightUpdater`, `RayWeightUpdater`.

As `weight_updater` of a collector they need no arguments: they use the collector's policy and mailboxes, and weights travel
like the collector's commands.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from reap.errors import OptionError
from reap.policy.contents.held import held_by
from reap.weights.engines.actor_mailbox import ActorMailbox, StateDicts
from reap.weights.engines.rref_mailbox import RRefMailbox
from reap.weights.engines.schemes import DistributedWeightSyncScheme
from reap.weights.remote import MultiProcessedWeightUpdater
from reap.weights.weight_layout import describe


class RemoteModuleWeightUpdater(MultiProcessedWeightUpdater):
    """Sends only weights that are passed to it; for workers that make their own policies.

    Args:
        remote_modules: outside a collector: modules in other processes, each an `RRef` or a
            `torch.distributed.nn.RemoteModule`.

    Example:
        >>> updater = RemoteModuleWeightUpdater()
        >>> updater.push_weights()
        Traceback (most recent call last):
            ...
        reap.errors.OptionError: weights: expected a module, a TensorDict or a state dict, got None: ...

    `examples/weights_between_processes.py` sends to a module in another process.
    """

    def __init__(self, remote_modules: Iterable[Any] = ()) -> None:
        super().__init__(None, dict(enumerate(map(_mailbox, remote_modules))))

    def _get_server_weights(self) -> Any:
        raise OptionError(
            "weights: expected a module, a TensorDict or a state dict, got None: a RemoteModuleWeightUpdater sends what it is "
            "given; use update_policy_weights_(weights)"
        )


class RPCWeightUpdater(MultiProcessedWeightUpdater):
    """Sends weights by torch.distributed.rpc.

    Args:
        collector_infos: accepted for compatibility with torchrl; not needed, since references know their owners.
        collector_class: accepted for compatibility with torchrl; ignored.
        collector_rrefs: outside a collector: `RRef`s of collectors, whose `update_policy_weights_` is called, or of modules.
        policy_weights: where weights come from when none are given: a module, or a TensorDict of parameters.
        num_workers: the number of references, if given.

    Raises:
        OptionError: `num_workers` differs from the number of references.

    Example:
        >>> from torch import nn
        >>> RPCWeightUpdater(policy_weights=nn.Linear(2, 1)).all_worker_ids()
        []
    """

    def __init__(
        self,
        collector_infos: Any = None,
        collector_class: Any = None,
        collector_rrefs: Iterable[Any] | None = None,
        policy_weights: Any = None,
        num_workers: int | None = None,
    ) -> None:
        rrefs = list(collector_rrefs or ())
        if num_workers is not None and num_workers != len(rrefs):
            raise OptionError(f"num_workers={num_workers}: got {len(rrefs)} collector_rrefs; give one for each worker")
        super().__init__(policy_weights, dict(enumerate(map(_mailbox, rrefs))))


class DistributedWeightUpdater(MultiProcessedWeightUpdater):
    """Sends weights by torch.distributed, over separate process groups.

    Args:
        store: accepted for compatibility with torchrl; ignored, since the updater has its own store.
        policy_weights: where weights come from when none are given: a module, or a TensorDict of parameters.
        num_workers: outside a collector: the number of receivers; each unpickles `scheme` and receives with it.
        sync: accepted for compatibility with torchrl; an update never waits.
        address: of the interface by which receivers on other machines reach this one; None for receivers on this machine.
        timeout: seconds for both sides to connect.

    Attributes:
        scheme: the `DistributedWeightSyncScheme` for the receivers, if `num_workers` was given.

    Raises:
        OptionError: `num_workers` is given without weights.

    Example:
        >>> import pickle
        >>> from torch import nn
        >>> updater = DistributedWeightUpdater(policy_weights=nn.Linear(2, 1), num_workers=1)
        >>> message = pickle.dumps(updater.scheme)  # to be sent to the receiver by any means
        >>> updater.push_weights()
        >>> updater.close()
    """

    def __init__(
        self,
        store: Any = None,
        policy_weights: Any = None,
        num_workers: int | None = None,
        sync: bool = False,
        *,
        address: str | None = None,
        timeout: float = 3600.0,
    ) -> None:
        self.scheme: DistributedWeightSyncScheme | None = None
        if num_workers is not None:
            self.scheme = DistributedWeightSyncScheme(timeout=timeout, address=address)
            self.scheme.init_on_sender(weights=policy_weights, num_workers=num_workers)
        super().__init__(policy_weights, self.scheme.mailboxes if self.scheme else None)

    def close(self) -> None:
        """Stop sending; the receivers are notified."""
        if self.scheme is not None:
            self.scheme.shutdown()


class RayWeightUpdater(MultiProcessedWeightUpdater):
    """Sends weights by Ray.

    Args:
        policy_weights: where weights come from when none are given: a module, or a TensorDict of parameters.
        remote_collectors: outside a collector: actors with a method `update_policy_weights_`, which is called with a state
            dict, one call at a time; waiting weights are replaced by newer ones.
        max_interval: accepted for compatibility with torchrl; use a collector's option `max_weight_update_interval`.

    Raises:
        ImportError: actors are given, but Ray is not installed.
        OptionError: actors are given without weights.

    Example (starts Ray)::

        updater = RayWeightUpdater(policy, [actor])  # actor: a handle of one
        updater.push_weights()
        updater.close()
    """

    def __init__(self, policy_weights: Any = None, remote_collectors: Iterable[Any] = (), max_interval: int = 0) -> None:
        actors = list(remote_collectors)
        if actors and policy_weights is None:
            raise OptionError(
                "policy_weights: expected a module or a TensorDict, got None: what actors are sent is described by it"
            )
        super().__init__(policy_weights, dict(enumerate(_actor_mailboxes(policy_weights, actors))))
        self.max_interval = max_interval

    def close(self) -> None:
        """Stop sending."""
        for box in self.mailboxes.values():
            box.close()


def _actor_mailboxes(weights: Any, actors: list[Any]) -> list[ActorMailbox]:
    if not actors:
        return []
    described = describe(held_by(weights) if callable(weights) else weights)
    states = StateDicts(described)
    return [ActorMailbox(actor, states, described) for actor in actors]


def _mailbox(given: Any) -> RRefMailbox:
    get_rref = getattr(given, "get_module_rref", None)
    return RRefMailbox(given if get_rref is None else get_rref())
