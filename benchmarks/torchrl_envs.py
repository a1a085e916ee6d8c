"""Claim: torchrl's own envs cost in reap what they cost: at most 15 % a column on top of a bare `step_and_maybe_reset` loop.

The bare loop calls the same policy on the observation and steps the same env; it records nothing and counts nothing.
Policies that are called with TensorDicts would run faster in reap (`tensordict_policies.py`), so that plain ones are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from ceiling import CartPolePolicy
from pairs import Loop, Pair, reap_loop

TARGET = 1 / 1.15


def gym_env() -> Any:
    """One env."""
    from torchrl.envs import GymEnv

    return GymEnv("CartPole-v1")


def transformed_env() -> Any:
    """One env with the transforms of most scripts."""
    from torchrl.envs import Compose, RewardSum, StepCounter, TransformedEnv

    return TransformedEnv(gym_env(), Compose(StepCounter(), RewardSum()))


def serial_env() -> Any:
    """Eight envs in this process."""
    from torchrl.envs import SerialEnv

    return SerialEnv(8, gym_env)


def parallel_env() -> Any:
    """Two envs in processes of their own."""
    from torchrl.envs import ParallelEnv

    return ParallelEnv(2, gym_env)


ENVS: tuple[tuple[str, Callable[[], Any], int, int], ...] = (
    ("torchrl GymEnv", gym_env, 1, 500),
    ("torchrl TransformedEnv", transformed_env, 1, 500),
    ("torchrl SerialEnv", serial_env, 8, 100),
    ("torchrl ParallelEnv", parallel_env, 2, 200),
)


@contextmanager
def bare_loop(build: Callable[[], Any], columns: int) -> Iterator[Loop]:
    """The loop of torchrl's documentation, without its data."""
    env, policy = build(), CartPolePolicy()
    current = env.reset()

    @torch.no_grad()
    def rollout() -> int:
        nonlocal current
        for _ in range(columns):
            current.set("action", policy(current.get("observation")))
            _, current = env.step_and_maybe_reset(current)
        return columns * max(1, env.batch_size.numel())

    try:
        yield rollout
    finally:
        env.close()


def pairs() -> Iterator[Pair]:
    for claim, build, envs, columns in ENVS:
        ours = partial(reap_loop, build, CartPolePolicy, envs * columns)
        yield Pair(claim, "reap", envs, ours, partial(bare_loop, build, columns), TARGET, "torchrl")
