"""Collecting in a thread: `start`, and the budget. No sleeps, and a limit on whatever waits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict.nn import TensorDictModule

from reap.collectors import SyncDataCollector
from reap.collectors.delivery.cut import cut
from reap.envs import GymEnv, SerialEnv
from reap.errors import CallOrderError, ClosedError, OptionError
from reap.testing import Const, Count, IdRows
from tests.collectors.buffers import WHILE_RUNNING, Buffer, collecting, observed
from tests.collectors.seams import wait_for_end
from tests.pairwise import pairwise

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


@pytest.mark.parametrize(
    ("count", "total", "lengths", "form"),
    pairwise([1, 2, 3], [5, 8, 30, 31, 100], [(4, 4), (1, 1), (3,), (2, 5, 3)], ["cat", "padded"]),
)
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


def test_a_call_that_is_refused_breaks_no_episode_off() -> None:
    buffer = Buffer(0)
    with SyncDataCollector(lambda: Count(1000), frames_per_batch=4, total_frames=16, replay_buffer=buffer) as collector:
        collector.start()
        buffer.wait_for_arrival(1)
        for call in (collector.next, collector.rollout):
            with pytest.raises(CallOrderError):
                call()
        buffer.allow(4)
        wait_for_end(collector)
    assert observed(buffer.batches) == list(range(16))
