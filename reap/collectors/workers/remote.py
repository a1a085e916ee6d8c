"""`RemoteWorkers`: the workers of a collector whose envs and policies are in other processes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from reap.collectors.exchange.landing import RemoteSlots
from reap.collectors.options.multi import Plan
from reap.collectors.options.weights import made_updater
from reap.collectors.stats import Meter, Place
from reap.collectors.worker.buffer_writer import write_to
from reap.collectors.worker.commands import CheckState, Collect, Done, SetState, WorkerInfo
from reap.collectors.workers.joining import JoinAtOnce, Joining, Joins
from reap.collectors.workers.recovery import Recovery
from reap.collectors.workers.requests import scatter
from reap.collectors.workers.retries import OneTry, Retries
from reap.collectors.workers.rollout_workers import RolloutWorkers
from reap.envs.own_policy import as_policy
from reap.errors import OptionError, ReapError, WorkerError, in_own_words
from reap.policy.contents.held import Held, held_by
from reap.weights.attributes import ATTRIBUTES, agreed, loaded
from reap.weights.base import WeightUpdaterBase
from reap.weights.remote import MultiProcessedWeightUpdater
from reap.weights.weight_layout import extra_states
from reap.workers.base import WorkerGroup
from reap.workers.group import STOP_TIMEOUT
from reap.workers.remote.group import RemoteGroup

Shape = tuple[int, ...]


class RemoteWorkers:
    """Workers in other processes; see `Workers`.

    Args:
        plan: the options that the workers are built from.
        policy: a module or function, or None for random actions.
        name: the collector's class.
        make_workers: makes the workers; by default in processes on this machine.
        joins: makes successors of failed workers join; by default while all others wait.
        retries: decides whether to try another successor; by default there is one.
    """

    def __init__(
        self,
        plan: Plan,
        policy: Callable[..., Any] | None,
        name: str,
        make_workers: Callable[[Plan, Held, str], RolloutWorkers] = RolloutWorkers,
        joins: Joins | None = None,
        retries: Retries | None = None,
    ) -> None:
        if policy is not None and any(plan.policy_factories) and plan.whole.weight_sync_schemes is None:
            raise OptionError(
                "policy and policy_factory: expected one of them, got both; with weight_sync_schemes the factory makes what "
                "acts, and the policy is where its weights come from"
            )
        if plan.workers.num_threads is not None:
            torch.set_num_threads(plan.workers.num_threads)
        self.policy = as_policy(policy)
        self.held = held_by(self.policy)
        self.env = None
        self._plan = plan
        self._own = make_workers(plan, self.held, name)
        self._slots: list[RemoteSlots] = []
        self._joins: Joins = joins or JoinAtOnce()
        self._retries: Retries = retries or OneTry()
        self._recovery: Recovery | None = None
        self._updater: Any = None

    @property
    def group(self) -> WorkerGroup:
        """The group that carries commands to the workers."""
        return self._own.group

    @property
    def infos(self) -> Sequence[WorkerInfo]:
        """The description of each worker."""
        return self._own.infos

    def require_equal(self) -> None:
        """Raise SpecMismatch unless all workers record the same keys with the same shapes and dtypes."""
        self._own.require_equal()

    def make_slots(self, workers: Sequence[int], batch_shape: Shape, columns: int) -> RemoteSlots:
        """Make slots in which these workers record, each in its own rows."""
        whole = self._plan.whole
        device = whole.storing_device if whole.stores_here else None
        return self._own.slots_for(workers, batch_shape, columns, device=device, same=whole.return_same_td)

    def record_in(self, slots: Sequence[RemoteSlots], meter: Meter) -> None:
        """Use these slots: one set for each worker, or one for all.

        Args:
            slots: the slots.
            meter: counts restarts and the frames lost by them.
        """
        self._slots = list(slots) if len(slots) > 1 else list(slots) * self.group.size
        self._own.require_memory()
        if self._plan.workers.restarts:
            for one in slots:
                one.make_all()
            self._recovery = Recovery(self._own, self._slots.__getitem__, meter, self._joins, self._retries)
        self._begin_to_join(self._own.late)

    def _begin_to_join(self, late: Mapping[int, Joining]) -> None:
        for worker, joining in late.items():
            self._joins.begin(self.group, worker, joining, lambda: None)

    def add(self, factories: Sequence[Any]) -> None:
        """Launch more workers, which join while others deliver; each records in its own slots.

        Args:
            factories: make their envs.
        """
        late = self._own.add(factories)
        for worker in late:
            info = self._own.infos[worker]
            self._slots.append(self.make_slots([worker], info.batch_shape, info.columns))
            if self._plan.workers.restarts:
                self._slots[-1].make_all()
            if worker in self._own.mailboxes and self._updater is not None:
                self._updater.mailboxes[worker] = self._own.mailboxes[worker]
        self._begin_to_join(late)

    def let_write(self, end: Any) -> None:
        """Give each worker its end of the replay buffer."""
        whole = self._plan.whole
        each = [replace(one, split_trajs=whole.split_trajs, storing_device=whole.storing_device) for one in self._plan.each]
        self._own.let_write([write_to(one, end, whole.postproc) for one in each])

    def slots_of(self, worker: int) -> RemoteSlots:
        """The slots in which a worker records."""
        return self._slots[worker]

    @property
    def shares_memory(self) -> bool:
        """Whether rollouts that a worker keeps are in this process too."""
        return self._own.shares_memory

    def can_send(self, buffer: Any) -> bool:
        """Whether this replay buffer can be sent to the workers."""
        return self._own.can_send(buffer)

    @property
    def next_leaf(self) -> int:
        """The next worker's number in trajectory ids."""
        return self._own.next_leaf

    def starts(self) -> list[int]:
        """The first row of each worker, counted across all workers."""
        return self._own.starts()

    def has_weights(self, worker: int) -> bool:
        """Whether weights are sent to this worker."""
        return worker in self._own.mailboxes

    def make_updater(self, given: Any = None) -> WeightUpdaterBase | None:
        """Make the updater for the workers' mailboxes; see `Workers`."""
        given, boxes = self._plan.whole.weight_updater if given is None else given, self._own.mailboxes
        source = self.policy if self.held else None
        if given is None and not boxes:
            return None
        updater: WeightUpdaterBase = self._plan.scheme.updater(source, boxes) if given is None else made_updater(given)
        if isinstance(updater, MultiProcessedWeightUpdater):
            updater.serve(source, boxes, agreed(info.attributes for info in self.infos))
        self._updater = updater
        return updater

    def take_env(self, given: Any) -> None:
        """Raise OptionError: the envs are in other processes."""
        raise OptionError(f"env: workers have their envs in their processes; build a new collector with {given!r}")

    def prepare_background(self, updater: WeightUpdaterBase | None) -> None:
        """The same updater: policies in workers are copies anyway."""

    @property
    def joining(self) -> Collection[int]:
        """Workers that have not joined yet."""
        return self._joins.under_way

    def join(self, worker: int, reply: Any) -> Done | None:
        """Handle a reply of a joining worker; see `Workers`."""
        try:
            done: Any = self._joins.step(worker, reply)
        except ReapError:
            self._own.close(0)
            raise
        finally:
            self._renew_mailbox(worker)
        return done

    def complete(self, worker: int, done: Done) -> Done | None:
        """Complete a reply with columns that a failed worker left; see `Workers`."""
        landed = self._slots[worker].land(worker, done)
        if landed.is_last:
            self.group.expect_end(worker)
            if self._recovery is not None:
                self._recovery.left(worker, landed)
            return None
        return landed if self._recovery is None else self._recovery.completed(worker, landed)

    def recover(self, failure: WorkerError, command: Collect | None) -> Done | None:
        """Restart a failed worker, or raise its failure; see `Workers`."""
        if self._recovery is None:
            raise failure
        try:
            return self._recovery.restart(failure, command)
        except ReapError:
            self._own.close(0)
            raise
        finally:
            self._renew_mailbox(failure.worker)  # also where Ctrl-C came when it had another one

    def _renew_mailbox(self, worker: int) -> None:
        boxes: dict[int, Any] = getattr(self._updater, "mailboxes", {})
        if worker in boxes:
            boxes[worker] = self._own.mailboxes[worker]

    def recover_all(self) -> None:
        """Restart all workers that are down; see `Workers`."""
        if self._recovery is not None:
            for failure in self.group.failures():
                self.recover(failure, None)
        while under_way := set(self.joining):
            try:
                self.join(*self.group.ready(under_way))
            except WorkerError as failure:
                self.recover(failure, None)

    @property
    def place_of(self) -> Callable[[int], Place] | None:
        """The location of each worker that is not on this machine."""
        return self._place_of if isinstance(self.group, RemoteGroup) else None

    def _place_of(self, worker: int) -> Place:
        return Place(*self._own.group.facts(worker), is_joining=worker in self.joining)

    def seed(self, seed: int, static: bool) -> int:
        """Seed the workers, one after the other."""
        for worker in range(self.group.size):
            seed = self._own.seed(worker, seed, static)
        return seed

    def check_states(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Check states and refuse those that do not fit, with the same message as a collector in this process."""
        with in_own_words(ReapError):
            scatter(self.group, [CheckState(own) for own in states])

    def set_states(self, states: Sequence[Mapping[str, Any]], restarts: int, next_leaf: int | None) -> None:
        """Resume from these states, each with its own weights, which may be older than the collector's."""
        for worker, box in self._own.mailboxes.items():
            own = states[worker]
            attributes = {ATTRIBUTES: loaded(own.get("attributes", {}))}
            box.write(own["policy"], max(1, own["version"]), extra={**extra_states(own["policy"]), **attributes})
        with in_own_words(ReapError):
            scatter(self.group, [SetState(own) for own in states])
        self._own.go_on(restarts, states, next_leaf)

    def values(self, replies: list[Any]) -> list[Any]:
        """The answer of each worker."""
        return replies

    def close(self, timeout: float | None, close_env: bool) -> None:
        """End the workers, which closes their envs too."""
        self._own.close(timeout)

    def withdraw(self) -> None:
        """End the workers, because the collector could not be built."""
        self._own.close(0)

    def patience(self, timeout: float | None) -> float | None:
        """As given, or 5 if None, since workers can be ended."""
        return STOP_TIMEOUT if timeout is None else timeout

    def kill(self) -> bool:
        """End the workers at once, and any rollout in progress with them."""
        self._own.close(0)
        return True

    def text(self) -> str:
        """The number of workers, and descriptions of env and policy."""
        info = self.infos[0]
        name = "random" if self.policy is None else type(self.policy).__name__
        return f"{self.group.size} x {info.env}, policy={name} ({info.actor_kind})"
