"""Envs that every algorithm learns in seconds, for gymnasium and for PettingZoo."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv


class Reach(gymnasium.Env[Any, Any]):
    """Move along a line to its middle and stay there: the reward is 1 in the middle and 0 one unit away.

    An episode has 10 steps; it ends before that two units away. Random actions earn about 4, good ones about 9.
    """

    observation_space = Box(-2, 2, (1,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)

    def __init__(self) -> None:
        self.place = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = float(self.np_random.uniform(-1, 1))
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place = float(np.clip(self.place + 0.4 * self.pushed(action), -2, 2))
        return self._seen(), max(0.0, 1 - abs(self.place)), abs(self.place) >= 2, False, {}

    def pushed(self, action: Any) -> float:
        return float(action[0])

    def _seen(self) -> Any:
        return np.array([self.place], np.float32)


class ReachBySteps(Reach):
    """The same with steps to the left, nowhere and to the right."""

    action_space = Discrete(3)

    def pushed(self, action: Any) -> float:
        return float(action) - 1


class Recall(gymnasium.Env[Any, Any]):
    """The first of 5 observations shows which action is right in all of them: random actions earn 2.5, memory earns 5."""

    observation_space = Box(-1, 1, (2,), np.float32)
    action_space = Discrete(2)

    def __init__(self) -> None:
        self.cue = self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.cue, self.steps = int(self.np_random.integers(2)), 0
        return np.eye(2, dtype=np.float32)[self.cue], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.zeros(2, np.float32), float(action == self.cue), self.steps == 5, False, {}


class Team(ParallelEnv[str, Any, Any]):
    """Two agents, each of which moves along a line of its own; an episode has 10 steps. See `Reach`."""

    metadata = {"name": "team"}  # noqa: RUF012
    possible_agents = ["agent_0", "agent_1"]  # noqa: RUF012
    render_mode = None

    def observation_space(self, agent: str) -> Any:
        return Reach.observation_space

    def action_space(self, agent: str) -> Any:
        return ReachBySteps.action_space

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents = list(self.possible_agents)
        self.steps = 0
        self.lines = {agent: ReachBySteps() for agent in self.agents}
        seen = {agent: line.reset(seed=seed and seed + n)[0] for n, (agent, line) in enumerate(self.lines.items())}
        return seen, {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        self.steps += 1
        results = {agent: self.lines[agent].step(action) for agent, action in actions.items()}
        seen, rewards = ({agent: result[place] for agent, result in results.items()} for place in (0, 1))
        ended = dict.fromkeys(results, self.steps == 10)
        if self.steps == 10:
            self.agents = []
        return seen, rewards, dict.fromkeys(results, False), ended, {agent: {} for agent in results}


for task, limit in ((Reach, 10), (ReachBySteps, 10), (Recall, None)):
    gymnasium.register(f"{task.__name__}-v0", task, max_episode_steps=limit)
