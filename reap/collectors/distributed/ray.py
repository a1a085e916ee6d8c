"""`RayCollector`: collectors whose workers are Ray actors, wherever in a cluster Ray puts them.

trainer ---- commands, as calls ----> actor: an env, a policy
        <--- rollouts, in Ray's object store ---
        ---- weights, put there once ---> one copy on each node
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from reap.collectors.distributed.options import EngineOptions, popped, taken_apart
from reap.collectors.exchange.copied import CopiedExchange
from reap.collectors.multi import RemoteCollector
from reap.collectors.options.collector import CollectorOptions
from reap.collectors.options.multi import WorkerOptions
from reap.collectors.options.shown import shows_options
from reap.collectors.schedules.make import as_they_come, together
from reap.collectors.workers.joining import JoinLater
from reap.collectors.workers.retries import GrowingPauses
from reap.collectors.workers.rollout_workers import RolloutWorkers
from reap.data.buffers.ray_buffer import RayReplayBuffer
from reap.envs.creator import EnvCreator
from reap.errors import OptionError
from reap.weights.schemes import MultiProcessWeightSyncScheme, SharedMemWeightSyncScheme
from reap.workers.ray.cluster import Cluster
from reap.workers.ray.group import RayGroup, ray_group


@dataclass(frozen=True, kw_only=True)
class RayOptions:
    """Options of a collector on Ray, with their defaults.

    Attributes:
        num_collectors: number of workers, if one `create_env_fn` is given for all.
        sync: a batch holds a rollout of every worker, all of the same weights, as in `MultiSyncDataCollector`; otherwise it is
            the rollout of one worker, in order of arrival.
        ray_init_config: arguments of `ray.init`, where Ray does not run in this process yet.
        remote_configs: options of Ray's actors: `num_cpus` (1 by default), `num_gpus`, `memory`, `resources`, `runtime_env`,
            `scheduling_strategy`, `label_selector`, ...; or a list of them, one for each worker.
        use_env_creator: make each env through an `EnvCreator`.
    """

    num_collectors: int | None = None
    sync: bool = False
    ray_init_config: Mapping[str, Any] | None = None
    remote_configs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None
    use_env_creator: bool = False

    def configs(self, workers: int) -> Sequence[Mapping[str, Any]]:
        """The options of each actor, or those of all.

        Raises:
            OptionError: something else than dicts, or a list of another length.
        """
        given: Any = self.remote_configs or {}
        each = [given] if isinstance(given, Mapping) else list(given)
        if not all(isinstance(one, Mapping) for one in each) or (each is not given and len(each) not in {1, workers}):
            raise OptionError(
                f"remote_configs: expected a dict, or a list of {workers}, one for each worker; got {self.remote_configs!r}"
            )
        return each


@shows_options(_ray_options=RayOptions, _options=CollectorOptions, _worker_options=WorkerOptions, _engine_options=EngineOptions)
class RayCollector(RemoteCollector):
    """Runs a policy in Ray actors.

    A Ray that runs is used and left running, also by name of `RAY_ADDRESS`; otherwise one is started on this machine. The
    collector's workers end with it.

    Args:
        create_env_fn: a list with one env factory, gymnasium id or env of reap for each worker, or one with `num_collectors`.
        policy: a module or function, or None for random actions; each worker has a copy.
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
        WorkerDied: an actor or its node ended; the message says what Ray says.

    Example (starts Ray)::

        with RayCollector("CartPole-v1", num_collectors=2, frames_per_batch=20, total_frames=60) as collector:
            print([batch.batch_size for batch in collector])  # [torch.Size([20]), torch.Size([20]), torch.Size([20])]
    """

    def __init__(self, create_env_fn: Any, policy: Callable[..., Any] | None = None, **options: Any) -> None:
        rest = dict(options)
        self._ray_options = own = popped(rest, RayOptions)
        refuse_shared_schemes(rest.get("weight_sync_schemes"))
        if own.num_collectors is not None:
            rest.setdefault("num_workers", own.num_collectors)
        given = taken_apart(create_env_fn, rest, is_sync=own.sync)
        self._engine_options = given.engine
        self._create_env_fn = self._made(given.create_env_fn)
        self._compose(
            self._create_env_fn,
            policy,
            given.options,  # pyright: ignore[reportArgumentType]  checked where they are read
            together if own.sync else as_they_come,
            is_shared=own.sync,
            make_workers=partial(
                RolloutWorkers,
                exchange=CopiedExchange(can_write if given.options.get("on_worker_failure") != "restart" else lambda _: False),
                make_group=self._make_group,
                may_leave=True,
                min_workers=given.engine.min_workers,
            ),
            joins=None if own.sync else JoinLater(),
            retries=GrowingPauses(),
        )
        if given.engine.batches_per_update:
            self._weights.refresh_after(given.engine.batches_per_update)

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
        """Start more workers, which join while others deliver.

        Args:
            num_collectors: how many.
            create_env_fn: makes their envs; by default as the first worker's is made.
            remote_configs: options of their actors; by default those of the last one.

        Raises:
            OptionError: batches hold a rollout of every worker (`sync=True`), or no node can take such a worker.
        """
        self._ensure_open()
        if self._ray_options.sync:
            raise OptionError("add_collectors: with sync=True each batch holds a rollout of every worker; expected sync=False")
        if isinstance(num_collectors, bool) or num_collectors < 1:
            raise OptionError(f"num_collectors: expected a positive number of workers, got {num_collectors!r}")
        if create_env_fn is None:
            first = self._create_env_fn
            create_env_fn = first[0] if isinstance(first, list | tuple) else first
        self._group.carrier.expect_more(remote_configs)
        self._add_workers([create_env_fn] * num_collectors)

    def stop_remote_collectors(self) -> None:
        """End the workers; the same as `shutdown()`."""
        self.shutdown()


def can_write(buffer: Any) -> bool:
    """Whether workers can write to a replay buffer themselves."""
    return isinstance(buffer, RayReplayBuffer)


def refuse_shared_schemes(schemes: Any) -> None:
    """Raise OptionError for a scheme whose weights do not leave this machine."""
    given = schemes.get("policy") if isinstance(schemes, Mapping) else None
    kind = given if isinstance(given, type) else type(given)
    if issubclass(kind, SharedMemWeightSyncScheme | MultiProcessWeightSyncScheme):
        raise OptionError(
            f"weight_sync_schemes: the weights of a {kind.__name__} do not leave this machine; expected a RayWeightSyncScheme"
        )
