"""`RolloutWorkers`: the workers of a collector as it sees them: their group, their slots, their weights.

    build     workers start -> each replies with its WorkerInfo -> slots and mailboxes are made to fit
    collect   slots.take() -> Collect -> Done -> slots.land(worker, done) -> slots.deliver(slot, dones)

Workers with equal layouts may record in one slot, each in rows of its own; otherwise each has slots of its own, as its exchange
makes them.
Who carries the commands is the group's matter, how data gets to workers and back the exchange's.
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
        plan: what they are built from.
        held: the policy and what it holds; nothing for random actions, or where a factory makes it.
        name: the collector's class.
        exchange: how slots, weights and rollouts get to workers and back; shared memory if None.
        make_group: makes the group from what makes the workers, as `ProcessGroup` does.
        own_processes: each worker has a process of its own.
        may_leave: workers may be told to leave in the middle of a rollout.
        min_workers: number of workers that are waited for; until they join, the others are taken to be as the first of these.
            None waits for all, which may then differ.

    Attributes:
        group: carries commands to them.
        infos: what each told of itself.
        mailboxes: by worker, for policies with weights.
        slots: all slots that they record in.
        restarts: workers that were replaced so far.
        next_leaf: number, for the ids, of the next worker that is launched: no two that ever recorded have the same.
        late: workers that have not joined yet, and the requests by which they join.
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
        """Make slots that these workers record in.

        Args:
            workers: the workers.
            batch_shape: batch dimensions of a batch of theirs.
            columns: time steps of a batch.
            device: what the batches give as their device.
            same: deliver the same memory each time.
        """
        infos = {worker: self.infos[worker] for worker in workers}
        self.slots.append(self._exchange.make_slots(infos, batch_shape, columns, device=device, same=same))
        return self.slots[-1]

    def require_memory(self) -> None:
        """Raise MemoryError if the slots of one batch do not fit; others are made as they are needed."""
        self._exchange.require_memory([one.pool.layout for one in self.slots])

    def can_send(self, buffer: Any) -> bool:
        """Whether workers can have an end of this replay buffer, and write to it themselves."""
        return self._exchange.can_send(buffer)

    def completed_columns(self, worker: int) -> int:
        """The columns of the rollout under way that a worker which has failed left in its slot."""
        return self._exchange.completed_columns(self.group.progress(worker), self.infos[worker])

    def columns_reached(self, worker: int) -> int:
        """The columns of that rollout that it had completed, as far as is known here."""
        return columns_reached(self.group.progress(worker), self.infos[worker].columns)

    def close(self, timeout: float | None) -> None:
        """End the workers, and release what carried weights to them; a second call does nothing."""
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
        """Seed a worker, and with others those that are launched in its place; the seed that follows in the chain."""
        following = ask_one(self.group, worker, Seed(seed, static))
        self._seeds[worker] = Seed(seed, static)
        return following

    def go_on(self, restarts: int, states: Sequence[Mapping[str, Any]], next_leaf: int | None = None) -> None:
        """Continue as workers that have these states.

        Args:
            restarts: workers that had been replaced.
            states: their states, by worker.
            next_leaf: as it was; None for the least that is more than the number of any worker there has been: the last one
                launched is among these, unless there are fewer workers now.
        """
        seeds = {worker: (own.get("following_seed"), own.get("static_seed", False)) for worker, own in enumerate(states)}
        following = max([len(states) + restarts, *(own.get("leaf", 0) + 1 for own in states)])
        self.restarts = restarts
        self.next_leaf = max(self.next_leaf, following if next_leaf is None else next_leaf)
        self._seeds = {worker: Seed(seed, static) for worker, (seed, static) in seeds.items() if seed is not None}

    def launch_successor(self, worker: int, pause: float = 0.0) -> Joining:
        """Launch another worker in a worker's place; its ids are new ones, its env and its generators have other seeds.

        Args:
            worker: its number.
            pause: seconds until it is launched, where the group can wait for that.

        Returns:
            The requests by which it joins; they raise SpecMismatch if its env is another one now.
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
        """Launch more workers, of the options of the first; see `launch_successor`.

        Args:
            factories: make their envs, which are taken to be as those of the first until they join.

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
        """What follows the request for its description."""
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
        """The first row of each worker, where the rows of all are counted."""
        return np.cumsum([0, *(info.rows for info in self.infos[:-1])]).tolist()


def sendable(factories: Sequence[Any]) -> list[Any]:
    """What makes the envs, without envs of torchrl: each worker gets a copy of these, by pickle."""
    return [factory for factory in factories if not is_torchrl_env(factory)]


def successors_seed(seed: int, number: int = 1) -> int:
    """A seed for what takes the place of something seeded: none of its chain, and the same each time."""
    return int(np.random.SeedSequence((seed, number)).generate_state(1, np.uint64)[0] >> 1)


def worker_specs(plan: Plan, held: Held, exchange: Exchange) -> list[WorkerSpec]:
    """All that each worker is built from."""
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
    """Raise OptionError for a policy whose parameters have no shape yet: each worker would draw its own."""
    if held.has_lazy():
        raise OptionError(
            f"policy {name_of(held.policy)}: its lazy layers have no weights yet, and each worker would draw its own; call it "
            "once before, for example policy(env.reset()['observation'])"
        )


def on_cpu(held: Held) -> Any:
    """The policy, or a copy in the memory of the host: devices' memory is not sent to other processes."""
    return held.policy if held.is_on(CPU) else private_copy(held, CPU).policy
