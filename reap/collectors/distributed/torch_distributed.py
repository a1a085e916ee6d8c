"""Collectors whose workers are reached by torch.distributed: `DistributedDataCollector`, `DistributedSyncDataCollector`.

    collector == pair of gloo == worker 0      a process that a launcher started, here or on another machine
              == pair of gloo == worker 1

`torch.distributed.init_process_group` is not called: a default process group of the
user is not touched, and none is left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from reap.collectors.distributed.engine import EngineCollector
from reap.collectors.distributed.options import EngineOptions, popped
from reap.collectors.options.collector import CollectorOptions
from reap.collectors.options.multi import WorkerOptions
from reap.collectors.options.shown import shows_options
from reap.errors import OptionError
from reap.workers.gloo.group import gloo_group
from reap.workers.launchers.named import made_launcher


@dataclass(frozen=True, kw_only=True)
class TorchDistributedOptions:
    """Options of collectors on torch.distributed, with their defaults.

    Attributes:
        launcher: starts the workers: "mp", on this machine; "submitit", as jobs; "submitit_delayed", where jobs cannot
            submit others (see `submitit_delayed_launcher`); an executor of submitit; or another
            `reap.workers.launchers.base.Launcher`. torchrl's default is "submitit".
        slurm_kwargs: parameters of the executor that "submitit" makes, beside `DEFAULT_SLURM_CONF`; `folder` is where jobs
            keep their files.
        backend: "gloo". "nccl" moves memory of CUDA devices only, and rollouts are recorded on the host.
        tcp_port: on which workers on other machines find this one; None for any free port. Workers on this machine need none.
        address: of the interface by which workers on other machines reach this one; None finds it if there is only one.
        timeout: seconds within which a worker must start and connect.
        lost_after: seconds of silence after which another machine, or the link to it, counts as lost. A busy process is not
            silent: the kernels ask each other. A worker that dies on this machine is noticed at once.
    """

    launcher: Any = "mp"
    slurm_kwargs: Mapping[str, Any] | None = None
    backend: str = "gloo"
    tcp_port: int | str | None = None
    address: str | None = None
    timeout: float = 60.0
    lost_after: float = 20.0

    def __post_init__(self) -> None:
        _check_backend(self.backend)
        for name in ("timeout", "lost_after"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise OptionError(f"{name}: expected a positive number of seconds, got {value!r}")
        self.port()

    def port(self) -> int | None:
        """The port as a number."""
        try:
            port = None if self.tcp_port is None else int(self.tcp_port)
        except (TypeError, ValueError):
            port = 0
        if port is not None and not 0 < port < 1 << 16:
            raise OptionError(f"tcp_port: expected a port, 1 to 65535, or None for any that is free, got {self.tcp_port!r}")
        return port


SHOWN = shows_options(
    _options=CollectorOptions,
    _worker_options=WorkerOptions,
    _engine_options=EngineOptions,
    _link_options=TorchDistributedOptions,
)


class _Collector(EngineCollector):
    """Base of both collectors."""

    def _compose_distributed(self, create_env_fn: Any, policy: Any, options: Mapping[str, Any], *, is_sync: bool) -> None:
        rest = dict(options)
        self._link_options = link = popped(rest, TorchDistributedOptions)
        make_group = partial(
            gloo_group,
            launcher=made_launcher(link.launcher, link.slurm_kwargs),
            address=link.address,
            port=link.port(),
            timeout=link.timeout,
            lost_after=link.lost_after,
        )
        self._compose_over(make_group, create_env_fn, policy, rest, is_sync=is_sync, own=link)


@SHOWN
class DistributedDataCollector(_Collector):
    """Runs a policy in several processes, here or on other machines, reached by torch.distributed.

    Args:
        create_env_fn: a list with one env factory, gymnasium id or env of reap for each worker, or one with `num_workers`.
        policy: a module or function, or None for random actions; each worker has a copy.
        sync: whether a batch holds a rollout of every worker, as those of `MultiSyncDataCollector`; otherwise it is the rollout
            of one worker, in order of arrival, as those of `MultiaSyncDataCollector`.
        **options: see `CollectorOptions`, `WorkerOptions`, `EngineOptions` and `TorchDistributedOptions`;
            `frames_per_batch` is the sum over the workers with `sync=True`, else that of each worker.

    Yields:
        With `sync=True`, TensorDicts `[W, *env.batch_size, T]`, or joined along a dimension with `cat_results`; else
        `[*env.batch_size, T]`.

    Raises:
        OptionError: an option that is unknown or cannot work.
        SpecMismatch: a policy or an env that does not keep to the env's specs.
        WorkerRaised: the code of a worker raised, or a worker did not connect in time.
        WorkerDied: the process of a worker ended, or its machine is lost.
        MemoryError: a batch does not fit into the available memory.

    Example:
        >>> with DistributedDataCollector(["CartPole-v1"] * 2, frames_per_batch=20, total_frames=60) as collector:
        ...     print([batch.batch_size for batch in collector])
        [torch.Size([20]), torch.Size([20]), torch.Size([20])]
    """

    def __init__(
        self, create_env_fn: Any, policy: Callable[..., Any] | None = None, *, sync: bool = False, **options: Any
    ) -> None:
        self._compose_distributed(create_env_fn, policy, options, is_sync=sync)


@SHOWN
class DistributedSyncDataCollector(_Collector):
    """Runs a policy in several processes, reached by torch.distributed; each batch holds a rollout of every worker.

    Weights are sent before every `update_interval`-th batch, and with `update_policy_weights_`.

    Args:
        create_env_fn: a list with one env factory, gymnasium id or env of reap for each worker, or one with `num_workers`.
        policy: a module or function, or None for random actions; each worker has a copy.
        **options: see `CollectorOptions`, `WorkerOptions`, `EngineOptions` and `TorchDistributedOptions`;
            `frames_per_batch` is the sum over the workers, and `update_interval` is 1 unless another option says when weights
            are sent.

    Yields:
        TensorDicts `[W, *env.batch_size, T]`, or joined along a dimension with `cat_results`.

    Raises:
        OptionError: an option that is unknown or cannot work.
        SpecMismatch: a policy or an env that does not keep to the env's specs, or workers of different layouts.
        WorkerRaised: the code of a worker raised, or a worker did not connect in time.
        WorkerDied: the process of a worker ended, or its machine is lost.
        MemoryError: a batch does not fit into the available memory.

    Example:
        >>> with DistributedSyncDataCollector(["CartPole-v1"] * 2, frames_per_batch=20, total_frames=40) as collector:
        ...     print([batch.batch_size for batch in collector])
        [torch.Size([2, 10]), torch.Size([2, 10])]
    """

    def __init__(self, create_env_fn: Any, policy: Callable[..., Any] | None = None, **options: Any) -> None:
        if "sync" in options:
            raise OptionError(
                f"sync: a DistributedSyncDataCollector is always sync, got sync={options['sync']!r}; leave it out, or use "
                "DistributedDataCollector, which takes sync"
            )
        if not options.get("update_after_each_batch") and options.get("max_weight_update_interval", -1) == -1:
            options.setdefault("update_interval", 1)
        self._compose_distributed(create_env_fn, policy, options, is_sync=True)


def _check_backend(backend: Any) -> None:
    if backend == "gloo":
        return
    if backend == "nccl" and not torch.cuda.is_available():
        raise OptionError('backend: "nccl" needs CUDA devices, and torch finds none here; expected "gloo"')
    if backend == "nccl":
        raise OptionError(
            'backend: "nccl" moves memory of CUDA devices only, and rollouts are recorded in the memory of the host; expected '
            '"gloo". With storing_device="cuda" batches are moved to the device when they are delivered'
        )
    raise OptionError(f'backend: expected "gloo", got {backend!r}')
