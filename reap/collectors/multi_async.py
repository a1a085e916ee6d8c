"""`MultiaSyncDataCollector` and `aSyncDataCollector`: workers collect while the training loop works.

    worker w    |-- rollout --|-- rollout --|-- rollout --|
                     Collect <-'  Done: the next one begins before this one is delivered

Results come in order of arrival. A worker has at most one rollout under way, so that after an update of the weights it delivers
at most one that was begun before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Unpack

import torch
from tensordict import TensorDictBase

from reap.collectors.buffer_writes import Writes
from reap.collectors.options.multi import MultiOptions
from reap.collectors.process import ProcessCollector
from reap.collectors.slots import Slots
from reap.collectors.worker.commands import Collect, Done
from reap.collectors.worker.results import batch_from, batch_state, done_from, done_state
from reap.errors import OptionError, WorkerError


class Result(NamedTuple):
    """What a worker recorded, and what it says of it."""

    worker: int
    done: Done
    batch: TensorDictBase | None
    """None as long as it lies in the worker's slot."""


class MultiaSyncDataCollector(ProcessCollector):
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
        MemoryError: what the workers record at a time does not fit into the memory that there is.

    Example:
        >>> with MultiaSyncDataCollector(["CartPole-v1"] * 2, frames_per_batch=20, total_frames=60) as collector:
        ...     print([batch.batch_size for batch in collector])
        [torch.Size([20]), torch.Size([20]), torch.Size([20])]
    """

    _is_shared = False

    def __init__(self, create_env_fn: Any, policy: Callable[..., Any] | None = None, **options: Unpack[MultiOptions]) -> None:
        self._working: dict[int, Collect] = {}
        self._arrived: deque[Result] = deque()
        self._handed_over: set[int] = set()
        self._delivered_last = 0
        super().__init__(create_env_fn, policy, options)
        self._starts = self._crew.starts()
        if self._queue is not None:
            self._queue.expect(sum(facts.rows for facts in self._crew.infos))

    def _set_up(self) -> int:
        if self._plan.workers.preemptive_threshold is not None:
            raise OptionError("preemptive_threshold: it belongs to MultiSyncDataCollector, whose batches wait for all workers")
        facts = self._crew.infos
        self._own_slots = [self._slots([worker], own.batch_shape, own.columns) for worker, own in enumerate(facts)]
        return max(own.frames for own in facts)

    def _next_rollout(self) -> TensorDictBase:
        self._await_result()
        # Before the delivery: the worker goes on while this result is looked at.
        self._set_to_work()
        worker, done, batch = self._take_result()
        return self._own_slots[worker].deliver(done.slot, {worker: done}) if batch is None else batch

    def _await_result(self) -> None:
        self._before_batch()
        self._set_to_work()
        while not self._arrived:
            self._receive()

    def _take_result(self) -> Result:
        result = self._arrived.popleft()
        self._add(result.worker, result.done)
        self._delivered_last = result.worker
        return result

    @property
    def _has_batch(self) -> bool:
        return bool(self._arrived) and self._arrived[0].batch is not None

    def _have_written(self, writes: Writes, most: int | None) -> None:
        self._await_result()
        worker, done, _ = self._take_result()
        writes.add(worker, self._own_slots[worker], done, most)
        writes.carry_out(self._mend_write)
        # Behind the write: the worker goes on when it has written.
        self._set_to_work()

    def _mend_write(self, failure: WorkerError) -> None:
        self._mend_in_turn(failure)

    def _first_row(self) -> int:
        return self._starts[self._delivered_last]

    def _set_to_work(self) -> None:
        """Have all workers collect that have nothing to deliver from before, as far as the budget goes."""
        # What comes first is delivered while its worker goes on; where workers write, it has to write that before.
        waiting = [result.worker for result in list(self._arrived)[self._writes is None :]]
        idle = [worker for worker in range(self.num_workers) if worker not in self._working and worker not in waiting]
        behind = [worker for worker in idle if not self._is_ahead(worker)]
        for worker in behind if behind or self._working or waiting else idle:
            if self._is_wanted and not self._waits_for_warm_up:
                self._request(worker, self._command_of(worker))

    def _command_of(self, worker: int) -> Collect:
        command = self._command(self._own_slots[worker].take())
        # Random again, where others recorded fewer frames than they could: the episodes have ended all the same.
        fresh = command.fresh or (command.random and worker in self._handed_over)
        self._handed_over.discard(worker)
        return replace(command, fresh=fresh)

    def _is_ahead(self, worker: int) -> bool:
        """Whether what a worker recorded waits for episodes of others: those of all are delivered in turn."""
        facts, first = self._crew.infos[worker], self._starts[worker]
        return self._queue is not None and self._queue.is_ahead(range(first, first + facts.rows), 2 * facts.frames)

    def _expected(self) -> int:
        """Frames delivered, recorded or under way."""
        under_way = sum(self._crew.infos[worker].frames for worker in self._working)
        return self._meter.frames + sum(result.done.frames for result in self._arrived) + under_way

    @property
    def _is_wanted(self) -> bool:
        """Whether the budget asks for another rollout."""
        budget = self._options.budget
        return budget is None or self._expected() < budget

    @property
    def _is_random(self) -> bool:
        """Whether the next rollout has random actions."""
        return self._expected() < self._options.random_frames

    @property
    def _waits_for_warm_up(self) -> bool:
        """Whether rollouts with random actions are under way, which come before those of the policy."""
        return not self._is_random and any(command.random for command in self._working.values())

    def _request(self, worker: int, command: Collect) -> None:
        self._crew.clear_control(worker)
        try:
            while worker not in self._working:
                self._try_request(worker, command)
        except BaseException:
            self._own_slots[worker].pool.give_back(command.slot)
            raise

    def _try_request(self, worker: int, command: Collect) -> None:
        try:
            self._group.request(worker, command)
            self._working[worker] = command
        except WorkerError as failure:
            self._failed(failure)

    def _receive(self) -> None:
        """Wait for a result, or for a failure that can be mended."""
        writes = self._writes
        try:
            worker, done = self._group.ready(self._working if writes is None else {*self._working, *writes.workers})
            if writes is None or not writes.wrote(worker):
                self._arrive(worker, self._complete(worker, done))
        except WorkerError as failure:
            self._failed(failure)

    def _failed(self, failure: WorkerError) -> None:
        if self._writes is None:
            self._mend_in_turn(failure)
        else:
            self._writes.failed(failure, self._mend_in_turn)

    def _mend_in_turn(self, failure: WorkerError) -> None:
        done = self._recover(failure, self._working.get(failure.worker))
        if done is not None:
            self._arrive(failure.worker, done)

    def _arrive(self, worker: int, done: Done) -> None:
        command = self._working.pop(worker)
        self._arrived.append(Result(worker, done, None))
        if command.random and not self._is_random:
            self._hand_over(worker, done)
            self._handed_over.add(worker)

    def _slots_of(self, worker: int) -> Slots:
        return self._own_slots[worker]

    def _command(self, slot: int) -> Collect:
        options = self._options
        return Collect(slot, self._is_random, options.reset_at_each_iter, self._version)

    def _keep_results(self) -> None:
        self._finish_writes()
        while self._working:
            self._receive()

    def _settle(self) -> None:
        super()._settle()
        for worker, done, batch in self._arrived:
            self._meter.discard(done.frames, worker)
            if batch is None:
                self._own_slots[worker].pool.give_back(done.slot)
        self._arrived.clear()

    def _results(self) -> list[Any]:
        self._arrived = deque(self._delivered(result) for result in self._arrived)
        return [
            {"worker": worker, "done": done_state(done), "batch": batch_state(batch)}
            for worker, done, batch in self._arrived
            if batch is not None
        ]

    def _delivered(self, result: Result) -> Result:
        """The same result, copied out of its slot: one that is lent before its turn would make the worker need another."""
        worker, done, batch = result
        if batch is not None:
            return result
        return Result(worker, done, self._own_slots[worker].deliver(done.slot, {worker: done}).clone())

    def _take_results(self, results: Sequence[Any]) -> None:
        self._arrived.extend(Result(one["worker"], done_from(one["done"]), batch_from(one["batch"])) for one in results)

    def __len__(self) -> int:
        """Number of batches in all.

        Raises:
            TypeError: there is no end, or the workers' batches have different numbers of frames.
        """
        if len({facts.frames for facts in self._crew.infos}) > 1:
            raise TypeError(
                "a collector whose workers deliver different numbers of frames has no length: it depends on which are first"
            )
        return super().__len__()

    @property
    def batch_size(self) -> torch.Size:
        """Shape of a batch of the first worker."""
        facts = self._crew.infos[0]
        return torch.Size((*facts.batch_shape, facts.columns))


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

    def __init__(self, create_env_fn: Any, policy: Callable[..., Any] | None = None, **options: Unpack[MultiOptions]) -> None:
        single = create_env_fn if isinstance(create_env_fn, list | tuple) else [create_env_fn]
        if len(single) != 1 or options.get("num_workers") not in (None, 1):
            raise OptionError("aSyncDataCollector has one worker: expected one env; MultiaSyncDataCollector has several")
        super().__init__(single, policy, **options)
