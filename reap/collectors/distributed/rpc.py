"""`RPCDataCollector`: a collector whose workers call it by torch.distributed.rpc.

    collector == RPC agent <== calls == worker 0      a process that a launcher started, here or on another machine
                           <== calls == worker 1

Collectors in one process share its RPC agent: the user's, if `init_rpc` was called, else one that is shut down with the last
collector. Workers join no process group, so they come, go and fail independently of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from reap.collectors.distributed.engine import EngineCollector
from reap.collectors.distributed.options import EngineOptions, popped
from reap.collectors.distributed.torch_distributed import TorchDistributedOptions
from reap.collectors.options.collector import CollectorOptions
from reap.collectors.options.multi import WorkerOptions
from reap.collectors.options.shown import shows_options
from reap.errors import OptionError
from reap.workers.launchers.named import made_launcher
from reap.workers.rpc.agent import backend_options
from reap.workers.rpc.carrier import RpcOptions
from reap.workers.rpc.group import rpc_group


@dataclass(frozen=True, kw_only=True)
class RPCOptions(TorchDistributedOptions):
    """Options of collectors on torch.distributed.rpc, with their defaults.

    Attributes:
        launcher: starts the workers: "mp", on this machine; "submitit", as jobs; an executor of submitit; or another
            `reap.workers.launchers.base.Launcher`. torchrl's default is "submitit".
        slurm_kwargs: parameters of the executor that "submitit" makes, beside `DEFAULT_SLURM_CONF`; `folder` is where jobs
            keep their files.
        backend: accepted for compatibility with torchrl; everything, weights included, travels by RPC.
        tcp_port: accepted for compatibility with torchrl; unused, since torch's agents choose a free port.
        address: of the interface by which workers on other machines reach this one; None uses the address that this
            machine's hostname resolves to. It is fixed when the process starts its first RPC agent.
        timeout: seconds within which a worker must start and call.
        lost_after: seconds of silence after which another machine, or the link to it, counts as lost. A busy process is not
            silent: its agent answers in separate threads. A worker that dies on this machine is noticed at once.
        tensorpipe_options: of the agents that are started, as `torch.distributed.rpc.TensorPipeRpcBackendOptions` has them:
            `num_worker_threads`, `rpc_timeout`, `_transports`, `_channels`. By default they use TCP, and on one machine copy
            tensors out of each other's memory.
        visible_devices: the CUDA devices that the agent of each worker uses, one entry for each: a device, a list of devices
            or None. Rollouts always travel through host memory.
    """

    tensorpipe_options: Mapping[str, Any] | None = None
    visible_devices: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        given: Any = self.tensorpipe_options
        if given is not None and not isinstance(given, Mapping):
            raise OptionError(f"tensorpipe_options: expected a dict, got {given!r}")
        if "init_method" in (given or {}):
            raise OptionError(
                "tensorpipe_options: leave init_method out; workers are told where to call, and need no rendezvous"
            )
        backend_options(given or {})
        self.devices()

    def devices(self) -> list[dict[str, Any]]:
        """Further options of each worker's agent.

        Raises:
            OptionError: not CUDA devices, or none exist here.
        """
        if self.visible_devices is None:
            return []
        if not isinstance(self.visible_devices, list | tuple):
            raise OptionError(f"visible_devices: expected a list with an entry for each worker, got {self.visible_devices!r}")
        return [{"devices": found} if (found := _devices(entry)) else {} for entry in self.visible_devices]


SHOWN = shows_options(
    _options=CollectorOptions,
    _worker_options=WorkerOptions,
    _engine_options=EngineOptions,
    _link_options=RPCOptions,
)


@SHOWN
class RPCDataCollector(EngineCollector):
    """Runs a policy in several processes, here or on other machines, that call this one by torch.distributed.rpc.

    Args:
        create_env_fn: a list with one env factory, gymnasium id or env of reap for each worker, or one with `num_workers`.
        policy: a module or function, or None for random actions; each worker has a copy.
        sync: whether a batch holds a rollout of every worker, as those of `MultiSyncDataCollector`; otherwise it is the rollout
            of one worker, in order of arrival, as those of `MultiaSyncDataCollector`.
        **options: see `CollectorOptions`, `WorkerOptions`, `EngineOptions` and `RPCOptions`; `frames_per_batch` is the sum over
            the workers with `sync=True`, else that of each worker.

    Yields:
        With `sync=True`, TensorDicts `[W, *env.batch_size, T]`, or joined along a dimension with `cat_results`; else
        `[*env.batch_size, T]`.

    Raises:
        OptionError: an option that is unknown or cannot work.
        SpecMismatch: a policy or an env that does not keep to the env's specs.
        WorkerRaised: the code of a worker raised, or a worker did not call in time.
        WorkerDied: the process of a worker ended, or its machine is lost.
        ClosedError: the RPC agent of this process belongs to its parent, from which it was forked.
        MemoryError: a batch does not fit into the available memory.

    Example:
        >>> with RPCDataCollector(["CartPole-v1"] * 2, frames_per_batch=20, total_frames=60) as collector:
        ...     print([batch.batch_size for batch in collector])
        [torch.Size([20]), torch.Size([20]), torch.Size([20])]
    """

    def __init__(
        self, create_env_fn: Any, policy: Callable[..., Any] | None = None, *, sync: bool = False, **options: Any
    ) -> None:
        self._link_options = link = popped(options, RPCOptions)
        reach = RpcOptions(link.address, link.timeout, link.lost_after, link.tensorpipe_options or {}, link.devices())
        make_group = partial(rpc_group, launcher=made_launcher(link.launcher, link.slurm_kwargs), options=reach)
        self._compose_over(make_group, create_env_fn, policy, options, is_sync=sync, own=link)


def _devices(entry: Any) -> list[torch.device]:
    try:
        found = [torch.device(one) for one in (entry if isinstance(entry, list | tuple) else [entry]) if one is not None]
    except (RuntimeError, TypeError) as error:
        raise OptionError(f"visible_devices: expected CUDA devices, got {entry!r}") from error
    if any(device.type != "cuda" for device in found):
        raise OptionError(f"visible_devices: expected CUDA devices, got {entry!r}")
    if found and not torch.cuda.is_available():
        raise OptionError(f"visible_devices: torch finds no CUDA devices here, got {entry!r}; leave it out")
    return found
