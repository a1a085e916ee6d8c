"""Collecting in a thread: `start`, `is_running`, `pause`, `async_shutdown`. No sleeps, and a limit on whatever waits."""

from __future__ import annotations

import gc
import textwrap
import threading
import weakref
from collections.abc import Callable
from threading import Condition, Event, Thread
from typing import Any

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn

from reap.collectors import SyncDataCollector
from reap.collectors.background import cut
from reap.envs import GymEnv, SerialEnv
from reap.errors import CallOrderError, ClosedError, OptionError
from reap.testing import Const, Count, Crash, IdRows
from reap.testing.marked import Told
from tests import warm

pytestmark = pytest.mark.timeout(30)

LIMIT = 20.0
"""Seconds after which a wait has failed."""


class Buffer:
    """Stands in for a replay buffer; each write waits until it is allowed.

    Args:
        allowed: writes that need not wait.
    """

    def __init__(self, allowed: float = float("inf")) -> None:
        self.state = Condition()
        self.batches: list[Any] = []
        self.arrived = self.under_way = 0
        self.allowed = allowed

    def extend(self, data: Any) -> None:
        with self.state:
            self.arrived += 1
            self.under_way += 1
            self.state.notify_all()
            assert self.state.wait_for(lambda: len(self.batches) < self.allowed, LIMIT), "nobody allowed the write"
            self.batches.append(data)
            self.under_way -= 1
            self.state.notify_all()

    add = extend

    def allow(self, count: float = 1) -> None:
        with self.state:
            self.allowed += count
            self.state.notify_all()

    def wait_for_arrival(self, number: int) -> None:
        """Wait until that many writes have begun."""
        with self.state:
            assert self.state.wait_for(lambda: self.arrived >= number, LIMIT), f"{self.arrived} writes, waited for {number}"

    def wait_for_writes(self, number: int) -> None:
        with self.state:
            assert self.state.wait_for(lambda: len(self.batches) >= number, LIMIT), f"{len(self.batches)} writes"

    def __len__(self) -> int:
        """Frames that are written."""
        with self.state:
            return sum(batch.numel() for batch in self.batches)


class Gated(Count):
    """`Count` whose steps wait for the gate."""

    def __init__(self) -> None:
        super().__init__(5)
        self.gate, self.entered = Event(), Event()
        self.closings = 0

    def step(self, action: Any) -> Any:
        self.entered.set()
        assert self.gate.wait(LIMIT), "nobody opened the gate"
        return super().step(action)

    def close(self) -> None:
        self.closings += 1


def collecting(buffer: Any, env: Any = None, policy: Any = None, **options: Any) -> SyncDataCollector:
    env = Count(5) if env is None else env
    return SyncDataCollector(env, policy or Const(), **{"frames_per_batch": 4, **options}, replay_buffer=buffer)


def wait_for_end(collector: SyncDataCollector) -> None:
    assert collector._background is not None
    collector._background._thread.join(LIMIT)
    assert not collector.is_running()


def in_thread(call: Callable[[], Any]) -> Thread:
    thread = Thread(target=call)
    thread.start()
    return thread


def join(thread: Thread) -> None:
    thread.join(LIMIT)
    assert not thread.is_alive()


def observed(batches: Any) -> list[float]:
    return [value for batch in batches for value in batch["observation"].flatten().tolist()]


# ---------------------------------------------------------------------- start


def test_start_needs_a_buffer() -> None:
    with SyncDataCollector(Count(5), Const(), frames_per_batch=4) as collector:
        with pytest.raises(OptionError) as caught:
            collector.start()
        assert str(caught.value) == "start() writes to a replay buffer: expected the option replay_buffer, got None"
        assert not collector.is_running()
        assert observed([collector.next()]) == [0, 1, 2, 3]


RUNNING = (
    "this SyncDataCollector is running in the background: its batches go to the replay buffer; "
    "call async_shutdown(), or sample from the buffer"
)
WHILE_RUNNING: dict[str, Callable[[SyncDataCollector], Any]] = {
    "start": lambda collector: collector.start(),
    "next": lambda collector: collector.next(),
    "rollout": lambda collector: collector.rollout(),
    "iter": lambda collector: next(iter(collector)),
    "iterator": lambda collector: next(collector.iterator()),
}


@pytest.mark.parametrize("call", WHILE_RUNNING)
def test_nobody_else_collects_while_it_runs(call: str) -> None:
    buffer = Buffer()
    with collecting(buffer) as collector:
        collector.start()
        assert collector.is_running()
        with pytest.raises(CallOrderError) as caught:
            WHILE_RUNNING[call](collector)
        assert str(caught.value) == RUNNING
        buffer.wait_for_writes(3)
    assert not collector.is_running()
    assert observed(buffer.batches[:3]) == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]


def test_an_iterator_from_before_start() -> None:
    with collecting(Buffer()) as collector:
        batches = iter(collector)
        next(batches)
        collector.start()
        with pytest.raises(CallOrderError):
            next(batches)


def test_it_goes_on_where_iteration_stopped() -> None:
    buffer = Buffer()
    with collecting(buffer, total_frames=16) as collector:
        assert next(iter(collector)) is None
        collector.start()
        wait_for_end(collector)
        assert collector.next() is None
    assert observed(buffer.batches) == [0, 1, 2, 3, 4] * 3 + [0]


def test_start_after_the_budget_and_after_shutdown() -> None:
    buffer = Buffer()
    collector = collecting(buffer, total_frames=8)
    for _ in range(2):
        collector.start()
        wait_for_end(collector)
        assert len(buffer) == 8
    collector.shutdown()
    with pytest.raises(ClosedError):
        collector.start()


@pytest.mark.parametrize(
    "policy",
    [
        Const(2.0),
        lambda observation: torch.full_like(observation, 2.0),
        TensorDictModule(Const(2.0), ["observation"], ["action"]),
    ],
)
def test_every_kind_of_policy(policy: Any) -> None:
    buffer = Buffer()
    with collecting(buffer, policy=policy, total_frames=8) as collector:
        collector.start()
        wait_for_end(collector)
    assert [batch["action"].flatten().tolist() for batch in buffer.batches] == [[2] * 4] * 2


def test_random_actions() -> None:
    buffer = Buffer()
    with SyncDataCollector(Count(5), frames_per_batch=4, total_frames=8, replay_buffer=buffer) as collector:
        collector.start()
        wait_for_end(collector)
    assert len(buffer) == 8
    assert len({float(action) for batch in buffer.batches for action in batch["action"]}) == 8


# ---------------------------------------------------------------------- the budget


@pytest.mark.parametrize("total", [4, 8, 10, 1, 3])
@pytest.mark.filterwarnings("ignore:total_frames=")
def test_the_budget_of_a_single_env_is_exact(total: int) -> None:
    buffer = Buffer()
    with collecting(buffer, total_frames=total) as collector:
        collector.start()
        wait_for_end(collector)
        stats = collector.stats()
    assert observed(buffer.batches) == [i % 5 for i in range(total)]
    assert (len(buffer), stats.frames, stats.discarded_frames) == (total, total, -total % 4)


@pytest.mark.parametrize(("total", "written"), [(24, 24), (16, 16), (18, 16), (23, 20), (4, 4), (5, 4), (3, 0), (1, 0)])
@pytest.mark.filterwarnings("ignore:total_frames=")
def test_the_budget_of_four_envs_is_kept_to_whole_columns(total: int, written: int) -> None:
    buffer = Buffer()
    env = SerialEnv(4, lambda: Count(100))
    with collecting(buffer, env, frames_per_batch=12, total_frames=total) as collector:
        collector.start()
        wait_for_end(collector)
        assert collector.stats().frames == len(buffer) == written
    columns = torch.cat(buffer.batches, -1)["observation"] if written else torch.zeros(4, 0, 1)
    assert columns[..., 0].tolist() == [list(range(written // 4))] * 4


@pytest.mark.filterwarnings("ignore:total_frames=")
def test_the_budget_counts_valid_frames() -> None:
    """Resets of the env's own are no frames, whatever column the end of the budget falls on."""
    for total in range(100, 112, 3):
        buffer = Buffer()
        env = GymEnv("CartPole-v1", num_envs=2, vectorization_mode="vector_entry_point")
        options: Any = {"frames_per_batch": 40, "total_frames": total, "replay_buffer": buffer}
        with SyncDataCollector(env, **options) as collector:
            collector.start()
            wait_for_end(collector)
            valid = sum(int(batch["collector", "mask"].sum()) for batch in buffer.batches)
            assert collector.stats().frames == valid
        assert total - 2 < valid <= total


@pytest.mark.parametrize("form", ["cat", "padded"])
@pytest.mark.parametrize("lengths", [(4, 4), (1, 1), (3,), (2, 5, 3)])
@pytest.mark.parametrize("total", [5, 8, 30, 31, 100])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_whole_episodes_keep_to_the_budget(count: int, total: int, lengths: tuple[int, ...], form: str) -> None:
    """Never more than `total_frames` are written, whole episodes only, none that fits is left behind; the rest is discarded."""
    buffer, rows = Buffer(), len(lengths)
    env = SerialEnv(rows, [lambda length=length: GymEnv(Count(length)) for length in lengths])
    options: Any = {"frames_per_batch": 12, "trajs_per_batch": count, "traj_format": form, "total_frames": total}
    with collecting(buffer, env, **options) as collector:
        for _ in range(2):  # the second finds nothing left to do
            collector.start()
            wait_for_end(collector)
        stats = collector.stats()
    batches = [
        batch.reshape(-1)[batch["collector", "mask"].reshape(-1)] if form == "padded" else batch for batch in buffer.batches
    ]
    within = total // rows
    # Of each row, the lengths of the episodes that end within the budget: they are delivered in turn, `count` at a time.
    complete = [[length] * (within // length) for length in lengths]
    turns = 0
    while len(complete[turns % rows]) > turns // rows:
        turns += 1
    expected = [step for turn in range(turns - turns % count) for step in range(lengths[turn % rows])]
    assert observed(batches) == expected
    assert len(expected) <= total
    assert stats.frames == within * rows
    assert stats.discarded_frames == 12 * -(-within * rows // 12) - len(expected)


def test_cut() -> None:
    batch = collecting(None, IdRows((2,)), frames_per_batch=10).rollout()
    for frames, columns in ((10, 5), (11, 5), (9, 4), (2, 1), (1, 0)):
        kept, surplus = cut(batch, frames)
        assert (kept.batch_size, surplus) == ((2, columns), 10 - 2 * columns)
    batch["collector", "mask"] = torch.tensor([[1, 1, 0, 1, 1], [1, 0, 0, 1, 0]], dtype=torch.bool)
    assert [(cut(batch, n)[0].shape[-1], cut(batch, n)[1]) for n in (6, 5, 4, 3, 2, 1, 0)] == [
        (5, 0),
        (4, 1),
        (3, 3),
        (3, 3),
        (1, 4),
        (0, 6),
        (0, 6),
    ]


@pytest.mark.filterwarnings("ignore:total_frames=")
def test_the_last_column_of_a_batch_that_is_cut_is_the_one_that_is_truncated() -> None:
    buffer = Buffer()
    with collecting(buffer, total_frames=6, set_truncated=True) as collector:
        collector.start()
        wait_for_end(collector)
    assert [batch["next", "truncated"].flatten().tolist() for batch in buffer.batches] == [[False] * 3 + [True], [False, True]]


def test_columns_are_written_one_by_one() -> None:
    buffer = Buffer()
    with collecting(buffer, total_frames=8, extend_buffer=False) as collector:
        collector.start()
        wait_for_end(collector)
    assert [batch["observation"].tolist() for batch in buffer.batches] == [[i % 5] for i in range(8)]


@pytest.mark.parametrize(("init", "random"), [(0, 0), (None, 0), (4, 4), (6, 8), (100, 12)])
def test_d04_random_frames_first(init: int | None, random: int) -> None:
    buffer = Buffer()
    with collecting(buffer, policy=Const(7.0), total_frames=12, init_random_frames=init) as collector:
        collector.start()
        wait_for_end(collector)
    assert [value == 7 for batch in buffer.batches for value in batch["action"]] == [False] * random + [True] * (12 - random)


# ---------------------------------------------------------------------- weights


def actions(batch: Any) -> list[float]:
    return batch["action"].flatten().tolist()


def test_e10_weights_are_those_of_the_last_update() -> None:
    """A write is allowed when the main thread is done: the batch after it is collected with what was set by then."""
    policy, buffer = Const(0.0), Buffer(0)
    before = policy.w
    with collecting(buffer, policy=policy, track_policy_version=True) as collector:
        collector.start()
        for number, update in enumerate([False, True, False, True], 1):
            buffer.wait_for_arrival(number)
            with torch.no_grad():
                policy.w.fill_(number)
            if update:
                collector.update_policy_weights_()
            buffer.allow()
        buffer.wait_for_arrival(5)
        buffer.allow(100)
    found = [(actions(batch), batch["collector", "policy_version"].tolist()) for batch in buffer.batches[:5]]
    assert found == [([w] * 4, [v] * 4) for w, v in ((0, 0), (0, 0), (2, 1), (2, 1), (4, 2))]
    assert policy.w is before
    assert (policy.w.requires_grad, policy.w.is_shared(), policy.w.grad) == (True, False, None)


def test_an_update_does_not_wait_for_the_rollout_under_way() -> None:
    env, policy, buffer = Gated(), Const(0.0), Buffer(0)
    with collecting(buffer, env, policy) as collector:
        collector.start()
        assert env.entered.wait(LIMIT)
        with pytest.raises(ValueError, match="weights"):
            collector.update_policy_weights_({"v": torch.zeros(1)})
        collector.update_policy_weights_({"w": torch.full((1,), 3.0)})
        assert collector.policy_version == 1
        env.gate.set()
        buffer.wait_for_arrival(1)
        buffer.allow()
        buffer.wait_for_arrival(2)
        buffer.allow(100)
    assert actions(buffer.batches[0]) == [0] * 4, "one rollout, one version"
    assert actions(buffer.batches[1]) == [3] * 4
    assert policy.w.tolist() == [0], "given weights go to the private copy, not into the caller's module"


def test_an_update_after_the_end_is_used_by_rollouts_that_follow() -> None:
    policy = Const(0.0)
    with collecting(Buffer(), policy=policy, total_frames=4) as collector:
        collector.start()
        wait_for_end(collector)
        with torch.no_grad():
            policy.w.fill_(5.0)
        collector.update_policy_weights_()
        assert actions(collector.rollout()) == [5] * 4


def test_a_policy_that_changes_while_it_acts_changes_in_the_copy() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return self.calls.clone()

    policy, buffer = Counting(), Buffer()
    with collecting(buffer, policy=policy, total_frames=8) as collector:
        collector.start()
        wait_for_end(collector)
    assert [actions(batch) for batch in buffer.batches] == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert float(policy.calls) == 0


def test_load_state_dict_reaches_the_copy() -> None:
    saved = collecting(Buffer(), policy=Const(5.0))
    saved.next()
    policy, buffer = Const(0.0), Buffer()
    with collecting(buffer, policy=policy) as collector:
        collector.start()
        buffer.wait_for_writes(1)
        collector.load_state_dict(saved.state_dict())
        with collector.pause():
            written = len(buffer.batches)
        buffer.wait_for_writes(written + 1)
    assert policy.w.tolist() == [5]
    assert actions(buffer.batches[0]) == [0] * 4
    assert actions(buffer.batches[written]) == [5] * 4


# ---------------------------------------------------------------------- pause


def test_d04_pause_returns_when_no_write_is_in_flight() -> None:
    buffer = Buffer(0)
    seen: list[Any] = []
    with collecting(buffer) as collector:

        def pausing() -> None:
            with collector.pause():
                seen.append((buffer.under_way, len(buffer)))
                _ = collector.state_dict(), collector.stats()
                seen.append((buffer.under_way, len(buffer)))

        collector.start()
        buffer.wait_for_arrival(1)
        pauses = in_thread(pausing)
        buffer.allow(1000)
        join(pauses)
        assert seen[0] == seen[1]
        assert seen[0][0] == 0
        assert seen[0][1] >= 4
        buffer.wait_for_writes(seen[0][1] // 4 + 2)


def test_pauses_nest() -> None:
    buffer = Buffer()
    with collecting(buffer) as collector:
        collector.start()
        buffer.wait_for_writes(1)
        with collector.pause():
            count = len(buffer)
            with collector.pause():
                assert len(buffer) == count
            assert (len(buffer), buffer.under_way, collector.is_running()) == (count, 0, True)
        buffer.wait_for_writes(count // 4 + 1)


def test_pauses_of_several_threads() -> None:
    buffer = Buffer()
    wrong: list[Any] = []
    with collecting(buffer) as collector:

        def pausing() -> None:
            for _ in range(25):
                with collector.pause():
                    before = len(buffer)
                    if buffer.under_way or len(buffer) != before:
                        wrong.append((buffer.under_way, before, len(buffer)))

        collector.start()
        for thread in [in_thread(pausing) for _ in range(4)]:
            join(thread)
        count = len(buffer)
        buffer.wait_for_writes(count // 4 + 2)
    assert wrong == []


def test_pause_ends_with_an_error_in_its_body() -> None:
    buffer = Buffer()
    with collecting(buffer) as collector:
        collector.start()
        with pytest.raises(ZeroDivisionError), collector.pause():
            _ = len(buffer) / 0
        buffer.wait_for_writes(len(buffer) // 4 + 2)


def test_pause_of_a_collector_that_does_not_run() -> None:
    collector = collecting(Buffer(), total_frames=4)
    with collector.pause():
        pass
    collector.start()
    wait_for_end(collector)
    with collector.pause():
        assert collector.stats().frames == 4
    collector.shutdown()
    with pytest.raises(ClosedError), collector.pause():
        pass


def test_shutdown_in_a_pause() -> None:
    buffer = Buffer()
    collector = collecting(buffer)
    collector.start()
    with collector.pause():
        collector.async_shutdown()
        count = len(buffer)
    assert (collector.closed, collector.is_running(), len(buffer)) == (True, False, count)


# ---------------------------------------------------------------------- calls while it runs


def test_d11_a_checkpoint_agrees_with_the_buffer() -> None:
    buffer = Buffer()
    with collecting(buffer) as collector:
        collector.start()
        for _ in range(20):
            with collector.pause():
                assert collector.state_dict()["counters"]["frames"] == len(buffer) == collector.stats().frames


def test_reset_seed_and_calls_come_between_two_rollouts() -> None:
    buffer = Buffer()
    with collecting(buffer, Count(100_000)) as collector:
        collector.start()
        # Episodes are long enough for none to end here.
        for call in (collector.reset, lambda: collector.set_seed(3), lambda: collector.getattr_env("steps")):
            buffer.wait_for_writes(len(buffer) // 4 + 1)
            call()
        buffer.wait_for_writes(len(buffer) // 4 + 2)
    ids = [int(batch["collector", "traj_ids"][0]) for batch in buffer.batches]
    assert sorted(set(ids)) == [0, 1, 2]
    for batch in buffer.batches:
        assert len(set(batch["collector", "traj_ids"].tolist())) == 1, "a reset in the middle of a rollout"
        assert batch["observation"].flatten().diff().tolist() == [1, 1, 1]


def test_call_env_and_attributes() -> None:
    env, buffer = Count(5), Buffer()
    with collecting(buffer, env) as collector:
        collector.start()
        assert collector.getattr_env("length") == 5
        assert collector.call_env("is_over_time") is False
        assert collector.getattr_policy("w").tolist() == [0]
        assert collector.getattr_policy("w") is not collector.policy.w


def test_calls_in_the_thread_itself_do_not_wait_for_it() -> None:
    seen: list[Any] = []

    def postproc(batch: Any) -> Any:
        seen.append((collector.getattr_env("length"), collector.stats().frames, collector.is_running()))
        if len(seen) == 2:
            collector.reset()
        return batch

    buffer = Buffer()
    with collecting(buffer, Count(1000), postproc=postproc, total_frames=12) as collector:
        collector.start()
        wait_for_end(collector)
    assert seen == [(1000, 4, True), (1000, 8, True), (1000, 12, True)]
    assert observed(buffer.batches) == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3]


def test_the_callers_generator_is_left_alone() -> None:
    """It is one for all threads: neither a seed from before nor one that is given meanwhile swaps another in."""
    seen: list[torch.Tensor] = []

    def policy(observation: torch.Tensor) -> torch.Tensor:
        seen.append(torch.get_rng_state())
        return observation

    buffer = Buffer()
    with collecting(buffer, policy=policy, init_random_frames=8) as collector:
        collector.set_seed(3)
        state = torch.get_rng_state()
        seen.clear()
        collector.start()
        collector.set_seed(4)
        buffer.wait_for_writes(len(buffer) // 4 + 5)
    assert len(seen) > 8
    assert all(torch.equal(one, state) for one in seen)
    assert torch.equal(torch.get_rng_state(), state)


def test_stats_while_it_runs() -> None:
    buffer = Buffer()
    frames: list[int] = []
    episodes = 0
    with collecting(buffer) as collector:
        collector.start()
        for number in range(1, 20):
            buffer.wait_for_writes(number)
            stats = collector.stats()
            frames.append(stats.frames)
            episodes += len(stats.episodes)
        with collector.pause():
            stats = collector.stats()
            assert (stats.frames, stats.batches) == (len(buffer), len(buffer) // 4)
            assert episodes + len(stats.episodes) == stats.finished_episodes == stats.frames // 5
    assert frames == sorted(frames)
    assert all(seen >= 4 * number for number, seen in enumerate(frames, 1))


# ---------------------------------------------------------------------- errors


class BrokenBuffer(Buffer):
    def extend(self, data: Any) -> None:
        if self.arrived == 2:
            self.arrived += 1
            raise RuntimeError("the disk is full")
        super().extend(data)


def raising_from(call: int, result: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function that works until its `call`-th call."""
    calls: list[int] = []

    def function(given: Any) -> Any:
        calls.append(1)
        if len(calls) == call:
            raise RuntimeError("it does not work")
        return result(given)

    return function


FAILING: dict[str, Callable[[], SyncDataCollector]] = {
    "env": lambda: collecting(Buffer(), Crash(9)),
    "policy": lambda: collecting(Buffer(), policy=raising_from(10, lambda observation: observation)),
    "postproc": lambda: collecting(Buffer(), postproc=raising_from(3, lambda batch: batch)),
    "buffer": lambda: collecting(BrokenBuffer()),
}
TEXTS = {"env": "crashed in step 9", "policy": "it does not work", "postproc": "it does not work", "buffer": "the disk is full"}
IN_THREAD = "reap: raised in the background, in the thread of SyncDataCollector.start()"


def failed(what: str) -> SyncDataCollector:
    collector = FAILING[what]()
    collector.start()
    wait_for_end(collector)
    return collector


@pytest.mark.parametrize("what", FAILING)
def test_an_error_surfaces_once_with_notes(what: str) -> None:
    collector = failed(what)
    with pytest.raises(RuntimeError, match=TEXTS[what]) as caught:
        collector.next()
    notes = caught.value.__notes__
    assert notes[-1] == IN_THREAD
    if what in {"env", "policy"}:
        phase = {"env": "step", "policy": "policy"}[what]
        assert f"raised in {phase} of GymEnv" in notes[0]
    frames = collector.stats().frames
    assert frames == (12 if what in {"postproc", "buffer"} else 8)
    collector.next()
    collector.shutdown()


SURFACING: dict[str, Callable[[SyncDataCollector], Any]] = {
    **WHILE_RUNNING,
    "pause": lambda collector: collector.pause().__enter__(),
    "reset": lambda collector: collector.reset(),
    "set_seed": lambda collector: collector.set_seed(1),
    "update_policy_weights_": lambda collector: collector.update_policy_weights_(),
    "state_dict": lambda collector: collector.state_dict(),
    "load_state_dict": lambda collector: collector.load_state_dict({}),
    "getattr_env": lambda collector: collector.getattr_env("length"),
    "getattr_policy": lambda collector: collector.getattr_policy("w"),
    "call_env": lambda collector: collector.call_env("observe"),
    "async_shutdown": lambda collector: collector.async_shutdown(),
    "with": lambda collector: collector.__exit__(None, None, None),
}


@pytest.mark.parametrize("call", SURFACING)
def test_an_error_surfaces_at_whatever_call_comes_next(call: str) -> None:
    collector = failed("env")
    with pytest.raises(RuntimeError, match="crashed in step 9"):
        SURFACING[call](collector)
    collector.async_shutdown()
    assert (collector.closed, collector.env.closed) == (True, True)


def test_an_error_while_a_pause_waits_surfaces_there() -> None:
    class Failing(Buffer):
        def extend(self, data: Any) -> None:
            super().extend(data)
            raise RuntimeError("the disk is full")

    buffer, caught = Failing(0), []

    def pausing() -> None:
        try:
            with collector.pause():
                caught.append("nothing")
        except RuntimeError as error:
            caught.append(str(error))

    collector = collecting(buffer)
    collector.start()
    buffer.wait_for_arrival(1)
    thread = in_thread(pausing)
    buffer.allow()
    join(thread)
    assert caught == ["the disk is full"]
    collector.async_shutdown()


def test_an_error_in_the_body_is_not_replaced() -> None:
    with pytest.raises(ZeroDivisionError), failed("env") as collector:
        _ = collector.frames_per_batch / 0
    assert collector.closed
    failed("env").shutdown()  # silent: it may stand in a `finally`


def test_start_again_after_an_error() -> None:
    buffer = Buffer()
    collector = collecting(buffer, Crash(9), total_frames=24)
    collector.start()
    wait_for_end(collector)
    with pytest.raises(RuntimeError, match="crashed"):
        collector.start()
    collector.start()
    wait_for_end(collector)
    collector.async_shutdown()
    assert len(buffer) == 24
    assert observed(buffer.batches) == [0, 1, 2, 3, 4, 5, 6, 7, *range(16)], "a new episode behind the error"
    ids = [value for batch in buffer.batches for value in batch["collector", "traj_ids"].tolist()]
    assert ids == [0] * 8 + [1] * 16


# ---------------------------------------------------------------------- the end


def test_async_shutdown_twice() -> None:
    env, buffer = Gated(), Buffer()
    env.gate.set()
    collector = collecting(buffer, env)
    collector.start()
    buffer.wait_for_writes(1)
    collector.async_shutdown()
    count = len(buffer)
    collector.async_shutdown(timeout=1.0)
    collector.shutdown()
    assert (collector.closed, collector.is_running(), env.closings, len(buffer)) == (True, False, 1, count)
    assert collector.stats().frames == count
    with pytest.raises(ClosedError):
        collector.update_policy_weights_()


def test_async_shutdown_can_leave_the_env_open() -> None:
    env = Gated()
    env.gate.set()
    collector = collecting(Buffer(), env)
    collector.start()
    collector.async_shutdown(close_env=False)
    assert (env.closings, collector.env.closed) == (0, False)


def test_async_shutdown_without_start() -> None:
    env = Gated()
    collector = collecting(Buffer(), env)
    collector.async_shutdown()
    assert (collector.closed, env.closings) == (True, 1)


def test_async_shutdown_waits_for_the_rollout_under_way() -> None:
    env, buffer = Gated(), Buffer()
    collector = collecting(buffer, env)
    collector.start()
    assert env.entered.wait(LIMIT)
    ending = in_thread(collector.async_shutdown)
    while not collector.closed:  # it is set before anything is waited for
        pass
    assert (env.closings, len(buffer)) == (0, 0)
    env.gate.set()
    join(ending)
    assert env.closings == 1
    assert len(buffer) % 4 == 0


def test_async_shutdown_with_a_timeout_leaves_a_slow_rollout_to_itself() -> None:
    env, buffer = Gated(), Buffer()
    collector = collecting(buffer, env)
    collector.start()
    assert env.entered.wait(LIMIT)
    collector.async_shutdown(timeout=0.01)
    assert (collector.closed, env.closings) == (True, 0), "an env is not closed while it steps"
    collector.async_shutdown()
    env.gate.set()
    wait_for_end(collector)
    assert env.closings == 1, "it is closed behind the step"
    assert len(buffer) == 0, "what nobody waited for is not written"


def test_shutdown_in_the_thread_itself() -> None:
    def postproc(batch: Any) -> Any:
        collector.async_shutdown()
        return batch

    env = Gated()
    env.gate.set()
    collector = collecting(Buffer(), env, postproc=postproc)
    collector.start()
    wait_for_end(collector)
    assert (collector.closed, env.closings) == (True, 1)


def test_a_dropped_collector_ends_its_thread() -> None:
    env, buffer = Gated(), Buffer()
    env.gate.set()
    collector = collecting(buffer, env)
    collector.start()
    thread = collector._background._thread
    buffer.wait_for_writes(2)
    dropped = weakref.ref(collector)
    del collector
    gc.collect()
    join(thread)
    gc.collect()
    assert dropped() is None


def test_the_thread_has_a_name() -> None:
    with collecting(Buffer()) as collector:
        collector.start()
        assert "SyncDataCollector.start" in {thread.name for thread in threading.enumerate()}


EXIT = """
    from threading import Event
    import gymnasium as gym, torch
    from reap.collectors import SyncDataCollector, background
    from reap.testing import Const, Count

    written, stuck = Event(), {stuck}
    background.EXIT_SECONDS = 0.2 if stuck else 60.0

    class Slow(Count):
        def step(self, action):
            if stuck and written.is_set():
                Event().wait()
            return super().step(action)

    class Buffer:
        def extend(self, data):
            written.set()

    policy = torch.nn.Sequential(torch.nn.Linear(1, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    collector = SyncDataCollector(Slow(5), policy, frames_per_batch=8, replay_buffer=Buffer())
    collector.start()
    assert written.wait(60)
    {end}
"""


@pytest.mark.parametrize(("stuck", "end", "code"), [(False, "", 0), (True, "raise SystemExit(3)", 3)])
@pytest.mark.timeout(100)
def test_the_interpreter_ends_silently_with_a_thread_that_runs(stuck: bool, end: str, code: int) -> None:
    script = textwrap.dedent(EXIT.format(stuck=stuck, end=end))
    assert warm.run(script, timeout=90) == (code, "", "")


def test_outputs_of_a_policy_are_there() -> None:
    """The private copy is called as the policy is: all of its outputs are written."""
    from reap.testing.marked import Marked

    buffer = Buffer()
    with collecting(buffer, Marked(0), Told(), total_frames=8) as collector:
        collector.start()
        wait_for_end(collector)
    batch = torch.cat(buffer.batches)
    assert torch.equal(batch["seen"], batch["observation"][:, 3:4])
    assert torch.equal(batch["action"], batch["observation"][:, 2:3] / 2)
