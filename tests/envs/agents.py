"""Envs with groups of agents: of torchrl, as those of VMAS and BenchMARL look, and of PettingZoo."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from pettingzoo import ParallelEnv
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Bounded, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase


class Team(EnvBase):
    """Three agents in the group `"agents"`, whose observations are the step; a step's reward is each agent's action.

    Args:
        batch_size: of the env.
        length: steps of an episode.
        flags: the group has done flags too.
    """

    n = 3

    def __init__(self, batch_size: tuple[int, ...] = (), *, length: int = 4, flags: bool = False) -> None:
        super().__init__(batch_size=torch.Size(batch_size))
        self.length, self.flags = length, flags
        group = (*batch_size, self.n)
        agents = Composite(observation=Unbounded((*group, 2)), shape=group)
        self.observation_spec = Composite(agents=agents, state=Unbounded((*batch_size, 1)), shape=batch_size)
        self.action_spec = Composite(agents=Composite(action=Bounded(-1, 1, (*group, 1)), shape=group), shape=batch_size)
        self.reward_spec = Composite(agents=Composite(reward=Unbounded((*group, 1)), shape=group), shape=batch_size)
        flag, own = Categorical(2, (*batch_size, 1), dtype=torch.bool), Categorical(2, (*group, 1), dtype=torch.bool)
        below = {"agents": Composite(done=own, terminated=own, truncated=own, shape=group)} if flags else {}
        self.done_spec = Composite(done=flag, terminated=flag, **below, shape=batch_size)
        self.seen: list[torch.Size] = []
        """Batch sizes of the group in the TensorDicts that the env was given."""
        self.steps = torch.zeros(batch_size, dtype=torch.int64)

    def _observed(self) -> TensorDictBase:
        group = (*self.batch_size, self.n)
        steps = self.steps.float().unsqueeze(-1)
        agents = TensorDict({"observation": steps.unsqueeze(-1).expand(*group, 2).clone()}, group)
        done = (self.steps >= self.length).unsqueeze(-1)
        if self.flags:
            own = done.unsqueeze(-1).expand(*group, 1)
            agents.update({"done": own.clone(), "terminated": own.clone(), "truncated": torch.zeros_like(own)})
        return TensorDict({"agents": agents, "state": steps, "done": done, "terminated": done.clone()}, self.batch_size)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        none = torch.zeros_like(self.steps)
        self.steps = none if mask is None else torch.where(mask.view(self.batch_size), none, self.steps)
        return self._observed()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.seen.append(tensordict["agents"].batch_size)
        self.steps = self.steps + 1
        result = self._observed()
        result["agents", "reward"] = tensordict["agents", "action"].clone()
        return result

    def _set_seed(self, seed: int | None) -> None:
        pass


class Walkers(ParallelEnv):
    """`red_0`, `red_1` and `blue`: an agent's observation is (its number, steps); its reward the action that it took.

    Args:
        lives: steps after which each agent has terminated; 0: when it is cut at `length`.
        length: steps after which all are cut.
        births: steps after which each agent is there.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "walkers"}
    possible_agents: ClassVar[list[str]] = ["red_0", "red_1", "blue"]

    def __init__(
        self, lives: tuple[int, int, int] = (0, 0, 0), length: int = 5, births: tuple[int, int, int] = (0, 0, 0)
    ) -> None:
        self.lives, self.length = dict(zip(self.possible_agents, lives, strict=True)), length
        self.births = dict(zip(self.possible_agents, births, strict=True))
        self.steps, self.seeds = 0, list[int | None]()
        self.taken: list[dict[str, Any]] = []

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(0, 100, (2,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3)

    def state(self) -> np.ndarray[Any, Any]:
        return np.full(2, self.steps, np.float32)

    def _observe(self, agent: str) -> np.ndarray[Any, Any]:
        return np.array([self.possible_agents.index(agent), self.steps], np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.seeds.append(seed)
        self.agents, self.steps = [agent for agent in self.possible_agents if not self.births[agent]], 0
        return {agent: self._observe(agent) for agent in self.agents}, {agent: {"steps": 0} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        self.taken.append(dict(actions))
        self.steps += 1
        born = [agent for agent in self.possible_agents if self.births[agent] == self.steps]
        actions = {**actions, **dict.fromkeys(born, 0)}
        there = [*self.agents, *born]
        terminated = {agent: self.steps == self.lives[agent] for agent in there}
        truncated = dict.fromkeys(there, self.steps >= self.length)
        self.agents = [agent for agent in there if not (terminated[agent] or truncated[agent])]
        return (
            {agent: self._observe(agent) for agent in there},
            {agent: float(actions[agent]) for agent in there},
            terminated,
            truncated,
            {agent: {"steps": self.steps} for agent in there},
        )

    def render(self) -> None:
        pass

    def close(self) -> None:
        pass
