"""`MultiSyncDataCollector`: several processes collect at the same time, and a batch holds what all of them recorded."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any, ClassVar, Unpack

import torch
from tensordict import TensorDictBase
from tensordict.nn import InteractionType
from torch import nn

from reap.collectors.base import DataCollectorBase
from reap.collectors.crew import Crew, Slots
from reap.collectors.handler import Done, Reset, Seed
from reap.collectors.join import Joiner, checked_dim, joined_shape, joiner, real_rows
from reap.collectors.multi_options import MultiOptions, make_plan
from reap.collectors.options import made_updater
from reap.collectors.recovery import Recovery
from reap.collectors.schedule import Gather, ask_one
from reap.collectors.shield import uninterrupted
from reap.collectors.state import check_state, checked_rows, checked_seed
from reap.collectors.worker import CheckState
from reap.errors import OptionError, ReapError, WorkerError, in_own_words
from reap.keys import Key
from reap.layout import Field
from reap.rollout import STOP
from reap.stats import Meter
from reap.weights.base import WeightUpdaterBase, chosen_workers
from reap.weights.remote import MultiProcessedWeightUpdater
from reap.workers.base import Call
from reap.workers.process import STOP_TIMEOUT

Shape = tuple[int, ...]


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
        if plan.crew.num_threads is not None:
            torch.set_num_threads(plan.crew.num_threads)
        self._plan, self._policy = plan, policy
        self._crew = crew = Crew(plan, policy, type(self).__name__)
        try:
            frames = self._set_up()
            super().__init__(plan.whole, crew.group, frames, self._make_updater())
            self._meter = Meter(crew.group.size)
            self._recovery = self._make_recovery()
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
        if not self._plan.crew.restarts:
            return None
        for slots in self._crew.slots:
            slots.make_all()
        return Recovery(self._crew, self._slots_of, self._note_restart)

    def _note_restart(self, worker: int) -> None:
        self._meter.restart(worker)
        boxes: dict[int, Any] = getattr(self._updater, "mailboxes", {})
        if worker in boxes:
            boxes[worker] = self._crew.mailboxes[worker]

    def _mend(self, failure: WorkerError, command: Any) -> Done | None:
        if self._recovery is None:
            raise failure
        try:
            return self._recovery.restart(failure, command)
        except BaseException:
            self._crew.close(0)
            raise

    def _complete(self, worker: int, done: Done) -> Done:
        """The reply of a worker with what it took over from a failed one."""
        return done if self._recovery is None else self._recovery.completed(worker, done)

    def _make_updater(self) -> WeightUpdaterBase | None:
        given, boxes = self._plan.whole.weight_updater, self._crew.mailboxes
        schemes = self._plan.crew.weight_sync_schemes
        if given is not None and schemes is not None:
            raise OptionError("weight_updater and weight_sync_schemes: expected one of them, got both")
        source = self._policy if isinstance(self._policy, nn.Module) else None
        if given is None:
            return self._plan.crew.scheme.updater(source, boxes) if boxes else None
        updater = made_updater(given)
        if isinstance(updater, MultiProcessedWeightUpdater):
            updater.serve(source, boxes)
        return updater

    def _slots(self, workers: Sequence[int], batch_shape: Shape, columns: int) -> Slots:
        whole = self._plan.whole
        device = whole.storing_device if whole.stores_here else None
        return Slots(self._crew, workers, batch_shape, columns, device=device, same=whole.return_same_td)

    def _before_batch(self) -> None:
        if self._plan.crew.update_at_each_batch:
            self.update_policy_weights_()

    def _add(self, worker: int, done: Done) -> None:
        staleness = self._version - done.version
        self._meter.add(done.frames, done.episodes, done.env_seconds, done.policy_seconds, worker=worker, staleness=staleness)

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed the workers one behind the other; see `DataCollectorBase`."""
        self._ensure_open()
        following = checked_seed(seed)
        with self.pause():
            self._settle()
            for worker in range(self.num_workers):
                following = ask_one(self._group, worker, Seed(following, static_seed))
        return following

    def _settle(self) -> None:
        """Have no rollout under way, and none that waits for delivery, before new episodes begin."""

    def _keep_results(self) -> None:
        """Have no rollout under way; what was recorded waits for its delivery."""

    def _send_each(self, commands: Sequence[Any]) -> list[Any]:
        # A state that does not fit is refused in the words of a collector in this process.
        with in_own_words(ReapError), self.pause():
            self._keep_results()
            return super()._send_each(commands)

    def reset(self, index: Any = None) -> None:
        """Begin new episodes with the next batch; rows are counted over all workers. See `DataCollectorBase`."""
        self._ensure_open()
        rows = None if index is None else checked_rows(index)
        starts = self._crew.starts()
        total = starts[-1] + self._crew.facts[-1].rows
        unknown = [row for row in rows or () if not 0 <= row < total]
        if unknown:
            raise OptionError(f"reset: expected rows from 0 to {total - 1}, got {unknown}")
        with self.pause():
            self._settle()
            counts = [facts.rows for facts in self._crew.facts]
            shares = [[row - a for row in rows or () if a <= row < a + n] for a, n in zip(starts, counts, strict=True)]
            self._send_each([Reset(None if rows is None else share) for share in shares])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`; see `DataCollectorBase`."""
        self._ensure_open()
        check_state(state, type(self).__name__, self.num_workers, self.policy)
        with self.pause():
            self._send_each([CheckState(own) for own in state["workers"]])
            self._settle()
            for worker, box in self._crew.mailboxes.items():
                own = state["workers"][worker]
                box.write(own["policy"], max(1, own["version"]))
            super().load_state_dict(state)
            self._crew.restarts = self._meter.restarts

    def getattr_env(self, name: str) -> list[Any]:
        """The value of an attribute of each worker's env."""
        return self._send_all(Call("env_attribute", (name,)))

    def getattr_policy(self, name: str) -> list[Any]:
        """The value of an attribute of each worker's policy."""
        return self._send_all(Call("policy_attribute", (name,)))

    def call_env(self, name: str, *args: Any, worker_ids: Any = None) -> list[Any]:
        """What a method of each worker's env returns."""
        chosen = chosen_workers(worker_ids, range(self.num_workers))
        with self.pause():
            self._keep_results()
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
        return self._crew.facts[0].fields

    @property
    def env(self) -> None:
        """None: the envs are in the workers."""
        return

    def _spec(self, name: str) -> Any:
        return self._crew.facts[0].specs[name]

    def __repr__(self) -> str:
        facts = self._crew.facts[0]
        name = "random" if self._policy is None else type(self._policy).__name__
        return (
            f"{type(self).__name__}({self.num_workers} x {facts.env}, policy={name} ({facts.actor_kind}), "
            f"frames_per_batch={self.frames_per_batch}, total_frames={self.total_frames}, collected={self._meter.frames})"
        )


class MultiSyncDataCollector(ProcessCollector):
    """Runs a policy in several processes; each batch holds a rollout of every worker, all of the same weights.

    Args:
        create_env_fn: a list with one env factory, gymnasium id or env of reap for each worker, or one with `num_workers`.
        policy: a module or function, or None for random actions; each worker has a copy.
        **options: see `CollectorOptions` and `CrewOptions`; `frames_per_batch` is the sum over the workers.

    Yields:
        TensorDicts `[W, *env.batch_size, T]` with `cat_results="stack"`; joined along that dimension with an integer.

    Raises:
        OptionError: an option that is unknown or cannot work.
        SpecMismatch: a policy or an env that does not keep to the env's specs, or workers of different layouts.
        WorkerRaised: the code of a worker raised.
        WorkerDied: the process of a worker ended.

    Example:
        >>> with MultiSyncDataCollector(["CartPole-v1"] * 2, frames_per_batch=20, total_frames=40) as collector:
        ...     print([batch.batch_size for batch in collector])
        [torch.Size([2, 10]), torch.Size([2, 10])]
    """

    _is_shared = True

    def __init__(self, create_env_fn: Any, policy: Callable[..., Any] | None = None, **options: Unpack[MultiOptions]) -> None:
        self._under_way: Gather | None = None
        super().__init__(create_env_fn, policy, options)

    def _set_up(self) -> int:
        crew, options = self._crew, self._plan.crew
        crew.require_equal()
        shapes = [(*facts.batch_shape, facts.columns) for facts in crew.facts]
        # Episodes in turn need the rows apart.
        kind = "stack" if self._plan.whole.trajs_per_batch is not None else options.cat_results
        dim = checked_dim(kind, shapes)
        self._drops_missing = options.preemptive_threshold is not None and dim is not None
        if self._drops_missing and dim != len(shapes[0]) - 1:
            raise OptionError(
                f"cat_results={kind} with preemptive_threshold: workers that stop early record less along the last dimension; "
                'join along it (-1), or use "stack", which marks what is missing'
            )
        self._shape = torch.Size(joined_shape(dim, shapes))
        self._real_rows = real_rows(shapes)
        workers = range(crew.group.size)
        self._join: Joiner | None = joiner(dim, shapes)
        if len(set(shapes)) > 1:
            self._all_slots = [self._slots([w], shape[:-1], shape[-1]) for w, shape in enumerate(shapes)]
        else:
            in_place = dim is None or (dim == 0 and not self._drops_missing)
            shape = self._shape if in_place else torch.Size(joined_shape(None, shapes))
            self._join = None if in_place else self._join
            self._all_slots = [self._slots(workers, tuple(shape[:-1]), shape[-1])]
        return sum(facts.frames for facts in crew.facts)

    def _next_batch(self) -> TensorDictBase | None:
        batch = super()._next_batch()
        if batch is None or self._queue is None or self._real_rows is None:
            return batch
        # Rows that only pad have no episodes to wait for.
        return batch.reshape(-1, batch.shape[-1])[self._real_rows]

    def _next_rollout(self) -> TensorDictBase:
        if self._under_way is None:
            with uninterrupted():
                self._under_way = self._begin()
        gather = self._under_way
        gather.wait()
        self._under_way = None
        dones: dict[int, Done] = gather.replies
        for worker, done in sorted(dones.items()):
            self._add(worker, done)
        results = [slots.deliver(number, dones) for slots, number in zip(self._all_slots, gather.note, strict=True)]
        if self._join is None:
            return results[0]
        parts = results if len(self._all_slots) > 1 else list(results[0].unbind(0))
        if self._drops_missing:
            parts = [part[..., : dones[worker].columns] for worker, part in enumerate(parts)]
        return self._join(parts)

    def _begin(self) -> Gather:
        self._before_batch()
        numbers = [slots.take() for slots in self._all_slots]
        share = self._plan.crew.preemptive_threshold
        needed = self.num_workers if share is None else ceil(share * self.num_workers)
        for worker in range(self.num_workers):
            self._crew.clear_control(worker)
        commands = [self._command(numbers[w if len(numbers) > 1 else 0]) for w in range(self.num_workers)]
        return Gather(
            self._group,
            commands,
            needed=needed,
            hurry=self._hurry,
            mend=self._mend,
            complete=self._complete,
            note=numbers,
        )

    def _slots_of(self, worker: int) -> Slots:
        return self._all_slots[worker if len(self._all_slots) > 1 else 0]

    def _hurry(self, worker: int) -> None:
        """End the rollout of this worker with the column under way."""
        self._crew.group.control(worker)[STOP] = 1

    def _settle(self) -> None:
        self._keep_results()
        if self._under_way is not None:
            for slots, number in zip(self._all_slots, self._under_way.note, strict=True):
                slots.pool.give_back(number)
            self._meter.discard(sum(done.frames for done in self._under_way.replies.values()))
            self._under_way = None

    def _keep_results(self) -> None:
        if self._under_way is not None:
            self._under_way.wait()

    @property
    def batch_size(self) -> torch.Size:
        """Shape of a batch."""
        return self._shape
