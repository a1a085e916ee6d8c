"""Envs that return what they should not, and calls that name rows in every way."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from reap.collectors import SyncDataCollector
from reap.data import Bounded, Composite, Unbounded
from reap.envs import EnvBase, GymEnv, SerialEnv
from reap.errors import ClosedError, OptionError
from reap.testing import Const, Count


class Sequences(gym.Env[Any, Any]):
    """Reward and flags as lists and tuples of one element."""

    observation_space = spaces.Box(0, 100, (1,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)
    t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.full(1, self.t, np.float32), [[float(self.t)]], [self.t == 3], (False,), {}


@pytest.mark.parametrize("envs", [0, 2])
def test_flags_in_lists_are_read_by_what_is_in_them(envs: int) -> None:
    env = SerialEnv(envs, lambda: GymEnv(Sequences())) if envs else GymEnv(Sequences())
    batch = SyncDataCollector(env, frames_per_batch=6 * max(1, envs)).next()
    assert batch["next", "done"].reshape(-1, 6)[0].tolist() == [False, False, True] * 2
    assert not batch["next", "truncated"].any()
    assert batch["next", "reward"].reshape(-1, 6)[0].tolist() == [1, 2, 3] * 2


@pytest.mark.parametrize("index", [1, [1], np.array([False, True, False]), torch.tensor([1]), [False, True, False], (1,)])
def test_rows_to_reset_by_number_list_or_mask(index: Any) -> None:
    collector = SyncDataCollector(SerialEnv(3, lambda: Count(100)), Const(), frames_per_batch=6)
    collector.next()
    collector.reset(index)
    assert collector.next()["observation"][:, 0, 0].tolist() == [2, 0, 2]


@pytest.mark.parametrize("index", ["a", 0.5, [0.0]])
def test_rows_to_reset_that_are_no_numbers_are_refused(index: Any) -> None:
    collector = SyncDataCollector(SerialEnv(3, lambda: Count(100)), Const(), frames_per_batch=6)
    with pytest.raises(OptionError, match="expected a row, a list of rows or a mask"):
        collector.reset(index)


def test_an_env_that_is_closed_unknown_to_the_collector_is_noticed() -> None:
    env = GymEnv(Count(5))
    collector = SyncDataCollector(env, Const(), frames_per_batch=6)
    collector.next()
    env.close()
    with pytest.raises(ClosedError, match="GymEnv is closed"):
        collector.next()


class Empty(EnvBase):
    """An env without rows."""

    def __init__(self) -> None:
        super().__init__(batch_size=(2, 0))
        self.observation_spec = Composite(observation=Unbounded((2, 0, 3)), shape=(2, 0))
        self.action_spec = Bounded(-1, 1, (2, 0, 1))
        self.reward_spec = Unbounded((2, 0, 1))

    def _reset(self, tensordict: Any) -> Any:
        return self.observation_spec.zero()

    def _step(self, tensordict: Any) -> Any:
        return tensordict


def test_an_env_without_rows_is_refused() -> None:
    with pytest.raises(OptionError, match="at least one row"):
        SyncDataCollector(Empty(), frames_per_batch=6)
