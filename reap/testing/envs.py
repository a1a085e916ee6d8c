"""Gymnasium envs whose frames say where they belong.

All of them except `Noise` are deterministic, take any action, and count their resets in `resets`.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

Step = tuple[Any, Any, bool, bool, dict[str, Any]]

ANY_NUMBER = spaces.Box(-1e6, 1e6, (1,), np.float32)
"""An action space that is large enough for all actions of tests."""


class ToyEnv(gym.Env[Any, Any]):
    """Counts resets and steps; a subclass defines the observation and the end of an episode."""

    observation_space: spaces.Space[Any] = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space: spaces.Space[Any] = ANY_NUMBER

    def __init__(self) -> None:
        self.resets = 0
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        self.resets += 1
        self.steps = 0
        return self.observe(), {}

    def step(self, action: Any) -> Step:
        """Increase the count; the reward is 1."""
        self.steps += 1
        return self.observe(), 1.0, self.is_terminal(), self.is_over_time(), {}

    def observe(self) -> Any:
        """The observation after `steps` steps."""
        return np.array([self.steps], np.float32)

    def is_terminal(self) -> bool:
        """Whether the episode terminates after `steps` steps."""
        return False

    def is_over_time(self) -> bool:
        """Whether the episode is truncated after `steps` steps."""
        return False


class Count(ToyEnv):
    """Observes `start` plus the steps since the last reset.

    Args:
        length: steps after which an episode terminates.
        start: the reset observation.

    Example:
        >>> env = Count(2, start=1)
        >>> env.reset()[0], env.step(0)[:3], env.step(0)[:3]
        (array([1.], dtype=float32), (array([2.], dtype=float32), 1.0, False), (array([3.], dtype=float32), 1.0, True))
    """

    def __init__(self, length: int, start: int = 0) -> None:
        super().__init__()
        self.length = length
        self.start = start

    def observe(self) -> NDArray[np.float32]:
        """Steps since the reset, counted from `start`."""
        return np.array([self.start + self.steps], np.float32)

    def is_terminal(self) -> bool:
        """After `length` steps."""
        return self.steps >= self.length


class CountTL(Count):
    """`Count` with a time limit.

    Args:
        length: steps after which an episode terminates.
        limit: steps after which an episode is truncated.
    """

    def __init__(self, length: int, limit: int) -> None:
        super().__init__(length)
        self.limit = limit

    def is_over_time(self) -> bool:
        """After `limit` steps."""
        return self.steps >= self.limit


class Reuse(Count):
    """`Count` that returns the same array each time, changed in place."""

    def __init__(self, length: int, start: int = 0) -> None:
        super().__init__(length, start)
        self._array = np.zeros(1, np.float32)

    def observe(self) -> NDArray[np.float32]:
        """The array, changed."""
        self._array[0] = self.start + self.steps
        return self._array


class Crash(Count):
    """`Count` that raises in its k-th step, counted over all episodes.

    Args:
        k: the step that raises a RuntimeError, from 1.
        length: steps after which an episode terminates.
    """

    def __init__(self, k: int, length: int = 1_000_000) -> None:
        super().__init__(length)
        self.k = k
        self.all_steps = 0

    def step(self, action: Any) -> Step:
        """Increase the count, or raise."""
        self.all_steps += 1
        if self.all_steps == self.k:
            raise RuntimeError(f"crashed in step {self.k}, as requested")
        return super().step(action)


class Id(ToyEnv):
    """Observes the env, episode and step of a frame, in exact floats.

    The reward is that of `reward`, and so contains the action. Lengths and kinds of ends vary with env and episode.

    Args:
        number: number of the env.

    Example:
        >>> env = Id(3)
        >>> env.reset()[0], env.step(np.array([0.5]))[0]
        (array([3., 0., 0.], dtype=float32), array([3., 0., 1.], dtype=float32))
        >>> Id.length(3, 0), Id.ending(3, 0)
        (7, (True, False))
    """

    observation_space = spaces.Box(0, 1e6, (3,), np.float32)

    def __init__(self, number: int = 0) -> None:
        super().__init__()
        self.number = number

    @staticmethod
    def length(number: int, episode: int) -> int:
        """Steps of an episode: from 1 to 9."""
        return 1 + (5 * number + 5 * episode + number * episode**2) % 9

    @staticmethod
    def ending(number: int, episode: int) -> tuple[bool, bool]:
        """How an episode ends: (terminated, truncated), at least one of them True."""
        return ((True, False), (False, True), (True, True))[(number + 2 * episode) % 3]

    @staticmethod
    def reward(number: int, episode: int, step: int, action: float) -> float:
        """The reward of the step that brings the episode to `step` steps."""
        return 64.0 * number + 8.0 * episode + step + action / 4

    @property
    def episode(self) -> int:
        """The number of the current episode, from 0."""
        return self.resets - 1

    def observe(self) -> NDArray[np.float32]:
        """Env, episode, step."""
        return np.array([self.number, self.episode, self.steps], np.float32)

    def step(self, action: Any) -> Step:
        """Increase the count; the reward contains the action and its place."""
        observation, _, terminated, truncated, info = super().step(action)
        return observation, self.reward(self.number, self.episode, self.steps, float(action[0])), terminated, truncated, info

    def is_terminal(self) -> bool:
        """As `ending` says."""
        return self._is_over() and self.ending(self.number, self.episode)[0]

    def is_over_time(self) -> bool:
        """As `ending` says."""
        return self._is_over() and self.ending(self.number, self.episode)[1]

    def _is_over(self) -> bool:
        return self.steps >= self.length(self.number, self.episode)


class KeepActions(Count):
    """`Count` that keeps the action objects it is given, in `actions`."""

    def __init__(self, length: int, action_space: spaces.Space[Any] = ANY_NUMBER) -> None:
        super().__init__(length)
        self.action_space = action_space
        self.actions: list[Any] = []

    def step(self, action: Any) -> Step:
        """Increase the count, and keep the action."""
        self.actions.append(action)
        return super().step(action)


class DictCount(Count):
    """`Count` with observations of several kinds: `place`, `image`, and `agent` with `level` (a choice) and `bits`."""

    observation_space = spaces.Dict(
        {
            "place": spaces.Box(-1e6, 1e6, (2,), np.float64),
            "image": spaces.Box(0, 255, (12, 12, 3), np.uint8),
            "agent": spaces.Dict({"level": spaces.Discrete(4), "bits": spaces.MultiBinary(3)}),
        }
    )

    def observe(self) -> Any:
        """The count in each of its kinds."""
        count = self.start + self.steps
        return {
            "place": np.array([count, -count], np.float64),
            "image": np.full((12, 12, 3), count % 256, np.uint8),
            "agent": {"level": count % 4, "bits": np.array([count >> i & 1 for i in range(3)], np.int8)},
        }


class DiscreteCount(Count):
    """`Count` whose observation and action are choices among five; the reward is the action."""

    observation_space = spaces.Discrete(5)
    action_space = spaces.Discrete(5)

    def observe(self) -> Any:
        """The count, modulo 5."""
        return (self.start + self.steps) % 5

    def step(self, action: Any) -> Step:
        """Increase the count; the reward is the action."""
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float(action), terminated, truncated, info


class Masked(Count):
    """`Count` that allows only the actions of `allowed`, and raises for any other.

    It observes `{"count", "action_mask"}`. When an episode is over, no action is allowed.

    Args:
        length: steps after which an episode terminates.
        actions: number of actions.
    """

    def __init__(self, length: int, actions: int = 4) -> None:
        super().__init__(length)
        self.action_space = spaces.Discrete(actions)
        count = spaces.Box(0, 1e6, (1,), np.float32)
        self.observation_space = spaces.Dict({"count": count, "action_mask": spaces.MultiBinary(actions)})
        self._actions = actions

    def allowed(self, step: int) -> list[bool]:
        """Which actions are allowed after `step` steps: one or two of them."""
        chosen = {step % self._actions, (3 * step + 1) % self._actions}
        return [action in chosen and step < self.length for action in range(self._actions)]

    def observe(self) -> Any:
        """The count, and the mask."""
        return {"count": super().observe(), "action_mask": np.array(self.allowed(self.steps), np.int8)}

    def step(self, action: Any) -> Step:
        """Increase the count, or raise ValueError for an action that is not allowed."""
        if not self.allowed(self.steps)[action]:
            raise ValueError(f"action {action} after {self.steps} steps, when only {self.allowed(self.steps)} are allowed")
        return super().step(action)


class Noise(ToyEnv):
    """Random observations that depend on the action and on all earlier ones; episodes end at random.

    Args:
        size: numbers in an observation.
        actions: number of actions.
        survival: probability that an episode continues after a step.
    """

    def __init__(self, size: int, actions: int = 3, survival: float = 0.9) -> None:
        super().__init__()
        self.observation_space = spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self.action_space = spaces.Discrete(actions)
        self._survival = survival
        self._state = np.zeros(size, np.float32)
        self._chance = 0.0

    def observe(self) -> NDArray[np.float32]:
        """The previous state, damped, plus noise."""
        kept = self._state * np.float32(0.5 if self.steps else 0.0)
        self._state = kept + self.np_random.standard_normal(self._state.shape, np.float32)
        self._chance = float(self.np_random.random())
        return self._state.copy()

    def step(self, action: Any) -> Step:
        """Move the state by the action; the reward is its first number."""
        self._state = self._state + np.float32(action)
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float(observation[0]), terminated, truncated, info

    def is_terminal(self) -> bool:
        """At random, in two of three cases."""
        return self._chance > self._survival and self._chance < 1 - (1 - self._survival) / 3

    def is_over_time(self) -> bool:
        """At random, in one of three cases."""
        return self._chance >= 1 - (1 - self._survival) / 3
