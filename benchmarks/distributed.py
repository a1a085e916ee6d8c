"""Claim: workers that share no memory with the training process cost little beside those that do.

Each class with two workers, against `MultiSyncDataCollector` or `MultiaSyncDataCollector` in one run: CartPole, 8 envs a worker
and 4,000 frames; and images of 84 x 84 x 4 bytes, 992 frames and 28 MB a worker, from an env that costs next to nothing, so
that the transfer is what is measured. And an update of 40 MB of weights against one copy of them: the transfer goes on while
the training loop does.

An engine is a line of `ENGINES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from ceiling import CartPolePolicy
from gymnasium import spaces
from pairs import Loop, Pair, alone, plain_loop

from reap import MultiaSyncDataCollector, MultiSyncDataCollector, SerialEnv
from reap.collectors.distributed import DistributedDataCollector, RPCDataCollector

WORKERS, ENVS = 2, 8
FRAMES = {"CartPole": 4_000, "images": 992}
"""Frames of a worker's rollout."""

UPDATE = 1 / 1.5


@dataclass(frozen=True)
class Engine:
    """What carries commands and rollouts.

    Attributes:
        name: of the class.
        make: builds a collector: of env factories and a policy, with `sync` and `frames_per_batch`.
        pids: the processes of a collector's workers.
        cartpole: targets, sync and async.
        images: targets, sync and async.
    """

    name: str
    make: Callable[..., Any]
    pids: Callable[[Any], Sequence[int]]
    cartpole: tuple[float, float]
    images: tuple[float, float]


def pids_by_place(collector: Any) -> list[int]:
    carrier = collector._workers.group.carrier
    return [int(carrier.place(worker).rpartition("pid ")[2].split()[0]) for worker in range(collector.num_workers)]


ENGINES = (
    Engine("DistributedDataCollector", DistributedDataCollector, pids_by_place, (0.85, 0.85), (0.6, 0.75)),
    Engine("RPCDataCollector", RPCDataCollector, pids_by_place, (0.85, 0.85), (0.5, 0.5)),
)


class Images(gym.Env[Any, Any]):
    """Images at the price of a copy."""

    observation_space = spaces.Box(0, 255, (84, 84, 4), np.uint8)
    action_space = spaces.Discrete(4)

    def __init__(self) -> None:
        self.steps = 0
        self.image = np.random.default_rng(0).integers(0, 255, (84, 84, 4), dtype=np.uint8)

    def observe(self) -> Any:
        image = self.image.copy()
        image[0, 0, 0] = self.steps % 256
        return image

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.observe(), 0.0, self.steps >= 1000, False, {}


def make_env(kind: str) -> SerialEnv:
    return SerialEnv(ENVS, "CartPole-v1" if kind == "CartPole" else Images)


def policy_for(kind: str) -> Any:
    return CartPolePolicy() if kind == "CartPole" else None


@contextmanager
def shared(kind: str, is_sync: bool) -> Iterator[Loop]:
    """The collector whose workers share memory."""
    made = MultiSyncDataCollector if is_sync else MultiaSyncDataCollector
    frames = FRAMES[kind] * (WORKERS if is_sync else 1)
    collector = made([partial(make_env, kind)] * WORKERS, policy_for(kind), frames_per_batch=frames)
    with collector, alone(lambda: collector.next().numel(), collector._workers.group.pids) as loop:
        yield loop


@contextmanager
def carried(engine: Engine, kind: str, is_sync: bool) -> Iterator[Loop]:
    """The collector of an engine."""
    frames = FRAMES[kind] * (WORKERS if is_sync else 1)
    collector = engine.make([partial(make_env, kind)] * WORKERS, policy_for(kind), sync=is_sync, frames_per_batch=frames)
    with collector, alone(lambda: collector.next().numel(), engine.pids(collector)) as loop:
        yield loop


class Large(torch.nn.Module):
    """A policy of 40 MB."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(10_000_000))
        self.small = torch.nn.Linear(4, 2)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(self.small(observation).argmax(-1), 2)


@contextmanager
def updates(engine: Engine) -> Iterator[Loop]:
    """One update of the weights, which are on their way when it returns."""
    with engine.make(["CartPole-v1"] * WORKERS, Large(), sync=True, frames_per_batch=WORKERS) as collector:

        def update() -> int:
            collector.update_policy_weights_()
            return 1

        yield update


def copies() -> AbstractContextManager[Loop]:
    """One copy of the weights into memory of its own: they may change while they are on their way."""
    policy = Large()

    def copy() -> int:
        policy.weight.detach().clone()
        return 1

    return plain_loop(lambda: copy)


def pairs() -> Iterator[Pair]:
    for engine in ENGINES:
        for is_sync in (True, False):
            name = "MultiSync" if is_sync else "MultiaSync"
            targets = {"CartPole": engine.cartpole, "images": engine.images}
            for kind, target in targets.items():
                ours, baseline = partial(carried, engine, kind, is_sync), partial(shared, kind, is_sync)
                yield Pair(f"{name}, {kind}", engine.name, ENVS, ours, baseline, target[not is_sync])
        yield Pair("a copy of 40 MB", f"{engine.name}, update", 1, partial(updates, engine), copies, UPDATE)
