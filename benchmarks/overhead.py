"""What the loop itself costs: microseconds per column (one step of all envs), with an env and a policy that cost nothing.

The env returns the same objects at each step; its episodes never end, or all envs' end every 20 steps. The policy returns one
tensor, the same each time. The hand-written loop is `ceiling.hand_loop` over the same envs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from ceiling import hand_loop
from pairs import SIZES, Pair, make_rows, plain_loop, reap_loop

ENDLESS, SHORT = "reap/Free-v0", "reap/FreeShort-v0"
EPISODE = 20


class FreeEnv(gym.Env[Any, Any]):
    """Costs nothing: the spaces of CartPole, and the same answer to every action.

    Args:
        episode: steps of an episode; it never ends if None.
    """

    observation_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, episode: int | None = None) -> None:
        observation = np.zeros(4, np.float32)
        self._first = (observation, {})
        self._middle, self._last = (observation, 1.0, False, False, {}), (observation, 1.0, True, False, {})
        self._episode = -1 if episode is None else episode
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._steps = 0
        return self._first

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return self._last if self._steps == self._episode else self._middle


def register() -> None:
    """Make the envs known to `gymnasium.make`, without wrappers."""
    for name, episode in ((ENDLESS, None), (SHORT, EPISODE)):
        gym.register(name, FreeEnv, order_enforce=False, disable_env_checker=True, kwargs={"episode": episode})


class FreePolicy:
    """The same actions each time: one-hot int64 `[2]` for one env, `[E, 2]` for `E`."""

    def __init__(self, *shape: int) -> None:
        self._action = torch.nn.functional.one_hot(torch.zeros(shape, dtype=torch.int64), 2)

    def __call__(self, observation: torch.Tensor) -> torch.Tensor:
        return self._action


def pairs() -> Iterator[Pair]:
    register()
    for name, claim in ((ENDLESS, "episodes never end"), (SHORT, f"episodes end every {EPISODE} steps")):
        for envs, columns in SIZES:
            rows = partial(make_rows, envs, partial(gym.make, name))
            ours = partial(reap_loop, rows, partial(FreePolicy, *(() if envs == 1 else (envs,))), envs * columns)
            baseline = partial(plain_loop, lambda E=envs, T=columns, env_id=name: hand_loop(E, T, FreePolicy(E), env_id))
            yield Pair(claim, "reap", envs, ours, baseline)
