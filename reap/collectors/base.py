"""`DataCollectorBase`: the public face of every collector. It knows nothing of processes.

Collector = workers x schedule x delivery x handover

next()   supply: ready, or recorded --> delivery steps --> the user, or the replay buffer
                    ^
         schedule: commands to the workers' group, replies --> handover
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from math import ceil
from types import TracebackType
from typing import Any, Self
from weakref import WeakMethod

from tensordict import TensorDictBase
from torch.utils.data import IterableDataset

from reap.collectors.attributes import CollectorAttributes
from reap.collectors.background.background import Background
from reap.collectors.background.filling import Filling
from reap.collectors.calls import CollectorCalls
from reap.collectors.delivery.delivery import Delivery
from reap.collectors.delivery.episodes import make_queue
from reap.collectors.delivery.records import EpisodeRecords
from reap.collectors.delivery.steps import break_trajectories, mark_truncated, register_feeder
from reap.collectors.delivery.supply import Supply
from reap.collectors.delivery.throttle import make_throttle
from reap.collectors.handover import Handover
from reap.collectors.options.collector import CollectorOptions, warn_of_rounding
from reap.collectors.parts import Parts
from reap.collectors.policy_weights import PolicyWeights
from reap.collectors.schedules.base import Schedule, finish_writes
from reap.collectors.state import STATE_FORMAT, check_state, policy_state, shares_of_workers
from reap.collectors.stats import CollectorStats, Meter
from reap.collectors.worker.commands import GetState, Reset
from reap.collectors.workers.base import Workers
from reap.collectors.workers.requests import ask_one, scatter
from reap.errors import CallOrderError, ClosedError, OptionError, ReapError, in_own_words
from reap.option_values import checked_seeding
from reap.system.interrupts import deferring_interrupts
from reap.weights.base import load_weights


class DataCollectorBase(CollectorCalls, CollectorAttributes, IterableDataset[Any]):
    """Base class of all collectors.

    Args:
        options: the options.
        workers: record the rollouts.
        make_schedule: makes the schedule from the other parts.
        refreshes: send the policy's weights to the workers before each batch.
        marks: the workers mark the last frame of each row as truncated.
    """

    worker_idx: int | None = None
    """Index of this collector among the receivers of a weight sender; can be set."""

    def __init__(
        self,
        options: CollectorOptions,
        workers: Workers,
        make_schedule: Callable[[Parts], Schedule],
        *,
        refreshes: bool = False,
        marks: bool = False,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        self._options, self._workers, self._receivers = options, workers, {}
        self._closed, self.worker_idx = False, options.worker_idx
        self._background: Background | None = None
        try:
            self._meter = Meter(workers.group.size)
            self._meter.place_of = workers.place_of
            self._handover = Handover(options.replay_buffer, self._meter)
            self._weights = PolicyWeights(name, workers.make_updater(), refreshes=refreshes)
            self._records = EpisodeRecords(options.kept_episodes, options.limit) if options.record_episodes else None
            queue = make_queue(options)
            parts = Parts(options, workers, self._meter, self._handover, self._weights, queue, self._records)
            self._schedule = schedule = make_schedule(parts)
            self._throttle = make_throttle(options, schedule.frames)
            self._delivery = Delivery(options, schedule, self._handover)
            self._supply = Supply(name, parts, schedule, hands_out=not self._delivery.steps, marks=marks)
            if type(self).rollout is not DataCollectorBase.rollout:
                self._supply.recorded_by = WeakMethod(self.rollout)
            self._filling = Filling(parts, schedule, self._supply, self._delivery, self._throttle)
            if self._weights.updater is not None:
                self._weights.updater.register_collector(self)
            warn_of_rounding(options, schedule.frames)
            self._begin(options)
        except BaseException:
            workers.withdraw()
            raise

    def _begin(self, options: CollectorOptions) -> None:
        if options.seed is not None:
            self.set_seed(options.seed)
        if options.weight_recv_schemes:
            self.register_scheme_receiver(options.weight_recv_schemes)

    # ------------------------------------------------------------------ batches

    def __iter__(self) -> Iterator[Any]:
        """Iterate over batches until `total_frames` are collected; a second loop continues where the first stopped."""
        return self.iterator()

    def iterator(self) -> Iterator[Any]:
        """The same as `iter(collector)`."""
        self._ensure_idle()
        while (batch := self._supply.next()) is not None:
            yield self._delivery.hand_out(batch) if self._delivery.steps else batch
            self._ensure_idle()

    def next(self) -> Any:
        """The next batch; None once `total_frames` are collected."""
        self._ensure_idle()
        batch = self._supply.next()
        # Without a call, Ctrl-C has no place to come in between here and the caller.
        return batch if batch is None or not self._delivery.steps else self._delivery.hand_out(batch)

    def rollout(self) -> TensorDictBase:
        """Collect one batch as recorded: without postproc or splitting, and without writing to the replay buffer.

        `set_truncated` still applies.
        """
        self._ensure_idle()
        batch = self._supply.rollout()
        return mark_truncated(batch) if self._options.set_truncated else batch

    def __len__(self) -> int:
        """Total number of batches.

        Raises:
            TypeError: the collector is endless, or batches have different numbers of frames.
        """
        budget = self._options.budget
        if not self._schedule.has_length():
            raise TypeError(
                "a collector whose workers deliver different numbers of frames has no length: it depends on which finish first"
            )
        if budget is None:
            raise TypeError("a collector without total_frames has no length: it runs until you stop")
        if self._options.trajs_per_batch is not None:
            raise TypeError("a collector with trajs_per_batch has no length: it depends on how long the episodes are")
        return ceil(budget / self.frames_per_batch)

    # ------------------------------------------------------------------ background

    def start(self) -> None:
        """Fill the replay buffer in the background, until `total_frames` are written or the collector is shut down.

        An error there surfaces at the next call on the collector, or on the buffer.

        Raises:
            OptionError: there is no replay buffer.
            CallOrderError: the collector is already running.
        """
        self._ensure_idle()
        if self._options.replay_buffer is None:
            raise OptionError("start() writes to a replay buffer: expected the option replay_buffer, got None")
        pending = self._workers.prepare_background(self._weights.updater)
        if pending is not None:
            self._weights.wait_with(pending)
        self._throttle.begin(self._meter.frames, [self._workers.group.fileno()])
        self._background = background = Background(self._filling.step, f"{type(self).__name__}.start", self._throttle)
        self._filling.is_abandoned = partial(getattr, background, "is_abandoned")
        register_feeder(self._options.replay_buffer, self._background)
        self._background.start()

    def is_running(self) -> bool:
        """Whether the collector is running in the background."""
        return self._background is not None and self._background.is_running

    @contextmanager
    def pause(self) -> Generator[None]:
        """Inside the `with` block, background collection is paused and no write to the replay buffer is in flight.

        Does nothing when the collector is not running.
        """
        self._ensure_open()
        if self._background is None:
            finish_writes(self._schedule)
            yield
            return
        with self._background.pause():
            finish_writes(self._schedule)
            yield

    def async_shutdown(self, timeout: float | None = None, close_env: bool = True) -> None:
        """Stop collecting in the background and release everything; a second call does nothing.

        Args:
            timeout: seconds to wait for the rollout in progress; None waits until it ends, or 5 s with worker processes. A
                rollout that takes longer is not written, and its env is closed afterwards.
            close_env: close the env too.

        Raises:
            Exception: the error that ended background collection, if no earlier call has raised it.
        """
        self.shutdown(timeout, close_env)
        if self._background is not None:
            self._background.raise_error()

    # ------------------------------------------------------------------ control

    @contextmanager
    def _between_rollouts(self) -> Generator[None]:
        """No rollout is in progress inside the `with` block; Ctrl-C interrupts it only while it waits for workers."""
        with self.pause(), deferring_interrupts():
            self._schedule.settle()
            self._workers.recover_all()
            yield

    def _ask_some(self, workers: Sequence[int], command: Any) -> list[Any]:
        with in_own_words(ReapError), self._between_rollouts():
            return [ask_one(self._workers.group, worker, command) for worker in workers]

    def _ask_all(self, command: Any) -> list[Any]:
        return self._ask_each([command] * self.num_workers)

    def _ask_each(self, commands: Sequence[Any]) -> list[Any]:
        """Send one command to each worker between two rollouts, and return the replies."""
        with in_own_words(ReapError), self._between_rollouts():
            return scatter(self._workers.group, commands)

    def reset(self, index: Any = None, *, reset_idx: Any = None, **options: Any) -> None:
        """Start new episodes with the next batch; rows are numbered across all workers.

        Args:
            index: a row, a list of rows, or a mask with one bool per row; all if None.
            reset_idx: a mask with one bool per worker, instead of rows; with a single worker, the same as `index`.
            **options: not supported; torchrl passes them to the env's `reset`.

        Raises:
            OptionError: an invalid index, a row that does not exist, or any other option.
        """
        self._ensure_open()
        rows, shares = shares_of_workers(index, reset_idx, [info.rows for info in self._workers.infos], options)
        with self._between_rollouts():
            if rows is None:
                self._handover.drop_recorded()
                break_trajectories(self._options.replay_buffer)
            else:
                self._handover.drop_of([worker for worker, share in enumerate(shares) if share], range(self.num_workers))
            self._ask_each([Reset(None if rows is None else share) for share in shares])

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed envs and generators; the next batch starts new episodes.

        Args:
            seed: seed of the first env; each further one, then each worker's, gets the next in the chain.
            static_seed: give `seed` itself to all envs.

        Returns:
            The seed that follows in the chain.

        Raises:
            OptionError: not a valid seed, or not a bool.
        """
        self._ensure_open()
        checked, is_static = checked_seeding(seed, static_seed)
        with self._between_rollouts(), self._handover.beginning_anew(range(self.num_workers)):
            return self._workers.seed(checked, is_static)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume: counters, ids, generators, the policy's weights, and the state of envs that offer one.

        It holds only tensors, numbers, strings, lists and dicts: `torch.save` it, and `torch.load` it with `weights_only=True`.
        Rollouts that workers on other machines are about to write to a replay buffer themselves are dropped.
        """
        with self._between_rollouts():
            self._supply.drop_elsewhere()
            self._restart_lost()
            return {
                "format": STATE_FORMAT,
                "class": type(self).__name__,
                "counters": self._meter.state(),
                "policy_version": self._weights.version,
                "workers": self._ask_all(GetState()),
                "policy": policy_state(self._workers.held),
                "episodes": None if self._supply.queue is None else self._supply.queue.state(),
                "next_leaf": self._workers.next_leaf,
                **self._supply.state(),
            }

    def _restart_lost(self) -> None:
        """Make workers whose rollout was lost start new episodes, in their saved state too."""
        if self._handover.ready is None:
            self._handover.close_gap()
        for worker in sorted(self._handover.restarting):
            ask_one(self._workers.group, worker, Reset())
        self._handover.restarting.clear()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state_dict`.

        An env that offers its state continues in the middle of its episode, bit for bit. Any other env starts a new episode,
        with a new id and the next seed of the chain.

        Args:
            state: from a collector of the same class, env and policy.

        Raises:
            OptionError: another format or class.
            SpecMismatch: another env or policy, or an altered state; nothing is changed then.
        """
        self._ensure_open()
        held, queue, is_whole = self._workers.held, self._supply.queue, True
        check_state(state, type(self).__name__, self.num_workers, held)
        if queue is not None:
            queue, is_whole = queue.read(state["episodes"])
        with self._between_rollouts():
            self._workers.check_states(state["workers"])
            with self._handover.beginning_anew(range(self.num_workers)):
                self._workers.set_states(state["workers"], state["counters"]["restarts"], state.get("next_leaf"))
                if held:
                    load_weights(held, state["policy"])
                self._meter.restore(state["counters"])
                self._throttle.begin(self._meter.frames, [self._workers.group.fileno()])
                self._weights.restore(state["policy_version"], state["policy"])
                self._supply.queue = queue
                if not is_whole:
                    self._ask_all(Reset())  # those under way lack the frames that waited for their end
                self._handover.restore(state)

    def _take_env(self, given: Any) -> None:
        """Collect from another env with the same layout; see `CollectorAttributes.env`."""
        self._ensure_idle()
        with self._between_rollouts():
            self._workers.take_env(given)
            self._handover.drop_recorded()
            break_trajectories(self._options.replay_buffer)

    def stats(self) -> CollectorStats:
        """Statistics of the frames collected so far; each call restarts the list of finished episodes."""
        return self._meter.read()

    def shutdown(self, timeout: float | None = None, close_env: bool = True, raise_on_error: bool = True) -> None:
        """Release everything; a second call does nothing.

        Args:
            timeout: seconds to wait for worker processes, and for a rollout in progress in the background; None means 5 s,
                or until the rollout ends if it runs in this process.
            close_env: close the env too; envs in worker processes are always closed.
            raise_on_error: raise errors that occur while an env is closed.
        """
        if self._closed:
            return
        self._closed = True
        with nullcontext() if raise_on_error else suppress(Exception):
            self._release(timeout, close_env)

    def _release(self, timeout: float | None, close_env: bool) -> None:
        background = self._background
        if background is None:
            self._workers.close(timeout, close_env)
            return
        patience = self._workers.patience(timeout)
        background.stop(patience, partial(self._workers.close, patience, close_env))
        if background.is_abandoned and self._workers.kill():
            background.stop(self._workers.patience(None), lambda: None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.async_shutdown() if error is None else self.shutdown()

    def _ensure_open(self) -> None:
        if self._closed:
            raise ClosedError(f"this {type(self).__name__} is shut down; build a new one")
        if self._background is not None:
            self._background.raise_error()
        self._workers.group.ensure_own()

    def _ensure_idle(self) -> None:
        self._ensure_open()
        if self._background is not None and self._background.is_running and not self._background.is_this_thread:
            raise CallOrderError(
                f"this {type(self).__name__} is running in the background: its batches go to the replay buffer; "
                "call async_shutdown(), or sample from the buffer"
            )

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self._workers.text()}, frames_per_batch={self.frames_per_batch}, "
            f"total_frames={self.total_frames}, collected={self._meter.frames}"
            f"{'' if self._schedule.writes is None else ', written by the workers'})"
        )
