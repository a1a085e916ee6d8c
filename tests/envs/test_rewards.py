"""Rewards of several numbers: of envs with several objectives, which tell their shape by `reward_space`."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from reap import SyncDataCollector, check_env_specs
from reap.envs import GymEnv, ParallelEnv, SerialEnv
from reap.errors import SpecMismatch


class Objectives(gym.Env[Any, Any]):
    """Two objectives: the step, and minus the step; an episode has three steps."""

    observation_space = spaces.Box(-9, 9, (2,), np.float32)
    action_space = spaces.Discrete(2)
    reward_space = spaces.Box(-9, 9, (2,), np.float64)

    def __init__(self, form: Any = np.array) -> None:
        self.form, self.steps = form, 0

    def _observed(self) -> Any:
        return np.full(2, self.steps, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return self._observed(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self._observed(), self.form([self.steps, -self.steps]), self.steps == 3, False, {}


class Untold(Objectives):
    reward_space = None  # pyright: ignore[reportAssignmentType]


class InDicts(Objectives):
    observation_space = spaces.Dict({"place": spaces.Box(-9, 9, (2,), np.float32)})  # pyright: ignore[reportAssignmentType]

    def _observed(self) -> Any:
        return {"place": super()._observed()}


REWARDS = [[1, -1], [2, -2], [3, -3], [1, -1]]


@pytest.mark.parametrize("form", [np.array, list, np.float32], ids=["array", "list", "float32"])
@pytest.mark.parametrize("kind", [Objectives, InDicts])
def test_the_shape_of_a_reward_is_kept(kind: Any, form: Any) -> None:
    make = (lambda values: np.array(values, np.float32)) if form is np.float32 else form
    env = GymEnv(gym.wrappers.TimeLimit(kind(make), 9))
    assert env.reward_spec.shape == (2,)
    check_env_specs(env)
    with SyncDataCollector(env, None, frames_per_batch=4) as collector:
        batch = collector.next()
        episodes = collector.stats().episodes
    assert batch["next", "reward"].dtype == torch.float32
    assert batch["next", "reward"].tolist() == REWARDS
    assert [(episode.reward, episode.length) for episode in episodes] == [(0.0, 3)]  # the sum over both objectives


@pytest.mark.parametrize(
    "make",
    [
        lambda: SerialEnv(2, Objectives),
        lambda: GymEnv(gym.vector.SyncVectorEnv([Objectives, Objectives])),
        pytest.param(lambda: ParallelEnv(2, Objectives), marks=pytest.mark.timeout(60)),
    ],
    ids=["serial", "vector", "parallel"],
)
def test_rows(make: Any) -> None:
    with make() as env, SyncDataCollector(env, None, frames_per_batch=8) as collector:
        assert collector.next()["next", "reward"].tolist() == [REWARDS, REWARDS]


@pytest.mark.parametrize("form", [np.array, list])
@pytest.mark.parametrize("rows", [0, 2])
def test_an_env_that_does_not_tell(rows: int, form: Any) -> None:
    env = SerialEnv(rows, lambda: Untold(form)) if rows else GymEnv(Untold(form))
    with (
        SyncDataCollector(env, None, frames_per_batch=8) as collector,
        pytest.raises(SpecMismatch, match="expected one number, found.*says so by reward_space, a Box of their shape"),
    ):
        collector.next()


@pytest.mark.parametrize("rows", [0, 2])
@pytest.mark.parametrize("form", [lambda values: values[0], lambda values: np.array([*values, 1.0])], ids=["one", "three"])
def test_a_reward_of_another_shape(rows: int, form: Any) -> None:
    env = SerialEnv(rows, lambda: Objectives(form)) if rows else GymEnv(Objectives(form))
    with (
        SyncDataCollector(env, None, frames_per_batch=8) as collector,
        pytest.raises(SpecMismatch, match=r"env.step: 'reward': expected shape \(2,\), dtype float32, found"),
    ):
        collector.next()
