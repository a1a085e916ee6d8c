"""Field cases of collecting in one process (CASES.md, areas A and B), each under its id."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict, TensorDictBase

from reap.collectors import SyncDataCollector
from reap.collectors.utils import split_trajectories
from reap.envs import EnvBase, GymEnv, SerialEnv, step_mdp
from reap.errors import SpecMismatch
from reap.specs import Composite, Unbounded
from reap.testing import (
    BN,
    Const,
    Count,
    CountTL,
    DictPolicy,
    DiscreteCount,
    Id,
    IdRows,
    KeepActions,
    KeepInputs,
    MLPPolicy,
    Reuse,
)


def collect(env: Any, policy: Any, batches: int, **options: Any) -> list[TensorDictBase]:
    with SyncDataCollector(env, policy, **options) as collector:
        return [batch for _, batch in zip(range(batches), collector, strict=False)]


def numbers(tensor: torch.Tensor) -> list[Any]:
    return tensor.squeeze(-1).tolist()


@pytest.mark.parametrize("kind", [Count, Reuse])
@pytest.mark.parametrize("frames", [20, 4])
def test_a01_the_reset_observation_is_at_the_root(kind: type[Count], frames: int) -> None:
    """The last `next` observation is the true one, also of an env that returns the same array each time."""
    batches = collect(kind(5, start=1), Const(), 20 // frames, frames_per_batch=frames)
    batch = torch.cat(batches)
    assert numbers(batch["observation"]) == [1, 2, 3, 4, 5] * 4
    assert numbers(batch["next", "observation"]) == [2, 3, 4, 5, 6] * 4
    assert numbers(batch["next", "done"]) == [False, False, False, False, True] * 4


def test_a02_each_env_restarts_at_its_own_end() -> None:
    env = SerialEnv(2, [lambda: Count(3), lambda: Count(7)])
    (batch,) = collect(env, Const(), 1, frames_per_batch=84)
    assert numbers(batch["observation"]) == [[0, 1, 2] * 14, [0, 1, 2, 3, 4, 5, 6] * 6]


def test_a04_marking_the_last_frame_truncated_keeps_real_ends() -> None:
    (batch,) = collect(Count(5), Const(), 1, frames_per_batch=12, set_truncated=True)
    following = batch["next"]
    assert torch.nonzero(following["done"][:, 0]).flatten().tolist() == [4, 9, 11]
    assert torch.nonzero(following["terminated"][:, 0]).flatten().tolist() == [4, 9]
    assert torch.nonzero(following["truncated"][:, 0]).flatten().tolist() == [11]


@pytest.mark.parametrize("make", [lambda: SerialEnv(4, lambda: Count(6)), lambda: IdRows((4,)), lambda: GymEnv(Count(6))])
def test_a08_a_rollout_does_not_reset_after_its_last_step(make: Any) -> None:
    """Chained rollouts without reset go on from the data that is carried."""
    env = make()
    once = make().rollout(9, lambda td: td.set("action", torch.zeros(env.action_spec.shape)), break_when_any_done=False)
    current = env.reset()
    parts: list[TensorDictBase] = []
    for length in (2, 3, 4):
        part = env.rollout(
            length,
            lambda td: td.set("action", torch.zeros(env.action_spec.shape)),
            auto_reset=False,
            break_when_any_done=False,
            tensordict=current,
        )
        parts.append(part)
        current = step_mdp(part[..., -1])
        if current["done"].any():
            current = env.reset(current.set("_reset", current["done"].clone()))
    assert torch.equal(torch.cat(parts, -1)["observation"], once["observation"])
    assert torch.equal(torch.cat(parts, -1)["next", "observation"], once["next", "observation"])


def test_a08_the_counter_is_at_the_end_after_a_rollout_to_the_end() -> None:
    env = SerialEnv(4, lambda: Count(6))
    env.rollout(6, break_when_any_done=False)
    assert env.get_attribute("steps") == [6, 6, 6, 6]


class FlatDone(EnvBase):
    """Counts to six; `done` and, if wanted, `reward` come without their last dimension."""

    def __init__(self, batch_size: tuple[int, ...] = (), *, flat_reward: bool = False) -> None:
        super().__init__(batch_size=batch_size)
        self.observation_spec = Composite(observation=Unbounded((*batch_size, 1)), shape=batch_size)
        self.action_spec = Unbounded((*batch_size, 1))
        self.flat_reward, self.count = flat_reward, 0

    def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        self.count = 0
        return self._values()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.count += 1
        reward = torch.ones(self.batch_size if self.flat_reward else (*self.batch_size, 1))
        done = torch.full(self.batch_size, self.count == 6)
        return self._values(reward=reward, done=done)

    def _values(self, **values: torch.Tensor) -> TensorDictBase:
        observation = torch.full((*self.batch_size, 1), float(self.count))
        return TensorDict({"observation": observation, **values}, self.batch_size)

    def _set_seed(self, seed: int) -> None:
        pass


@pytest.mark.parametrize("size", [(), (2,), (2, 3)])
def test_a09_done_without_its_last_dimension_is_given_one(size: tuple[int, ...]) -> None:
    (batch,) = collect(FlatDone(size), Const(), 1, frames_per_batch=14 * max(1, int(np.prod(size))))
    assert batch["next", "done"].shape == (*size, 14, 1)
    steps = batch["observation"].reshape(-1, 14)
    assert steps.tolist() == [[0, 1, 2, 3, 4, 5] * 2 + [0, 1]] * len(steps)
    rolled = FlatDone(size).rollout(14, break_when_any_done=False)
    for flag in ("done", "terminated"):
        assert rolled["next", flag].shape == (*size, 14, 1)
    assert torch.equal(rolled["next", "done"], batch["next", "done"])


def test_a09_a_reward_of_a_wrong_shape_is_named_at_once() -> None:
    with pytest.raises(SpecMismatch, match=r"FlatDone\._step.*reward"):
        collect(FlatDone(flat_reward=True), Const(), 1, frames_per_batch=3)


def test_a12_rounding_up_warns_once_with_both_numbers() -> None:
    env = SerialEnv(10, lambda: Count(5))
    with pytest.warns(UserWarning, match=r"145.*150") as caught:
        collector = SyncDataCollector(env, Const(), frames_per_batch=145, total_frames=450)
    assert len(caught) == 1
    with collector:
        assert (collector.requested_frames_per_batch, collector.frames_per_batch) == (145, 150)
        assert [batch.numel() for batch in collector] == [150] * 3


@pytest.mark.parametrize("warm_up", [None, 0, -1, 1, 5, 6, 12])
def test_a13_random_frames_are_rounded_up_to_batches(warm_up: int | None) -> None:
    batches = collect(Count(4), Const(7.0), 4, frames_per_batch=5, init_random_frames=warm_up)
    random = -(-max(0, warm_up or 0) // 5)
    for number, batch in enumerate(batches):
        assert bool((batch["action"] == 7.0).all()) == (number >= random)


def test_a14_keys_are_the_same_in_warm_up() -> None:
    warm, ready = collect(Id(), DictPolicy(), 2, frames_per_batch=6, init_random_frames=6)
    assert set(warm.keys(True, True)) == set(ready.keys(True, True))
    assert not warm["log_prob"].any()
    assert ready["log_prob"].all()


def test_a15_length_and_number_of_batches_agree() -> None:
    env = SerialEnv(16, lambda: Count(5))
    with pytest.warns(UserWarning, match=r"173|300") as caught:
        collector = SyncDataCollector(env, Const(), frames_per_batch=173, total_frames=300)
    assert len(caught) == 2
    with collector:
        assert len(collector) == 2
        assert [batch.numel() for batch in collector] == [176, 176]
        assert list(collector) == []
        assert collector.next() is None


@pytest.mark.parametrize("policy", [Const(), DictPolicy(), BN(1), KeepInputs()])
def test_a18_nothing_requires_grad(policy: torch.nn.Module) -> None:
    """Nor is it an inference tensor: a batch can be trained on, in place too."""
    for batch in collect(SerialEnv(2, lambda: Count(5)), policy, 3, frames_per_batch=8):
        for value in batch.values(True, True):
            assert not value.requires_grad
            assert not value.is_inference()
        observation = batch["observation"].requires_grad_()
        observation.sum().backward()
        batch["next", "reward"].add_(1)


def test_a19_the_end_of_the_budget_closes_nothing() -> None:
    env = GymEnv(Count(5))
    collector = SyncDataCollector(env, Const(), frames_per_batch=5, total_frames=10)
    assert len(list(collector)) == 2
    assert numbers(env.rollout(20)["observation"]) == [0, 1, 2, 3, 4]
    assert not env.closed
    collector.shutdown()
    assert env.closed


def test_a19_steps_of_the_user_between_batches_leave_no_gap_in_an_episode() -> None:
    """The collector begins a new episode, under a new id, when somebody else has used the env."""
    env = GymEnv(Count(9))
    with SyncDataCollector(env, Const(), frames_per_batch=4) as collector:
        first = collector.next()
        env.rollout(3)
        second = collector.next()
    assert numbers(second["observation"]) == [0, 1, 2, 3]
    assert first["collector", "traj_ids"].tolist() == [0] * 4
    assert second["collector", "traj_ids"].tolist() == [1] * 4


def test_a21_no_frame_is_older_than_the_update_before_its_batch() -> None:
    policy = Const(0.0)
    with SyncDataCollector(SerialEnv(3, lambda: Count(5)), policy, frames_per_batch=12) as collector:
        for number, batch in zip(range(5), collector, strict=False):
            assert batch["action"].unique().tolist() == [float(number)]
            policy.w.data.fill_(number + 1)


def test_b04_a_batch_shares_no_memory_with_itself_or_others() -> None:
    """Writing to one leaf changes no other, no other batch, and nothing that is collected later."""
    make = lambda: SerialEnv(2, lambda: Reuse(3))  # noqa: E731
    wanted = [batch.clone() for batch in collect(make(), DictPolicy(), 4, frames_per_batch=14)]
    got: list[TensorDictBase] = []
    with SyncDataCollector(make(), DictPolicy(), frames_per_batch=14) as collector:
        for number, batch in zip(range(4), collector, strict=False):
            for key in batch.keys(True, True):
                assert torch.equal(batch[key], wanted[number][key]), key
                batch[key].fill_(1 if batch[key].dtype is torch.bool else 77)
            got.append(batch)
    for batch in got:
        for value in batch.values(True, True):
            assert bool((value == (1 if value.dtype is torch.bool else 77)).all())


def test_b04_one_step_returns_by_shifting_end_with_the_episode() -> None:
    """`next` is never of the next episode, so values taken from it need no shift."""
    (batch,) = collect(Count(3), Const(), 1, frames_per_batch=12)
    assert torch.equal(batch["next", "observation"], batch["observation"] + 1)


def test_b08_an_interrupted_batch_marks_what_is_missing() -> None:
    class Stop:
        calls = 0

        def collection_stopped(self) -> bool:
            self.calls += 1
            return self.calls in {3, 13}

    env = SerialEnv(2, [lambda: Count(5), lambda: Count(100)])
    with SyncDataCollector(env, Const(), frames_per_batch=20, interruptor=Stop()) as collector:
        first, second, third = collector.next(), collector.next(), collector.next()
        assert collector.stats().frames == 6 + 20 + 20
    assert first["collector", "mask"].tolist() == [[True] * 3 + [False] * 7] * 2
    assert first["collector", "traj_ids"].tolist() == [[0] * 3 + [-1] * 7, [1] * 3 + [-1] * 7]
    assert numbers(first["observation"]) == [[0, 1, 2] + [0] * 7] * 2
    assert numbers(second["observation"]) == [[3, 4, 0, 1, 2, 3, 4, 0, 1, 2], [*range(3, 13)]]
    assert second["collector", "traj_ids"].tolist() == [[0, 0, 2, 2, 2, 2, 2, 3, 3, 3], [1] * 10]
    assert third["collector", "mask"].all()
    split = split_trajectories(first)
    assert split.batch_size == (2, 3)


@pytest.mark.parametrize("size", [(4, 32), (2, 1), (1, 1, 3)])
def test_b09_every_row_of_every_dimension_has_its_own_id(size: tuple[int, ...]) -> None:
    rows = int(np.prod(size))
    with SyncDataCollector(IdRows(size), DictPolicy(), frames_per_batch=rows) as collector:
        batch = collector.next()
        assert collector.stats().frames == rows
    assert batch.batch_size == (*size, 1)
    assert batch["collector", "traj_ids"].reshape(-1).tolist() == list(range(rows))


def test_b13_advantages_need_nothing_that_is_not_in_the_batch() -> None:
    """Two episodes of values 1 and 100, truncated between: the bootstrap is the first's own."""
    (batch,) = collect(CountTL(1000, 4), Const(), 1, frames_per_batch=8)
    value = torch.where(batch["collector", "traj_ids"] == 0, 1.0, 100.0)[:, None]
    # An episode's value goes with its id; `next` frames are of the same episode.
    delta = batch["next", "reward"] + value * ~batch["next", "terminated"] - value
    assert numbers(delta) == [1.0] * 8
    assert torch.nonzero(batch["next", "truncated"][:, 0]).flatten().tolist() == [3, 7]
    assert torch.equal(batch["next", "observation"], batch["observation"] + 1)


@pytest.mark.parametrize("space", [KeepActions(3).action_space, spaces.Discrete(3), spaces.MultiDiscrete([2, 3])])
@pytest.mark.parametrize("count", [None, 2])
def test_envs_that_keep_their_actions_keep_copies(space: spaces.Space, count: int | None) -> None:
    envs = [KeepActions(4, space) for _ in range(count or 1)]
    batches = collect(
        envs[0] if count is None else SerialEnv(count, [lambda e=e: e for e in envs]), None, 5, frames_per_batch=6
    )
    actions = torch.cat(batches, -1)["action"]
    for b, env in enumerate(envs):
        rows = actions if count is None else actions[b]
        assert len(env.actions) == len(rows)
        for kept, row in zip(env.actions, rows, strict=True):
            assert np.asarray(kept).reshape(-1).tolist() == expected_action(space, row)


def expected_action(space: spaces.Space, row: torch.Tensor) -> list[float]:
    if isinstance(space, spaces.Discrete):
        return [int(row.argmax())]
    if isinstance(space, spaces.MultiDiscrete):
        return [int(part.argmax()) for part in row.split(space.nvec.tolist())]
    return row.tolist()


@pytest.mark.parametrize("count", [None, 2])
def test_a_policy_that_keeps_its_inputs_finds_them_unchanged(count: int | None) -> None:
    policy = KeepInputs()
    env = GymEnv(Count(100)) if count is None else SerialEnv(count, lambda: Count(100))
    batch = torch.cat(collect(env, policy, 3, frames_per_batch=5 * (count or 1)), -1)
    row = batch if count is None else batch[0]
    # Column 0 acts with what the probe saw, the same observation.
    assert numbers(row["action"]) == [0, *range(14)]


@pytest.mark.parametrize("indices", [False, True])
def test_choices_are_one_hot_or_indices(indices: bool) -> None:
    policy = MLPPolicy(5, 5)
    act = (lambda obs: policy(torch.nn.functional.one_hot(obs, 5).float())) if indices else None
    env = GymEnv(DiscreteCount(7), categorical_action_encoding=indices)
    (batch,) = collect(env, act, 1, frames_per_batch=14)
    observation, action = batch["observation"], batch["action"]
    if not indices:
        assert (observation.sum(-1) == 1).all()
        observation, action = observation.argmax(-1), action.argmax(-1)
    assert observation.tolist() == [0, 1, 2, 3, 4, 0, 1] * 2
    assert torch.equal(batch["next", "reward"][:, 0], action.float())
