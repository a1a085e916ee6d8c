"""`RolloutWorkers`: the workers of a collector with their group, slots and weights.

    build     workers start -> each replies with its WorkerInfo -> slots and mailboxes are made to fit
    collect   slots.take() -> Collect -> Done -> slots.land(worker, done) -> slots.deliver(slot, dones)

Workers with equal layouts may record in one slot, each in its own rows; otherwise each has its own slots, made by its
exchange.
The group carries the commands, the exchange the data.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from reap.collectors.exchange.base import Exchange, columns_reached
from reap.collectors.exchange.landing import RemoteSlots
from reap.collectors.exchange.shared import SharedExchange
from reap.collectors.options.multi import Plan
from reap.collectors.worker.commands import ConnectBuffer, DescribeWorker, Seed, WorkerInfo
from reap.collectors.worker.worker import WorkerSpec, make_worker
from reap.collectors.workers.joining import Joining
from reap.collectors.workers.requests import ask_one, described, gather_all, scatter
from reap.envs.adapters.torchrl import is_torchrl_env
from reap.envs.gymnasium.registry import registry_entries
from reap.envs.make_env import refuse_instances
from reap.errors import OptionError, SpecMismatch, in_own_words
from reap.keys import plain
from reap.policy.actors.plain import name_of
from reap.policy.contents.held import Held
from reap.policy.contents.private import private_copy
from reap.rollout.loop import Phase
from reap.workers.pickling import blaming, dumps
from reap.workers.processes.group import ProcessGroup

CPU = torch.device("cpu")


class RolloutWorkers:
    """Workers of a collector.

    Args:
        plan: the options that the workers are built from.
        held: the policy with its weights; empty for random actions, or if a factory makes the policy.
        name: the collector's class.
        exchange: brings slots and weights to workers and rollouts back; shared memory if None.
        make_group: makes the group, with the arguments of `ProcessGroup`.
        own_processes: each worker has a process to itself.
        may_leave: workers may be told to leave in the middle of a rollout.
        min_workers: number of workers to wait for; the others are assumed to equal the first of these until they join. None
            waits for all, which may then differ.

    Attributes:
        group: carries commands to the workers.
        infos: the description of each worker.
        mailboxes: by worker, for policies with weights.
        slots: all slots in which they record.
        restarts: number of workers replaced so far.
        next_leaf: the next launched worker's number in trajectory ids; no number is used twice.
        late: workers that have not joined yet, with the requests by which they join.
    """

    def __init__(
        self,
        plan: Plan,
        held: Held,
        name: str,
        *,
        exchange: Exchange | None = None,
        make_group: Callable[..., Any] = ProcessGroup,
        own_processes: bool = True,
        may_leave: bool = False,
        min_workers: int | None = None,
    ) -> None:
        refuse_lazy(held)
        refuse_instances(sendable(plan.factories), "workers")
        self.slots: list[RemoteSlots] = []
        self.restarts, self.next_leaf = 0, len(plan.factories)
        self._buffers: Sequence[ConnectBuffer] = ()
        self._seeds: dict[int, Seed] = {}
        self._scheme = plan.scheme
        self._exchange = SharedExchange() if exchange is None else exchange
        kind = {"owns_process": own_processes, "may_leave": may_leave}
        self._specs = [replace(spec, **kind) for spec in worker_specs(plan, held, self._exchange)]
        with blaming((option.name, getattr(own, option.name)) for own in plan.each for option in fields(own)):
            group = make_group(
                [partial(make_worker, spec) for spec in self._specs],
                phases=[phase.name.lower() for phase in Phase],
                name=name,
                setup=[registry_entries()],
                stall_after=plan.workers.stall_after,
                on_failure="report" if plan.workers.restarts else "terminate",
            )
        self.group = self._exchange.bind(group)
        try:
            # What is wrong with an option, a policy or an env is said as a collector in this process says it.
            with in_own_words(OptionError, SpecMismatch):
                found = self._described(min_workers)
            first = found[min(found)]
            self.infos: list[WorkerInfo] = [found.get(worker, first) for worker in range(self.group.size)]
            self.mailboxes = self._make_mailboxes(found)
            self.late = {worker: self._join(worker) for worker in range(self.group.size) if worker not in found}
        except BaseException:
            self.group.stop(0)
            raise

    def _described(self, min_workers: int | None) -> dict[int, WorkerInfo]:
        if min_workers is None:
            return dict(enumerate(gather_all(self.group, DescribeWorker())))
        return described(self.group, min_workers)

    def _make_mailboxes(self, joined: Collection[int]) -> dict[int, Any]:
        make, kind = self._exchange.mailbox, self._scheme.mailbox
        boxes = {worker: make(kind, info.weights) for worker, info in enumerate(self.infos) if info.weights is not None}
        asked = [worker for worker in boxes if worker in joined]
        for worker in asked:
            self._exchange.attach_weights(worker, boxes[worker])
        for _ in asked:
            self.group.ready(asked)
        return boxes

    def slots_for(
        self,
        workers: Sequence[int],
        batch_shape: tuple[int, ...],
        columns: int,
        *,
        device: torch.device | None,
        same: bool,
    ) -> RemoteSlots:
        """Make slots in which these workers record.

        Args:
            workers: the workers.
            batch_shape: batch dimensions of their batches.
            columns: time steps of a batch.
            device: the `device` attribute of the batches.
            same: deliver the same memory each time.
        """
        infos = {worker: self.infos[worker] for worker in workers}
        self.slots.append(self._exchange.make_slots(infos, batch_shape, columns, device=device, same=same))
        return self.slots[-1]

    def require_memory(self) -> None:
        """Raise MemoryError if the slots of one batch do not fit; further ones are made when needed."""
        self._exchange.require_memory([one.pool.layout for one in self.slots])

    @property
    def shares_memory(self) -> bool:
        """Whether rollouts that a worker keeps are in this process too."""
        return self._exchange.shares_memory

    def can_send(self, buffer: Any) -> bool:
        """Whether this replay buffer can be sent to workers, so that they write to it themselves."""
        return self._exchange.can_send(buffer)

    def completed_columns(self, worker: int) -> int:
        """Number of columns that a failed worker left in its slot, of the rollout in progress."""
        return self._exchange.completed_columns(self.group.progress(worker), self.infos[worker])

    def columns_reached(self, worker: int) -> int:
        """Number of columns of the rollout in progress that a failed worker had completed, as far as known here."""
        return columns_reached(self.group.progress(worker), self.infos[worker].columns)

    def close(self, timeout: float | None) -> None:
        """End the workers and release their mailboxes; a second call does nothing."""
        self.group.stop(timeout)
        for box in self.mailboxes.values():
            box.close()
        for slots in self.slots:
            slots.pool.clear()  # not with the collector: its parts refer to each other

    def let_write(self, buffers: Sequence[ConnectBuffer]) -> None:
        """Give each worker its end of the replay buffer."""
        self._buffers = buffers
        scatter(self.group, buffers)

    def seed(self, worker: int, seed: int, static: bool) -> int:
        """Seed a worker, and, differently, its later successors; return the seed that follows in the chain."""
        following = ask_one(self.group, worker, Seed(seed, static))
        self._seeds[worker] = Seed(seed, static)
        return following

    def go_on(self, restarts: int, states: Sequence[Mapping[str, Any]], next_leaf: int | None = None) -> None:
        """Resume from these states.

        Args:
            restarts: number of workers replaced before.
            states: the workers' states.
            next_leaf: as saved; None infers it from `states` and `restarts`.
        """
        seeds = {worker: (own.get("following_seed"), own.get("static_seed", False)) for worker, own in enumerate(states)}
        following = max([len(states) + restarts, *(own.get("leaf", 0) + 1 for own in states)])
        self.restarts = restarts
        self.next_leaf = max(self.next_leaf, following if next_leaf is None else next_leaf)
        self._seeds = {worker: Seed(seed, static) for worker, (seed, static) in seeds.items() if seed is not None}

    def launch_successor(self, worker: int, pause: float = 0.0) -> Joining:
        """Launch a successor for a worker, with new ids and with other seeds for its env and generators.

        Args:
            worker: the worker's number.
            pause: seconds before the launch, if the group supports that.

        Returns:
            The requests by which it joins; they raise SpecMismatch if its env has changed.
        """
        spec, leaf = self._specs[worker], self.next_leaf
        self.restarts, self.next_leaf = self.restarts + 1, leaf + 1
        successor = partial(make_worker, replace(spec, leaf=leaf, seed=successors_seed(spec.seed, self.restarts)))
        if worker in self.mailboxes:
            self.mailboxes[worker] = self.mailboxes[worker].renewed()
        if pause:
            self.group.replace(worker, successor, pause)
        else:
            self.group.replace(worker, successor)
        self.group.enqueue(worker, DescribeWorker())
        return self._join(worker)

    def add(self, factories: Sequence[Any]) -> dict[int, Joining]:
        """Launch more workers with the options of the first; see `launch_successor`.

        Args:
            factories: make their envs, which are assumed to equal the first worker's until they join.

        Returns:
            Their numbers, and the requests by which they join.
        """
        refuse_instances(sendable(factories), "workers")
        first, added = self._specs[0], list[WorkerSpec]()
        for leaf, factory in enumerate(factories, self.next_leaf):
            seed = successors_seed(successors_seed(first.seed, 0), leaf)  # no successor's: these are numbered from 1
            added.append(replace(first, create_env_fn=dumps(factory, "create_env_fn"), leaf=leaf, seed=seed))
        numbers = self.group.add([partial(make_worker, spec) for spec in added])
        self.next_leaf += len(added)
        self._specs += added
        for worker in numbers:
            self.infos.append(self.infos[0])
            if given := self._seeds.get(0):
                self._seeds[worker] = replace(given, seed=successors_seed(given.seed, self.next_leaf + worker))
            if 0 in self.mailboxes:
                self.mailboxes[worker] = self.mailboxes[0].copied()
            self.group.enqueue(worker, DescribeWorker())
        return {worker: self._join(worker) for worker in numbers}

    def _join(self, worker: int) -> Joining:
        """The requests that follow the one for the worker's description."""
        info, expected = (yield), self.infos[worker]
        if info.fields != expected.fields or info.batch_shape != expected.batch_shape:
            raise SpecMismatch(f"worker {worker}, which joins later: expected {expected}, found {info}")
        for slots in self.slots:
            slots.attach_again(worker)
        if worker in self.mailboxes:
            self._exchange.attach_weights(worker, self.mailboxes[worker])
            yield
        if self._buffers:
            self.group.request(worker, self._buffers[worker])
            yield
        if given := self._seeds.get(worker):
            self._seeds[worker] = successors = Seed(successors_seed(given.seed), given.static)
            self.group.request(worker, successors)
            yield

    def require_equal(self) -> None:
        """Raise SpecMismatch unless all workers record the same keys with the same shapes and dtypes."""
        first = self.infos[0]
        for worker, info in enumerate(self.infos):
            for key in {**first.fields, **info.fields}:
                expected, found = first.fields.get(key), info.fields.get(key)
                if expected != found:
                    raise SpecMismatch(
                        f"worker {worker} ({info.env}) differs from worker 0 ({first.env}) in {plain(key)!r}: expected "
                        f"{expected}, found {found}; the workers of a MultiSyncDataCollector have equal keys, shapes and "
                        "dtypes, those of a MultiaSyncDataCollector need not"
                    )

    def starts(self) -> list[int]:
        """The first row of each worker, counted across all workers."""
        return np.cumsum([0, *(info.rows for info in self.infos[:-1])]).tolist()


def sendable(factories: Sequence[Any]) -> list[Any]:
    """The env factories, without envs of torchrl, which each worker gets as a pickled copy."""
    return [factory for factory in factories if not is_torchrl_env(factory)]


def successors_seed(seed: int, number: int = 1) -> int:
    """A reproducible seed for a worker's successor, outside the seed chain."""
    return int(np.random.SeedSequence((seed, number)).generate_state(1, np.uint64)[0] >> 1)


def worker_specs(plan: Plan, held: Held, exchange: Exchange) -> list[WorkerSpec]:
    """The `WorkerSpec` of each worker."""
    seeds = np.random.SeedSequence(torch.initial_seed() % 2**63).generate_state(len(plan.factories), np.uint64)
    stops_early = plan.workers.preemptive_threshold is not None
    # Once for all: restarted workers begin with these weights too.
    sent = None if held.policy is None or all(plan.policy_factories) else dumps(on_cpu(held), "policy")
    makers = [None if maker is None else dumps(maker, "policy_factory") for maker in plan.policy_factories]
    kind = None if plan.workers.collector_class == "single" else plan.workers.collector_class
    return [
        WorkerSpec(
            dumps(factory, "create_env_fn"),
            sent,
            makers[leaf],
            plan.each[leaf],
            leaf,
            plan.workers.num_sub_threads,
            int(seeds[leaf] >> 1),
            exchange.make_end,
            stops_early,
            kind,
            None if kind is None else plan.keywords[leaf],
        )
        for leaf, factory in enumerate(plan.factories)
    ]


def refuse_lazy(held: Held) -> None:
    """Raise OptionError for a policy with lazy parameters, which each worker would initialise differently."""
    if held.has_lazy():
        raise OptionError(
            f"policy {name_of(held.policy)}: its lazy layers have no weights yet, and each worker would draw its own; call it "
            "once before, for example policy(env.reset()['observation'])"
        )


def on_cpu(held: Held) -> Any:
    """The policy, or a copy in host memory, because device memory is not sent to other processes."""
    return held.policy if held.is_on(CPU) else private_copy(held, CPU).policy
