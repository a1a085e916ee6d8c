"""`RayCollector`: collectors whose workers are Ray actors, placed anywhere in a cluster by Ray.

trainer ---- commands, as calls ----> actor: an env, a policy
        <--- rollouts, in Ray's object store ---
        ---- weights, put there once ---> one copy on each node
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reap.collectors.distributed.engine import EngineCollector
from reap.collectors.distributed.options import EngineOptions, popped
from reap.collectors.options.collector import CollectorOptions
from reap.collectors.options.multi import WorkerOptions
from reap.collectors.options.shown import shows_options
from reap.data.buffers.ray_buffer import RayReplayBuffer
from reap.envs.creator import EnvCreator
from reap.errors import OptionError
from reap.option_values import switch
from reap.weights.schemes import MultiProcessWeightSyncScheme, SharedMemWeightSyncScheme
from reap.workers.ray.cluster import Cluster
from reap.workers.ray.group import RayGroup, ray_group


@dataclass(frozen=True, kw_only=True)
class RayOptions:
    """Options of a collector on Ray, with their defaults.

    Attributes:
        num_collectors: number of workers, if one `create_env_fn` is given for all.
        ray_init_config: arguments of `ray.init`, if Ray is not yet initialised in this process.
        remote_configs: options of Ray's actors: `num_cpus` (1 by default), `num_gpus`, `memory`, `resources`, `runtime_env`,
            `scheduling_strategy`, `label_selector`, ...; or a list of them, one for each worker.
        use_env_creator: make each env through an `EnvCreator`.
    """

    num_collectors: int | None = None
    ray_init_config: Mapping[str, Any] | None = None
    remote_configs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None
    use_env_creator: bool = False

    def __post_init__(self) -> None:
        switch(self.use_env_creator, "use_env_creator")

    def configs(self, workers: int) -> Sequence[Mapping[str, Any]]:
        """The options of each actor, or one dict for all.

        Raises:
            OptionError: not dicts, or a list whose length is not the number of workers.
        """
        given: Any = self.remote_configs or {}
        each = [given] if isinstance(given, Mapping) else list(given)
        if not all(isinstance(one, Mapping) for one in each) or (each is not given and len(each) not in {1, workers}):
            raise OptionError(
                f"remote_configs: expected a dict, or a list of {workers}, one for each worker; got {self.remote_configs!r}"
            )
        return each


@shows_options(_ray_options=RayOptions, _options=CollectorOptions, _worker_options=WorkerOptions, _engine_options=EngineOptions)
class RayCollector(EngineCollector):
    """Runs a policy in Ray actors.

    A running Ray, or one that `RAY_ADDRESS` names, is used and left running; otherwise one is started on this machine. The
    workers end with the collector.

    Args:
        create_env_fn: a list with one env factory, gymnasium id or env of reap for each worker, or one with `num_collectors`.
        policy: a module or function, or None for random actions; each worker has a copy.
        sync: whether a batch holds a rollout of every worker, as those of `MultiSyncDataCollector`; otherwise it is the rollout
            of one worker, in order of arrival, as those of `MultiaSyncDataCollector`.
        **options: see `RayOptions`, `CollectorOptions`, `WorkerOptions` and `EngineOptions`; `frames_per_batch` is the sum over
            the workers with `sync=True`, else that of each worker.

    Yields:
        With `sync=True`, TensorDicts `[W, *env.batch_size, T]`, or joined along a dimension with `cat_results`; else
        `[*env.batch_size, T]`.

    Raises:
        ImportError: Ray is not installed.
        OptionError: an option that is unknown or cannot work, such as resources that no node has.
        SpecMismatch: a policy or an env that does not keep to the env's specs.
        WorkerRaised: the code of a worker raised.
        WorkerDied: an actor or its node ended; the message includes Ray's reason.

    Example (starts Ray)::

        with RayCollector("CartPole-v1", num_collectors=2, frames_per_batch=20, total_frames=60) as collector:
            print([batch.batch_size for batch in collector])  # [torch.Size([20]), torch.Size([20]), torch.Size([20])]
    """

    def __init__(
        self, create_env_fn: Any, policy: Callable[..., Any] | None = None, *, sync: bool = False, **options: Any
    ) -> None:
        self._ray_options = own = popped(options, RayOptions)
        refuse_shared_schemes(options.get("weight_sync_schemes"))
        if own.num_collectors is not None:
            options.setdefault("num_workers", own.num_collectors)
        restarts = options.get("on_worker_failure") == "restart"
        can_write = (lambda _: False) if restarts else is_an_actor
        self._compose_over(
            self._make_group, self._made(create_env_fn), policy, options, is_sync=sync, own=own, can_write=can_write
        )

    def _made(self, create_env_fn: Any) -> Any:
        if not self._ray_options.use_env_creator:
            return create_env_fn
        return (
            [EnvCreator(one) for one in create_env_fn] if isinstance(create_env_fn, list | tuple) else EnvCreator(create_env_fn)
        )

    def _make_group(self, make_handlers: Sequence[Any], **given: Any) -> RayGroup:
        own = self._ray_options
        options, needed = own.configs(len(make_handlers)), self._engine_options.min_workers
        return ray_group(make_handlers, cluster=self._make_cluster(), options=options, needed=needed, **given)

    def _make_cluster(self) -> Cluster:
        return Cluster(type(self).__name__, self._ray_options.ray_init_config)

    @property
    def _group(self) -> RayGroup:
        group: Any = self._workers.group
        return group

    @property
    def num_collectors(self) -> int:
        """Number of workers."""
        return self.num_workers

    @property
    def remote_collectors(self) -> list[Any]:
        """The handles of the workers' actors."""
        return self._group.carrier.actors

    @property
    def local_policy(self) -> Any:
        """The policy of this process, whose weights `update_policy_weights_()` sends."""
        return self.policy

    def add_collectors(
        self,
        num_collectors: int = 1,
        create_env_fn: Any = None,
        remote_configs: Mapping[str, Any] | None = None,
    ) -> None:
        """Start more workers, which join while the others deliver.

        Args:
            num_collectors: how many.
            create_env_fn: makes their envs; by default as the first worker's is made.
            remote_configs: options of their actors; by default those of the last one.

        Raises:
            OptionError: batches hold a rollout of every worker (`sync=True`), or no node can take such a worker.
        """
        self._ensure_open()
        if self.sync:
            raise OptionError("add_collectors: with sync=True each batch holds a rollout of every worker; expected sync=False")
        if isinstance(num_collectors, bool) or num_collectors < 1:
            raise OptionError(f"num_collectors: expected a positive number of workers, got {num_collectors!r}")
        if create_env_fn is None:
            create_env_fn = self._factories[0] if isinstance(self._factories, list | tuple) else self._factories
        self._group.carrier.expect_more(remote_configs)
        self._add_workers([create_env_fn] * num_collectors)

    def stop_remote_collectors(self) -> None:
        """End the workers; the same as `shutdown()`."""
        self.shutdown()


def is_an_actor(buffer: Any) -> bool:
    """Whether workers can write to this replay buffer themselves."""
    return isinstance(buffer, RayReplayBuffer)


def refuse_shared_schemes(schemes: Any) -> None:
    """Raise OptionError for a scheme whose weights do not leave this machine."""
    given = schemes.get("policy") if isinstance(schemes, Mapping) else None
    kind = given if isinstance(given, type) else type(given)
    if issubclass(kind, SharedMemWeightSyncScheme | MultiProcessWeightSyncScheme):
        raise OptionError(
            f"weight_sync_schemes: the weights of a {kind.__name__} do not leave this machine; expected a RayWeightSyncScheme"
        )
