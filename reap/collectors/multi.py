"""`MultiSyncDataCollector`: several processes collect at the same time, and a batch holds what all of them recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any, Unpack

import torch
from tensordict import TensorDictBase

from reap.collectors.buffer_writes import Writes
from reap.collectors.delivery.join import Joiner, checked_dim, joined_shape, joiner, real_rows
from reap.collectors.delivery.steps import in_parts, ndim_of
from reap.collectors.options.multi import MultiOptions
from reap.collectors.process import ProcessCollector
from reap.collectors.schedule import Gather
from reap.collectors.slots import Slots
from reap.collectors.worker.commands import Done
from reap.collectors.worker.results import batch_from, batch_state, done_from, done_state
from reap.errors import OptionError, WorkerError
from reap.rollout.loop import STOP


class MultiSyncDataCollector(ProcessCollector):
    """Runs a policy in several processes; each batch holds a rollout of every worker, all of the same weights.

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
        MemoryError: what the workers record at a time does not fit into the memory that there is.

    Example:
        >>> with MultiSyncDataCollector(["CartPole-v1"] * 2, frames_per_batch=20, total_frames=40) as collector:
        ...     print([batch.batch_size for batch in collector])
        [torch.Size([2, 10]), torch.Size([2, 10])]
    """

    _is_shared = True

    def __init__(self, create_env_fn: Any, policy: Callable[..., Any] | None = None, **options: Unpack[MultiOptions]) -> None:
        self._under_way: Gather | None = None
        self._recorded: tuple[Mapping[int, Done], TensorDictBase] | None = None
        super().__init__(create_env_fn, policy, options)
        if self._dim is None and self._takes_parts():
            self._steps = (in_parts(self._steps),)

    def _set_up(self) -> int:
        crew, options = self._crew, self._plan.workers
        crew.require_equal()
        shapes = [(*facts.batch_shape, facts.columns) for facts in crew.infos]
        # Episodes in turn need the rows apart.
        kind = "stack" if self._plan.whole.trajs_per_batch is not None else options.cat_results
        dim = self._dim = checked_dim(kind, shapes)
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
        return sum(facts.frames for facts in crew.infos)

    def _next_batch(self) -> TensorDictBase | None:
        batch = super()._next_batch()
        if batch is None or self._queue is None or self._real_rows is None:
            return batch
        # Rows that only pad have no episodes to wait for.
        return batch.reshape(-1, batch.shape[-1])[self._real_rows]

    def _next_rollout(self) -> TensorDictBase:
        if self._recorded is None:
            self._under_way = self._under_way or self._begin()
            self._keep_results()
        assert self._recorded is not None
        (dones, batch), self._recorded = self._recorded, None
        for worker, done in sorted(dones.items()):
            self._add(worker, done)
        return batch

    def _keep_results(self) -> None:
        self._finish_writes()
        if self._under_way is None:
            return
        gather = self._gathered()
        self._recorded = gather.replies, self._joined(gather.replies, gather.note)

    def _gathered(self) -> Gather:
        """The rollout under way, when all have recorded theirs."""
        self._under_way = self._under_way or self._begin()
        self._under_way.wait()
        gather, self._under_way = self._under_way, None
        recorded = self._meter.frames + sum(done.frames for done in gather.replies.values())
        if gather.commands[0].random and recorded >= self._options.random_frames:
            for worker, done in gather.replies.items():
                self._hand_over(worker, done)
        return gather

    @property
    def _has_batch(self) -> bool:
        return self._recorded is not None

    @property
    def _writes_at_once(self) -> int:
        return 1  # as in a batch: behind each other in the order of the workers

    def _have_written(self, writes: Writes, most: int | None) -> None:
        dones = sorted(self._gathered().replies.items())
        for worker, done in dones:
            self._add(worker, done)
        for worker, done in dones:
            frames = writes.add(worker, self._slots_of(worker), done, most)
            most = None if most is None else most - frames
        writes.carry_out(self._mend_write)

    def _mend_write(self, failure: WorkerError) -> None:
        self._recover(failure, None)

    def _takes_parts(self) -> bool:
        """Whether the replay buffer takes what each worker recorded by itself, and not the batch of all.

        Workers that are joined along the dimension that the buffer grows along lie behind each other in it anyway. A stack of
        them is written as a whole where the buffer keeps as many dimensions apart as it has, for their rows are then the
        workers; otherwise each worker's part of it is what a collector with that worker alone would write.
        """
        options = self._plan.whole
        buffer, ndim = options.replay_buffer, ndim_of(options.replay_buffer)
        if ndim is None or options.split_trajs or options.trajs_per_batch is not None:
            return False
        if self._dim is None:
            return ndim < len(self._shape)
        return self._dim == (getattr(buffer, "dim_extend", ndim - 1) if options.extend_buffer else len(self._shape) - 1)

    def _joined(self, dones: Mapping[int, Done], numbers: Sequence[int]) -> TensorDictBase:
        """The batch that the workers recorded in slots of these numbers."""
        results = [slots.deliver(number, dones) for slots, number in zip(self._all_slots, numbers, strict=True)]
        if self._join is None:
            return results[0]
        parts = results if len(self._all_slots) > 1 else list(results[0].unbind(0))
        if self._drops_missing:
            parts = [part[..., : dones[worker].columns] for worker, part in enumerate(parts)]
        return self._join(parts)

    def _begin(self) -> Gather:
        self._finish_writes()
        self._before_batch()
        numbers = [slots.take() for slots in self._all_slots]
        share = self._plan.workers.preemptive_threshold
        needed = self.num_workers if share is None else ceil(share * self.num_workers)
        for worker in range(self.num_workers):
            self._crew.clear_control(worker)
            if not needed:
                self._stop_early(worker)
        commands = [self._command(numbers[w if len(numbers) > 1 else 0]) for w in range(self.num_workers)]
        return Gather(
            self._group,
            commands,
            needed=needed,
            stop_early=self._stop_early,
            recover=self._recover,
            complete=self._complete,
            note=numbers,
        )

    def _slots_of(self, worker: int) -> Slots:
        return self._all_slots[worker if len(self._all_slots) > 1 else 0]

    def _stop_early(self, worker: int) -> None:
        """End the rollout of this worker with the column under way."""
        self._crew.group.control(worker)[STOP] = 1

    def _settle(self) -> None:
        super()._settle()
        if self._recorded is not None:
            self._meter.discard(sum(done.frames for done in self._recorded[0].values()))
            self._recorded = None

    def _results(self) -> list[Any]:
        if self._recorded is None:
            return []
        dones, batch = self._recorded
        return [{"dones": {worker: done_state(done) for worker, done in dones.items()}, "batch": batch_state(batch)}]

    def _take_results(self, results: Sequence[Any]) -> None:
        for one in results:
            dones = {worker: done_from(own) for worker, own in one["dones"].items()}
            self._recorded = dones, batch_from(one["batch"])

    @property
    def batch_size(self) -> torch.Size:
        """Shape of a batch."""
        return self._shape
