"""Weight updaters by engine: `RemoteModuleWeightUpdater`, `RPCWeightUpdater`, `DistributedWeightUpdater`, `RayWeightUpdater`.

As `weight_updater` of a collector none needs an argument: it takes the collector's policy and mailboxes, and weights go the way
of the collector's commands.
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
    """Sends the weights that it is given, and no others: for workers that make their policies themselves.

    Args:
        remote_modules: alone: modules in other processes, by what torch.distributed.rpc refers to them with: an `RRef`, or a
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
        collector_infos: taken as torchrl takes it; a reference knows where it leads.
        collector_class: taken as torchrl takes it.
        collector_rrefs: alone: `RRef`s of collectors, whose `update_policy_weights_` is called, or of modules.
        policy_weights: where weights come from when none are given: a module, or a TensorDict of parameters.
        num_workers: the number of references, where it is given.

    Raises:
        OptionError: another number of references.

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
    """Sends weights by torch.distributed, over process groups of its own.

    Args:
        store: taken as torchrl takes it; the processes meet in a store of the updater's own.
        policy_weights: where weights come from when none are given: a module, or a TensorDict of parameters.
        num_workers: alone: the number of receivers; each unpickles `scheme` and receives by it.
        sync: taken as torchrl takes it; an update returns at once.
        address: of the interface by which receivers of other machines reach this one; None for receivers on this machine.
        timeout: seconds that both sides have to connect to each other.

    Attributes:
        scheme: for the receivers, where `num_workers` was given: a `DistributedWeightSyncScheme`.

    Raises:
        OptionError: a number of receivers, and no weights.

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
        """Send nothing more; the receivers are told."""
        if self.scheme is not None:
            self.scheme.shutdown()


class RayWeightUpdater(MultiProcessedWeightUpdater):
    """Sends weights by Ray.

    Args:
        policy_weights: where weights come from when none are given: a module, or a TensorDict of parameters.
        remote_collectors: alone: actors with a method `update_policy_weights_`, which is called with a state dict, by one call
            at a time: weights that wait for it are replaced by newer ones.
        max_interval: taken as torchrl takes it; a collector has the option `max_weight_update_interval`.

    Raises:
        ImportError: Ray is not installed, and there are actors.
        OptionError: actors, and no weights.

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
        """Send nothing more."""
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
