"""PPO on CartPole-v1, in one file, collected by two processes. Stops when it is solved, or when the budget of frames is used.

Solved: the mean return of the last 100 training episodes (sampled actions) is 475 or more.

    python examples/ppo.py --seed 2 --out two.png
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

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

from reap import MultiSyncDataCollector, SerialEnv, progress

ENV, SOLVED = "CartPole-v1", 475.0


@dataclass
class Args:
    seed: int = 1
    total_frames: int = 200_000
    out: Path = Path("ppo_cartpole.png")
    require_solved: bool = True
    """Exit with status 1 if the budget ends before CartPole is solved."""
    num_workers: int = 2
    num_envs: int = 8
    num_steps: int = 64
    epochs: int = 10
    minibatches: int = 4
    learning_rate: float = 1e-3
    """Falls linearly to 0 at the end of the budget."""
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    timed_batches: int = 30


class Agent(nn.Module):
    """Called by the collector with the observations; everything it returns is stored in the batch."""

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
    net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))
    for layer, gain in zip(net[::2], (2**0.5, 2**0.5, last_gain), strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return net


@torch.no_grad()
def advantages(agent: Agent, batch: TensorDictBase, gamma: float, lambda_: float) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimates and value targets, both [E, T]."""
    value = agent.critic(batch["observation"])  # [E, T, 1]
    # A truncated episode has a future, after the true last observation under "next"; a terminated one has none.
    following = agent.critic(batch["next", "observation"]) * ~batch["next", "terminated"]
    delta = batch["next", "reward"] + gamma * following - value
    goes_on = gamma * lambda_ * ~batch["next", "done"]
    advantage, last = torch.zeros_like(delta), torch.zeros_like(delta[:, 0])
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
            weight = (advantage[rows] - advantage[rows].mean()) / (advantage[rows].std() + 1e-8)
            gain = torch.min(ratio * weight, ratio.clamp(1 - args.clip, 1 + args.clip) * weight).mean()
            error = (agent.critic(observation[rows]).squeeze(-1) - target[rows]).square().mean()
            optimizer.zero_grad()
            (0.5 * error - gain).backward()
            nn.utils.clip_grad_norm_(agent.parameters(), max_norm=0.5)
            optimizer.step()


def make_collector(agent: Agent, args: Args, batches: int) -> MultiSyncDataCollector:
    env = SerialEnv(args.num_envs // args.num_workers, ENV, create_env_kwargs={"categorical_action_encoding": True})
    workers, frames = [env] * args.num_workers, args.num_envs * args.num_steps
    return MultiSyncDataCollector(workers, agent, frames_per_batch=frames, total_frames=frames * batches, cat_results=0)


def train(agent: Agent, args: Args) -> tuple[list[tuple[int, float]], int | None]:
    """Return (frames so far, return) of every finished episode, and the frames at which CartPole was solved, or None."""
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5, fused=True)
    curve: list[tuple[int, float]] = []
    with make_collector(agent, args, args.total_frames // (args.num_envs * args.num_steps)) as collector:
        collector.set_seed(args.seed)
        for batch in progress(collector, title=f"PPO · {ENV} · seed {args.seed}"):
            stats = collector.stats()
            curve += [(stats.frames, episode.reward) for episode in stats.episodes]
            if stats.finished_episodes >= 100 and stats.recent_returns.mean >= SOLVED:
                return curve, stats.frames
            optimizer.param_groups[0]["lr"] = args.learning_rate * (1 - stats.frames / args.total_frames)
            update(agent, optimizer, batch, args)
            collector.update_policy_weights_()  # the workers act with these from the next batch on
    return curve, None


def hand_written_loop(agent: Agent, args: Args) -> Callable[[], int]:
    """The loop of a script without a library, for the same fields. Returns a function that collects one batch."""
    E, T = args.num_envs, args.num_steps
    envs = [gym.make(ENV) for _ in range(E)]
    current = np.stack([env.reset(seed=seed)[0] for seed, env in enumerate(envs)])
    ids, begun = np.arange(E), E

    @torch.inference_mode()
    def collect() -> int:
        nonlocal begun
        observation, following = np.empty((2, E, T, 4), np.float32)
        action, log_prob = torch.empty(E, T, dtype=torch.int64), torch.empty(E, T)
        reward, traj_ids = np.empty((E, T, 1), np.float32), np.empty((E, T), np.int64)
        terminated, truncated, done = np.zeros((3, E, T, 1), bool)
        for t in range(T):
            observation[:, t], traj_ids[:, t] = current, ids
            outputs = agent(torch.from_numpy(current))
            action[:, t], log_prob[:, t] = outputs["action"], outputs["log_prob"]
            for b, a in enumerate(outputs["action"].tolist()):
                current[b], reward[b, t], terminated[b, t], truncated[b, t], _ = envs[b].step(a)
                following[b, t] = current[b]
                if terminated[b, t] or truncated[b, t]:
                    done[b, t] = True
                    current[b], ids[b], begun = envs[b].reset()[0], begun, begun + 1
        return E * T

    return collect


def frames_per_second(agent: Agent, args: Args) -> tuple[float, float, float]:
    """Medians of reap's rate, the hand-written loop's and their ratio, timed in turns with the trained policy."""

    def rate(collect: Callable[[], int]) -> float:
        start = time.perf_counter()
        return sum(collect() for _ in range(args.timed_batches)) / (time.perf_counter() - start)

    with make_collector(agent, args, batches=-1) as collector:
        loops = [lambda: collector.next().numel(), hand_written_loop(agent, args)]
        rates = np.array([[rate(loop) for loop in loops] for _ in range(8)])[1:]  # the first pair warms up
    return *np.median(rates, axis=0), np.median(rates[:, 0] / rates[:, 1])


def plot(curve: list[tuple[int, float]], mean: list[float], args: Args) -> None:
    frames, returns = zip(*curve, strict=True)
    figure = Figure(figsize=(9, 5), dpi=150, layout="constrained")
    axes = figure.subplots()
    axes.scatter(frames, returns, s=14, alpha=0.35, color="tab:blue", linewidths=0, label="one episode")
    axes.plot(frames, mean, color="tab:blue", linewidth=2.2, label="mean of the last 100 episodes")
    axes.axhline(SOLVED, color="tab:green", linestyle="--", linewidth=1.2, label=f"solved: {SOLVED:.0f}")
    axes.set(title=f"PPO on {ENV}, seed {args.seed}", xlabel="frames (env steps)", ylabel="return (sum of rewards)")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.legend(loc="center right")
    figure.savefig(args.out)


def main() -> None:
    args = tyro.cli(Args, description=__doc__)
    torch.set_num_threads(1)  # the networks are small: more threads only wait for each other
    torch.manual_seed(args.seed)
    agent = Agent()
    curve, solved_at = train(agent, args)
    mean = [float(np.mean([value for _, value in curve[max(0, n - 100) : n]])) for n in range(1, len(curve) + 1)]
    plot(curve, mean, args)
    reap_rate, hand_rate, ratio = frames_per_second(agent, args)
    table = Table("seed", "solved at frame", "last 100 returns", "frames/s", "hand-written loop", "ratio")
    solved = f"{solved_at:,}" if solved_at else "–"
    table.add_row(f"{args.seed}", solved, f"{mean[-1]:.1f}", f"{reap_rate:,.0f}", f"{hand_rate:,.0f}", f"{ratio:.2f}")
    Console().print(table, f"learning curve: {args.out}", sep="\n")
    if args.require_solved and not solved_at:
        raise SystemExit(f"not solved within {args.total_frames:,} frames")


if __name__ == "__main__":
    main()
