"""Envs of many kinds, each of a number, and how batches of them are compared to the last bit."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import SyncVectorEnv
from tensordict import TensorDictBase

from reap.envs import EnvBase, GymEnv
from reap.testing import Count, DictCount, Id, Masked, Noise
from tests.collectors.kinds import by_tensordict
from tests.conftest import descendants


class Says(Count):
    """`Count` that observes its count as a text, and what it was last told as another."""

    observation_space = spaces.Dict({"count": spaces.Text(8), "told": spaces.Text(40)})

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.told = "nothing"

    def observe(self) -> Any:
        return {"count": f"{self.steps}", "told": self.told}

    def step(self, action: Any) -> Any:
        self.told = f"{round(abs(float(action[0])) * 1000)}"
        return super().step(action)


class Pair(Noise):
    """`Noise` in a tuple, with an action in a tuple."""

    def __init__(self) -> None:
        super().__init__(3)
        self.single = self.observation_space
        self.observation_space = spaces.Tuple((self.single, spaces.Discrete(4)))
        self.action_space = spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)))

    def observe(self) -> Any:
        return super().observe(), self.steps % 4

    def step(self, action: Any) -> Any:
        self._state = self._state + np.float32(action[0]) + action[1].sum()
        self.steps += 1
        observation = self.observe()
        return observation, float(observation[0][0]), self.is_terminal(), self.is_over_time(), {}


class Deadly(Count):
    """`Count` that ends in some way in its k-th reset or step.

    Args:
        where: "reset" or "step".
        how: "raise", "exit" or "kill".
        k: the call that does it, from 1.
    """

    def __init__(self, where: str, how: str, k: int) -> None:
        super().__init__(3)
        self.where, self.how, self.left = where, how, k

    def reset(self, **options: Any) -> Any:
        self.passed("reset")
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        self.passed("step")
        return super().step(action)

    def passed(self, where: str) -> None:
        if where == self.where:
            self.left -= 1
            if not self.left:
                end(self.how)


def end(how: str) -> None:
    """End in some way."""
    if how == "raise":
        raise ZeroDivisionError("on purpose")
    if how == "exit":
        os._exit(7)
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def env_processes() -> list[int]:
    """The processes of the only `ParallelEnv` that there is, in their order, by the names that ps shows."""
    found: dict[int, int] = {}
    for pid in descendants():
        name, _, number = name_of(pid).rpartition("-")
        if name == "ParallelEnv":
            assert int(number) not in found, "there is another one"
            found[int(number)] = pid
    return [found[number] for number in range(len(found))]


def name_of(pid: int) -> str:
    """The name of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def noises(number: int) -> gym.Env:
    return Noise(3 if number < 1000 else 4)


KINDS: dict[str, Callable[[int], EnvBase]] = {
    "cart poles": lambda number: GymEnv("CartPole-v1"),
    "random": lambda number: GymEnv(noises(number)),
    "numbered": lambda number: GymEnv(Id(number)),
    "masked": lambda number: GymEnv(Masked(3 + number)),
    "dict": lambda number: GymEnv(DictCount(2 + number)),
    "tuple": lambda number: GymEnv(Pair()),
    "text": lambda number: GymEnv(Says(2 + number)),
    "infos": lambda number: GymEnv("CartPole-v1", info_keys=["x"], frame_skip=2, dtype=torch.float64),
    "vector": lambda number: GymEnv(SyncVectorEnv([lambda: Noise(3)] * 2)),
    "resets itself": lambda number: GymEnv(CartPoleVectorEnv(2, max_episode_steps=9)),
    "custom": lambda number: by_tensordict(noises, (), number),
    "custom batched": lambda number: by_tensordict(noises, (2,), number),
}
"""Each kind of env, of a number."""


def factories(kind: str, count: int) -> list[Callable[[], EnvBase]]:
    return [lambda number=number: KINDS[kind](number) for number in range(count)]


def assert_same(found: TensorDictBase, wanted: TensorDictBase) -> None:
    """The same keys, shapes, dtypes and values, objects included."""
    assert found.batch_size == wanted.batch_size
    assert found.names == wanted.names
    keys = set(wanted.keys(True, True))
    assert set(found.keys(True, True)) == keys
    assert keys
    for key in keys:
        one, other = found.get(key), wanted.get(key)
        if isinstance(other, torch.Tensor):
            assert one.dtype == other.dtype, key
            assert torch.equal(one, other), key
        else:
            assert one.tolist() == other.tolist(), key
