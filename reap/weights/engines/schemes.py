"""Weight sync schemes by engine: `RPCWeightSyncScheme`, `DistributedWeightSyncScheme` and `RayWeightSyncScheme`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reap.errors import OptionError
from reap.weights.engines.base import Sending
from reap.weights.engines.gloo import GlooSending
from reap.weights.engines.ray import RaySending
from reap.weights.engines.rpc import RpcSending
from reap.weights.engines.scheme import RemoteWeightSyncScheme
from reap.workers.ray.cluster import Cluster


class RPCWeightSyncScheme(RemoteWeightSyncScheme):
    """Weights by torch.distributed.rpc; receivers call the sender.

    If `init_rpc` was called, the process's RPC agent is used, and the receiver's agent must know the sender's. Otherwise one is
    started for as long as it is needed.

    Args:
        strategy: "tensordict" or "state_dict"; see `WeightSyncScheme`.
        sync: see `WeightSyncScheme`.
        address: of the interface by which receivers on other machines reach this one; None for receivers on this machine.

    Example:
        >>> import pickle
        >>> from torch import nn
        >>> sender, policy = RPCWeightSyncScheme(), nn.Linear(2, 1)
        >>> sender.init_on_sender(model=policy)
        >>> message = pickle.dumps(sender)  # to be sent to the receiver by any means
        >>> sender.connect()
        >>> sender.send()
        >>> sender.shutdown()

    In the other process, `examples/weights_between_processes.py` runs both:
        `scheme = pickle.loads(message); scheme.init_on_receiver(model=own); scheme.connect(); scheme.receive(timeout=1.0)`
    """

    def __init__(self, strategy: str = "tensordict", sync: bool = True, address: str | None = None) -> None:
        super().__init__(strategy, sync)
        self.address = address

    def _open_engine(self) -> Sending:
        return RpcSending(self._described, self.address)


class DistributedWeightSyncScheme(RemoteWeightSyncScheme):
    """Weights by torch.distributed, over separate process groups; the default group of a process is not touched.

    Args:
        backend: "gloo".
        sync: see `WeightSyncScheme`.
        timeout: seconds for both sides to connect.
        address: of the interface by which receivers on other machines reach this one; None for receivers on this machine,
            which need no port.

    Raises:
        OptionError: a backend that cannot carry weights in host memory.

    Example:
        >>> import pickle
        >>> from torch import nn
        >>> sender, policy = DistributedWeightSyncScheme(), nn.Linear(2, 1)
        >>> sender.init_on_sender(model=policy)
        >>> message = pickle.dumps(sender)  # to be sent to the receiver by any means
        >>> sender.connect()
        >>> sender.send()
        >>> sender.shutdown()
    """

    def __init__(self, backend: str = "gloo", sync: bool = True, timeout: float = 3600.0, address: str | None = None) -> None:
        if backend != "gloo":
            raise OptionError(f'backend: expected "gloo", which moves memory of the host, got {backend!r}')
        super().__init__(sync=sync)
        self.backend, self.timeout, self.address = backend, timeout, address

    def _open_engine(self) -> Sending:
        return GlooSending(self._described, self.address, self.timeout)


class RayWeightSyncScheme(RemoteWeightSyncScheme):
    """Weights in Ray's object store: put there once, fetched once by each node; a small actor announces the newest.

    Receivers are processes, actors or tasks of the same cluster. Ray is left running.

    Args:
        strategy: "tensordict" or "state_dict"; see `WeightSyncScheme`.
        backend: accepted for compatibility with torchrl; ignored.
        sync: see `WeightSyncScheme`.
        ray_init_config: arguments of `ray.init`, if Ray is not yet initialised in the sender's process.

    Raises:
        ImportError: Ray is not installed.

    Example (starts Ray)::

        @ray.remote
        def receive(scheme):
            own = nn.Linear(2, 1)
            scheme.init_on_receiver(model=own)
            scheme.connect()  # the first weights are there now
            return own.weight.sum()


        scheme = RayWeightSyncScheme()
        scheme.init_on_sender(model=nn.Linear(2, 1))
        received = receive.remote(scheme)
        scheme.connect()
        ray.get(received)
        scheme.shutdown()
    """

    def __init__(
        self,
        strategy: str = "tensordict",
        backend: str = "gloo",
        sync: bool = True,
        ray_init_config: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(strategy, sync)
        self.backend, self.ray_init_config = backend, ray_init_config

    def _open_engine(self) -> Sending:
        return RaySending(self._described, Cluster("RayWeightSyncScheme", self.ray_init_config))
