"""A recurrent DQN on CartPole-v1 whose velocities are hidden, in one file: the loop trains on slices of episodes.

The best action does not follow from positions alone: the policy has to remember. Solved: the mean return of the last 100
training episodes (which include random actions) is 300 or more.

    python examples/recurrent_dqn.py --seed 2
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
import tyro
from tensordict import TensorDictBase
from torch import Tensor, nn

from reap import GymEnv, LazyTensorStorage, ReplayBuffer, SerialEnv, SliceSampler, SyncDataCollector, progress

SOLVED, WIDTH = 300.0, 64
SCALE = np.array([1.0, 10.0], np.float32)
"""Metres and tenths of radians: numbers of about one."""


@dataclass
class Args:
    seed: int = 1
    total_frames: int = 200_000
    num_envs: int = 8
    frames_per_batch: int = 128
    updates_per_batch: int = 16
    num_slices: int = 64
    slice_len: int = 8
    """No longer than the shortest episode, because a slice is within one."""
    lambda_: float = 0.9
    buffer_size: int = 100_000
    random_frames: int = 2_000
    exploration_frames: int = 30_000
    """Frames over which the share of random actions falls from 1 to 0.05."""
    learning_rate: float = 1e-3
    gamma: float = 0.99
    target_every: int = 200
    """Updates between two copies of the weights to the target network."""


class Positions(gym.ObservationWrapper):
    """CartPole that shows the cart's position and the pole's angle, not their velocities."""

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def observation(self, observation: Any) -> Any:
        return observation[[0, 2]] * SCALE


class Values(nn.Module):
    """Values of both actions, from the observations so far in the episode."""

    def __init__(self) -> None:
        super().__init__()
        self.memory, self.head = nn.GRUCell(2, WIDTH), nn.Linear(WIDTH, 2)

    def unroll(self, observation: Tensor, hidden: Tensor) -> Tensor:
        """Values [B, T, 2] of slices [B, T, 2] that start with this memory [B, WIDTH]."""
        steps = []
        for seen in observation.unbind(1):
            hidden = self.memory(seen, hidden)
            steps.append(self.head(hidden))
        return torch.stack(steps, 1)


class Agent(nn.Module):
    """Called by the collector with the observation and the memory, which it carries from frame to frame of an episode."""

    initial_state: ClassVar = {"hidden": (WIDTH,)}

    epsilon: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.values = Values()
        self.register_buffer("epsilon", torch.ones(()))

    def forward(self, observation: Tensor, hidden: Tensor) -> dict[Any, Tensor]:
        hidden = self.values.memory(observation, hidden)
        best = self.values.head(hidden).argmax(-1)
        is_random = torch.rand(best.shape) < self.epsilon
        return {"action": torch.where(is_random, torch.randint_like(best, 2), best), ("next", "hidden"): hidden}


def loss(values: Values, target: Values, slices: TensorDictBase, args: Args) -> Tensor:
    """Squared error on slices [B, T], whose memory starts as it was when they were collected.

    The targets are lambda-returns (Sutton and Barto 2018, 12.1) over the slice, with the values of double DQN.
    """
    begin = slices["hidden"][:, 0]
    # One step more than the slice: the observation after its end.
    seen = torch.cat([slices["observation"], slices["next", "observation"][:, -1:]], 1)
    found = values.unroll(seen, begin)
    with torch.no_grad():
        best = found[:, 1:].argmax(-1, keepdim=True)
        following = target.unroll(seen, begin)[:, 1:].gather(-1, best)
        wanted, future = torch.empty_like(following), following[:, -1]
        for t in reversed(range(args.slice_len)):
            goes_on = args.gamma * ~slices["next", "terminated"][:, t]
            future = slices["next", "reward"][:, t] + goes_on * following[:, t].lerp(future, args.lambda_)
            wanted[:, t] = future
    return (found[:, :-1].gather(-1, slices["action"].unsqueeze(-1)) - wanted).square().mean()


def make_buffer(args: Args) -> ReplayBuffer:
    """A buffer that keeps rows and time apart, and samples slices of episodes."""
    return ReplayBuffer(
        storage=LazyTensorStorage(args.buffer_size, ndim=2),
        sampler=SliceSampler(slice_len=args.slice_len, traj_key=("collector", "traj_ids")),
        transform=lambda frames: frames.view(-1, args.slice_len),
        batch_size=args.num_slices * args.slice_len,
    )


def train(agent: Agent, args: Args) -> tuple[int | None, float]:
    """Return the frames at which it was solved, or None, and the mean of the last 100 returns."""
    values, target = agent.values, Values()
    target.load_state_dict(values.state_dict())
    optimizer = torch.optim.Adam(values.parameters(), lr=args.learning_rate, fused=True)
    buffer = make_buffer(args)
    collector = SyncDataCollector(
        SerialEnv(args.num_envs, lambda: GymEnv(Positions(), categorical_action_encoding=True)),
        agent,
        frames_per_batch=args.frames_per_batch,
        total_frames=args.total_frames,
        init_random_frames=args.random_frames,
        replay_buffer=buffer,
    )
    updates, stats = 0, collector.stats()
    with collector:
        collector.set_seed(args.seed)
        for _ in progress(collector, title=f"recurrent DQN · seed {args.seed}"):
            stats = collector.stats()
            if stats.finished_episodes >= 100 and stats.recent_returns.mean >= SOLVED:
                return stats.frames, stats.recent_returns.mean
            agent.epsilon.fill_(max(0.05, 1 - 0.95 * stats.frames / args.exploration_frames))
            for _ in range(args.updates_per_batch if stats.frames > args.random_frames else 0):
                error = loss(values, target, buffer.sample(), args)
                optimizer.zero_grad()
                error.backward()
                nn.utils.clip_grad_norm_(values.parameters(), max_norm=10.0)
                optimizer.step()
                updates += 1
                if updates % args.target_every == 0:
                    target.load_state_dict(values.state_dict())
    return None, stats.recent_returns.mean


def main() -> None:
    args = tyro.cli(Args, description=__doc__)
    torch.set_num_threads(1)  # the network is small: more threads only wait for each other
    torch.manual_seed(args.seed)
    solved_at, mean = train(Agent(), args)
    print(f"seed {args.seed}: solved at frame {solved_at}; last 100 returns {mean:.1f}")


if __name__ == "__main__":
    main()
