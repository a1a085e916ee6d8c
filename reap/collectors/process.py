"""`ProcessCollector`: what collectors with worker processes share.

next() -- _supply ------------------------------> _ready --> the caller
          deferring_interrupts: Ctrl-C comes in only     what Ctrl-C kept from being
          where a wait for workers loses nothing  handed out is next time's batch
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import InteractionType

from reap.collectors.base import DataCollectorBase
from reap.collectors.buffer_writes import Writes, end_for_workers
from reap.collectors.counting import count_rollout
from reap.collectors.delivery.steps import break_trajectories, mark_truncated
from reap.collectors.options.collector import made_updater
from reap.collectors.options.multi import make_plan
from reap.collectors.random_ends import end_episodes
from reap.collectors.recovery import Recovery
from reap.collectors.rollout_workers import RolloutWorkers
from reap.collectors.schedule import ask_one
from reap.collectors.slots import Slots
from reap.collectors.state import check_state, checked_rows, checked_seed
from reap.collectors.stats import Meter
from reap.collectors.worker.buffer_writer import write_to
from reap.collectors.worker.commands import CheckState, Done, Reset
from reap.collectors.worker.results import batch_from, batch_state, valid_frames
from reap.envs.own_policy import as_policy
from reap.errors import OptionError, ReapError, WorkerError, in_own_words
from reap.keys import Key
from reap.policy.held import held_by
from reap.recording.buffers import MASK
from reap.recording.layout import Field, require_shared
from reap.system.interrupts import deferring_interrupts
from reap.weights.attributes import ATTRIBUTES, agreed, loaded
from reap.weights.base import WeightUpdaterBase, chosen_workers
from reap.weights.remote import MultiProcessedWeightUpdater
from reap.weights.weight_layout import extra_states
from reap.workers.base import Call
from reap.workers.processes.group import STOP_TIMEOUT

Shape = tuple[int, ...]

WRITTEN = TensorDict({"collector": {"mask": torch.zeros(0, dtype=torch.bool)}}, batch_size=[0])
"""The batch of workers that have written what they recorded."""


class ProcessCollector(DataCollectorBase):
    """What collectors with worker processes share.

    Args:
        create_env_fn: what makes the env, for each worker, or one with `num_workers`.
        policy: a module or function, or None for random actions.
        options: the keywords.
    """

    _is_shared: ClassVar[bool]
    """Whether `frames_per_batch` is the sum over the workers."""

    def __init__(self, create_env_fn: Any, policy: Callable[..., Any] | None, options: Mapping[str, Any]) -> None:
        plan = make_plan(create_env_fn, options, InteractionType, is_shared=self._is_shared)
        if policy is not None and any(plan.policy_factories):
            raise OptionError("policy and policy_factory: expected one of them, got both")
        if plan.workers.num_threads is not None:
            torch.set_num_threads(plan.workers.num_threads)
        policy = as_policy(policy)
        self._plan, self._policy, self._held = plan, policy, held_by(policy)
        # What Ctrl-C kept from being handed out.
        self._ready: TensorDictBase | None = None
        self._writes: Writes | None = None
        self._marks = any(own.set_truncated for own in plan.each)
        self._crew = crew = RolloutWorkers(plan, self._held, type(self).__name__)
        try:
            frames = self._set_up()
            require_shared([slots.pool.layout for slots in crew.slots])  # of one batch; others are made as they are needed
            super().__init__(plan.whole, crew.group, frames, self._make_updater())
            self._meter = Meter(crew.group.size)
            self._recovery = self._make_recovery()
            self._writes = self._make_writes()
        except BaseException:
            crew.close(0)
            raise

    @abstractmethod
    def _set_up(self) -> int:
        """Make the slots; return the frames of a batch."""

    @abstractmethod
    def _slots_of(self, worker: int) -> Slots:
        """The slots that this worker records in."""

    def _make_recovery(self) -> Recovery | None:
        if not self._plan.workers.restarts:
            return None
        for slots in self._crew.slots:
            slots.make_all()
        return Recovery(self._crew, self._slots_of, self._meter.restart)

    def _make_writes(self) -> Writes | None:
        """What workers write themselves; None where this process writes, or nobody does."""
        whole = self._plan.whole
        if whole.replay_buffer is None:
            return None
        end = end_for_workers(whole, self._crew.infos, self._takes_parts())
        if end is None:
            return None
        own = [replace(one, split_trajs=whole.split_trajs, storing_device=whole.storing_device) for one in self._plan.each]
        self._crew.let_write([write_to(one, end, whole.postproc) for one in own])
        return Writes(self._crew.group, self._meter, self._writes_at_once, by_column=not whole.extend_buffer)

    def _takes_parts(self) -> bool:
        """Whether the replay buffer takes what each worker recorded by itself."""
        return True

    @property
    def _writes_at_once(self) -> int:
        """Workers that may write at the same time."""
        return self.num_workers

    def _next_delivery(self, most: int | None = None) -> TensorDictBase:
        writes = self._writes
        if writes is None or self._has_batch:
            batch = super()._next_delivery(most)
            return batch if most is None or not self._marks else mark_truncated(batch)  # it may have been cut
        if most is not None or not writes.are_left:  # else: what Ctrl-C broke off
            self._have_written(writes, most)
        if most is None:
            writes.finish(self._mend_write)
        return WRITTEN

    @property
    @abstractmethod
    def _has_batch(self) -> bool:
        """Whether what comes next has left its slot already: this process delivers it."""

    @abstractmethod
    def _have_written(self, writes: Writes, most: int | None) -> None:
        """Have a rollout recorded and written by those who recorded it; see `_next_delivery`."""

    @abstractmethod
    def _mend_write(self, failure: WorkerError) -> None:
        """Recover a failure that came while workers wrote, or raise it."""

    def _hand_over(self, worker: int, done: Done) -> None:
        """The policy acts next in this worker: if it begins new episodes, those under way have ended with this rollout."""
        if self._crew.infos[worker].remembers:
            arrays = self._slots_of(worker).rows_of(worker, done.slot)
            end_episodes(arrays.__getitem__, has_mask=MASK in arrays)

    def _finish_writes(self) -> None:
        if self._writes is not None:
            self._writes.finish(self._mend_write)

    def _deliver(self, batch: Any) -> Any:
        # After a resume, one without frames says that they were written before.
        return None if self._writes is not None and not batch.batch_size.numel() else super()._deliver(batch)

    def _news(self) -> Sequence[int]:
        return [self._crew.group.fileno()]

    def _ensure_open(self) -> None:
        super()._ensure_open()
        self._crew.group.ensure_own()

    def _look_for_failures(self) -> None:
        self._crew.group.poll(())

    @property
    def _least_frames(self) -> int:
        least = super()._least_frames
        return least if self._writes is None else min(facts.rows for facts in self._crew.infos)

    @contextmanager
    def pause(self) -> Generator[None]:
        """In the body nothing is written in the background; see `DataCollectorBase`."""
        with super().pause():
            self._finish_writes()
            yield

    def _renew_mailbox(self, worker: int) -> None:
        boxes: dict[int, Any] = getattr(self._updater, "mailboxes", {})
        if worker in boxes:
            boxes[worker] = self._crew.mailboxes[worker]

    def _recover(self, failure: WorkerError, command: Any) -> Done | None:
        if self._recovery is None:
            raise failure
        try:
            return self._recovery.restart(failure, command)
        except ReapError:
            self._crew.close(0)
            raise
        finally:
            self._renew_mailbox(failure.worker)  # also where Ctrl-C came when it had another one

    def _complete(self, worker: int, done: Done) -> Done:
        """A worker's reply, when its rollout is in the slot, with the columns of one that failed."""
        return self._crew.land(worker, done) if self._recovery is None else self._recovery.completed(worker, done)

    def _make_updater(self) -> WeightUpdaterBase | None:
        given, boxes = self._plan.whole.weight_updater, self._crew.mailboxes
        source = self._policy if self._held else None
        if given is None and not boxes:
            return None
        updater: WeightUpdaterBase = self._plan.scheme.updater(source, boxes) if given is None else made_updater(given)
        if isinstance(updater, MultiProcessedWeightUpdater):
            updater.serve(source, boxes, agreed(facts.attributes for facts in self._crew.infos))
        return updater

    def _slots(self, workers: Sequence[int], batch_shape: Shape, columns: int) -> Slots:
        whole = self._plan.whole
        device = whole.storing_device if whole.stores_here else None
        return self._crew.slots_for(workers, batch_shape, columns, device=device, same=whole.return_same_td)

    def _before_batch(self) -> None:
        if self._plan.workers.update_at_each_batch:
            self.update_policy_weights_()

    def rollout(self) -> TensorDictBase:
        """Collect one batch as it was recorded; see `DataCollectorBase`."""
        self._ensure_idle()
        if self._ready is WRITTEN:
            self._ready = None
        return self._collect() if self._queue is not None else self._supply(self._collect)

    def _supply(self, rollouts: Callable[[], TensorDictBase | None]) -> Any:
        """The next batch; one that is complete when Ctrl-C comes is that of the next call."""
        if self._ready is None:
            with deferring_interrupts():
                self._ready = super()._supply(rollouts)
        batch, self._ready = self._ready, None
        return batch

    def _add(self, worker: int, done: Done) -> None:
        staleness = self._version - done.version if worker in self._crew.mailboxes else 0
        count_rollout(self._meter, done, worker=worker, staleness=staleness)

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed the workers one behind the other; see `DataCollectorBase`."""
        self._ensure_open()
        following = checked_seed(seed)
        with self._between_rollouts():
            self._settle()
            for worker in range(self.num_workers):
                following = self._crew.seed(worker, following, static_seed)
            break_trajectories(self._options.replay_buffer)
        return following

    @contextmanager
    def _between_rollouts(self) -> Generator[None]:
        """In the body no rollout is under way; Ctrl-C comes into it only where it waits for workers."""
        with self.pause(), deferring_interrupts():
            self._keep_results()
            if self._recovery is not None:
                for failure in self._crew.group.failures():
                    self._recover(failure, None)
            yield

    def _settle(self) -> None:
        """Have no results that wait for delivery, before new episodes begin."""
        if self._ready is not None:
            frames = valid_frames(self._ready)
            self._meter.discard(frames)
            self._meter.frames -= frames
            self._ready = None

    def _keep_results(self) -> None:
        """Have no rollout and no write under way; what was recorded waits for its delivery."""

    def _send_each(self, commands: Sequence[Any]) -> list[Any]:
        # A state that does not fit is refused in the words of a collector in this process.
        with in_own_words(ReapError), self._between_rollouts():
            return super()._send_each(commands)

    def reset(self, index: Any = None) -> None:
        """Begin new episodes with the next batch; rows are counted over all workers. See `DataCollectorBase`."""
        self._ensure_open()
        rows = None if index is None else checked_rows(index)
        starts = self._crew.starts()
        total = starts[-1] + self._crew.infos[-1].rows
        unknown = [row for row in rows or () if not 0 <= row < total]
        if unknown:
            raise OptionError(f"reset: expected rows from 0 to {total - 1}, got {unknown}")
        with self._between_rollouts():
            self._settle()
            counts = [facts.rows for facts in self._crew.infos]
            shares = [[row - a for row in rows or () if a <= row < a + n] for a, n in zip(starts, counts, strict=True)]
            self._send_each([Reset(None if rows is None else share) for share in shares])
            if rows is None:
                break_trajectories(self._options.replay_buffer)

    def state_dict(self) -> dict[str, Any]:
        """All that a collector needs to go on, with what waits for delivery; see `DataCollectorBase`."""
        with self._between_rollouts():
            return {
                **super().state_dict(),
                "next_leaf": self._crew.next_leaf,
                "ready": None if self._ready is None else batch_state(self._ready),
                "results": self._results(),
            }

    @abstractmethod
    def _results(self) -> list[Any]:
        """The state of rollouts that wait for delivery."""

    @abstractmethod
    def _take_results(self, results: Sequence[Any]) -> None:
        """Have these rollouts wait for delivery."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`; see `DataCollectorBase`."""
        self._ensure_open()
        check_state(state, type(self).__name__, self.num_workers, self._held)
        with self._between_rollouts():
            self._send_each([CheckState(own) for own in state["workers"]])
            self._settle()
            for worker, box in self._crew.mailboxes.items():
                own = state["workers"][worker]
                attributes = {ATTRIBUTES: loaded(own.get("attributes", {}))}
                box.write(own["policy"], max(1, own["version"]), extra={**extra_states(own["policy"]), **attributes})
            super().load_state_dict(state)
            self._crew.go_on(self._meter.restarts, state["workers"], state.get("next_leaf"))
            self._ready = None if state["ready"] is None else batch_from(state["ready"])
            break_trajectories(self._options.replay_buffer)
            self._take_results(state["results"])

    def getattr_env(self, name: str) -> list[Any]:
        """The value of an attribute of each worker's env."""
        return self._send_all(Call("env_attribute", (name,)))

    def getattr_policy(self, name: str) -> list[Any]:
        """The value of an attribute of each worker's policy."""
        return self._send_all(Call("policy_attribute", (name,)))

    def call_env(self, name: str, *args: Any, worker_ids: Any = None) -> list[Any]:
        """What a method of each worker's env returns."""
        chosen = chosen_workers(worker_ids, range(self.num_workers))
        with self._between_rollouts():
            return [ask_one(self._group, worker, Call("call_env", (name, *args))) for worker in chosen]

    def shutdown(self, timeout: float | None = None, close_env: bool = True) -> None:
        """Release everything; a second call does nothing.

        Args:
            timeout: seconds to wait for workers, and for a rollout that is under way in the background, before they are ended;
                None for 5.
            close_env: the workers' envs are closed in any case.
        """
        background, is_first = self._background, not self._closed
        patience = STOP_TIMEOUT if timeout is None and background is not None else timeout
        super().shutdown(patience, close_env)
        if is_first and background is not None and background.is_abandoned:
            self._crew.close(0)  # the thread waits for a worker that does not come back
            background.stop(STOP_TIMEOUT, lambda: None)

    def _release(self, timeout: float | None, close_env: bool) -> None:
        self._crew.close(timeout)

    @property
    def policy(self) -> Any:
        """The policy that was given; None where the workers made theirs."""
        return self._policy

    @property
    def frame_fields(self) -> Mapping[Key, Field]:
        """Shape and dtype of one frame's value under each key of a batch."""
        return self._crew.infos[0].fields

    @property
    def env(self) -> None:
        """None: the envs are in the workers."""
        return

    def _spec(self, name: str) -> Any:
        return self._crew.infos[0].specs[name]

    def __repr__(self) -> str:
        facts = self._crew.infos[0]
        name = "random" if self._policy is None else type(self._policy).__name__
        return (
            f"{type(self).__name__}({self.num_workers} x {facts.env}, policy={name} ({facts.actor_kind}), "
            f"frames_per_batch={self.frames_per_batch}, total_frames={self.total_frames}, collected={self._meter.frames}"
            f"{'' if self._writes is None else ', written by the workers'})"
        )
