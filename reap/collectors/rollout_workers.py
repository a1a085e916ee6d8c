"""`RolloutWorkers`: the workers of a collector as it sees them: their processes, their slots, their weights.

    build     processes start -> each tells its WorkerInfo -> slots and mailboxes are made to fit
    collect   take(worker) -> Collect -> Done -> deliver(worker, slot)

Workers with equal layouts may record in one slot, each its own rows (`SharedRows`); otherwise each has slots of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from reap.collectors.options.multi import Plan
from reap.collectors.requests import ask_one, gather_all, scatter
from reap.collectors.worker.buffer_writer import ConnectBuffer
from reap.collectors.worker.handler import Done, Seed
from reap.collectors.worker.nested import make_nested
from reap.collectors.worker.worker import AttachSlot, AttachWeights, DescribeWorker, WorkerInfo, WorkerSpec, make_worker
from reap.envs.gymnasium.registry import registry_entries
from reap.envs.make_env import refuse_instances
from reap.errors import OptionError, SpecMismatch, in_own_words
from reap.keys import Key, plain
from reap.policy.actors.plain import name_of
from reap.policy.contents.held import Held
from reap.policy.contents.private import private_copy
from reap.recording.layout import Array, Block
from reap.recording.pool import SlotPool
from reap.rollout.loop import Phase
from reap.workers.pickling import blaming, dumps
from reap.workers.processes.group import ProcessGroup

CPU = torch.device("cpu")
SLOTS = 3
"""Slots of a worker: one is recorded, one is read, one waits."""


class RolloutWorkers:
    """Worker processes of a collector.

    Args:
        plan: what they are built from.
        held: the policy and what it holds; nothing for random actions, or where a factory makes it.
        name: the collector's class.

    Attributes:
        group: the processes.
        infos: what each told of itself.
        mailboxes: by worker, for policies with weights.
        slots: all slots that they record in.
        restarts: workers that were replaced so far.
    """

    def __init__(self, plan: Plan, held: Held, name: str) -> None:
        refuse_lazy(held)
        refuse_instances(plan.factories, "workers")
        self.slots: list[Slots] = []
        self._plan = plan
        self.restarts = 0
        self._ends: Sequence[ConnectBuffer] = ()
        self._seeds: dict[int, Seed] = {}
        self._recipes = recipes(plan, held)
        self._scheme = plan.scheme
        with blaming((option.name, getattr(own, option.name)) for own in plan.each for option in fields(own)):
            self.group = ProcessGroup(
                [self._maker(worker, recipe) for worker, recipe in enumerate(self._recipes)],
                phases=[phase.name.lower() for phase in Phase],
                name=name,
                setup=[registry_entries()],
                stall_after=plan.workers.stall_after,
                on_failure="report" if plan.workers.restarts else "terminate",
            )
        try:
            # What is wrong with an option, a policy or an env is said as a collector in this process says it.
            with in_own_words(OptionError, SpecMismatch):
                self.infos: list[WorkerInfo] = gather_all(self.group, DescribeWorker())
            self.mailboxes = self._make_mailboxes()
        except BaseException:
            self.group.stop(0)
            raise

    def _maker(self, worker: int, recipe: WorkerSpec) -> Any:
        """What makes a worker in its process."""
        kind = self._plan.workers.collector_class
        if kind in (None, "single"):
            return partial(make_worker, recipe)
        return partial(make_nested, recipe, kind, self._plan.keywords[worker])

    def _make_mailboxes(self) -> dict[int, Any]:
        make = self._scheme.mailbox.for_weights
        boxes = {w: make(facts.weights) for w, facts in enumerate(self.infos) if facts.weights is not None}
        for worker, box in boxes.items():
            self._attach_weights(worker, box)
        for _ in boxes:
            self.group.ready(boxes)
        return boxes

    def _attach_weights(self, worker: int, box: Any) -> None:
        self.group.request(worker, AttachWeights(self._scheme.mailbox), fds=box.descriptors())

    def close(self, timeout: float | None) -> None:
        """End the processes and what carried weights to them; a second call does nothing."""
        self.group.stop(timeout)
        for box in self.mailboxes.values():
            box.close()
        for slots in self.slots:
            slots.pool.clear()  # not with the collector: its parts refer to each other

    def let_write(self, ends: Sequence[ConnectBuffer]) -> None:
        """Give each worker its end of the replay buffer."""
        self._ends = ends
        scatter(self.group, ends)

    def clear_control(self, worker: int) -> None:
        """No column is recorded yet, and none is to be the last: before a rollout is asked for."""
        self.group.clear(worker)

    def seed(self, worker: int, seed: int, static: bool) -> int:
        """Seed a worker, and with others those that are launched in its place; the seed that follows in the chain."""
        following = ask_one(self.group, worker, Seed(seed, static))
        self._seeds[worker] = Seed(seed, static)
        return following

    def go_on(self, restarts: int, states: Sequence[Mapping[str, Any]]) -> None:
        """Go on as a crew whose workers have these states."""
        seeds = {worker: (own.get("following_seed"), own.get("static_seed", False)) for worker, own in enumerate(states)}
        self.restarts = restarts
        self._seeds = {worker: Seed(seed, static) for worker, (seed, static) in seeds.items() if seed is not None}

    def replace_worker(self, worker: int) -> None:
        """Launch another process in a worker's place; its ids are new ones, its env and its generators are seeded anew.

        What breaks this off leaves all as before for another try, but the process.

        Raises:
            SpecMismatch: its env is another one now.
            WorkerError: it failed at once.
        """
        recipe = self._recipes[worker]
        number = self.restarts + 1
        successor = replace(recipe, leaf=self.group.size + self.restarts, seed=successors_seed(recipe.seed, number))
        self.group.replace(worker, self._maker(worker, successor))
        facts = ask_one(self.group, worker, DescribeWorker())
        if facts.fields != self.infos[worker].fields or facts.batch_shape != self.infos[worker].batch_shape:
            raise SpecMismatch(f"worker {worker}, restarted: expected {self.infos[worker]}, found {facts}")
        for slots in self.slots:
            slots.attach_again(worker)
        if worker in self.mailboxes:
            box = self.mailboxes[worker] = self.mailboxes[worker].renewed()
            self._attach_weights(worker, box)
            self.group.ready([worker])
        if self._ends:
            ask_one(self.group, worker, self._ends[worker])
        if given := self._seeds.get(worker):
            self.seed(worker, successors_seed(given.seed), given.static)
        self.restarts = number

    def require_equal(self) -> None:
        """Raise SpecMismatch unless all workers record the same keys with the same shapes and dtypes."""
        first = self.infos[0]
        for worker, facts in enumerate(self.infos):
            for key in {**first.fields, **facts.fields}:
                expected, found = first.fields.get(key), facts.fields.get(key)
                if expected != found:
                    raise SpecMismatch(
                        f"worker {worker} ({facts.env}) differs from worker 0 ({first.env}) in {plain(key)!r}: expected "
                        f"{expected}, found {found}; the workers of a MultiSyncDataCollector have equal keys, shapes and "
                        "dtypes, those of a MultiaSyncDataCollector need not"
                    )

    def starts(self) -> list[int]:
        """The first row of each worker, where the rows of all are counted."""
        return np.cumsum([0, *(facts.rows for facts in self.infos[:-1])]).tolist()


class Slots:
    """Slots that some workers record in, each its own rows of them.

    Args:
        crew: the workers.
        workers: those that record in these slots.
        batch_shape: how their rows stand in a batch.
        columns: time steps of a batch.
        device: what the batches give as their device.
        same: deliver the same memory each time.
    """

    def __init__(
        self,
        crew: RolloutWorkers,
        workers: Sequence[int],
        batch_shape: tuple[int, ...],
        columns: int,
        *,
        device: torch.device | None,
        same: bool,
    ) -> None:
        self._group, self._workers, self._facts = crew.group, workers, [crew.infos[w] for w in workers]
        self._starts = np.cumsum([0, *(facts.rows for facts in self._facts)]).tolist()
        self._attached = 0
        crew.slots.append(self)
        self.pool = SlotPool(
            self._facts[0].fields, batch_shape, columns, device=device, same=same, limit=SLOTS, make_block=Block.shared
        )

    def take(self) -> int:
        """The number of a free slot, which the workers have mapped; they are idle."""
        slot = self.pool.take()
        if slot == self._attached:
            self._attached += 1
            for worker in self._workers:
                self._attach(worker, slot)
            try:
                for _ in self._workers:
                    self._group.ready(self._workers)
            except BaseException:
                self._group.abandon(self._workers)
                self.pool.give_back(slot)
                raise
        return slot

    def give_back(self, slot: int) -> None:
        """Return a slot that was taken and is not delivered."""
        self.pool.give_back(slot)

    def make_all(self) -> None:
        """Have all slots made and mapped now."""
        for slot in [self.take() for _ in range(SLOTS)]:
            self.pool.give_back(slot)

    def attach_again(self, worker: int) -> None:
        """Have a worker that is new map all slots that there are."""
        if worker in self._workers:
            for slot in range(self._attached):
                self._attach(worker, slot)
                self._group.ready([worker])

    def _attach(self, worker: int, slot: int) -> None:
        fd = self.pool.slots[slot].block.fd
        assert fd is not None
        self._group.request(worker, AttachSlot(self._starts[-1], self._start(worker)), fds=[fd])

    def _start(self, worker: int) -> int:
        return self._starts[self._workers.index(worker)]

    def rows_of(self, worker: int, slot: int) -> dict[Key, Array]:
        """A worker's own rows of a slot, `[rows, T, *value]` under each key; what has no fixed shape is left out."""
        facts, whole, start = self._facts[self._workers.index(worker)], self.pool.slots[slot], self._start(worker)
        shape, rows = (self._starts[-1], facts.columns), slice(start, start + facts.rows)
        fields = {key: field for key, field in whole.fields.items() if not field.is_object}
        return {key: whole.by_row(key).reshape(*shape, *field.shape)[rows] for key, field in fields.items()}

    def deliver(self, slot: int, dones: Mapping[int, Done]) -> TensorDict:
        """The batch that these workers recorded in a slot."""
        objects = [dones[worker].objects for worker in self._workers]
        whole = self.pool.slots[slot]
        for key in objects[0] or ():
            parts = [own[key] for own in objects if own is not None]
            whole.by_row(key)[...] = np.concatenate(parts).reshape(whole.by_row(key).shape)
        return self.pool.deliver(slot)


def successors_seed(seed: int, number: int = 1) -> int:
    """A seed for what takes the place of something seeded: none of its chain, and the same each time."""
    return int(np.random.SeedSequence((seed, number)).generate_state(1, np.uint64)[0] >> 1)


def recipes(plan: Plan, held: Held) -> list[WorkerSpec]:
    """What each worker is built from."""
    seeds = np.random.SeedSequence(torch.initial_seed() % 2**63).generate_state(len(plan.factories), np.uint64)
    stops_early = plan.workers.preemptive_threshold is not None
    # Once for all: restarted workers begin with these weights too.
    sent = None if held.policy is None else dumps(on_cpu(held), "policy")
    makers = [None if maker is None else dumps(maker, "policy_factory") for maker in plan.policy_factories]
    return [
        WorkerSpec(
            dumps(factory, "create_env_fn"),
            sent,
            makers[leaf],
            plan.each[leaf],
            leaf,
            plan.workers.num_sub_threads,
            int(seeds[leaf] >> 1),
            stops_early,
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
