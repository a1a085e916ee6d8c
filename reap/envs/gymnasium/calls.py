"""`GymCalls`: the loop's calls to one gymnasium env."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym

from reap.envs.gymnasium.first_check import check_reset, check_step, step_values
from reap.specs.fits import one_flag, one_number

Env = gym.Env[Any, Any]


class GymCalls:
    """The loop's calls to one env: its own `reset` and `step`, unless a call has more to do.

    The first reset and the first step are checked against the env's space, and a seed is passed to the next reset. After
    that, these calls replace themselves by the env's bare methods.

    Attributes:
        env: the env.
        reset: starts an episode.
        step: takes an action.
        take_reward: checks a reward and returns it in writable form.
        refuses_bounds: numbers outside the bounds of a Box are an error in the first reset and the first step.
    """

    def __init__(self, env: Env) -> None:
        self.env = env
        self.reset: Callable[[], Any] = self._first_reset
        self.step: Callable[[Any], Any] = self._first_step
        self._space = env.observation_space
        self._checked = False
        self.take_reward: Callable[[Any], Any] = one_number
        self._begin: Callable[..., Any] = env.reset
        self.refuses_bounds = False
        self._seed: int | None = None

    def expect(self, space: gym.Space[Any]) -> None:
        """Check against this space instead of the env's own."""
        self._space, self._checked, self.step = space, False, self._first_step
        self.seed(self._seed)

    def seed(self, seed: int | None) -> None:
        """Pass the seed to the env at its next reset; None withdraws an unused one."""
        self._seed, self.reset = seed, self._first_reset

    def reset_by(self, begin: Callable[..., Any]) -> None:
        """Start the next episode with this function, instead of the env's own `reset`, and each later one with a seed."""
        self._begin, self.reset = begin, self._first_reset

    @property
    def pending_seed(self) -> int | None:
        """The seed for the next reset."""
        return self._seed

    def _first_reset(self) -> Any:
        result = self._begin() if self._seed is None else self._begin(seed=self._seed)
        if not self._checked:
            check_reset(result, self._space, bounds=self.refuses_bounds)
        self._checked, self._seed, self.reset = True, None, self.env.reset
        return result

    def _first_step(self, action: Any) -> Any:
        result = self.env.step(action)
        has_numbers = check_step(result, self._space, self.take_reward, bounds=self.refuses_bounds)
        self.step = self.env.step if has_numbers else self._flat_step
        return result if has_numbers else self._flat(result)

    def _flat_step(self, action: Any) -> Any:
        return self._flat(self.env.step(action))

    def _flat(self, result: Any) -> Any:
        """The result of a step, with a reward and flags that are arrays of one element replaced by numbers."""
        observation, reward, terminated, truncated, info = step_values(result)
        terminated, truncated = one_flag(terminated, "terminated"), one_flag(truncated, "truncated")
        return observation, self.take_reward(reward), terminated, truncated, info
