"""Workers that leave, die and come back while others deliver, over a carrier that shares nothing with them."""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict.nn import InteractionType
from tensordict.nn.probabilistic import set_interaction_type

from reap.collectors.exchange.copied import CopiedExchange
from reap.collectors.multi import RemoteCollector
from reap.collectors.schedules.make import as_they_come, together
from reap.collectors.workers.joining import JoinAtOnce, JoinLater
from reap.collectors.workers.retries import GrowingPauses, OneTry
from reap.collectors.workers.rollout_workers import RolloutWorkers
from reap.data import LazyTensorStorage, ReplayBuffer
from reap.envs import SerialEnv
from reap.errors import OptionError, SpecMismatch, WorkerDied, WorkerRaised
from reap.recording.buffers import IDS
from reap.testing.marked import Marked
from reap.workers.remote.group import RemoteGroup
from reap.workers.serve import Terminated
from tests.collectors.seams import pool_of
from tests.workers.threads import ThreadCarrier, WatchedThreadCarrier, thread_group

pytestmark = [pytest.mark.filterwarnings("ignore:worker . is replaced:RuntimeWarning")]

COLUMNS = 8


class Threaded(RemoteCollector):
    """A collector whose workers are threads, as those on other machines are: with retries, joining late where it is async."""

    def __init__(
        self,
        sync: bool,
        create_env_fn: Any,
        policy: Any = None,
        *,
        min_workers: int | None = None,
        make_carrier: Callable[[int], ThreadCarrier] = ThreadCarrier,
        buffers_travel: bool = False,
        **options: Any,
    ) -> None:
        groups: list[RemoteGroup] = []

        def make_group(make_handlers: Any, **given: Any) -> RemoteGroup:
            groups.append(thread_group(make_handlers, make_carrier=make_carrier, **given))
            return groups[0]

        make = partial(
            RolloutWorkers,
            exchange=CopiedExchange(lambda _: buffers_travel),
            make_group=make_group,
            own_processes=False,
            may_leave=True,
            min_workers=min_workers,
        )
        options = {"on_worker_failure": "restart", "num_sub_threads": None, "frames_per_batch": COLUMNS, **options}
        schedule = together if sync else as_they_come
        joins = None if sync else JoinLater()
        self._compose(
            create_env_fn, policy, options, schedule, is_shared=sync, make_workers=make, joins=joins, retries=GrowingPauses()
        )
        self.threads: ThreadCarrier = groups[0].carrier

    def add(self, factories: Sequence[Any]) -> None:
        """Add a worker for each of these envs."""
        self._add_workers(factories)

    def lose(self, worker: int) -> None:
        """Have a worker that is idle end without a word; returns when it has."""
        self.threads.kill([worker])
        self.threads.lines[worker].threads[0].join(100)
        assert self.threads.lines[worker].has_ended


@pytest.fixture(autouse=True)
def one_mode() -> Iterator[None]:
    """tensordict's mode is one for all threads: each sets, and restores, the same."""
    with set_interaction_type(InteractionType.RANDOM):
        yield


MAKERS: list[Callable[[], Any]] = []
"""What workers call: functions do not travel to threads as they are, and these have things to share with the test."""


def made_by(number: int) -> Any:
    return MAKERS[number]()


def here(make: Callable[[], Any]) -> Callable[[], Any]:
    """A factory that can be sent, and calls this one."""
    MAKERS.append(make)
    return partial(made_by, len(MAKERS) - 1)


class Acting(Marked):
    """`Marked` that does something with its `at`-th step."""

    def __init__(self, at: int, act: Callable[[], Any]) -> None:
        super().__init__()
        self._at, self._act = at, act

    def step(self, action: Any) -> Any:
        if self.all_steps + 1 == self._at:
            self._act()
        return super().step(action)


class Once:
    """Calls a function the first time that it is called."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self._act, self._is_done = act, False

    def __call__(self) -> None:
        if not self._is_done:
            self._is_done = True
            self._act()


def die() -> None:
    raise Terminated


def leaves(batch: Any) -> list[int]:
    return sorted({number >> 40 for number in batch[IDS].flatten().tolist()})


@pytest.mark.parametrize("sync", [True, False])
def test_a_worker_that_leaves_delivers_its_columns_and_its_successor_records_the_rest(sync: bool) -> None:
    collectors: list[Threaded] = []
    act = Once(lambda: collectors[0].threads.leave(0))
    with Threaded(sync, [here(lambda: Acting(5, act))]) as collector:
        collectors.append(collector)
        batch = collector.next().reshape(-1)
        assert batch.shape == (COLUMNS,)
        assert leaves(batch) == [0, 1]
        assert (batch[IDS] >> 40).tolist() == [0] * 5 + [1] * 3
        assert batch["next", "truncated"].flatten().tolist()[4]
        stats = collector.stats()
        assert (stats.restarts, stats.frames, stats.discarded_frames) == (1, COLUMNS, 0)
        assert leaves(collector.next()) == [1]


@pytest.mark.parametrize("sync", [True, False])
def test_of_a_worker_that_dies_the_rollout_is_recorded_again(sync: bool) -> None:
    act = Once(die)
    with Threaded(sync, [here(lambda: Acting(5, act))]) as collector:
        batch = collector.next().reshape(-1)
        assert (leaves(batch), batch.shape) == ([1], (COLUMNS,))
        assert collector.stats().restarts == 1


def complain() -> None:
    raise ValueError("no")


CARRIERS = {"seen": WatchedThreadCarrier, "unseen": ThreadCarrier}


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize(
    ("act", "carrier", "lost"),
    [
        pytest.param(die, "seen", 4, id="dies, where its progress is seen"),
        pytest.param(die, "unseen", 0, id="dies, where nobody knows how far it had come"),
        pytest.param(complain, "unseen", 4, id="raises: it says itself how far it had come"),
    ],
)
def test_frames_that_are_lost_with_a_worker_are_counted(sync: bool, act: Any, carrier: str, lost: int) -> None:
    """Of two workers with two rows each, one ends in its fifth step, with four columns complete."""
    once = Once(act)
    envs = [here(partial(SerialEnv, 2, Marked)), here(partial(SerialEnv, 2, lambda: Acting(5, once)))]
    options: Any = {"frames_per_batch": 2 * COLUMNS * (2 if sync else 1), "make_carrier": CARRIERS[carrier]}
    with Threaded(sync, envs, **options) as collector:
        while not collector.stats().restarts:
            collector.next()
        stats = collector.stats()
    assert stats.discarded_frames == 2 * lost
    assert [worker.discarded_frames for worker in stats.workers] == [0, 2 * lost]


@pytest.mark.processes
def test_frames_that_a_successor_loses_beside_those_that_its_predecessor_left_are_counted() -> None:
    """The first leaves after five columns, which are delivered; the second dies with one more complete."""
    collectors: list[Threaded] = []
    leave, die_once = Once(lambda: collectors[0].threads.leave(0)), Once(die)
    lives = iter([Acting(5, leave), Acting(2, die_once), Marked()])
    with Threaded(True, [here(partial(next, lives))], make_carrier=WatchedThreadCarrier) as collector:
        collectors.append(collector)
        assert (collector.next()[IDS].reshape(-1) >> 40).tolist() == [0] * 5 + [2] * 3
        stats = collector.stats()
    assert (stats.restarts, stats.frames, stats.discarded_frames) == (2, COLUMNS, 1)


@pytest.mark.parametrize("carrier", CARRIERS)
def test_code_that_raises_in_each_rollout_is_raised_though_columns_before_were_complete(carrier: str) -> None:
    """They are not kept: with them nothing would ever be delivered."""
    env = here(lambda: Acting(5, complain))
    with Threaded(True, [env], make_carrier=CARRIERS[carrier]) as collector, pytest.raises(WorkerRaised, match="no"):
        collector.next()


class Slow:
    """Makes envs that die once; all but the first are made once the gate is open."""

    def __init__(self) -> None:
        self.gate, self.made, self._die = threading.Event(), 0, Once(die)

    def __call__(self) -> Acting:
        self.made += 1
        assert self.made == 1 or self.gate.wait(100)
        return Acting(3, self._die)


def test_others_deliver_while_a_successor_starts() -> None:
    slow = Slow()
    with Threaded(False, [Marked, here(slow)]) as collector:
        alone = 0
        while alone < 5 or slow.made < 2:
            assert leaves(collector.next()) == [0]
            alone += 1
        slow.gate.set()
        found: set[int] = set()
        while 2 not in found:
            found.update(leaves(collector.next()))
        assert found <= {0, 2}


@pytest.mark.processes
def test_a_successor_that_dies_at_once_is_tried_again() -> None:
    made, act = list[int](), Once(die)

    def fragile() -> Acting:
        made.append(1)
        if len(made) in (2, 3):
            raise Terminated
        return Acting(3, act)

    with Threaded(True, [Marked, here(fragile)]) as collector, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert leaves(collector.next()) == [0, 4]
        assert collector.stats().restarts == 1
    found = [str(one.message).partition(":")[0] for one in caught if "is replaced" in str(one.message)]
    assert found == [
        "worker 1 is replaced now (try 1)",
        "worker 1 is replaced in 1 s (try 2)",
        "worker 1 is replaced in 2 s (try 3)",
    ]


@pytest.mark.parametrize("sync", [True, False])
def test_code_that_raises_twice_is_raised(sync: bool) -> None:
    class Faulty(Marked):
        def step(self, action: Any) -> Any:
            raise ZeroDivisionError("no")

    with Threaded(sync, [Faulty]) as collector, pytest.raises(WorkerRaised, match="ZeroDivisionError: no"):
        collector.next()


def test_pauses_grow() -> None:
    died, policy = WorkerDied(3, -9, "step"), GrowingPauses()
    with pytest.warns(RuntimeWarning, match="worker 3 is replaced"):
        assert [policy.pause(died, tries) for tries in range(9)] == [0, 1, 2, 4, 8, 16, 32, 60, 60]
    raised = WorkerRaised(3, "step", ValueError("no"))
    with pytest.warns(RuntimeWarning, match="try 1.*ValueError: no"):
        assert policy.pause(raised, 0) == 0
    with pytest.raises(WorkerRaised):
        policy.pause(raised, 1)
    assert OneTry().pause(raised, 0) == 0
    with pytest.raises(WorkerDied):
        OneTry().pause(died, 1)


@pytest.mark.parametrize("policy", [None, "weights"])
def test_an_idle_worker_that_is_gone_is_replaced(policy: Any) -> None:
    with Threaded(False, [Marked, Marked], policy and Weighted(0.0)) as collector:
        collector.lose(0)
        found: set[int] = set()
        while 2 not in found:
            found.update(leaves(collector.next()))
        assert found <= {1, 2}
        if policy is not None:
            collector.update_policy_weights_(Weighted(5.0))
            batch = collector.next()
            while leaves(batch) != [2] or batch["action"].unique().tolist() != [5.0]:
                batch = collector.next()
        assert collector.stats().restarts == 1


def filled() -> ReplayBuffer:
    return ReplayBuffer(storage=LazyTensorStorage(1_000)).share()


def steps_by_id(buffer: ReplayBuffer) -> dict[int, list[int]]:
    frames = buffer[:]
    found: dict[int, list[int]] = {}
    for number, step in zip(frames[IDS].flatten().tolist(), frames["observation"][..., 2].flatten().tolist(), strict=True):
        found.setdefault(number, []).append(int(step))
    return found


def assert_whole(buffer: ReplayBuffer) -> None:
    for steps in steps_by_id(buffer).values():
        assert steps == list(range(len(steps)))


def test_a_state_has_no_rollouts_that_only_workers_have() -> None:
    buffer = filled()
    with Threaded(False, [Marked], replay_buffer=buffer, buffers_travel=True) as collector:
        collector.next()
        state = collector.state_dict()  # of a worker that was recording the next rollout
        assert (state["results"], collector.stats().discarded_frames) == ([], COLUMNS)
        with pytest.raises(OptionError, match=r"rollout: the workers keep what they record.*call next\(\)"):
            collector.rollout()
        collector.next()
        assert collector.stats().frames == 2 * COLUMNS
    assert_whole(buffer)


def test_weights_written_while_a_successor_starts_reach_it() -> None:
    slow = Slow()
    with Threaded(False, [Marked, here(slow)], Weighted(0.0)) as collector:
        while slow.made < 2:
            collector.next()
        collector.update_policy_weights_(Weighted(5.0))
        slow.gate.set()
        batch = collector.next()
        while leaves(batch) != [2]:
            batch = collector.next()
        assert batch["action"].unique().tolist() == [5.0]


class Weighted(torch.nn.Module):
    """Acts with its weight."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([value]))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.weight.expand(*observation.shape[:-1], 1)


def test_collecting_begins_before_all_workers_are_there() -> None:
    gate = threading.Event()

    def slow() -> Marked:
        assert gate.wait(100)
        return Marked()

    with Threaded(False, [Marked, here(slow)], Weighted(1.0), min_workers=1) as collector:
        assert [str(one.place).partition(",")[0] for one in collector.stats().workers] == [
            "up on here (thread 0)",
            "joining on here (thread 1)",
        ]
        assert [leaves(collector.next()) for _ in range(4)] == [[0]] * 4
        collector.update_policy_weights_(Weighted(7.0))
        gate.set()
        batch = collector.next()
        while leaves(batch) != [1]:
            batch = collector.next()
        assert batch["action"].unique().tolist() == [7.0]
        assert [one.place.is_joining for one in collector.stats().workers if one.place] == [False, False]


def test_a_seed_waits_for_those_who_are_joining() -> None:
    gate = threading.Event()

    def slow() -> Marked:
        assert gate.wait(100)
        return Marked()

    with Threaded(False, [Marked, here(slow)], min_workers=1) as collector:
        opener = threading.Timer(0.05, gate.set)
        opener.start()
        assert collector.set_seed(3) is not None
        opener.join()
        assert [one.place.is_joining for one in collector.stats().workers if one.place] == [False, False]
        assert len(collector.state_dict()["workers"]) == 2


class Other(Marked):
    """`Marked` of another layout."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 2.0**20, (5,), np.float32)

    def observe(self) -> Any:
        return np.append(super().observe(), np.float32(0))


def test_a_worker_that_joins_later_is_like_the_others() -> None:
    gate = threading.Event()

    def slow() -> Other:
        assert gate.wait(100)
        return Other()

    with Threaded(False, [Marked, here(slow)], min_workers=1) as collector:
        gate.set()
        with pytest.raises(SpecMismatch, match="worker 1, which joins later"):
            deque(collector, maxlen=0)


@pytest.mark.parametrize("count", [1, 2])
def test_workers_that_are_added_join_while_others_deliver(count: int) -> None:
    with Threaded(False, [Marked] * count, Weighted(1.0)) as collector:
        collector.update_policy_weights_(Weighted(3.0))
        collector.next()
        collector.add([Marked, Marked])
        assert collector.num_workers == count + 2
        found: dict[int, Any] = {}
        while len(found) < count + 2:
            batch = collector.next()
            found[leaves(batch)[0]] = batch["action"][-1].item()
        assert sorted(found) == list(range(count + 2))
        assert set(found.values()) <= {3.0, 1.0}
        assert [found[count], found[count + 1]] == [3.0, 3.0]
        stats = collector.stats()
        assert len(stats.workers) == count + 2
        assert sum(one.frames for one in stats.workers) == stats.frames
        draws = {collector.call_env("observe", worker_ids=[worker])[0][3].item() for worker in range(count + 2)}
        assert len(draws) == count + 2, "each has generators of its own"


def test_memory_grows_with_the_results_that_wait_and_not_with_workers() -> None:
    with Threaded(False, [Marked] * 6, Weighted(1.0)) as collector:
        pool = pool_of(collector)
        assert len(pool.slots) == 0, "a rollout that is under way takes none"
        for _ in range(30):
            collector.next()
        assert len(pool.slots) <= 2, "one lands while one is delivered: small values are copied out"


def test_joining_waits_at_once_or_later() -> None:
    assert JoinAtOnce().under_way == ()
    later, log = JoinLater(), list[Any]()

    def joining() -> Any:
        log.append("asked")
        log.append((yield))
        log.append((yield))

    assert later.begin(None, 2, joining(), lambda: "done") is None
    assert list(later.under_way) == [2]
    assert (later.step(2, "a"), later.step(2, "b")) == (None, "done")
    assert (log, list(later.under_way)) == (["asked", "a", "b"], [])
