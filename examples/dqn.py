"""DQN on CartPole-v1, in one file: the collector writes to a replay buffer, the loop samples from it.

Solved: the mean return of the last 100 training episodes (which include random actions) is 400 or more.

    python examples/dqn.py --seed 2
"""

from dataclasses import dataclass

import torch
import tyro
from tensordict import TensorDictBase
from torch import Tensor, nn

from reap import LazyTensorStorage, ReplayBuffer, SerialEnv, SyncDataCollector, evaluate, progress

ENV, SOLVED = "CartPole-v1", 400.0


@dataclass
class Args:
    seed: int = 1
    total_frames: int = 200_000
    num_envs: int = 8
    frames_per_batch: int = 64
    updates_per_batch: int = 16
    batch_size: int = 128
    buffer_size: int = 50_000
    random_frames: int = 2_000
    exploration_frames: int = 20_000
    """Frames over which the share of random actions falls from 1 to 0.05."""
    learning_rate: float = 1e-3
    gamma: float = 0.99
    target_every: int = 200
    """Updates between two copies of the weights to the target network."""


class Agent(nn.Module):
    """Values of both actions; a call by the collector returns the better action, or with probability epsilon a random one."""

    epsilon: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Sequential(nn.Linear(4, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 2))
        self.register_buffer("epsilon", torch.ones(()))

    def forward(self, observation: Tensor) -> Tensor:
        best = self.values(observation).argmax(-1)
        is_random = torch.rand(best.shape) < self.epsilon
        return torch.where(is_random, torch.randint_like(best, 2), best)


def loss(agent: Agent, target: nn.Module, batch: TensorDictBase, gamma: float) -> Tensor:
    """Squared error to the target of double DQN (van Hasselt et al. 2016)."""
    following = batch["next", "observation"]
    with torch.no_grad():
        best = agent.values(following).argmax(-1, keepdim=True)
        future = target(following).gather(-1, best) * ~batch["next", "terminated"]
        wanted = batch["next", "reward"] + gamma * future
    return (agent.values(batch["observation"]).gather(-1, batch["action"].unsqueeze(-1)) - wanted).square().mean()


def train(agent: Agent, args: Args) -> tuple[int | None, float]:
    """Return the frames at which CartPole was solved, or None, and the mean of the last 100 returns."""
    target = Agent().values
    target.load_state_dict(agent.values.state_dict())
    optimizer = torch.optim.Adam(agent.values.parameters(), lr=args.learning_rate, fused=True)
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(args.buffer_size), transform=lambda data: data.reshape(-1), batch_size=args.batch_size
    )
    collector = SyncDataCollector(
        SerialEnv(args.num_envs, ENV, create_env_kwargs={"categorical_action_encoding": True}),
        agent,
        frames_per_batch=args.frames_per_batch,
        total_frames=args.total_frames,
        init_random_frames=args.random_frames,
        replay_buffer=buffer,
    )
    updates, stats = 0, collector.stats()
    with collector:
        collector.set_seed(args.seed)
        for _ in progress(collector, title=f"DQN · {ENV} · seed {args.seed}"):
            stats = collector.stats()
            if stats.finished_episodes >= 100 and stats.recent_returns.mean >= SOLVED:
                return stats.frames, stats.recent_returns.mean
            agent.epsilon.fill_(max(0.05, 1 - 0.95 * stats.frames / args.exploration_frames))
            for _ in range(args.updates_per_batch if stats.frames > args.random_frames else 0):
                error = loss(agent, target, buffer.sample(), args.gamma)
                optimizer.zero_grad()
                error.backward()
                nn.utils.clip_grad_norm_(agent.values.parameters(), max_norm=10.0)
                optimizer.step()
                updates += 1
                if updates % args.target_every == 0:
                    target.load_state_dict(agent.values.state_dict())
    return None, stats.recent_returns.mean


def main() -> None:
    args = tyro.cli(Args, description=__doc__)
    torch.set_num_threads(1)  # the network is small: more threads only wait for each other
    torch.manual_seed(args.seed)
    agent = Agent()
    solved_at, mean = train(agent, args)
    agent.epsilon.zero_()
    env = SerialEnv(10, ENV, create_env_kwargs={"categorical_action_encoding": True})
    greedy = evaluate(env, agent, episodes=10)
    print(f"seed {args.seed}: solved at frame {solved_at}; last 100 returns {mean:.1f}; greedy {greedy.mean:.1f}")


if __name__ == "__main__":
    main()
