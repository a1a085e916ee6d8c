"""Exchanges: rollouts of workers that share nothing are those of workers that share memory, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict.nn import InteractionType
from torch import nn

from reap.collectors.exchange.base import columns_reached
from reap.collectors.exchange.copied import CopiedExchange
from reap.collectors.exchange.shared import SharedExchange
from reap.collectors.exchange.slots import Slots
from reap.collectors.options.multi import make_plan
from reap.collectors.stats import Meter
from reap.collectors.worker.commands import CheckState, Collect, Done, GetState, SetState
from reap.collectors.workers.joining import JoinAtOnce, wait_for
from reap.collectors.workers.recovery import Recovery
from reap.collectors.workers.retries import OneTry
from reap.collectors.workers.rollout_workers import RolloutWorkers
from reap.data import LazyTensorStorage, ReplayBuffer
from reap.errors import ClosedError, SpecMismatch, WorkerDied
from reap.policy.contents.held import held_by
from reap.recording.buffers import IDS, VERSION
from reap.recording.layout import Field
from reap.rollout.loop import Phase
from reap.testing.marked import Marked, Told
from reap.weights.no_weights import NoMailbox
from reap.weights.schemes import MultiProcessWeightSyncScheme, NoWeightSyncScheme
from reap.workers import reports
from reap.workers.base import Call
from reap.workers.progress import Progress, new_control, progress_of
from reap.workers.serve import Terminated
from tests.collectors.worker_kinds import assert_same, mapped, serial
from tests.pairwise import by_default
from tests.workers.threads import thread_group

SEED = 5
COLUMNS = 8


def test_workers_that_are_stopped_while_they_are_given_a_slot() -> None:
    """By another thread, which drops the slots: what is raised is that the workers are stopped."""

    class Stopped(CopiedExchange):
        def attach_slot(self, *_given: Any) -> None:
            slots.pool.clear()
            raise ClosedError("these workers are stopped")

    info = SimpleNamespace(rows=1, columns=COLUMNS, fields={("reward",): Field((1,), torch.float32)})
    infos: Any = {0: info}
    slots = Slots(Stopped(), infos, (), COLUMNS, device=None, same=False)
    with pytest.raises(ClosedError, match="^these workers are stopped$"):
        slots.take()
    assert slots.pool.lent == 0


def in_processes(plan: Any, policy: Any) -> RolloutWorkers:
    return RolloutWorkers(plan, held_by(policy), "Test")


def in_threads(plan: Any, policy: Any) -> RolloutWorkers:
    exchange = CopiedExchange()
    return RolloutWorkers(plan, held_by(policy), "Test", exchange=exchange, make_group=thread_group, own_processes=False)


KINDS: dict[str, Callable[..., RolloutWorkers]] = {"processes": in_processes, "threads": in_threads}


class Driver:
    """Drives workers as a schedule would.

    Args:
        kind: where they are.
        policy: their policy.
        factories: their envs.
        apart: each has slots of its own.
        **options: of the collector.
    """

    def __init__(self, kind: str, policy: Any, factories: Sequence[Any], *, apart: bool = False, **options: Any) -> None:
        # A mode of tensordict's that all threads share: each sets and restores the same one.
        given = {"exploration_type": None, "track_policy_version": True, "frames_per_batch": 1, **options}
        self.plan = make_plan(list(factories), given, InteractionType, is_shared=False)
        self.workers = KINDS[kind](self.plan, policy)
        infos = self.workers.infos
        self.slots: list[Slots] = []
        if apart:
            for worker, info in enumerate(infos):
                self.slots.append(self.slots_for([worker], info.batch_shape))
        else:
            self.slots.append(self.slots_for(range(len(infos)), (len(infos), *infos[0].batch_shape)))

    def slots_for(self, workers: Sequence[int], batch_shape: tuple[int, ...]) -> Slots:
        columns = self.workers.infos[workers[0]].columns
        return self.workers.slots_for(workers, batch_shape, columns, device=None, same=False)

    def seed(self, seed: int = SEED) -> None:
        for worker in range(len(self.workers.infos)):
            seed = self.workers.seed(worker, seed, False)

    def collect(self, *, random: bool = False) -> list[Any]:
        """One batch of each slot, copied."""
        group, numbers = self.workers.group, [slots.take() for slots in self.slots]
        for slots, number in zip(self.slots, numbers, strict=True):
            for worker in slots.workers:
                group.clear(worker)
                group.request(worker, Collect(number, random, False, 0))
        self.wait()
        return [slots.deliver(number).clone() for slots, number in zip(self.slots, numbers, strict=True)]

    def land(self, worker: int, done: Done) -> Done:
        return self.slots[worker if len(self.slots) > 1 else 0].land(worker, done)

    def wait(self) -> dict[int, Done]:
        waiting = set(range(len(self.workers.infos)))
        dones: dict[int, Done] = {}
        while waiting:
            worker, done = self.workers.group.ready(waiting)
            dones[worker] = self.land(worker, done)
            assert dones[worker].parcel is None
            waiting.discard(worker)
        return dones

    def ask(self, worker: int, command: Any) -> Any:
        self.workers.group.request(worker, command)
        return self.workers.group.ready([worker])[1]


@pytest.fixture
def driver() -> Iterator[Callable[..., Driver]]:
    made: list[Driver] = []

    def make(*arguments: Any, **options: Any) -> Driver:
        made.append(Driver(*arguments, **options))
        return made[-1]

    yield make
    for one in made:
        one.workers.close(5)


class Words(Marked):
    """`Marked` that says something too."""

    observation_space = spaces.Dict({"marks": Marked.observation_space, "words": spaces.Text(40)})

    def observe(self) -> Any:
        marks = super().observe()
        return {"marks": marks, "words": "x".join(map(str, marks.astype(int)))}


class Large(Marked):
    """`Marked` in an array that is large enough to be lent."""

    observation_space = spaces.Box(0, 2.0**20, (100,), np.float32)

    def observe(self) -> Any:
        return np.resize(super().observe(), 100)


class Sum(nn.Module):
    """Acts with the sum of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.ones(1))

    def forward(self, marks: torch.Tensor) -> torch.Tensor:
        return marks.sum(-1, keepdim=True) + self.offset


def by_marks() -> Any:
    module = Sum()
    module.in_keys = ["marks"]  # pyright: ignore[reportAttributeAccessIssue]
    return module


CASES: dict[str, tuple[Callable[[], Any], Callable[[int], Any], dict[str, Any]]] = {
    "one row": (Told, Marked, {"frames_per_batch": COLUMNS}),
    "two rows": (Told, serial, {"frames_per_batch": 2 * COLUMNS, "max_frames_per_traj": 5}),
    "lent": (Told, Large, {"frames_per_batch": COLUMNS}),
    "objects": (by_marks, Words, {"frames_per_batch": COLUMNS, "reset_when_done": False}),
}


@pytest.mark.parametrize(("case", "apart"), by_default(product(CASES, [False, True]), ("two rows", False), ("objects", True)))
def test_rollouts_are_the_same_whether_memory_is_shared_or_copied(case: str, apart: bool, driver: Any) -> None:
    make_policy, make_env, options = CASES[case]
    streams = []
    for kind in KINDS:
        one = driver(kind, make_policy(), [partial(make_env, worker) for worker in range(2)], apart=apart, **options)
        one.seed()
        streams.append([*one.collect(random=True), *(batch for _ in range(4) for batch in one.collect())])
    for found, expected in zip(*streams, strict=True):
        assert_same(found, expected)
    every = torch.cat([batch[IDS].reshape(-1) for batch in streams[0]])
    assert {number >> 40 for number in every.unique().tolist() if number >= 0} == {0, 1}


def test_nothing_is_shared_with_threads(driver: Any) -> None:
    maps = mapped()
    one = driver("threads", Told(), [partial(Large, worker) for worker in range(2)], frames_per_batch=COLUMNS)
    kept = [one.collect() for _ in range(5)]
    assert mapped() == maps
    assert [slot.block.fd for slot in one.slots[0].pool.slots] == [None] * len(one.slots[0].pool.slots)
    assert [box.descriptors() for box in one.workers.mailboxes.values()] == [[], []]
    assert all(one.workers.group.progress(worker) is None for worker in range(2))
    assert len(kept) == 5


def test_a_batch_that_is_kept_is_not_written_over(driver: Any) -> None:
    one = driver("threads", Told(), [Large], frames_per_batch=COLUMNS)
    one.seed()
    slots, group = one.slots[0], one.workers.group
    kept = []
    for _ in range(4):
        number = slots.take()
        group.request(0, Collect(number, False, False, 0))
        one.wait()
        kept.append(slots.deliver(number))
    steps = torch.cat([batch["observation"][0, :, 2] for batch in kept])
    assert len({(int(i), int(s)) for i, s in zip(torch.cat([b[IDS][0] for b in kept]), steps, strict=True)}) == 4 * COLUMNS


# ---------------------------------------------------------------------- weights


def actions(batches: list[Any]) -> list[float]:
    """The offset that each worker acted with."""
    (batch,) = batches
    return (batch["action"] - batch["observation"][..., 2:3] / 2).amax((1, 2)).tolist()


def filled(policy: Told, value: float) -> Told:
    nn.init.constant_(policy.offset, value)
    return policy


@pytest.mark.parametrize("kind", KINDS)
def test_the_latest_weights_arrive_with_the_next_rollout(kind: str, driver: Any) -> None:
    policy = filled(Told(), 1.0)
    one = driver(kind, policy, [Marked] * 2, frames_per_batch=COLUMNS)
    updater = one.plan.scheme.updater(policy, one.workers.mailboxes)
    assert actions(one.collect()) == [1.0, 1.0]
    filled(policy, 2.0)
    assert actions(one.collect()) == [1.0, 1.0]
    updater.push_weights()
    filled(policy, 3.0)
    updater.push_weights()
    batches = one.collect()
    assert actions(batches) == [3.0, 3.0]
    assert batches[0][VERSION].unique().tolist() == [2]
    updater.push_weights(filled(Told(), 4.0), worker_ids=[1])
    assert actions(one.collect()) == [3.0, 4.0]
    assert actions(one.collect()) == [3.0, 4.0]


def test_weights_that_are_copied_are_packed_once_for_all_workers(driver: Any) -> None:
    policy = Told()
    one = driver("threads", policy, [Marked] * 3, frames_per_batch=COLUMNS, weight_sync_schemes=with_pipes())
    posted: list[Any] = []
    for box in one.workers.mailboxes.values():
        box.deliver(posted.append)
    one.plan.scheme.updater(policy, one.workers.mailboxes).push_weights()
    first, *others = [parcel.block for parcel in posted]
    assert len(others) == 2
    assert all(block is first for block in others)


def with_pipes() -> Mapping[str, Any]:
    return {"policy": MultiProcessWeightSyncScheme()}


def test_no_weights_are_sent_where_none_are_asked_for(driver: Any) -> None:
    policy, scheme = filled(Told(), 1.0), NoWeightSyncScheme()
    one = driver("threads", policy, [Marked] * 2, frames_per_batch=COLUMNS, weight_sync_schemes={"policy": scheme})
    assert [type(box) for box in one.workers.mailboxes.values()] == [NoMailbox] * 2
    filled(policy, 2.0)
    scheme.updater(policy, one.workers.mailboxes).push_weights()
    assert actions(one.collect()) == [1.0, 1.0]


# ---------------------------------------------------------------------- states


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_a_state_continues_wherever_it_is_loaded(kind: str, other: str, driver: Any) -> None:
    policy = filled(Told(), 1.0)
    envs = [partial(Marked, worker) for worker in range(2)]
    one = driver(kind, policy, envs, frames_per_batch=COLUMNS)
    one.seed()
    one.collect()
    one.plan.scheme.updater(filled(policy, 2.0), one.workers.mailboxes).push_weights()
    states = [one.ask(worker, GetState()) for worker in range(2)]
    assert [state["policy"]["offset"].tolist() for state in states] == [[2.0]] * 2, "the newest ones, though none acted"
    assert [state["version"] for state in states] == [1, 1]
    expected = [batch for _ in range(3) for batch in one.collect()]
    two = driver(other, Told(), envs, frames_per_batch=COLUMNS)
    two.collect()
    for worker, state in enumerate(states):
        two.ask(worker, CheckState(state))
        two.ask(worker, SetState(state))
    found = [batch for _ in range(3) for batch in two.collect()]
    for one_batch, other_batch in zip(found, expected, strict=True):
        assert_same(one_batch, other_batch)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_that_does_not_fit_is_refused_and_the_worker_continues(kind: str, driver: Any) -> None:
    one = driver(kind, Told(), [Marked] * 2, frames_per_batch=COLUMNS)
    state = one.ask(0, GetState())
    one.plan.scheme.updater(Told(), one.workers.mailboxes).push_weights()
    for command in (CheckState({**state, "rollout": {}}), SetState({**state, "leaf": "0"})):
        with pytest.raises(Exception, match="expected what state_dict") as caught:
            one.ask(0, command)
        assert isinstance(caught.value.__cause__, SpecMismatch)
    assert one.ask(0, Call("env_attribute", ("number",))) == 0
    assert len(one.collect()) == 1


# ---------------------------------------------------------------------- recovery


class Mortal(Marked):
    """`Marked` whose worker dies in its k-th step, as long as the file is not there."""

    def __init__(self, file: Path, at: int) -> None:
        super().__init__()
        self._file, self._at = file, at

    def step(self, action: Any) -> Any:
        if self.all_steps + 1 == self._at and not self._file.exists():
            self._file.touch()
            raise Terminated
        return super().step(action)


@pytest.mark.parametrize("apart", [False, True], ids=["one slot of all", "slots of each"])
def test_of_a_worker_that_dies_nothing_is_kept_and_its_successor_records_whole_rollouts(
    tmp_path: Path, apart: bool, driver: Any
) -> None:
    policy, envs = filled(Told(), 1.0), [Marked, partial(Mortal, tmp_path / "died", COLUMNS + 5)]
    one = driver("threads", policy, envs, apart=apart, frames_per_batch=COLUMNS, on_worker_failure="restart")
    workers, meter = one.workers, Meter(2)
    one.seed()
    slots_of = lambda worker: one.slots[worker if apart else 0]  # noqa: E731
    recovery = Recovery(workers, slots_of, meter, JoinAtOnce(), OneTry())
    one.plan.scheme.updater(filled(policy, 2.0), workers.mailboxes).push_weights()
    one.collect()
    numbers = [slots.take() for slots in one.slots]
    commands = {worker: Collect(numbers[worker if apart else 0], False, False, 1) for worker in range(2)}
    for worker, command in commands.items():
        workers.group.request(worker, command)
    dones: dict[int, Done] = {}
    failures, completed = list[int](), None
    while len(dones) < 2:
        try:
            worker, done = workers.group.ready(commands.keys() - dones.keys())
            dones[worker] = recovery.completed(worker, one.land(worker, done))
        except WorkerDied as failure:
            failures.append(failure.worker)
            completed = workers.completed_columns(1), recovery.restart(failure, commands[1])
    batches = [slots.deliver(number) for slots, number in zip(one.slots, numbers, strict=True)]
    survivor, successor = batches if apart else batches[0]
    assert (failures, [own.restarts for own in meter.workers], completed) == ([1], [0, 1], (0, None))
    assert [done.frames for done in dones.values()] == [COLUMNS] * 2
    undisturbed = driver("threads", filled(Told(), 2.0), [Marked], frames_per_batch=COLUMNS)
    undisturbed.seed()
    undisturbed.collect()
    assert_same(survivor, undisturbed.collect()[0][0], leave_out=[VERSION])
    assert successor["observation"][0, 2] == 0, "the first column is the successor's"
    assert {number >> 40 for number in successor[IDS].tolist()} == {2}
    assert (successor["action"] - successor["observation"][:, 2:3] / 2).unique().tolist() == [2.0], "it has the weights"
    ids, done = successor[IDS], successor["next", "done"].flatten()
    assert torch.equal(ids[1:] != ids[:-1], done[:-1]), "no episode is cut"
    assert (workers.restarts, workers.next_leaf) == (1, 3)


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        (None, 0),
        (reports.AT_START, 0),
        (progress_of(new_control()), 0),
        (Progress(Phase.POLICY, 3, 0), 3),
        (Progress(Phase.STEP, 3, 0), 3),
        (Progress(Phase.RESET, 3, 0), 4),
        (Progress(Phase.RESET, -1, 0), 0),
        (Progress(Phase.POLICY, -1, 0), 0),
        (Progress(Phase.WRITE, COLUMNS - 1, 0), COLUMNS),
        (Progress(Phase.IDLE, COLUMNS - 1, 0), COLUMNS),
        (Progress(Phase.IDLE, 2, 0), 2),
    ],
)
def test_columns_that_a_worker_has_completed(progress: Progress | None, expected: int, driver: Any) -> None:
    assert columns_reached(progress, COLUMNS) == expected
    info = driver("threads", Told(), [Marked], frames_per_batch=COLUMNS).workers.infos[0]
    assert SharedExchange().completed_columns(progress, info) == expected
    assert CopiedExchange().completed_columns(progress, info) == 0


def test_objects_of_a_worker_that_dies_are_gone(driver: Any) -> None:
    info = driver("threads", by_marks(), [Words], frames_per_batch=COLUMNS).workers.infos[0]
    assert SharedExchange().completed_columns(Progress(Phase.STEP, 3, 0), info) == 0


# ---------------------------------------------------------------------- the rest


def test_whether_a_worker_can_write_to_a_replay_buffer_itself() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(10))
    assert [exchange.can_send(buffer) for exchange in (SharedExchange(), CopiedExchange())] == [True, False]
    assert not SharedExchange().can_send(object())


def replace_worker(workers: RolloutWorkers, worker: int) -> None:
    wait_for(workers.group, worker, workers.launch_successor(worker))


def test_numbers_of_workers_for_the_ids_are_never_given_twice(driver: Any) -> None:
    one = driver("threads", Told(), [Marked] * 2, frames_per_batch=COLUMNS, on_worker_failure="restart")
    replace_worker(one.workers, 1)
    replace_worker(one.workers, 0)
    states = [one.ask(worker, GetState()) for worker in range(2)]
    assert [state["leaf"] for state in states] == [3, 2]
    two = driver("threads", Told(), [Marked] * 2, frames_per_batch=COLUMNS, on_worker_failure="restart")
    for worker, state in enumerate(states):
        two.ask(worker, SetState(state))
    two.workers.go_on(2, states)
    replace_worker(two.workers, 1)
    assert {number >> 40 for number in two.collect()[0][IDS].flatten().tolist()} == {3, 4}
    two.workers.go_on(2, states, next_leaf=9)
    replace_worker(two.workers, 0)
    assert {number >> 40 for number in two.collect()[0][IDS].flatten().tolist()} == {9, 4}
