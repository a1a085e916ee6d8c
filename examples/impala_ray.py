"""Asynchronous PPO on CartPole-v1 with actors of Ray, as in IMPALA: the learner updates with whichever rollout comes first.

By the time a rollout is learnt from, the policy is another one than acted in it. V-trace (Espeholt et al., 2018) corrects the
advantages for that, by the ratio of the two policies' probabilities. Stops when it is solved: a mean return of 475 over the
last 100 training episodes.

    python examples/impala_ray.py --workers 4 --address auto
"""

from dataclasses import dataclass

import torch
import tyro
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.distributions import Categorical

from reap import SerialEnv, progress
from reap.collectors.distributed import RayCollector

ENV, SOLVED = "CartPole-v1", 475.0


@dataclass
class Args:
    seed: int = 1
    workers: int = 2
    envs: int = 8
    """Of each worker."""
    steps: int = 64
    """Of each env in a rollout."""
    total_frames: int = 400_000
    address: str | None = None
    """Of a Ray cluster; None joins one of this machine, or starts one."""
    epochs: int = 6
    minibatches: int = 4
    learning_rate: float = 1e-3
    gamma: float = 0.99
    trace: float = 0.95
    clip: float = 0.2


class Agent(nn.Module):
    """Called by the workers with the observations; everything it returns is stored in the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = network(2, last_gain=0.01), network(1, last_gain=1.0)

    def policy(self, observation: Tensor) -> Categorical:
        return Categorical(logits=self.actor(observation), validate_args=False)

    def forward(self, observation: Tensor) -> dict[str, Tensor]:
        policy = self.policy(observation)
        action = policy.sample()
        return {"action": action, "log_prob": policy.log_prob(action)}


def network(outputs: int, last_gain: float) -> nn.Sequential:
    layers = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))
    for layer, gain in zip(layers[::2], (2**0.5, 2**0.5, last_gain), strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return layers


@torch.no_grad()
def v_trace(agent: Agent, batch: TensorDictBase, gamma: float, trace: float) -> tuple[Tensor, Tensor]:
    """Advantages and value targets, both [E, T], of a policy other than the one that acted."""
    value, following = (agent.critic(data["observation"]).squeeze(-1) for data in (batch, batch["next"]))
    reward, done, terminated = (batch["next", key].squeeze(-1) for key in ("reward", "done", "terminated"))
    following = following * ~terminated  # a truncated episode has a future, a terminated one has none
    ratio = (agent.policy(batch["observation"]).log_prob(batch["action"]) - batch["log_prob"]).exp().clamp(max=1.0)
    delta = ratio * (reward + gamma * following - value)
    target = value.clone()
    later = torch.zeros_like(value[:, 0])  # by how much the target of the step after differs from its value
    advantage = torch.empty_like(value)
    for t in reversed(range(value.shape[1])):
        later = later * ~done[:, t]
        advantage[:, t] = reward[:, t] + gamma * (following[:, t] + trace * later) - value[:, t]
        later = delta[:, t] + gamma * trace * ratio[:, t] * later
        target[:, t] += later
    return advantage, target


def update(agent: Agent, optimizer: torch.optim.Optimizer, batch: TensorDictBase, args: Args) -> None:
    for _ in range(args.epochs):
        advantage, target = (value.flatten() for value in v_trace(agent, batch, args.gamma, args.trace))
        observation, action, acted = (batch[key].flatten(0, 1) for key in ("observation", "action", "log_prob"))
        for rows in torch.randperm(len(action)).chunk(args.minibatches):
            ratio = (agent.policy(observation[rows]).log_prob(action[rows]) - acted[rows]).exp()
            weight = (advantage[rows] - advantage[rows].mean()) / (advantage[rows].std() + 1e-8)
            gain = torch.min(ratio * weight, ratio.clamp(1 - args.clip, 1 + args.clip) * weight).mean()
            error = (agent.critic(observation[rows]).squeeze(-1) - target[rows]).square().mean()
            optimizer.zero_grad()
            (0.5 * error - gain).backward()
            nn.utils.clip_grad_norm_(agent.parameters(), max_norm=0.5)
            optimizer.step()


def train(agent: Agent, args: Args) -> int | None:
    """The frames at which CartPole was solved; None if the budget ended before."""
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    env = SerialEnv(args.envs, ENV, create_env_kwargs={"categorical_action_encoding": True})
    with RayCollector(
        [env] * args.workers,
        agent,
        frames_per_batch=args.envs * args.steps,
        total_frames=args.total_frames // (args.envs * args.steps) * args.envs * args.steps,
        ray_init_config={"address": args.address, "log_to_driver": False},
        on_worker_failure="restart",
    ) as collector:
        collector.set_seed(args.seed)
        for batch in progress(collector, title=f"asynchronous PPO · {ENV}"):
            stats = collector.stats()
            if stats.finished_episodes >= 100 and stats.recent_returns.mean >= SOLVED:
                return stats.frames
            optimizer.param_groups[0]["lr"] = args.learning_rate * (1 - stats.frames / args.total_frames)
            update(agent, optimizer, batch, args)
            collector.update_policy_weights_()
    return None


def main(args: Args) -> None:
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    frames = train(Agent(), args)
    print("not solved" if frames is None else f"solved after {frames:,} frames")
    raise SystemExit(frames is None)


if __name__ == "__main__":
    main(tyro.cli(Args))
