"""Where an env's values are: `env_device` moves what it returns, and the actions that it gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from reap.collectors import MultiSyncDataCollector, SyncDataCollector
from reap.data import Composite, Unbounded
from reap.envs import EnvBase, GymEnv, ParallelEnv, SerialEnv
from reap.envs.faces.moved import moving
from reap.errors import OptionError
from reap.testing import Const, Count

CPU = torch.device("cpu")
WITH_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="has no CUDA")


FAR = torch.device("cuda", 7)


class Near(torch.Tensor):
    """A tensor that notes where it is moved to."""

    moves: ClassVar[list[Any]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        if func is not torch.Tensor.to:
            return result
        cls.moves.append(torch.device(args[1] if len(args) > 1 else (kwargs or {})["device"]))
        return result.as_subclass(torch.Tensor)


class Far(Near):
    """One that says that it is on another device, which need not be there."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_asked = getattr(func, "__self__", None) is torch.Tensor.device
        return FAR if is_asked else super().__torch_function__(func, types, args, kwargs)


class Steps(EnvBase):
    """Counts steps in tensors of its own; notes the devices of what it is given."""

    def __init__(self, make: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.clone) -> None:
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded((1,)))
        self.action_spec = Unbounded((1,))
        self.make = make
        self.given: set[tuple[str, torch.device]] = set()

    def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        return TensorDict({"observation": self.make(torch.zeros(1))})

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.given |= {(name, tensordict[name].device) for name in ("observation", "action")}
        values = {"observation": tensordict["observation"] + 1, "reward": torch.ones(1)}
        values |= {name: torch.zeros(1, dtype=torch.bool) for name in ("done", "terminated")}
        return TensorDict({name: self.make(value) for name, value in values.items()})

    def _set_seed(self, seed: int) -> None:
        """Nothing is random."""


@pytest.fixture(autouse=True)
def no_moves() -> Iterator[None]:
    Near.moves.clear()
    yield
    Near.moves.clear()


def near(value: torch.Tensor) -> torch.Tensor:
    return value.as_subclass(Near)


def far(value: torch.Tensor) -> torch.Tensor:
    return value.as_subclass(Far)


def test_what_an_env_returns_is_moved() -> None:
    env = Steps(far)
    collector = SyncDataCollector(env, Const(), frames_per_batch=3, env_device="cpu")
    Near.moves.clear()
    batch = collector.next()
    assert Near.moves == [CPU] * 3 * 4, "observation, reward and two flags of three steps"
    assert batch["next", "observation"].flatten().tolist() == [1, 2, 3]
    assert (env.device, collector.env_device) == (CPU, CPU)
    assert env.given == {("observation", CPU), ("action", CPU)}
    collector.reset()
    Near.moves.clear()
    collector.next()
    assert len(Near.moves) == 1 + 3 * 4, "and the first observation"


def test_without_a_device_nothing_is_moved() -> None:
    collector = SyncDataCollector(Steps(near), Const(), frames_per_batch=3)
    Near.moves.clear()
    collector.next()
    assert Near.moves == []


def test_values_that_are_there_are_not_copied() -> None:
    made: list[torch.Tensor] = []

    def note(value: torch.Tensor) -> torch.Tensor:
        made.append(value.clone())
        return made[-1]

    result = moving(lambda _: TensorDict({"a": note(torch.ones(1)), "b": {"c": note(torch.ones(1))}}), CPU)(None)
    assert [result["a"].data_ptr(), result["b", "c"].data_ptr()] == [value.data_ptr() for value in made]
    assert result.device is None
    moved = moving(lambda _: TensorDict({"a": torch.ones(1), "b": {"c": far(torch.ones(1))}}), CPU)(None)
    assert (moved.device, Near.moves) == (CPU, [CPU])


def test_rows_of_a_serial_env_are_moved() -> None:
    env = SerialEnv(2, lambda: Steps(far))
    collector = SyncDataCollector(env, Const(), frames_per_batch=6, env_device="cpu")
    Near.moves.clear()
    collector.next()
    assert Near.moves == [CPU] * 2 * 3 * 4
    assert [one.device for one in env.envs] == [CPU, CPU]


def test_rows_of_a_parallel_env() -> None:
    with ParallelEnv(2, Steps, num_processes=1) as env:
        batch = SyncDataCollector(env, Const(), frames_per_batch=6, env_device="cpu").next()
        assert env.get_attribute("device") == [CPU, CPU]
    assert batch["observation"].squeeze(-1).tolist() == [[0, 1, 2]] * 2


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ({}, None),
        ({"env_device": "cpu"}, None),
        ({"policy_device": "cpu"}, None),
        ({"env_device": "cpu", "policy_device": "cpu"}, "cpu"),
        ({"device": "cpu"}, "cpu"),
        ({"storing_device": "cpu"}, "cpu"),
    ],
)
def test_batches_are_on_the_device_that_env_and_policy_share(given: dict[str, str], stored: str | None) -> None:
    """As with torchrl."""
    with SyncDataCollector(Steps(), Const(), frames_per_batch=6, **given) as collector:
        expected = None if stored is None else torch.device(stored)
        assert (collector.storing_device, collector.next().device) == (expected, expected)


def test_the_envs_of_workers() -> None:
    with MultiSyncDataCollector([Steps] * 2, Const(), frames_per_batch=6, env_device=["cpu", None]) as collector:
        collector.next()
        assert collector.getattr_env("device") == [CPU, None]
        assert collector.getattr_env("given") == [{("observation", CPU), ("action", CPU)}] * 2


def test_an_env_on_arrays_has_its_own_tensordicts_there() -> None:
    env = GymEnv(Count(3))
    assert env.device is None
    batch = SyncDataCollector(env, Const(), frames_per_batch=3, env_device="cpu").next()
    assert batch.device is None, "batches are delivered where they are recorded"
    assert (env.device, env.reset().device) == (CPU, CPU)


@pytest.mark.parametrize("env", [Steps, partial(GymEnv, "CartPole-v1"), lambda: SerialEnv(2, Steps)])
def test_a_device_without_values(env: Any) -> None:
    for name in ("env_device", "device"):
        with pytest.raises(OptionError, match="^env_device='meta': expected a device that holds values, and tensors on meta"):
            SyncDataCollector(env, Const(), frames_per_batch=4, **{name: "meta"})


@pytest.mark.skipif(torch.cuda.is_available(), reason="has CUDA")
def test_a_device_that_is_not_there() -> None:
    with pytest.raises(OptionError, match="^env_device='cuda': torch finds no CUDA device here$"):
        SyncDataCollector(Steps, Const(), frames_per_batch=4, env_device="cuda")
    with pytest.raises(OptionError, match="^device='cuda': torch finds no CUDA device here$"):
        Steps().set_device(torch.device("cuda"))


def test_a_torchrl_env_is_moved_as_a_whole() -> None:
    envs = pytest.importorskip("torchrl.envs")
    env = envs.TransformedEnv(envs.GymEnv("CartPole-v1"), envs.StepCounter())
    collector = SyncDataCollector(env, frames_per_batch=5, env_device="cpu")
    assert (env.device, collector.env.device) == (None, CPU), "its specs say that its values are there"
    assert collector.next()["step_count"].flatten().tolist()[:3] == [0, 1, 2]


def test_a_torchrl_env_elsewhere_is_moved() -> None:
    envs = pytest.importorskip("torchrl.envs")
    env = envs.TransformedEnv(envs.GymEnv("CartPole-v1"), envs.StepCounter())
    first = torch.device("cpu", 0)
    collector = SyncDataCollector(env, frames_per_batch=5, env_device=first)
    assert (env.device, env.reset().device) == (first, first)
    assert collector.next()["step_count"].flatten().tolist()[:3] == [0, 1, 2]


@WITH_CUDA
@pytest.mark.parametrize("rows", [False, True])
def test_values_on_cuda(rows: bool) -> None:
    """An env whose tensors are made in the memory of the host steps from tensors on the device."""
    made: list[Steps] = []

    def make() -> Steps:
        made.append(Steps())
        return made[-1]

    cuda = torch.device("cuda", 0)
    env = SerialEnv(2, make) if rows else make
    batch = SyncDataCollector(env, Const(), frames_per_batch=6, env_device=cuda, storing_device=cuda).next()
    assert batch.device == cuda
    assert all(one.given == {("observation", cuda), ("action", cuda)} for one in made)
    assert batch["observation"].reshape(-1)[:3].tolist() == [0, 1, 2]
