"""An env whose steps cannot be told apart by what it observes: what follows what is known from the writes alone."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Unseen(gym.Env[Any, Any]):
    """Observes nothing, and gives as reward the number of the step, from 0 on; it never ends."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Box(0, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.zeros(1, np.float32), float(self.steps - 1), False, False, {}


class WithoutIds:
    """A postproc that drops the ids; it raises in its k-th call, counted from 0."""

    def __init__(self, failing: int = -1) -> None:
        self.failing, self.calls = failing, 0

    def __call__(self, batch: Any) -> Any:
        self.calls += 1
        if self.calls - 1 == self.failing:
            raise LookupError("no such key")
        return batch.exclude("collector")


def steps_of_slices(buffer: Any, length: int) -> set[tuple[int, ...]]:
    """The steps in each slice of a sample."""
    rewards = buffer.sample(200 * length)["next", "reward"].view(-1, length)
    return {tuple(map(int, slice_)) for slice_ in rewards.tolist()}
