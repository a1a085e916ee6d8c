"""What a learner's network has to take from many workers, computed from what one worker was measured to send.

    python benchmarks/scaling.py                                   # measure on this machine, then print the table
    python benchmarks/scaling.py --save profile.json               # keep the measured profile
    python benchmarks/scaling.py --profile profile.json --network-gbit 100 --workers-per-node 32

Measured with one worker of `DistributedDataCollector`: bytes and messages per frame, bytes per update of the weights, frames
per second of a worker on one core. Computed: all that grows with the number of nodes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import tyro
from rich.console import Console
from rich.table import Table
from torch import nn

from reap import GymEnv, SerialEnv
from reap.collectors.distributed import DistributedDataCollector

NODES = (10, 100, 1_000)
BATCHES = 6


@dataclass(frozen=True)
class Profile:
    """What one worker sends.

    Attributes:
        name: of the task.
        bytes_per_frame: received from the worker, everything included.
        frames_per_message: of a rollout; a rollout is one command and one reply.
        frames_per_second: of one worker on one core.
        bytes_per_update: weights as they travel, to each worker.
    """

    name: str
    bytes_per_frame: float
    frames_per_message: int
    frames_per_second: float
    bytes_per_update: int


@dataclass(frozen=True)
class Options:
    """What a learner has to take from many workers.

    Attributes:
        profile: a file with measured profiles; None measures.
        save: where measured profiles are kept.
        workers_per_node: workers of a node.
        network_gbit: what the learner's network takes, in Gbit/s.
        updates_per_second: updates of the weights.
    """

    profile: Path | None = None
    save: Path | None = None
    workers_per_node: int = 16
    network_gbit: float = 25.0
    updates_per_second: float = 1.0


class Pixels(gym.Env[Any, Any]):
    """Frames of 84 x 84 x 4 bytes that differ, and cost next to nothing."""

    observation_space = gym.spaces.Box(0, 255, (84, 84, 4), np.uint8)
    action_space = gym.spaces.Discrete(4)

    def __init__(self) -> None:
        self._frames = np.random.default_rng(0).integers(0, 256, (64, 84, 84, 4), np.uint8)
        self._step = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._frames[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        return self._frames[self._step % 64], 0.0, self._step % 500 == 0, False, {}


def network(inputs: int, actions: int, hidden: int = 256) -> nn.Module:
    return nn.Sequential(nn.Flatten(-1), nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, actions))


class Convolutions(nn.Module):
    """The network of the DQN paper (Mnih et al., 2015), 1.7 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU()]
        self.net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(3_136, 512), nn.ReLU(), nn.Linear(512, 4))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        scores = self.net(observation.movedim(-1, -3).float() / 255)
        return nn.functional.one_hot(scores.argmax(-1), 4)


TASKS: dict[str, tuple[Callable[[], Any], Callable[[], Any] | None, int]] = {
    "CartPole x 8": (partial(SerialEnv, 8, "CartPole-v1"), None, 8_000),
    "Ant": (partial(SerialEnv, 1, partial(GymEnv, "Ant-v5", dtype=torch.float32)), partial(network, 105, 8), 1_000),
    "pixels x 4": (partial(SerialEnv, 4, Pixels), Convolutions, 400),
}


def measured() -> Iterator[Profile]:
    """A profile of each task."""
    for name, (make_env, make_policy, frames) in TASKS.items():
        policy = None if make_policy is None else make_policy()
        with DistributedDataCollector([make_env], policy, frames_per_batch=frames) as collector:
            collector.next()
            before, began = collector.stats(), perf_counter()
            for _ in range(BATCHES):
                collector.next()
            seconds, after = perf_counter() - began, collector.stats()
        assert before.place is not None
        assert after.place is not None
        collected = after.frames - before.frames
        sent = (after.place.bytes - before.place.bytes) / collected
        weights = 0 if policy is None else sum(one.nbytes for one in policy.state_dict().values())
        yield Profile(name, sent, frames, collected / seconds, weights)


def table(profiles: Sequence[Profile], options: Options) -> Table:
    """What grows with the number of nodes."""
    shown = Table(title=f"{options.workers_per_node} workers a node, learner with {options.network_gbit:g} Gbit/s")
    for heading in ("task", "bytes a frame", "nodes", "frames/s", "Gbit/s in", "messages/s", "Gbit/s out", "full at"):
        shown.add_column(heading, justify="left" if heading == "task" else "right")
    for profile in profiles:
        for nodes in NODES:
            workers = nodes * options.workers_per_node
            frames = workers * profile.frames_per_second
            into = frames * profile.bytes_per_frame * 8e-9
            out = workers * profile.bytes_per_update * options.updates_per_second * 8e-9
            limit = options.network_gbit / max(into, out, 1e-9) * nodes
            shown.add_row(
                profile.name if nodes == NODES[0] else "",
                f"{profile.bytes_per_frame:,.0f}",
                f"{nodes:,}",
                f"{frames:,.0f}",
                f"{into:,.2f}",
                f"{2 * frames / profile.frames_per_message:,.0f}",
                f"{out:,.2f}",
                f"{limit:,.0f} nodes",
            )
    return shown


def main() -> None:
    """Measure, or read what was measured, and print the table."""
    options = tyro.cli(Options)
    if options.profile is None:
        profiles = list(measured())
    else:
        profiles = [Profile(**one) for one in json.loads(options.profile.read_text())]
    if options.save is not None:
        options.save.write_text(json.dumps([asdict(one) for one in profiles], indent=2))
    Console(width=120).print(table(profiles, options))


if __name__ == "__main__":
    main()
