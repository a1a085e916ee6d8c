"""Gymnasium's registry in workers: entries whose modules are not there harm only those who ask for them."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from reap import MultiSyncDataCollector, ParallelEnv
from reap.envs.gymnasium.registry import registry_entries
from reap.errors import OptionError

NAMED, CLASS, LOCKED, OF_MAIN = "OnlyHere/Named-v0", "OnlyHere/Class-v0", "OnlyHere/Locked-v0", "OnlyHere/Main-v0"

GONE = (
    "ModuleNotFoundError: No module named 'only_here'. Workers import modules by name, with the sys.path of the process that "
    "made them: put the module where they find it, or register the class itself, not its name, and call "
    r"cloudpickle.register_pickle_by_value\(module\)"
)

CANNOT_BE_SENT = (
    "OptionError: the entry 'OnlyHere/Locked-v0' of gymnasium's registry: cannot be sent to a worker: its attribute 'kwargs', "
    "item 'lock' is a _thread.lock"
)

processes = pytest.mark.processes


class Still(gym.Env[Any, Any]):
    """Answers with zeros."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, **_arguments: Any) -> None: ...

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(2, np.float32), 1.0, False, False, {}


def of_module(name: str) -> type[Still]:
    return type("Env", (Still,), {"__module__": name, "__qualname__": "Env"})


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Envs of a module that only this process has, one that cannot be pickled, and one of the program."""
    module: Any = types.ModuleType("only_here")
    module.Env = of_module("only_here")
    monkeypatch.setitem(sys.modules, "only_here", module)
    monkeypatch.setattr(sys.modules["__main__"], "Env", of_module("__main__"), raising=False)
    gym.register(NAMED, "only_here:Env")
    gym.register(CLASS, module.Env)
    gym.register(LOCKED, Still, kwargs={"lock": threading.Lock()})
    gym.register(OF_MAIN, "__main__:Env")
    yield
    for name in (NAMED, CLASS, LOCKED, OF_MAIN):
        gym.registry.pop(name)


@pytest.mark.parametrize("env", ["CartPole-v1", pytest.param(OF_MAIN, marks=processes)])
def test_workers_that_ask_for_other_envs_never_know(env: str) -> None:
    with MultiSyncDataCollector([env], policy=None, frames_per_batch=4) as collector:
        assert collector.next()["next", "reward"].flatten().tolist() == [1.0] * 4


@pytest.mark.parametrize(("env", "told"), [(NAMED, GONE), pytest.param(CLASS, GONE, marks=processes), (LOCKED, CANNOT_BE_SENT)])
def test_a_worker_that_asks_for_it_says_what_to_do(env: str, told: str) -> None:
    with pytest.raises(OptionError, match=f"{env}: it is registered in the process .* cannot be made here: {told}"):
        MultiSyncDataCollector([env], policy=None, frames_per_batch=4)


@processes
def test_processes_of_an_env_too() -> None:
    with ParallelEnv(2, "CartPole-v1", num_processes=2) as env:
        assert env.rollout(2).batch_size == (2, 2)
    with pytest.raises(OptionError, match=GONE), ParallelEnv(2, NAMED, num_processes=2) as env:
        env.reset()


def test_what_a_process_has_stays_as_it_is() -> None:
    """Here the module is there, and the ids are known."""
    before = dict(gym.registry)
    registry_entries()()
    assert dict(gym.registry) == before
