"""Options that change what is recorded: warm-up, limits, resets, versions, the interruptor."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from reap.collectors import Interruptor, RandomPolicy, SyncDataCollector
from reap.data import Bounded, Composite
from reap.envs import GymEnv, SerialEnv
from reap.errors import SpecMismatch
from reap.testing import Const, Count, CountTL, DictPolicy, IdRows, Masked


def count(env: Any = None, **options: Any) -> SyncDataCollector:
    return SyncDataCollector(env or Count(5), Const(), **{"frames_per_batch": 4, **options})


def observed(batch: Any) -> list[float]:
    return batch["observation"].flatten().tolist()


def actions(batch: Any) -> list[float]:
    return batch["action"].flatten().tolist()


# ---------------------------------------------------------------------- init_random_frames


@pytest.mark.parametrize(("given", "batches"), [(None, 0), (0, 0), (-1, 0), (1, 1), (4, 1), (5, 2), (8, 2)])
def test_a13_warm_up_is_rounded_up_to_whole_batches(given: int | None, batches: int) -> None:
    collector = count(init_random_frames=given)
    for i in range(4):
        drawn = actions(collector.next())
        assert (0.0 not in drawn) == (i < batches)
        assert (set(drawn) == {0.0}) == (i >= batches)


def test_warm_up_goes_on_with_the_same_episodes() -> None:
    collector = count(init_random_frames=4)
    assert [observed(collector.next()) for _ in range(2)] == [[0, 1, 2, 3], [4, 0, 1, 2]]


def test_a14_warm_up_has_the_policys_other_outputs_as_zeros() -> None:
    collector = SyncDataCollector(IdRows((2,)), DictPolicy(), frames_per_batch=6, init_random_frames=12)
    first, second, third = collector.next(), collector.next(), collector.next()
    assert set(first.keys(True, True)) == set(second.keys(True, True)) == set(third.keys(True, True))
    for batch in (first, second):
        assert not batch["log_prob"].any()
        assert not batch["info", "count"].any()
    assert third["log_prob"].any()


def test_the_policy_is_not_called_in_warm_up() -> None:
    calls: list[int] = []

    def policy(observation: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return observation

    collector = SyncDataCollector(Count(5), policy, frames_per_batch=4, init_random_frames=4)
    assert len(calls) == 1
    collector.next()
    assert len(calls) == 1
    collector.next()
    assert len(calls) == 5


def test_warm_up_and_random_policies_obey_action_masks() -> None:
    env = SerialEnv(2, lambda: Masked(7))
    one_hot = SyncDataCollector(env, frames_per_batch=60)
    allowed = one_hot.next()
    assert (allowed["action"] * allowed["action_mask"]).sum(-1).eq(1).all()
    policy = lambda count, action_mask: action_mask.to(torch.int64).cumsum(-1).eq(1).logical_and(action_mask).long()  # noqa: E731
    collector = SyncDataCollector(SerialEnv(2, lambda: Masked(7)), policy, frames_per_batch=60, init_random_frames=60)
    first = collector.next()
    assert (first["action"] * first["action_mask"]).sum(-1).eq(1).all()
    assert first["action"].sum((0, 1)).gt(0).all(), "all of the actions are drawn"
    collector.next()


def test_warm_up_is_seeded() -> None:
    def drawn(seed: int) -> list[float]:
        collector = count(init_random_frames=4)
        collector.set_seed(seed)
        return actions(collector.next())

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)


# ---------------------------------------------------------------------- RandomPolicy


def test_without_a_policy_actions_are_random() -> None:
    collector = SyncDataCollector("CartPole-v1", frames_per_batch=40)
    batch = collector.next()
    assert isinstance(collector.policy, RandomPolicy)
    assert batch["action"].sum(-1).tolist() == [1] * 40
    assert batch["action"].sum(0).gt(5).all()
    collector.shutdown()


@pytest.mark.parametrize("given", [Bounded(2, 3, (1,)), Composite(action=Bounded(2, 3, (1,)))])
def test_a_random_policy_draws_from_its_own_spec(given: Any) -> None:
    policy = RandomPolicy(given)
    collector = SyncDataCollector(Count(5), policy, frames_per_batch=20)
    drawn = collector.next()["action"]
    assert drawn.ge(2).all()
    assert drawn.le(3).all()
    assert collector.policy is policy


def test_a_random_policy_of_another_env() -> None:
    with pytest.raises(SpecMismatch) as caught:
        SyncDataCollector(Count(5), RandomPolicy(Bounded(2, 3, (7,)), "torque"), frames_per_batch=4)
    assert str(caught.value) == (
        "RandomPolicy: expected actions {'action': ((1,), torch.float32)}, as the env takes them, "
        "found {'torque': ((7,), torch.float32)}; build it with env.action_spec"
    )


# ---------------------------------------------------------------------- limits and resets


@pytest.mark.parametrize("limit", [None, 0, -1])
def test_no_limit(limit: int | None) -> None:
    batch = count(Count(100), max_frames_per_traj=limit).next()
    assert not batch["next", "truncated"].any()
    assert "step_count" not in batch.keys()


def test_a_limit_truncates() -> None:
    collector = count(Count(100), frames_per_batch=7, max_frames_per_traj=3)
    batch = collector.next()
    assert observed(batch) == [0, 1, 2, 0, 1, 2, 0]
    assert batch["next", "truncated"].flatten().tolist() == [False, False, True, False, False, True, False]
    assert batch["next", "done"].flatten().tolist() == [False, False, True, False, False, True, False]
    assert not batch["next", "terminated"].any()
    assert batch["step_count"].flatten().tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert batch["next", "step_count"].flatten().tolist() == [1, 2, 3, 1, 2, 3, 1]
    assert observed(batch["next"]) == [1, 2, 3, 1, 2, 3, 1]
    assert collector.next()["step_count"].flatten().tolist() == [1, 2, 0, 1, 2, 0, 1]


def test_the_envs_own_limit_still_counts() -> None:
    batch = count(CountTL(100, 2), frames_per_batch=6, max_frames_per_traj=3).next()
    assert observed(batch) == [0, 1, 0, 1, 0, 1]


def test_both_ends_in_one_frame() -> None:
    batch = count(Count(3), frames_per_batch=3, max_frames_per_traj=3).next()
    last = batch["next"][-1]
    assert [last[name].item() for name in ("terminated", "truncated", "done")] == [True, True, True]


def test_reset_at_each_iter() -> None:
    collector = count(reset_at_each_iter=True, frames_per_batch=3)
    batches = [collector.next() for _ in range(3)]
    assert [observed(batch) for batch in batches] == [[0, 1, 2]] * 3
    assert [batch["collector", "traj_ids"].tolist() for batch in batches] == [[0] * 3, [1] * 3, [2] * 3]
    assert collector.env.wrapped.resets == 3, "the reset of the construction is the first one's"


def test_reset_when_done_off() -> None:
    collector = count(SerialEnv(2, [lambda: Count(2), lambda: Count(3)]), frames_per_batch=8, reset_when_done=False)
    batch = collector.next()
    assert batch["observation"].squeeze(-1).tolist() == [[0, 1, 0, 0], [0, 1, 2, 0]]
    assert batch["collector", "mask"].tolist() == [[True, True, False, False], [True, True, True, False]]
    assert batch["collector", "traj_ids"].tolist() == [[0, 0, -1, -1], [1, 1, 1, -1]]
    assert collector.stats().frames == 5
    assert collector.next()["observation"].squeeze(-1).tolist() == [[0, 1, 0, 0], [0, 1, 2, 0]]
    assert collector.getattr_env("resets") == [2, 2]


# ---------------------------------------------------------------------- interruptor


class After:
    """Stops when it is asked for the k-th time."""

    def __init__(self, k: int) -> None:
        self.k, self.asked = k, 0

    def collection_stopped(self) -> bool:
        self.asked += 1
        return self.asked == self.k


def test_an_interruptor_is_asked_once_per_column() -> None:
    interruptor = After(6)
    collector = count(interruptor=interruptor)
    first, second, third = collector.next(), collector.next(), collector.next()
    assert interruptor.asked == 10
    assert [observed(batch) for batch in (first, second, third)] == [[0, 1, 2, 3], [4, 0, 0, 0], [1, 2, 3, 4]]
    assert second["collector", "mask"].tolist() == [True, True, False, False]
    assert second["collector", "traj_ids"].tolist() == [0, 1, -1, -1]
    assert third["collector", "traj_ids"].tolist() == [1] * 4, "the episode goes on"
    assert collector.stats().frames == 10


def test_the_switch() -> None:
    switch = Interruptor()
    collector = count(interruptor=switch)
    assert collector.next()["collector", "mask"].all()
    switch.stop_collection()
    assert collector.next()["collector", "mask"].tolist() == [True, False, False, False]
    switch.start_collection()
    assert observed(collector.next()) == [0, 1, 2, 3]
    assert collector.stats().frames == 9


# ---------------------------------------------------------------------- shapes


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (2, 1, 2)])
def test_batch_shapes(shape: tuple[int, ...]) -> None:
    env = IdRows(shape)
    rows = env.batch_size.numel()
    collector = SyncDataCollector(env, Const(), frames_per_batch=4 * rows)
    batch = collector.next()
    assert collector.batch_size == batch.batch_size == (*shape, 4)
    assert batch.names == [*[None] * len(shape), "time"]
    assert batch["next", "reward"].shape == (*shape, 4, 1)
    assert batch["observation"].reshape(rows, 4, 3)[:, 0, 0].tolist() == list(range(rows))


def test_h04_a_reward_of_one_element_is_a_number() -> None:
    class Arrays(Count):
        def step(self, action: Any) -> Any:
            observation, reward, terminated, truncated, info = super().step(action)
            return observation, torch.tensor([reward]).numpy(), torch.tensor([terminated]).numpy(), truncated, info

    for env in (GymEnv(Arrays(2)), SerialEnv(1, lambda: Arrays(2))):
        batch = count(env).next()
        assert batch["next", "reward"].shape == (*env.batch_size, 4, 1)
        assert batch["next", "reward"].flatten().tolist() == [1] * 4
        assert batch["next", "terminated"].flatten().tolist() == [False, True, False, True]
