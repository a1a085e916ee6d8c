"""`RayCollector`: collectors whose workers are Ray actors, wherever in a cluster Ray puts them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from reap.collectors.exchange.copied import CopiedExchange
from reap.collectors.multi import RemoteCollector
from reap.collectors.options.collector import CollectorOptions
from reap.collectors.options.multi import WorkerOptions
from reap.collectors.options.shown import shows_options
from reap.collectors.schedules.make import as_they_come, together
from reap.collectors.workers.joining import JoinLater
from reap.collectors.workers.retries import GrowingPauses
from reap.collectors.workers.rollout_workers import RolloutWorkers
from reap.errors import OptionError
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
    """

    num_collectors: int | None = None
    sync: bool = False
    ray_init_config: Mapping[str, Any] | None = None
    remote_configs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None

    def each(self, count: int) -> Sequence[Mapping[str, Any]]:
        """The options of each actor.

        Raises:
            OptionError: a list of another length.
        """
        given = self.remote_configs or {}
        if isinstance(given, Mapping):
            return [given]
        if len(given) != count:
            raise OptionError(f"remote_configs: expected a dict, or a list of {count}, one for each worker; got {len(given)}")
        return list(given)


@shows_options(_ray_options=RayOptions, _options=CollectorOptions, _worker_options=WorkerOptions)
class RayCollector(RemoteCollector):
    """Runs a policy in Ray actors.

    Args:
        create_env_fn: a list with one env factory, gymnasium id or env of reap for each worker, or one with `num_collectors`.
        policy: a module or function, or None for random actions; each worker has a copy.
        **options: see `RayOptions`, `CollectorOptions` and `WorkerOptions`.

    Example (starts Ray)::

        with RayCollector("CartPole-v1", num_collectors=2, frames_per_batch=20, total_frames=60) as collector:
            print([batch.batch_size for batch in collector])  # [torch.Size([20]), torch.Size([20]), torch.Size([20])]
    """

    def __init__(self, create_env_fn: Any, policy: Callable[..., Any] | None = None, **options: Any) -> None:
        own = {field.name: options.pop(field.name) for field in fields(RayOptions) if field.name in options}
        self._ray_options = ray = RayOptions(**own)
        options.setdefault("num_workers", ray.num_collectors)
        joins: Any = None if ray.sync else JoinLater()
        make = partial(RolloutWorkers, exchange=CopiedExchange(), make_group=self._make_group, may_leave=True)
        self._compose(
            create_env_fn,
            policy,
            options,  # pyright: ignore[reportArgumentType]
            together if ray.sync else as_they_come,
            is_shared=ray.sync,
            make_workers=make,
            joins=joins,
            retries=GrowingPauses(),
        )

    def _make_group(self, make_handlers: Sequence[Any], **given: Any) -> RayGroup:
        cluster = Cluster("RayCollector", self._ray_options.ray_init_config)
        configs = self._ray_options.each(len(make_handlers))
        return ray_group(make_handlers, cluster=cluster, options=configs, **given)
