"""Batches of whole episodes: exactly n, in turn, from rollouts that cut them anywhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from reap import GymEnv, SerialEnv, SyncDataCollector
from reap.collectors.delivery.episodes import EpisodeQueue
from reap.errors import OptionError
from reap.testing import Const, Count


def rows_of(*lengths: int) -> SerialEnv:
    """Rows of constant episode lengths."""
    return SerialEnv(len(lengths), [lambda n=n: GymEnv(Count(n)) for n in lengths])


def episodes_of(batch: Any) -> list[list[int]]:
    """The observations of each episode of a padded batch."""
    mask = batch["collector", "mask"]
    return [row["observation"][valid].flatten().int().tolist() for row, valid in zip(batch, mask, strict=True)]


@pytest.mark.parametrize("frames_per_batch", [3, 7, 30, 300])
def test_rows_take_turns_whatever_the_size_of_a_rollout(frames_per_batch: int) -> None:
    with SyncDataCollector(
        rows_of(2, 5, 3), frames_per_batch=-(-frames_per_batch // 3) * 3, trajs_per_batch=4, total_frames=900
    ) as collector:
        batches = [next(iter(collector)) for _ in range(3)]
    # Row 0, 1, 2, 0 | 1, 2, 0, 1 | 2, 0, 1, 2: the k-th episode of each before the k+1-th of any.
    lengths = [[len(episode) for episode in episodes_of(batch)] for batch in batches]
    assert lengths == [[2, 5, 3, 2], [5, 3, 2, 5], [3, 2, 5, 3]]
    for batch in batches:
        assert all(episode == list(range(len(episode))) for episode in episodes_of(batch))
        assert batch.names == [None, "time"]


def test_cat_is_one_episode_after_the_other() -> None:
    with SyncDataCollector(rows_of(2, 4), frames_per_batch=6, trajs_per_batch=3, traj_format="cat") as collector:
        batch = collector.next()
    assert batch.batch_size == (8,)
    assert batch.names == ["time"]
    assert batch["observation"].flatten().tolist() == [0, 1, 0, 1, 2, 3, 0, 1]
    assert batch["next", "done"].flatten().tolist() == [False, True, False, False, False, True, False, True]


def test_frames_are_those_of_a_collector_without_it() -> None:
    with SyncDataCollector("CartPole-v1", frames_per_batch=50, trajs_per_batch=3, traj_format="cat") as collector:
        collector.set_seed(4)
        whole = collector.next()
    with SyncDataCollector("CartPole-v1", frames_per_batch=whole.shape[0]) as collector:
        collector.set_seed(4)
        plain = collector.next()
    assert bool((whole == plain).all())


def test_no_bias_to_short_episodes() -> None:
    with SyncDataCollector(rows_of(1, 50), frames_per_batch=20, trajs_per_batch=2) as collector:
        lengths = [[len(episode) for episode in episodes_of(collector.next())] for _ in range(5)]
    assert lengths == [[1, 50]] * 5


def test_what_is_left_at_the_end_is_counted_as_discarded() -> None:
    with SyncDataCollector(rows_of(4, 4), frames_per_batch=8, trajs_per_batch=3, total_frames=32) as collector:
        batches = list(collector)
        stats = collector.stats()
    assert [batch.batch_size[0] for batch in batches] == [3, 3]
    assert stats.frames == 32
    assert stats.discarded_frames == 32 - 2 * 3 * 4


def test_an_episode_that_is_broken_off_is_dropped_and_counted() -> None:
    with SyncDataCollector(rows_of(6), frames_per_batch=4, trajs_per_batch=1, total_frames=1_000) as collector:
        assert len(episodes_of(collector.next())[0]) == 6  # frames 0-5 of rollouts 0-3, 4-7
        collector.reset()
        assert episodes_of(collector.next()) == [[0, 1, 2, 3, 4, 5]]
        assert collector.stats().discarded_frames == 2


def test_idle_frames_belong_to_no_episode() -> None:
    with SyncDataCollector(rows_of(2, 5), frames_per_batch=12, trajs_per_batch=4, reset_when_done=False) as collector:
        batch = collector.next()
    assert [len(episode) for episode in episodes_of(batch)] == [2, 5, 2, 5]


def test_postproc_and_buffer_get_the_episodes() -> None:
    seen: list[torch.Size] = []
    with SyncDataCollector(
        rows_of(3), frames_per_batch=4, trajs_per_batch=2, postproc=lambda batch: seen.append(batch.batch_size) or batch
    ) as collector:
        collector.next()
    assert seen == [torch.Size([2, 3])]


def test_frames_that_wait_are_bounded() -> None:
    collector = SyncDataCollector(rows_of(1, 10_000), frames_per_batch=100, trajs_per_batch=2, max_pending_frames=400)
    with collector, pytest.raises(OptionError, match="max_pending_frames=400: .* wait for a long episode of row 1"):
        collector.next()


def test_chunks_are_released() -> None:
    queue = EpisodeQueue(1, "cat", 1_000)
    for _ in range(20):
        rollout = TensorDict(
            {
                "next": {"done": torch.tensor([False, True, False, True]).view(1, 4, 1)},
                "collector": {"traj_ids": torch.tensor([[0, 0, 1, 1]]) + 2 * _},
            },
            [1, 4],
            names=[None, "time"],
        )
        assert queue.add(rollout) == 0
        queue.take()
        queue.take()
        assert queue.state()["chunks"] == {}
        assert queue.pending_frames == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trajs_per_batch": 0}, "trajs_per_batch: expected a positive number of episodes, got 0"),
        ({"trajs_per_batch": 2, "traj_format": "list"}, "traj_format: expected one of .*, got 'list'"),
        ({"trajs_per_batch": 2, "split_trajs": True}, "excludes split_trajs, set_truncated and reset_at_each_iter"),
        ({"trajs_per_batch": 2, "set_truncated": True}, "excludes split_trajs, set_truncated and reset_at_each_iter"),
    ],
)
def test_options_that_cannot_work(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        SyncDataCollector("CartPole-v1", **options)


def test_length_is_not_known() -> None:
    collector = SyncDataCollector(rows_of(3), trajs_per_batch=2, total_frames=3_000)
    with collector, pytest.raises(TypeError, match="trajs_per_batch has no length"):
        len(collector)


def test_a_rollout_has_a_thousand_frames_unless_it_is_given() -> None:
    with SyncDataCollector(rows_of(3), trajs_per_batch=2) as collector:
        assert collector.frames_per_batch == 1_000


def test_after_a_state_without_its_frames_it_waits_for_all_rows() -> None:
    queue = EpisodeQueue(2, "cat", 1_000)
    queue.expect(3)
    queue, is_whole = queue.read(None)
    assert not is_whole
    assert not queue.is_ahead(range(1, 2), 1)
    assert len(queue.state()["rows"]) == 3


def test_rows_that_are_ahead() -> None:
    """Two batches of two episodes from three rows: two episodes of each row, and so many frames."""
    queue = EpisodeQueue(2, "cat", 1_000)
    queue.expect(3)
    rollout = SyncDataCollector(Count(2), Const(), frames_per_batch=4).next()
    for frames, is_ahead in ((4, False), (8, True)):
        queue.add(rollout.clone(), 1)
        rollout["collector", "traj_ids"] += 2
        assert queue.is_ahead(range(1, 2), 8) is is_ahead
        assert queue.is_ahead(range(1, 2), 4) is (frames >= 4)
        assert not queue.is_ahead(range(1, 3), 4)


@pytest.mark.parametrize("option", ["split_trajs", "set_truncated", "reset_at_each_iter"])
def test_options_that_would_cut_episodes(option: str) -> None:
    with pytest.raises(OptionError, match="trajs_per_batch delivers whole episodes: it excludes .*reset_at_each_iter"):
        SyncDataCollector(Count, trajs_per_batch=2, **{option: True})  # pyright: ignore[reportArgumentType]
