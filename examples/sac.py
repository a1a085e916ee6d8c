"""SAC on Pendulum-v1, in one file: two processes fill the replay buffer while the loop trains on it.

Prints the mean return of 20 evaluation episodes (deterministic actions), and the frames that were collected.

    python examples/sac.py --seed 2
"""

import copy
import time
from dataclasses import dataclass

import torch
import tyro
from tensordict import TensorDictBase
from torch import Tensor, nn

from reap import GymEnv, LazyTensorStorage, MultiaSyncDataCollector, ReplayBuffer, SerialEnv, evaluate

ENV, LARGEST = "Pendulum-v1", 2.0


@dataclass
class Args:
    seed: int = 1
    total_frames: int = 20_000
    random_frames: int = 1_000
    num_workers: int = 2
    frames_per_batch: int = 50
    """Frames of one rollout of a worker, which then writes them and takes the latest weights."""
    max_frames_ahead: int = 200
    """How many frames the workers may be ahead of the updates before they wait."""
    updates_per_push: int = 50
    batch_size: int = 256
    learning_rate: float = 1e-3
    gamma: float = 0.99
    tau: float = 0.005
    """Share of the critics' weights that each update adds to their targets."""


class Actor(nn.Module):
    """A normal distribution squashed by tanh. Called by the collector, it returns a sampled action in [-2, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(3, 2)

    def parameters_of(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.net(observation).chunk(2, -1)
        return mean, log_std.clamp(-5, 2)

    def sample(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [B, 1] and the logarithms of their densities [B, 1]."""
        mean, log_std = self.parameters_of(observation)
        noise = torch.randn_like(mean)
        raw = mean + log_std.exp() * noise
        # log(1 - tanh(raw)^2), in a form that keeps its digits when tanh is near 1.
        squashing = 2 * (0.6931472 - raw - nn.functional.softplus(-2 * raw))
        log_density = -0.5 * noise.square() - log_std - 0.9189385 - squashing - torch.tensor(LARGEST).log()
        return LARGEST * raw.tanh(), log_density

    def best(self, observation: Tensor) -> Tensor:
        return LARGEST * self.parameters_of(observation)[0].tanh()

    def forward(self, observation: Tensor) -> Tensor:
        return self.sample(observation)[0]


class Critics(nn.Module):
    """Two estimates of the value of an action [B, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList([mlp(4, 1), mlp(4, 1)])

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        both = torch.cat([observation, action], -1)
        return torch.cat([net(both) for net in self.nets], -1)


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, outputs))


class Learner:
    """Soft actor-critic (Haarnoja et al. 2018) with a temperature that is learned."""

    def __init__(self, args: Args) -> None:
        self.args, self.actor, self.critics = args, Actor(), Critics()
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.log_temperature = torch.zeros((), requires_grad=True)
        groups = (self.actor.parameters(), self.critics.parameters(), [self.log_temperature])
        self.optimizers = [torch.optim.Adam(group, lr=args.learning_rate, fused=True) for group in groups]

    def update(self, batch: TensorDictBase) -> None:
        of_actor, of_critics, of_temperature = self.optimizers
        observation, temperature = batch["observation"], self.log_temperature.exp().detach()
        step(of_critics, (self.critics(observation, batch["action"]) - self.wanted(batch, temperature)).square().mean())
        action, log_density = self.actor.sample(observation)
        value = self.critics(observation, action).min(-1, keepdim=True).values
        step(of_actor, (temperature * log_density - value).mean())
        step(of_temperature, -(self.log_temperature * (log_density.detach() - 1.0)).mean())
        lerp = torch._foreach_lerp_  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
        lerp(list(self.targets.parameters()), list(self.critics.parameters()), self.args.tau)

    @torch.no_grad()
    def wanted(self, batch: TensorDictBase, temperature: Tensor) -> Tensor:
        following = batch["next", "observation"]
        action, log_density = self.actor.sample(following)
        value = self.targets(following, action).min(-1, keepdim=True).values - temperature * log_density
        return batch["next", "reward"] + self.args.gamma * value * ~batch["next", "terminated"]


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def train(learner: Learner, args: Args) -> int:
    """Train with one update for each frame after the random ones; return the number of frames collected."""
    buffer = ReplayBuffer(storage=LazyTensorStorage(args.total_frames), batch_size=args.batch_size)
    collector = MultiaSyncDataCollector(
        [GymEnv(ENV)] * args.num_workers,
        learner.actor,
        frames_per_batch=args.frames_per_batch,
        total_frames=args.total_frames,
        init_random_frames=args.random_frames,
        replay_buffer=buffer,
        max_frames_ahead=args.max_frames_ahead,
        samples_per_frame=args.batch_size,  # one update for each frame
    )
    with collector:
        collector.set_seed(args.seed)
        collector.start()
        while len(buffer) < args.random_frames:
            time.sleep(0.01)
        for update in range(args.total_frames - args.random_frames):
            learner.update(buffer.sample())
            if update % args.updates_per_push == 0:
                collector.update_policy_weights_()  # the workers act with these from their next rollouts on
    return buffer.write_count


def main() -> None:
    args = tyro.cli(Args, description=__doc__)
    torch.set_num_threads(1)  # the networks are small: more threads only wait for each other
    torch.manual_seed(args.seed)
    learner = Learner(args)
    frames = train(learner, args)
    result = evaluate(SerialEnv(10, ENV), learner.actor.best, episodes=20, seed=1_000)
    print(f"seed {args.seed}: {frames:,} frames, evaluation {result}")


if __name__ == "__main__":
    main()
