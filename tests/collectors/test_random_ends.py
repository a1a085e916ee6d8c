"""From random actions to a policy: with a recurrent state, the episodes under way end with the last random frame, marked."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from reap.collectors import MultiaSyncDataCollector, MultiSyncDataCollector, SyncDataCollector, aSyncDataCollector
from reap.collectors.delivery.random_ends import end_episodes
from reap.data import LazyTensorStorage, ReplayBuffer, SliceSampler
from reap.envs import GymEnv, SerialEnv
from reap.testing import Const, Count
from tests.pairwise import by_default

IDS = ("collector", "traj_ids")


class Recurrent(nn.Module):
    """Counts its calls in an episode."""

    initial_state = {"state": torch.zeros(1)}  # noqa: RUF012

    def forward(self, observation: torch.Tensor, state: torch.Tensor) -> dict[Any, torch.Tensor]:
        return {"action": torch.zeros_like(state), ("next", "state"): state + 1}


def make() -> GymEnv:
    return GymEnv(Count(5))


def two() -> SerialEnv:
    return SerialEnv(2, [make, partial(GymEnv, Count(4))])


COLLECTORS: dict[str, Callable[..., Any]] = {
    "Sync": lambda policy, **options: SyncDataCollector(make, policy, frames_per_batch=4, **options),
    "MultiSync": lambda policy, **options: MultiSyncDataCollector([make] * 2, policy, frames_per_batch=8, **options),
    "MultiaSync": lambda policy, **options: MultiaSyncDataCollector([make] * 2, policy, frames_per_batch=4, **options),
    "aSync": lambda policy, **options: aSyncDataCollector(make, policy, frames_per_batch=4, **options),
}


def rows_of(batches: list[Any]) -> dict[int, list[Any]]:
    """The batches of each worker, `[T]`."""
    found: dict[int, list[Any]] = {}
    for batch in batches:
        for row in batch.reshape(-1, batch.shape[-1]):
            found.setdefault(int(row[IDS][0]) >> 40, []).append(row)
    return found


def column(row: Any, key: Any) -> list[Any]:
    return row[key].flatten().tolist()


@pytest.mark.parametrize("name", by_default(COLLECTORS, "Sync", "MultiaSync"))
def test_the_last_random_frame_ends_the_episode_under_way(name: str) -> None:
    """How many random rollouts each worker has is its own affair where the first to come is the first to go on."""
    workers = 2 if name.startswith("Multi") else 1
    with COLLECTORS[name](Recurrent(), init_random_frames=8 * workers) as collector:
        batches = [collector.next() for _ in range(5 * (workers if name == "MultiaSync" else 1))]
    by_worker = rows_of(batches)
    assert len(by_worker) == workers
    handed_over = expected = 0
    for rows in by_worker.values():
        begun, by_policy = 0, [bool(row["next", "state"].any()) for row in rows]
        expected += by_policy[-1] and not by_policy[0]
        for row, following in pairwise(rows):
            assert column(row, "observation") == [(begun + t) % 5 for t in range(4)]
            is_random, is_last = not row["next", "state"].any(), bool(following["next", "state"].any())
            ends = [(begun + t) % 5 == 4 for t in range(4)]
            is_handed_over = is_random and is_last
            assert column(row, ("next", "terminated")) == ends
            assert column(row, ("next", "truncated")) == [False] * 3 + [is_handed_over and not ends[3]]
            assert column(row, ("next", "done")) == [*ends[:3], ends[3] or is_handed_over]
            begun = 0 if is_handed_over else (begun + 4) % 5
            if is_handed_over:
                assert following[IDS][0] != row[IDS][-1]
                assert column(following, ("next", "state")) == [1, 2, 3, 4]
            handed_over += is_handed_over
    assert handed_over == expected
    assert expected == workers or (name == "MultiaSync" and expected > 0)


@pytest.mark.parametrize("name", by_default(COLLECTORS, "Sync", "aSync"))
def test_without_a_state_it_goes_on(name: str) -> None:
    workers = 2 if name.startswith("Multi") else 1
    with COLLECTORS[name](Const(), init_random_frames=4 * workers) as collector:
        batches = [collector.next()]
        while len(found := rows_of(batches)) < workers or min(map(len, found.values())) < 2:
            batches.append(collector.next())
    for rows in found.values():
        assert not rows[0]["next", "done"].any()
        assert column(rows[1], "observation")[0] == 4


def test_an_episode_that_has_ended_stays_as_it_ended() -> None:
    with SyncDataCollector(two, Recurrent(), frames_per_batch=8, init_random_frames=8) as collector:
        batch = collector.next()
    assert batch["next", "terminated"].squeeze(-1).tolist() == [[False] * 4, [False, False, False, True]]
    assert batch["next", "truncated"].squeeze(-1).tolist() == [[False, False, False, True], [False] * 4]
    assert batch["next", "done"].squeeze(-1).tolist() == [[False, False, False, True]] * 2


def test_rows_that_idle_stay_as_they_ended() -> None:
    options: Any = {"frames_per_batch": 12, "init_random_frames": 10, "reset_when_done": False}
    with SyncDataCollector(two, Recurrent(), **options) as collector:
        batch = collector.next()
    assert batch["next", "truncated"].any().item() is False
    assert batch["next", "done"].squeeze(-1).tolist() == [[False] * 4 + [True, False], [False] * 3 + [True, False, False]]


def test_whole_episodes_are_delivered_with_it() -> None:
    options: Any = {"frames_per_batch": 4, "init_random_frames": 4, "trajs_per_batch": 2, "traj_format": "cat"}
    with SyncDataCollector(make, Recurrent(), **options) as collector:
        batch = collector.next()
    assert column(batch, "observation") == [0, 1, 2, 3, 0, 1, 2, 3, 4]
    assert column(batch, ("next", "truncated")) == [False] * 3 + [True] + [False] * 5


@pytest.mark.parametrize("name", by_default(COLLECTORS, "Sync", "MultiSync"))
def test_slices_in_a_buffer_do_not_run_across(name: str) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(64), sampler=SliceSampler(slice_len=4), batch_size=4)
    workers = 2 if name.startswith("Multi") else 1
    with COLLECTORS[name](
        Recurrent(), init_random_frames=4 * workers, total_frames=8 * workers, replay_buffer=buffer
    ) as collector:
        for _ in collector:
            pass
    written = buffer[:]
    ends = written["next", "truncated"].flatten()
    assert ends.sum().item() == workers
    assert written["observation"].flatten()[ends].tolist() == [3] * workers


def test_a_state_taken_at_the_hand_over() -> None:
    with COLLECTORS["Sync"](Recurrent(), init_random_frames=4) as collector:
        assert column(collector.next(), ("next", "done")) == [False, False, False, True]
        state = collector.state_dict()
    with COLLECTORS["Sync"](Recurrent(), init_random_frames=4) as collector:
        collector.load_state_dict(state)
        batch = collector.next()
    assert column(batch, "observation") == [0, 1, 2, 3]
    assert column(batch, ("next", "state")) == [1, 2, 3, 4]


def test_the_last_valid_frame_is_marked() -> None:
    mask = np.array([[True, True, False], [False, False, False], [True, True, True], [True, False, False]])
    flags = {name: np.zeros((4, 3, 1), bool) for name in ("truncated", "done")}
    flags["done"][3, 0] = True
    arrays = {("collector", "mask"): mask, **{("next", name): array for name, array in flags.items()}}
    end_episodes(arrays.__getitem__, has_mask=True)
    assert flags["truncated"][..., 0].tolist() == [[False, True, False], [False] * 3, [False, False, True], [False] * 3]
    assert flags["done"][..., 0].tolist() == [[False, True, False], [False] * 3, [False, False, True], [True, False, False]]
