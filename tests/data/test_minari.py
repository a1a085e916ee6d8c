"""`to_minari` and `from_minari`, with the real package: equal to the bit, there and back."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym
import minari
import numpy as np
import pytest
import torch
from gymnasium.envs.registration import EnvSpec
from tensordict import TensorDict

from reap.collectors import SyncDataCollector
from reap.data import (
    LazyTensorStorage,
    MultiStep,
    ReplayBuffer,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
    from_minari,
    to_minari,
)
from reap.data.datasets import minari_out
from reap.envs import GymEnv, SerialEnv
from reap.errors import OptionError, SpecMismatch
from reap.testing import CountTL
from tests.pairwise import by_default

ENVS, COLUMNS = 3, 20


class Everything(gym.Env[Any, Any]):
    """Observes and takes values of all spaces that can be written; a value says the episode, the step, and its place."""

    observation_space = gym.spaces.Dict(
        {
            "box": gym.spaces.Box(-np.inf, np.inf, (2, 3), np.float64),
            "picture": gym.spaces.Box(0, 255, (40, 40, 3), np.uint8),
            "choice": gym.spaces.Discrete(5, start=3),
            "inner": gym.spaces.Dict({"many": gym.spaces.MultiDiscrete([3, 4], start=[1, 2])}),
            "bits": gym.spaces.MultiBinary(4),
            "pair": gym.spaces.Tuple([gym.spaces.Box(0, 1, (), np.float32), gym.spaces.Discrete(2)]),
        }
    )
    action_space = gym.spaces.Dict(
        {
            "turn": gym.spaces.Discrete(3, start=-1),
            "push": gym.spaces.Box(-1, 1, (2,), np.float32),
            "keys": gym.spaces.MultiDiscrete([2, 3]),
            "on": gym.spaces.MultiBinary(2),
        }
    )

    number = 0

    def __init__(self) -> None:
        self.seen: list[Any] = []
        """Observation, and from the second on action, reward, ends and info, of each reset and step."""

    def observed(self) -> Any:
        self.observation_space.seed(self.number)
        self.number += 1
        return self.observation_space.sample()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.number = 0 if seed is not None else self.number
        self.steps = 0
        observation, info = self.observed(), {"speed": float(self.number)}
        self.seen.append((observation, info))
        return observation, info

    def step(self, action: Any) -> Any:
        self.steps += 1
        ends = self.steps == 4 and self.number % 2 == 0, self.steps == 5
        result = (self.observed(), 0.1 * self.number, *ends, {"speed": float(self.number)})
        self.seen.append((*result, action))
        return result


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    return tmp_path / "sets"


def everything(categorical: bool = False, frames: int = 50, ndim: int = 1) -> tuple[ReplayBuffer, Everything]:
    """A buffer of one env, and the env, which noted what it gave and got."""
    env = Everything()
    made = GymEnv(env, categorical_action_encoding=categorical, info_keys=["speed"])
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(frames, ndim=ndim))
    with SyncDataCollector(made, None, frames_per_batch=10, total_frames=frames) as collector:
        collector.set_seed(0)
        env.seen.clear()
        for batch in collector:
            buffer.extend(batch)
    return buffer, env


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(same(found[name], wanted[name]) for name in wanted)
    if isinstance(wanted, tuple):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    return np.array_equal(found, wanted) and np.asarray(found).dtype == np.asarray(wanted).dtype


def at(values: Any, step: int) -> Any:
    """One step of nested values `[T, ...]`."""
    if isinstance(values, dict):
        return {name: at(value, step) for name, value in values.items()}
    return tuple(at(value, step) for value in values) if isinstance(values, tuple) else values[step]


@pytest.mark.parametrize("categorical", by_default([False, True], False))
def test_minari_has_what_the_env_gave_and_got(categorical: bool) -> None:
    buffer, env = everything(categorical)
    dataset = to_minari(buffer, "own/everything-v0", env=env)
    assert dataset.observation_space == env.observation_space
    assert dataset.action_space == env.action_space
    assert dataset.total_steps == len(buffer) == 50
    seen = iter(env.seen)
    for episode in dataset:
        first, info = next(seen)
        assert same(at(episode.observations, 0), first)
        assert episode.infos["speed"][0] == info["speed"]
        for step in range(len(episode)):
            observation, reward, terminated, truncated, info, action = next(seen)
            assert same(at(episode.observations, step + 1), observation)
            assert same(at(episode.actions, step), action)
            assert episode.rewards[step] == np.float32(reward)
            is_cut = episode.id == dataset.total_episodes - 1 and step == len(episode) - 1
            assert (episode.terminations[step], episode.truncations[step]) == (terminated, truncated or is_cut)
            assert episode.infos["speed"][step + 1] == info["speed"]
    assert next(seen, None) is None


@pytest.mark.parametrize("categorical", by_default([False, True], True))
def test_there_and_back(categorical: bool) -> None:
    buffer, env = everything(categorical)
    to_minari(buffer, "everything-v0", env=env)
    back = from_minari("everything-v0", categorical_action_encoding=categorical)
    found, wanted = back[:], buffer[:]
    wanted["next", "done"][-1] = wanted["next", "truncated"][-1] = found["next", "done"][-1]  # cut there
    wanted["collector", "traj_ids"] -= wanted["collector", "traj_ids"][0].clone()
    assert set(found.keys(True, True)) == set(wanted.keys(True, True))
    for key in wanted.keys(True, True):
        assert torch.equal(found[key], wanted[key]), key
        assert found[key].dtype == wanted[key].dtype, key


def counting(total: int = 240, capacity: int = 240, ndim: int = 1, **options: Any) -> ReplayBuffer:
    """Episodes of 7 steps, and of 5, by turns of the envs."""
    envs = SerialEnv(ENVS, [lambda: GymEnv(CountTL(7, 99)), lambda: GymEnv(CountTL(99, 5)), lambda: GymEnv(CountTL(7, 99))])
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(capacity, ndim=ndim), **options)
    with SyncDataCollector(envs, None, frames_per_batch=ENVS * COLUMNS, total_frames=total) as collector:
        for batch in collector:
            buffer.extend(batch.reshape(-1) if ndim == 1 else batch)
    return buffer


@pytest.mark.processes
@pytest.mark.parametrize("ndim", [1, 2])
def test_episodes_of_several_envs(ndim: int) -> None:
    dataset = to_minari(counting(ndim=ndim), "count-v0")
    lengths = [len(episode) for episode in dataset]
    assert sum(lengths) == 240
    assert (lengths.count(7), lengths.count(5)) == (22, 16)
    assert all(np.array_equal(one.observations[:, 0], range(len(one) + 1)) for one in dataset)
    assert sorted(lengths[-2:]) == [3, 3]
    whole = to_minari(counting(ndim=ndim), "whole-v0", complete_only=True)
    assert {len(episode) for episode in whole} == {5, 7}
    assert [one.terminations[-1] for one in whole] == [len(one) == 7 for one in whole]
    assert [one.truncations[-1] for one in whole] == [len(one) == 5 for one in whole]


def test_a_ring_that_came_round() -> None:
    dataset = to_minari(counting(capacity=100), "ring-v0")
    assert dataset.total_steps == 100
    for one in dataset:
        assert (np.diff(one.observations[:, 0]) == 1).all()


def test_trajectories_as_items() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(4))
    steps = torch.arange(3.0).expand(6, -1)[..., None] + 10 * torch.arange(6)[:, None, None]
    flags = {name: torch.zeros(6, 3, 1, dtype=torch.bool) for name in ("done", "terminated", "truncated")}
    after = {"observation": steps + 1, "reward": steps, **flags}
    buffer.extend(TensorDict({"observation": steps, "action": steps, "next": after}, [6, 3]))
    dataset = to_minari(buffer, "items-v0")
    assert [one.observations[:, 0].tolist() for one in dataset] == [[10.0 * n + k for k in range(4)] for n in (2, 3, 4, 5)]


ARROW = pytest.mark.skipif(find_spec("pyarrow") is None, reason="needs pyarrow, which has 170 MB")


@pytest.mark.parametrize("data_format", ["hdf5", pytest.param("arrow", marks=ARROW), pytest.param("parquet", marks=ARROW)])
def test_formats(data_format: str) -> None:
    dataset = to_minari(counting(60), f"{data_format}-v0", data_format=data_format)
    assert minari.load_dataset(f"{data_format}-v0").total_steps == 60
    assert dataset[0].observations[:, 0].tolist() == list(range(8))


@pytest.mark.parametrize("env", ["CartPole-v1", gym.spec("CartPole-v1"), "made"])
def test_an_env_that_minari_makes_again(env: Any, root: Path) -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100))
    with SyncDataCollector("CartPole-v1", frames_per_batch=100, total_frames=100) as collector:
        buffer.extend(collector.next())
    made = gym.make("CartPole-v1")
    names: dict[str, Any] = {
        "author": "me",
        "author_email": ["a@b"],
        "algorithm_name": "none",
        "code_permalink": "here",
        "description": "d",
    }
    dataset = to_minari(buffer, "cart/pole-v3", env=made if env == "made" else env, requirements=["gymnasium"], **names)
    assert isinstance(dataset.env_spec, EnvSpec)
    again = dataset.recover_environment()
    assert again.observation_space == dataset.observation_space
    again.close()
    made.close()
    assert dataset.storage.metadata["author"] == {"me"}
    assert dataset.storage.metadata["description"] == "d"
    assert list(minari.list_local_datasets()) == ["cart/pole-v3"]
    manifest = json.loads((root / "cart" / "pole-v3" / "manifest.json").read_text())
    assert manifest["versions"]["minari"] == minari.__version__
    assert manifest["source"] == {"kind": "TensorDictReplayBuffer"}
    assert set(manifest["files"]) == {"data/main_data.hdf5", "data/metadata.json"}


def test_some_episodes_into_a_buffer_that_is_there() -> None:
    dataset = to_minari(counting(60), "count-v0")
    short = dataset.filter_episodes(lambda episode: len(episode) == 5)
    buffer = ReplayBuffer(storage=LazyTensorStorage(1000))
    assert from_minari(short, buffer) is buffer
    assert len(buffer) == short.total_steps
    assert from_minari(short, buffer)[:]["observation"].shape == (2 * short.total_steps, 1)


# ---------------------------------------------------------------------- what is refused


def test_nothing_is_overwritten_and_nothing_is_left(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = counting(60)
    to_minari(buffer, "count-v0")
    before = sorted(root.rglob("*"))
    with pytest.raises(OptionError, match="'count-v0' is there already, at .*, and nothing is overwritten"):
        to_minari(buffer, "count-v0")

    def full(*_: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(minari_out, "write_run_manifest", full)
    with pytest.raises(OSError, match="the disk is full"):
        to_minari(buffer, "other-v0")
    assert sorted(root.rglob("*")) == before


@pytest.mark.parametrize("name", ["count", "a/b-v0", "", "a b-v0"])
def test_ids(name: str) -> None:
    with pytest.raises(OptionError, match="expected 'namespace/name-v0'"):
        to_minari(counting(60), name)


@pytest.mark.parametrize(
    ("of", "env", "message"),
    [
        ("CartPole-v1", "Pendulum-v1", r"'observation'.*: expected values of shape \(3,\), .* found \(4,\); is it another env"),
        ("CartPole-v1", "Acrobot-v1", r"'observation'.*: expected values of shape \(6,\), .* found \(4,\); is it another env"),
        (
            "FrozenLake-v1",
            "FrozenLake8x8-v1",
            r"'observation'.*: expected a choice of Discrete\(64\), found values of shape \(16,\)",
        ),
    ],
)
def test_frames_of_another_env(of: str, env: str, message: str) -> None:
    with SyncDataCollector(of, None, frames_per_batch=40, seed=0) as collector:
        batch = collector.next()
    with pytest.raises(SpecMismatch, match=message):
        to_minari(batch, "other-v0", env=env)


def test_frames_that_are_no_episodes() -> None:
    with SyncDataCollector(GymEnv(CountTL(7, 99)), None, frames_per_batch=20, total_frames=20) as collector:
        batch = collector.next()
    with pytest.raises(SpecMismatch, match=r"trajectory 0, step 0: \('next', 'observation'\) is not what 'observation' is"):
        to_minari(MultiStep(0.9, 3)(batch.clone()), "steps-v0")
    with pytest.raises(SpecMismatch, match="expected the observations and actions"):
        to_minari(batch.exclude("action"), "steps-v0", env="CartPole-v1")
    with pytest.raises(SpecMismatch, match="expected .* by which episodes are told; found neither"):
        to_minari(TensorDict({"a": torch.zeros(3)}, [3]), "steps-v0")
    ranked = TensorDictReplayBuffer(storage=LazyTensorStorage(5), writer=TensorDictMaxValueWriter())
    ranked.extend(batch)
    with pytest.raises(OptionError, match="replaces single frames"):
        to_minari(ranked, "steps-v0")


def test_other_things(root: Path) -> None:
    buffer = counting(60)
    for source in ([1], None, 3):
        with pytest.raises(OptionError, match="expected a ReplayBuffer, the folder of a run of reap collect, or a TensorDict"):
            to_minari(source, "x-v0")
    with pytest.raises(OptionError, match="nowhere: expected a folder of reap collect, there is no such folder"):
        to_minari("nowhere", "x-v0")
    with pytest.raises(OptionError, match="data_format: expected one of hdf5, arrow, parquet, got 'csv'"):
        to_minari(buffer, "x-v0", data_format="csv")
    with pytest.raises(OptionError, match="env: expected an id, an EnvSpec or an env of gymnasium, got int"):
        to_minari(buffer, "x-v0", env=3)
    with pytest.raises(OptionError, match="env: 'Nothing-v0' cannot be made"):
        to_minari(buffer, "x-v0", env="Nothing-v0")
    with pytest.raises(OptionError, match="expected frames, found none"):
        to_minari(ReplayBuffer(storage=LazyTensorStorage(5)), "x-v0")
    with pytest.raises(OptionError, match="there is none of the id 'x-v0' here"):
        from_minari("x-v0")
    to_minari(buffer, "old-v0")
    file = root / "old-v0" / "data" / "metadata.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "minari_version": "0.0.1"}))
    with pytest.raises(OptionError, match="'old-v0' cannot be loaded: .*does not support"):
        from_minari("old-v0")
