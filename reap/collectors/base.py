"""`DataCollectorBase`: iterate, deliver, weights, seed, stats, shutdown; the same for every collector."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import ceil
from types import TracebackType
from typing import Any, Self

from tensordict import TensorDictBase
from torch.utils.data import IterableDataset

from reap.collectors.attributes import CollectorAttributes
from reap.collectors.background import Background, cut
from reap.collectors.delivery.episodes import make_queue, next_episodes
from reap.collectors.delivery.steps import delivery_steps, mark_truncated, register_feeder, take
from reap.collectors.delivery.throttle import make_throttle
from reap.collectors.options.collector import CollectorOptions, warn_of_rounding
from reap.collectors.schedule import ExclusiveCall, scatter
from reap.collectors.state import STATE_FORMAT, check_state, checked_rows, checked_seed, policy_state
from reap.collectors.stats import CollectorStats, Meter
from reap.collectors.worker.commands import Collect, GetState, Reset, Seed, SetState
from reap.errors import CallOrderError, ClosedError, OptionError
from reap.weights.base import WeightUpdaterBase, breaking_off, load_weights
from reap.workers.base import Call, WorkerGroup


class DataCollectorBase(CollectorAttributes, IterableDataset[Any]):
    """What all collectors share.

    Args:
        options: the options.
        group: the workers.
        frames_per_batch: frames of a batch, after rounding up.
        updater: sends weights to the workers; None if there are no weights.
    """

    def __init__(
        self, options: CollectorOptions, group: WorkerGroup, frames_per_batch: int, updater: WeightUpdaterBase | None
    ) -> None:
        super().__init__()
        self._options = options
        self._group = group
        self._frames_per_batch = frames_per_batch
        self._meter = Meter()
        self._steps = delivery_steps(options)
        self._closed = False
        self._exclusive = ExclusiveCall(type(self).__name__)
        self._version = 0
        self._background: Background | None = None
        self._throttle = make_throttle(options, frames_per_batch)
        self._queue = make_queue(options)
        self._updater = updater
        if updater is not None:
            updater.register_collector(self)
        warn_of_rounding(options, frames_per_batch)

    # ------------------------------------------------------------------ batches

    def __iter__(self) -> Iterator[Any]:
        """Batches until `total_frames` are collected; a second loop goes on where the first stopped."""
        return self.iterator()

    def iterator(self) -> Iterator[Any]:
        """The same as `iter(collector)`."""
        self._ensure_idle()
        while (batch := self._supply(self._next_batch)) is not None:
            yield self._deliver(batch) if self._steps else batch
            self._ensure_idle()

    def next(self) -> Any:
        """The next batch; None when `total_frames` are collected."""
        self._ensure_idle()
        batch = self._supply(self._next_batch)
        # Without a call, Ctrl-C has no place to come in between here and the caller.
        return batch if batch is None or not self._steps else self._deliver(batch)

    def rollout(self) -> TensorDictBase:
        """Collect one batch as it was recorded: no postproc, no splitting, not written to the replay buffer.

        Last frames are marked with `set_truncated`.
        """
        self._ensure_idle()
        batch = self._collect()
        return mark_truncated(batch) if self._options.set_truncated else batch

    def __len__(self) -> int:
        """Number of batches in all.

        Raises:
            TypeError: there is no end.
        """
        budget = self._options.budget
        if budget is None:
            raise TypeError("a collector without total_frames has no length: it goes on until you stop")
        if self._options.trajs_per_batch is not None:
            raise TypeError("a collector with trajs_per_batch has no length: it depends on how long the episodes are")
        return ceil(budget / self._frames_per_batch)

    def _supply(self, rollouts: Callable[[], TensorDictBase | None]) -> TensorDictBase | None:
        queue = self._queue
        return rollouts() if queue is None else next_episodes(queue, rollouts, self._first_row, self._meter.discard)

    def _first_row(self) -> int:
        """Where the rows of the last rollout begin among those of all workers."""
        return 0

    def _next_batch(self) -> TensorDictBase | None:
        budget = self._options.budget
        return None if budget is not None and self._meter.frames >= budget else self._at_work(self._next_delivery)

    def _collect(self) -> TensorDictBase:
        return self._at_work(self._next_rollout)

    def _at_work(self, make: Callable[[], TensorDictBase]) -> TensorDictBase:
        batch = self._exclusive.run(partial(self._meter.timed, make))
        self._meter.batches += 1
        return batch

    @abstractmethod
    def _next_rollout(self) -> TensorDictBase:
        """Have one batch recorded and count it."""

    def _next_delivery(self, most: int | None = None) -> TensorDictBase:
        """A batch to deliver.

        Args:
            most: frames that it may have; None, and the caller waits for it: outside of the background.
        """
        batch = self._next_rollout()
        if most is None:
            return batch
        batch, surplus = cut(batch, most)
        self._meter.discard(surplus)
        self._meter.frames -= surplus
        return batch

    def _deliver(self, batch: Any) -> Any:
        return take(self._steps, batch, self._options.replay_buffer)

    def _command(self, slot: int) -> Collect:
        options = self._options
        random = self._meter.frames < options.random_frames
        return Collect(slot, random, options.reset_at_each_iter, self._version)

    # ------------------------------------------------------------------ background

    def start(self) -> None:
        """Fill the replay buffer in the background, until `total_frames` are written or the collector is shut down.

        An error there surfaces at the next call on the collector, or on the buffer.

        Raises:
            OptionError: there is no replay buffer.
            CallOrderError: the collector is running already.
        """
        self._ensure_idle()
        if self._options.replay_buffer is None:
            raise OptionError("start() writes to a replay buffer: expected the option replay_buffer, got None")
        self._prepare_background()
        self._throttle.begin(self._meter.frames, self._news())
        self._background = Background(self._background_step, f"{type(self).__name__}.start", self._throttle)
        register_feeder(self._options.replay_buffer, self._background)
        self._background.start()

    def _news(self) -> Sequence[int]:
        """Descriptors that are readable when workers have something to say."""
        return ()

    def _prepare_background(self) -> None:
        """Make ready to collect in a thread."""

    def _background_step(self) -> bool:
        """Collect and write one batch, unless that is too early; return whether to go on."""
        if self._frames_left >= self._least_frames and self._throttle.holds(self._meter.frames):
            self._look_for_failures()
            return True
        batch = self._supply(self._next_within_budget)
        if self._is_abandoned:
            return False
        if batch is None:
            self._finish_writes()
            return self._frames_left >= self._least_frames  # a write may have failed
        self._deliver(batch)
        return True

    def _look_for_failures(self) -> None:
        """Raise what has happened to workers."""

    def _finish_writes(self) -> None:
        """Return when no write to the replay buffer is in flight."""

    def _next_within_budget(self) -> TensorDictBase | None:
        """A rollout, the last one cut so that `total_frames` are not exceeded."""
        left = self._frames_left
        if left < self._least_frames or self._is_abandoned:
            return None
        return self._at_work(partial(self._next_delivery, left))

    @property
    def _frames_left(self) -> int:
        """Frames that the next batch may have."""
        budget, whole = self._options.budget, self._frames_per_batch
        return whole if budget is None else budget - self._meter.frames

    @property
    def _least_frames(self) -> int:
        """Frames of the smallest piece of a batch that can be delivered: of one column."""
        return self.batch_size[:-1].numel()

    @property
    def _is_abandoned(self) -> bool:
        return self._background is not None and self._background.is_abandoned

    def is_running(self) -> bool:
        """Whether the collector works in the background."""
        return self._background is not None and self._background.is_running

    @contextmanager
    def pause(self) -> Generator[None]:
        """In the body nothing is collected in the background, and no write to the replay buffer is in flight.

        Does nothing when the collector is not running.
        """
        self._ensure_open()
        if self._background is None:
            yield
            return
        with self._background.pause():
            yield

    def async_shutdown(self, timeout: float | None = None, close_env: bool = True) -> None:
        """Stop collecting in the background and release everything; a second call does nothing.

        Args:
            timeout: seconds to wait for the rollout under way; None waits for its end. One that takes longer is not
                written any more, and what it works on is released behind it.
            close_env: close the env too.

        Raises:
            Exception: what ended the collecting in the background, if no call has raised it before.
        """
        self.shutdown(timeout, close_env)
        if self._background is not None:
            self._background.raise_error()

    # ------------------------------------------------------------------ control

    def _send_all(self, command: Any) -> list[Any]:
        return self._send_each([command] * self.num_workers)

    def _send_each(self, commands: Sequence[Any]) -> list[Any]:
        """Have the workers carry out a command each between two rollouts, and return their replies."""
        with self.pause():
            return scatter(self._group, commands)

    def reset(self, index: Any = None) -> None:
        """Begin new episodes with the next batch.

        Args:
            index: a row, a list of rows, or a mask with one bool per row; all if None.

        Raises:
            OptionError: something else, or a row that is not there.
        """
        self._ensure_open()
        self._send_all(Reset(None if index is None else checked_rows(index)))

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed envs and generators; new episodes begin with the next batch.

        Args:
            seed: seed of the first env; each further one gets the next in the chain.
            static_seed: all envs get `seed` itself.

        Returns:
            The seed that follows in the chain.

        Raises:
            OptionError: no seed.
        """
        self._ensure_open()
        return self._send_all(Seed(checked_seed(seed), static_seed))[-1]

    def update_policy_weights_(self, policy_or_weights: Any = None, *, worker_ids: Any = None) -> None:
        """Make weights current: those of the policy given at construction, or those given here.

        Args:
            policy_or_weights: a module or policy, a TensorDict of parameters or a state dict.
            worker_ids: workers to update; all if None.
        """
        self._ensure_open()
        if self._updater is None and policy_or_weights is not None:
            raise OptionError(f"weights: this {type(self).__name__} has no policy with weights to update")
        with breaking_off(self._updater):
            if self._updater is not None:
                self._updater.push_weights(policy_or_weights, worker_ids)
            self._version += 1

    def getattr_env(self, name: str) -> Any:
        """The value of an attribute of the env; of several envs, a list."""
        return self._send_all(Call("env_attribute", (name,)))[0]

    def getattr_policy(self, name: str) -> Any:
        """The value of an attribute of the policy."""
        return self._send_all(Call("policy_attribute", (name,)))[0]

    def call_env(self, name: str, *args: Any, worker_ids: Any = None) -> Any:
        """What a method of the env returns; of several envs, a list."""
        return self._send_all(Call("call_env", (name, *args)))[0]

    def state_dict(self) -> dict[str, Any]:
        """All that a collector needs to go on: counters, ids, generators, the policy's weights, envs that offer their state.

        Made of tensors, numbers, strings, lists and dicts: `torch.save` it, and `torch.load` it with `weights_only=True`.
        """
        with self.pause():
            return {
                "format": STATE_FORMAT,
                "class": type(self).__name__,
                "counters": self._meter.state(),
                "policy_version": self._version,
                "workers": self._send_all(GetState()),
                "policy": policy_state(self._held),
                "episodes": None if self._queue is None else self._queue.state(),
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`.

        An env with a state of its own goes on in the middle of its episode, bit for bit. Another one begins a new episode,
        with a new id and the next seed of the chain.

        Args:
            state: from a collector of the same class, env and policy.

        Raises:
            OptionError: another format or class.
            SpecMismatch: another env or policy, or a state that somebody altered; nothing is changed then.
        """
        self._ensure_open()
        check_state(state, type(self).__name__, self._group.size, self._held)
        queue, is_whole = (None, True) if self._queue is None else self._queue.read(state["episodes"])
        with self.pause():
            self._send_each([SetState(own) for own in state["workers"]])
            if self._held:
                load_weights(self._held, state["policy"])
            self._meter.restore(state["counters"])
            self._throttle.begin(self._meter.frames, self._news())
            self._version = state["policy_version"]
            self._queue = queue
            if not is_whole:
                self._send_all(Reset())  # those under way lack the frames that waited for their end

    def stats(self) -> CollectorStats:
        """What was collected so far; the list of finished episodes begins anew with each call."""
        return self._meter.read()

    def shutdown(self, timeout: float | None = None, close_env: bool = True) -> None:
        """Release everything; a second call does nothing.

        Args:
            timeout: seconds to wait for workers before they are ended.
            close_env: close the env too.
        """
        if self._closed:
            return
        self._closed = True
        release = partial(self._release, timeout, close_env)
        release() if self._background is None else self._background.stop(timeout, release)

    @abstractmethod
    def _release(self, timeout: float | None, close_env: bool) -> None:
        """Stop the workers."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.async_shutdown() if error is None else self.shutdown()

    def _ensure_open(self) -> None:
        if self._closed:
            raise ClosedError(f"this {type(self).__name__} is shut down; build a new one")
        if self._background is not None:
            self._background.raise_error()

    def _ensure_idle(self) -> None:
        self._ensure_open()
        if self.is_running():
            raise CallOrderError(
                f"this {type(self).__name__} is running in the background: its batches go to the replay buffer; "
                "call async_shutdown(), or sample from the buffer"
            )
