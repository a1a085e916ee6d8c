"""Envs for the tests of vector envs: observations say which env, episode and step they are; misuse raises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers import vector as wrappers
from tensordict import TensorDictBase

from reap import SyncDataCollector
from reap.envs.gymnasium.vector_kinds import HAS_MODES, Mode

AutoresetMode: Any = gym.vector.AutoresetMode if HAS_MODES else Mode
ROWS = 3
MODES: tuple[Any, ...] = tuple(AutoresetMode) if HAS_MODES else ()
# Not by fork, for other tests leave threads; nor by spawn, which torchrl makes the default, and which imports torch each time.
CONTEXT = "forkserver"
needs_modes = pytest.mark.skipif(not HAS_MODES, reason="this gymnasium has no autoreset modes and no reset masks")
KINDS = ("sync", "wrapped", "async")


class Tagged(gym.Env[Any, Any]):
    """Observation = (env, episode, step, a random number); episodes of 2 to 5 steps, ended in turns by both flags.

    A step after the end raises. `info["bonus"]` is there in every other step, `info["final"]` in an episode's last.
    """

    action_space = spaces.Discrete(3)

    def __init__(self, number: int, *, kind: str = "box") -> None:
        self.number, self.kind = number, kind
        self.episode, self.step_number, self.is_over = -1, 0, True
        box = spaces.Box(-1, 1_000_000, (4,), np.int64)
        if kind == "dict":
            self.observation_space: Any = spaces.Dict(
                {"tag": box, "parts": spaces.Tuple((spaces.Discrete(7, start=2), spaces.MultiDiscrete([3, 2])))}
            )
            self.action_space = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(-1, 1, (2,), np.float32)})
        else:
            self.observation_space = box

    def _observe(self) -> Any:
        tag = np.array([self.number, self.episode, self.step_number, self.np_random.integers(1000)])
        if self.kind != "dict":
            return tag
        parts = (np.int64(2 + self.step_number % 7), np.array([self.episode % 3, self.step_number % 2]))
        return {"tag": tag, "parts": parts}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.episode += 1
        self.step_number, self.is_over = 0, False
        return self._observe(), {"bonus": 100.0 + self.episode}

    def step(self, action: Any) -> Any:
        assert not self.is_over, f"env {self.number}: a step after the end of episode {self.episode}"
        self.step_number += 1
        length = 2 + (self.number + self.episode) % 4
        self.is_over = self.step_number >= length
        chosen = int(action["a"]) if self.kind == "dict" else int(action)
        info = {"bonus": float(self.step_number)} if self.step_number % 2 else {}
        if self.is_over:
            info["final"] = np.array([self.number, self.episode])
        reward = 100 * self.number + 10 * self.step_number + chosen
        ends = self.is_over and self.episode % 2 == 0, self.is_over and self.episode % 2 == 1
        return self._observe(), reward, *ends, info


def factories(rows: int = ROWS, kind: str = "box") -> list[Any]:
    return [partial(Tagged, number, kind=kind) for number in range(rows)]


def make_async(env_fns: list[Any], **keywords: Any) -> AsyncVectorEnv:
    return AsyncVectorEnv(env_fns, context=CONTEXT, **keywords)


def make_vector(kind: str, mode: AutoresetMode, *, env_kind: str = "box") -> VectorEnv[Any, Any, Any]:
    """A vector env of tagged envs: plain, in a wrapper that changes nothing, or in processes."""
    if kind == "async":
        return make_async(factories(kind=env_kind), autoreset_mode=mode)
    env = SyncVectorEnv(factories(kind=env_kind), autoreset_mode=mode)
    return env if kind == "sync" else wrappers.TransformReward(env, lambda reward: reward)


class OneGenerator(VectorEnv[Any, Any, Any]):
    """A vector env of its own class that ignores masks: observation = (row, episode, step).

    Episodes of row b have 2 + b steps, or as many as `lengths` says. With SAME_STEP it resets in the step that ends.
    """

    def __init__(self, rows: int = ROWS, mode: AutoresetMode = AutoresetMode.NEXT_STEP, *, lengths: list[int] | None = None):
        self.num_envs = rows
        self.metadata = {"autoreset_mode": mode}
        self.single_observation_space = spaces.Box(-1, 1000, (3,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, rows)
        self.action_space = batch_space(self.single_action_space, rows)
        self.lengths = np.array(lengths or [2 + b for b in range(rows)])
        self.episodes, self.steps = np.full(rows, -1), np.zeros(rows, int)
        self.ended = np.zeros(rows, bool)
        self.full_resets = 0
        self.seeds: list[Any] = []

    def _observe(self) -> Any:
        return np.stack([np.arange(self.num_envs), self.episodes, self.steps], 1).astype(np.float32)

    def _begin(self, rows: Any) -> None:
        self.episodes[rows] += 1
        self.steps[rows] = 0
        self.ended[rows] = False

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.full_resets += 1
        self.seeds.append(seed)
        self._begin(slice(None))
        return self._observe(), {}

    def step(self, actions: Any) -> Any:
        assert self.action_space.contains(actions), actions
        begun = self.ended.copy()
        self.steps[~begun] += 1
        self._begin(begun)
        self.ended = (self.steps >= self.lengths) & ~begun
        reward = np.where(begun, -1000.0, 1.0 + self.steps)
        ended, info = self.ended.copy(), {}
        observation = self._observe()
        if self.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP and ended.any():
            info = {"final_obs": observation, "_final_obs": ended}
            self._begin(ended)
            observation = self._observe()
        return observation, reward, ended, np.zeros(self.num_envs, bool), info


def act(observation: torch.Tensor) -> torch.Tensor:
    """An action that depends on everything in the observation."""
    return observation.sum(-1).long() % 3


def act_on_tag(tag: torch.Tensor) -> dict[Any, torch.Tensor]:
    return {("action", "a"): tag.sum(-1) % 3, ("action", "b"): (tag[..., 1:3].float() / 1000).clamp(-1, 1)}


@contextmanager
def collected(env: Any, policy: Any = act, *, seed: int | None = 7, **options: Any) -> Iterator[SyncDataCollector]:
    """A collector with a seed, closed at the end."""
    with SyncDataCollector(env, policy, **options) as collector:
        if seed is not None:
            collector.set_seed(seed)
        yield collector


def leaves(batch: TensorDictBase) -> dict[Any, torch.Tensor]:
    return dict(batch.items(include_nested=True, leaves_only=True))


def assert_equal(found: TensorDictBase, expected: TensorDictBase) -> None:
    """All keys, dtypes and values of two batches, bit for bit."""
    assert found.batch_size == expected.batch_size
    theirs, ours = leaves(expected), leaves(found)
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        assert ours[key].dtype == value.dtype, key
        assert torch.equal(ours[key], value), (key, ours[key], value)


def ids_of(batch: TensorDictBase) -> torch.Tensor:
    return batch["collector", "traj_ids"]


def valid(batch: TensorDictBase) -> torch.Tensor:
    return batch["collector", "mask"]
