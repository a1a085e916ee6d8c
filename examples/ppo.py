"""PPO on CartPole-v1, in one file: collect, advantages, update. Stops when solved, or at `--total-frames`.

Solved: the mean return of the last 100 episodes is 475 or more. The policy samples its actions here as it does in training.

    python examples/ppo.py                          # seed 1, writes ppo_cartpole.png
    python examples/ppo.py --seed 2 --out two.png
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import gymnasium as gym
import numpy as np
import torch
import tyro
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.distributions import Categorical

from reap.collectors import SyncDataCollector
from reap.envs import SerialEnv
from reap.progress import progress

ENV, SOLVED = "CartPole-v1", 475.0


@dataclass
class Args:
    seed: int = 1
    total_frames: int = 200_000
    """Budget of env steps."""
    out: Path = Path("ppo_cartpole.png")
    """Where the learning curve goes."""
    require_solved: bool = True
    """Exit with 1 when the budget ends before CartPole is solved."""
    num_envs: int = 8
    num_steps: int = 64
    """Steps of each env between two updates."""
    epochs: int = 10
    minibatches: int = 4
    learning_rate: float = 1e-3
    """Falls linearly to 0 at the end of the budget."""
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    entropy_weight: float = 0.0
    value_weight: float = 0.5
    max_grad_norm: float = 0.5
    throughput_seconds: float = 0.5
    """Length of each of the timings of the collector and of the hand-written loop; 0 leaves them out."""


class Agent(nn.Module):
    """Called by the collector with the observations; whatever it returns stands in the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = mlp(2, last_gain=0.01)
        self.critic = mlp(1, last_gain=1.0)

    def policy(self, observation: Tensor) -> Categorical:
        return Categorical(logits=self.actor(observation), validate_args=False)

    def forward(self, observation: Tensor) -> dict[str, Tensor]:
        policy = self.policy(observation)
        action = policy.sample()
        return {"action": action, "log_prob": policy.log_prob(action)}


def mlp(outputs: int, last_gain: float) -> nn.Sequential:
    layers = [nn.Linear(4, 64), nn.Linear(64, 64), nn.Linear(64, outputs)]
    for layer, gain in zip(layers, (2**0.5, 2**0.5, last_gain), strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


@torch.no_grad()
def advantages(agent: Agent, batch: TensorDictBase, gamma: float, lambda_: float) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimates and value targets, both [E, T].

    An episode that terminated has no future. One that was truncated has: the value of its true last observation, which
    stands under "next". Neither passes advantages on to the episode that follows it in the same row.
    """
    value = agent.critic(batch["observation"])  # [E, T, 1]
    following = agent.critic(batch["next", "observation"]) * ~batch["next", "terminated"]
    delta = batch["next", "reward"] + gamma * following - value
    goes_on = gamma * lambda_ * ~batch["next", "done"]
    advantage = torch.zeros_like(delta)
    last = torch.zeros_like(delta[:, 0])
    for t in reversed(range(delta.shape[1])):
        advantage[:, t] = last = delta[:, t] + goes_on[:, t] * last
    return advantage.squeeze(-1), (advantage + value).squeeze(-1)


def update(agent: Agent, optimizer: torch.optim.Optimizer, batch: TensorDictBase, args: Args) -> None:
    advantage, target = (value.reshape(-1) for value in advantages(agent, batch, args.gamma, args.gae_lambda))
    observation, action, old_log_prob = (batch[key].flatten(0, 1) for key in ("observation", "action", "log_prob"))
    for _ in range(args.epochs):
        for rows in torch.randperm(len(action)).chunk(args.minibatches):
            policy = agent.policy(observation[rows])
            ratio = (policy.log_prob(action[rows]) - old_log_prob[rows]).exp()
            weight = advantage[rows]
            weight = (weight - weight.mean()) / (weight.std() + 1e-8)
            gain = torch.min(ratio * weight, ratio.clamp(1 - args.clip, 1 + args.clip) * weight).mean()
            error = (agent.critic(observation[rows]).squeeze(-1) - target[rows]).square().mean()
            loss = args.value_weight * error - gain - args.entropy_weight * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()
