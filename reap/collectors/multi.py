"""Collectors whose workers are processes: `MultiSyncDataCollector`, `MultiaSyncDataCollector` and `aSyncDataCollector`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Unpack

from tensordict.nn import InteractionType

from reap.collectors.base import DataCollectorBase
from reap.collectors.options.collector import CollectorOptions
from reap.collectors.options.generations import with_total_frames
from reap.collectors.options.multi import MultiOptions, WorkerOptions, make_plan
from reap.collectors.options.shown import shows_options
from reap.collectors.schedules.make import as_they_come, together
from reap.collectors.workers.joining import Joins
from reap.collectors.workers.remote import RemoteWorkers
from reap.collectors.workers.retries import Retries
from reap.collectors.workers.rollout_workers import RolloutWorkers
from reap.errors import OptionError
from reap.system.interrupts import deferring_interrupts
from reap.system.native import require_workers

SHOWN = shows_options(_options=CollectorOptions, _worker_options=WorkerOptions)


class RemoteCollector(DataCollectorBase):
    """Base of collectors whose workers are in other processes.

    Attributes:
        is_on_one_machine: whether the workers run on this machine, with its devices.
    """

    is_on_one_machine: ClassVar[bool] = True

    def _compose(
        self,
        create_env_fn: Any,
        policy: Any,
        options: Mapping[str, Any],
        make_schedule: Callable[..., Any],
        *,
        is_shared: bool,
        make_workers: Callable[..., RolloutWorkers] = RolloutWorkers,
        joins: Joins | None = None,
        retries: Retries | None = None,
    ) -> None:
        """Build the collector from workers and a schedule.

        Args:
            create_env_fn: as given.
            policy: as given.
            options: as given.
            make_schedule: called with the plan, the workers and the other parts.
            is_shared: whether `frames_per_batch` is the sum over the workers.
            make_workers: makes the workers; by default in processes on this machine.
            joins: how replacements of failed workers join; by default while all others wait.
            retries: decides whether to try another replacement; by default there is one.
        """
        require_workers(type(self).__name__, "SyncDataCollector, with a SerialEnv for several envs")
        plan = make_plan(create_env_fn, options, InteractionType, is_shared=is_shared, is_here=self.is_on_one_machine)
        self._worker_options = plan.workers
        workers = RemoteWorkers(plan, policy, type(self).__name__, make_workers, joins, retries)
        super().__init__(
            plan.whole,
            workers,
            partial(make_schedule, plan, workers),
            refreshes=plan.workers.update_at_each_batch,
            marks=any(one.set_truncated for one in plan.each),
        )
        if policy is not None and any(plan.policy_factories):
            self.update_policy_weights_()  # those who made theirs begin with the weights of this one

    def _add_workers(self, factories: Sequence[Any]) -> None:
        """Launch more workers, which join while others deliver; for collectors whose workers record independently."""
        with self.pause(), deferring_interrupts():
            before = self._workers.group.size
            workers: Any = self._workers
            workers.add(factories)
            infos = self._workers.infos[before:]
            self._meter.add_workers(len(infos))
            if self._supply.queue is not None:
                self._supply.queue.expect_more(sum(info.rows for info in infos))


@SHOWN
class MultiSyncDataCollector(RemoteCollector):
    """Runs a policy in several processes; each batch holds one rollout from every worker, all with the same weights.

    Args:
        create_env_fn: a list with one env factory, gymnasium id or env of reap for each worker, or one with `num_workers`.
        policy: a module or function, or None for random actions; each worker has a copy.
        **options: see `CollectorOptions` and `WorkerOptions`; `frames_per_batch` is the sum over the workers.

    Yields:
        TensorDicts `[W, *env.batch_size, T]` with `cat_results="stack"`; joined along that dimension with an integer.

    Raises:
        OptionError: an option that is unknown or cannot work.
        SpecMismatch: a policy or an env that does not keep to the env's specs, or workers of different layouts.
        WorkerRaised: the code of a worker raised.
        WorkerDied: the process of a worker ended.
        MemoryError: a batch does not fit into the available memory.

    Example:
        >>> with MultiSyncDataCollector(["CartPole-v1"] * 2, frames_per_batch=20, total_frames=40) as collector:
        ...     print([batch.batch_size for batch in collector])
        [torch.Size([2, 10]), torch.Size([2, 10])]
    """

    def __init__(
        self, create_env_fn: Any, policy: Callable[..., Any] | None = None, *total_frames: Any, **options: Unpack[MultiOptions]
    ) -> None:
        self._compose(create_env_fn, policy, with_total_frames(options, total_frames), together, is_shared=True)


@SHOWN
class MultiaSyncDataCollector(RemoteCollector):
    """Runs a policy in several processes; each batch is the rollout of one worker, in order of arrival.

    Args:
        create_env_fn: a list with one env factory, gymnasium id or env of reap for each worker, or one with `num_workers`.
        policy: a module or function, or None for random actions; each worker has a copy.
        **options: see `CollectorOptions` and `WorkerOptions`; `frames_per_batch` is that of each worker.

    Yields:
        TensorDicts `[*env.batch_size, T]`.

    Raises:
        OptionError: an option that is unknown or cannot work.
        SpecMismatch: a policy or an env that does not keep to the env's specs.
        WorkerRaised: the code of a worker raised.
        WorkerDied: the process of a worker ended.
        MemoryError: a batch does not fit into the available memory.

    Example:
        >>> with MultiaSyncDataCollector(["CartPole-v1"] * 2, frames_per_batch=20, total_frames=60) as collector:
        ...     print([batch.batch_size for batch in collector])
        [torch.Size([20]), torch.Size([20]), torch.Size([20])]
    """

    def __init__(
        self, create_env_fn: Any, policy: Callable[..., Any] | None = None, *total_frames: Any, **options: Unpack[MultiOptions]
    ) -> None:
        self._compose(create_env_fn, policy, with_total_frames(options, total_frames), as_they_come, is_shared=False)


@SHOWN
class aSyncDataCollector(MultiaSyncDataCollector):
    """Runs a policy in one process while the training loop works; see `MultiaSyncDataCollector`.

    Args:
        create_env_fn: an env factory, a gymnasium id or an env of reap.
        policy: a module or function, or None for random actions.
        **options: see `CollectorOptions` and `WorkerOptions`.

    Example:
        >>> with aSyncDataCollector("CartPole-v1", frames_per_batch=20, total_frames=40) as collector:
        ...     print([batch.batch_size for batch in collector])
        [torch.Size([20]), torch.Size([20])]
    """

    def __init__(
        self, create_env_fn: Any, policy: Callable[..., Any] | None = None, *total_frames: Any, **options: Unpack[MultiOptions]
    ) -> None:
        single = create_env_fn if isinstance(create_env_fn, list | tuple) else [create_env_fn]
        if len(single) != 1 or options.get("num_workers") not in (None, 1):
            raise OptionError("aSyncDataCollector has one worker: expected one env; MultiaSyncDataCollector has several")
        super().__init__(single, policy, *total_frames, **options)
