"""`Marked`: the env that `check_collector` runs, and policies whose actions follow from their observations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import nn

from reap.testing.envs import Id, Step


class Marked(Id):
    """`Id` that also observes a random draw, offers its state, and can crash on request.

    Args:
        number: number of the env.
        crash_at: the step, counted over all episodes from 1, that raises a RuntimeError; None for no such step.

    Example:
        >>> env = Marked(3)
        >>> *place, draw = env.reset(seed=0)[0].tolist()
        >>> place, 0 <= draw < 2**20
        ([3.0, 0.0, 0.0], True)
    """

    observation_space = spaces.Box(0, 2.0**20, (4,), np.float32)

    def __init__(self, number: int = 0, crash_at: int | None = None) -> None:
        super().__init__(number)
        self.crash_at = crash_at
        self.all_steps = 0

    def observe(self) -> NDArray[np.float32]:
        """Env, episode, step, draw."""
        return np.append(super().observe(), np.float32(self.np_random.integers(2**20)))

    def step(self, action: Any) -> Step:
        """Increase the count, or raise."""
        self.all_steps += 1
        if self.all_steps == self.crash_at:
            raise RuntimeError(f"crashed in step {self.crash_at}, as requested")
        return super().step(action)

    def state_dict(self) -> dict[str, Any]:
        """Everything it needs to continue."""
        return {"resets": self.resets, "steps": self.steps, "generator": self.np_random.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of `state_dict`."""
        self.resets, self.steps = state["resets"], state["steps"]
        self.np_random.bit_generator.state = state["generator"]


class Told(nn.Module):
    """Acts with half of the step that it observes, plus its only parameter; `seen` is another output, the draw it observes."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.zeros(1))

    def forward(self, observation: torch.Tensor) -> dict[str, torch.Tensor]:
        """The action and the observed draw."""
        return {"action": observation[..., 2:3] / 2 + self.offset, "seen": observation[..., 3:4] + 0 * self.offset}


class Drawing(nn.Module):
    """Acts at random, from torch's generator."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """A number from 0 to 1 for each row."""
        return torch.rand_like(observation[..., :1]) * self.scale
