"""Spaces whose values `to_minari` has to tell apart, and those that it has to refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDictBase

from reap.collectors import SyncDataCollector
from reap.data import LazyTensorStorage, TensorDictReplayBuffer, from_minari, to_minari
from reap.envs import GymEnv
from reap.errors import SpecMismatch
from reap.specs import NonTensor
from tests.pairwise import by_default

BOX = spaces.Box(-1, 1, (2,), np.float32)
TEXT, ONE_OF, SEQUENCE = spaces.Text(8), spaces.OneOf((BOX, spaces.Discrete(2))), spaces.Sequence(spaces.Discrete(3))


class Sampled(gym.Env[Any, Any]):
    """Observes samples of a space, and notes them with the actions. Episodes have three steps."""

    def __init__(self, observation: gym.Space[Any], action: gym.Space[Any], info: dict[str, Any] | None = None) -> None:
        self.observation_space, self.action_space, self.info = observation, action, info or {}
        self.observed: list[Any] = []
        self.acted: list[Any] = []
        observation.seed(1)

    def sample(self) -> Any:
        self.observed.append(self.observation_space.sample())
        return self.observed[-1]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        del seed, options
        self.steps = 0
        return self.sample(), self.info

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.acted.append(action)
        return self.sample(), 0.0, self.steps == 3, False, self.info


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    return tmp_path / "sets"


def frames(env: Sampled, categorical: bool = False, **options: Any) -> TensorDictBase:
    """Three episodes."""
    made = GymEnv(env, categorical_action_encoding=categorical, **options)
    with SyncDataCollector(made, frames_per_batch=9, seed=0) as collector:
        env.observed.clear()
        env.acted.clear()
        return collector.next().clone()


CHOICES = [
    spaces.Discrete(1, start=4),
    spaces.Discrete(2),
    spaces.Discrete(4, start=-3),
    spaces.MultiDiscrete([1]),
    spaces.MultiDiscrete([2]),
    spaces.MultiDiscrete([1, 1], start=[5, -6]),
    spaces.MultiDiscrete([1, 1, 2]),
    spaces.MultiDiscrete([1, 2]),
    spaces.MultiDiscrete(np.array([[1, 1]])),
    spaces.MultiDiscrete(np.array([[1], [1]])),
    spaces.MultiDiscrete(np.array([[2, 1], [3, 1]]), start=np.array([[0, 1], [2, 3]])),
    spaces.MultiBinary(1),
    spaces.MultiBinary(2),
    spaces.MultiBinary((2, 1)),
]


@pytest.mark.parametrize("categorical", by_default([False, True], False))
@pytest.mark.parametrize("space", CHOICES, ids=str)
def test_choices_as_indices_and_one_hot(space: gym.Space[Any], categorical: bool) -> None:
    env = Sampled(space, space)
    data = frames(env, categorical)
    dataset = to_minari(data, "choices-v0", env=env)
    found = [value for one in dataset for value in one.observations]
    assert np.array_equal(found, env.observed)
    assert found[0].dtype == space.dtype
    assert np.array_equal([value for one in dataset for value in one.actions], env.acted)
    assert all(space.contains(value) for value in found)
    back: Any = from_minari("choices-v0", categorical_action_encoding=categorical)[:]
    for key in ("observation", ("next", "observation"), "action"):
        assert torch.equal(back[key], data[key])
        assert back[key].dtype == data[key].dtype


@pytest.mark.parametrize(
    ("space", "categorical", "wrong"),
    [
        (spaces.Discrete(2), True, 2),
        (spaces.Discrete(2), True, -1),
        (spaces.Discrete(2), False, [1, 1]),
        (spaces.Discrete(2), False, [0, 0]),
        (spaces.MultiDiscrete([2, 3]), True, [1, 3]),
        (spaces.MultiDiscrete([2, 3]), False, [1, 0, 0, 0, 0]),
        (spaces.MultiDiscrete([1, 1]), False, [0, 1]),
        (spaces.MultiDiscrete([1, 1]), True, [1, 0]),
    ],
)
def test_values_that_are_no_choice(space: gym.Space[Any], categorical: bool, wrong: Any, root: Path) -> None:
    env = Sampled(BOX, space)
    data = frames(env, categorical)
    data["action"][4] = torch.as_tensor(wrong)
    with pytest.raises(SpecMismatch) as caught:
        to_minari(data, "choices-v0", env=env)
    assert (
        str(caught.value) == f"'action': expected a choice of {space}, as index or one-hot, found {wrong}; is it another env?"
    )
    assert list(root.iterdir()) == []


@pytest.mark.parametrize(
    ("of", "env", "message"),
    [
        (spaces.MultiDiscrete([2, 3]), spaces.MultiDiscrete([2, 4]), r"a choice of MultiDiscrete\(\[2 4\]\), found .* \(5,\)"),
        (spaces.MultiDiscrete([2, 3]), spaces.MultiDiscrete([3, 3, 3]), r"a choice of .*, found values of shape \(5,\)"),
        (spaces.Box(-1, 1, (2, 3)), spaces.Box(-1, 1, (3, 2)), r"values of shape \(3, 2\), .*, found \(2, 3\)"),
        (spaces.Box(0, 9, (3,), np.int8), spaces.MultiBinary(3), r"values of MultiBinary\(3\), .* found others in int8"),
    ],
)
def test_frames_of_another_env(of: gym.Space[Any], env: gym.Space[Any], message: str) -> None:
    data = frames(Sampled(of, spaces.Discrete(2)))
    with pytest.raises(SpecMismatch, match=f"'observation': expected {message}"):
        to_minari(data, "other-v0", env=Sampled(env, spaces.Discrete(2)))


def test_values_of_one_number_may_have_a_dimension_more_or_less() -> None:
    data = frames(Sampled(spaces.Box(-1, 1, (), np.float32), spaces.Discrete(2)))
    other = Sampled(spaces.Box(-1, 1, (1, 1), np.float32), spaces.Discrete(2))
    assert to_minari(data, "one-v0", env=other)[0].observations.shape == (4, 1, 1)
    grid = frames(Sampled(spaces.Box(-1, 1, (6,), np.float32), spaces.Discrete(2)))
    other = Sampled(spaces.Box(-1, 1, (2, 3), np.float32), spaces.Discrete(2))
    assert np.array_equal(to_minari(grid, "flat-v0", env=other)[0].observations[0].ravel(), grid["observation"][0])


# ---------------------------------------------------------------------- objects


def buffer_of(data: TensorDictBase) -> TensorDictReplayBuffer:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(9))
    buffer.extend(data)
    return buffer


@pytest.mark.parametrize("knows_env", [True, False])
@pytest.mark.parametrize("is_buffer", [True, False])
@pytest.mark.parametrize("space", [TEXT, ONE_OF, SEQUENCE], ids=["text", "one_of", "sequence"])
def test_entries_that_are_objects_are_refused_by_name(
    space: gym.Space[Any], is_buffer: bool, knows_env: bool, root: Path
) -> None:
    env = Sampled(spaces.Dict({"b": BOX, "t": space}), spaces.Discrete(2))
    data: Any = frames(env)
    source = buffer_of(data) if is_buffer else data
    with pytest.raises(SpecMismatch) as caught:
        to_minari(source, "objects-v0", env=env if knows_env else None)
    storable = "Box, Discrete, MultiDiscrete, MultiBinary, or Dicts and Tuples"
    wanted = f"{storable}, got {space}, whose values are" if knows_env else "numbers, found"
    assert str(caught.value) == (
        f"'t': expected {wanted} Python objects; to write the data set without them, give frames without them: "
        "frames.exclude('t', ('next', 't'))"
    )
    assert not list(root.glob("*"))
    found: Any = source[:] if is_buffer else source
    dataset = to_minari(found.exclude("t", ("next", "t")), "rest-v0", env=env)
    assert np.array_equal(dataset[0].observations["b"], [one["b"] for one in env.observed[:4]])
    assert set(dataset[0].observations) == set(dataset.observation_space.spaces) == {"b"}


@pytest.mark.parametrize("space", [TEXT, ONE_OF, SEQUENCE], ids=["text", "one_of", "sequence"])
def test_observations_that_are_objects_are_named(space: gym.Space[Any]) -> None:
    env = Sampled(space, spaces.Discrete(2))
    with pytest.raises(SpecMismatch) as caught:
        to_minari(frames(env), "objects-v0", env=env)
    assert f"'observation': expected Box, Discrete, MultiDiscrete, MultiBinary, or Dicts and Tuples, got {space}" in str(
        caught.value
    )


def test_infos_that_are_objects_are_refused_by_name() -> None:
    env = Sampled(BOX, spaces.Discrete(2), {"word": "abc"})
    data = frames(env, info_keys={"word": NonTensor(())})
    with pytest.raises(SpecMismatch, match=r"^'word': expected numbers, found Python objects; .*\('next', 'word'\)\)$"):
        to_minari(data, "infos-v0", env=env)


# ---------------------------------------------------------------------- names


@pytest.mark.parametrize("name", ["a/b", "/", ".", "", "a\0b"])
@pytest.mark.parametrize("place", ["observation", "inner", "action", "info", "guessed"])
def test_names_that_a_file_cannot_hold_are_refused(name: str, place: str, root: Path) -> None:
    odd = spaces.Dict({name: BOX, "c": BOX})
    observation = {"observation": odd, "guessed": odd, "inner": spaces.Dict({"in": odd})}.get(place, BOX)
    info = {name: 1.0} if place == "info" else None
    env = Sampled(observation, odd if place == "action" else spaces.Discrete(2), info)
    data = frames(env, info_keys=list(info or {}) or None)
    with pytest.raises(SpecMismatch) as caught:
        to_minari(data, "names-v0", env=None if place == "guessed" else env)
    lead = {"inner": ("in",), "action": ("action",)}.get(place, ())
    key: Any = (*lead, name) if lead else name
    assert str(caught.value) == (
        f"{key!r}: expected a name that HDF5 can hold (no slash, not empty, not '.'), found {name!r}; rename it in a wrapper "
        "of the env, or leave it out"
    )
    assert list(root.iterdir()) == []


def test_names_with_dots_and_spaces_are_kept() -> None:
    env = Sampled(spaces.Dict({"a.b": BOX, "..": BOX, "c d": BOX, "0": BOX}), spaces.Discrete(2))
    data: Any = frames(env)
    dataset = to_minari(data, "names-v0", env=env)
    for name in ("a.b", "..", "c d", "0"):
        assert np.array_equal(dataset[0].observations[name], [one[name] for one in env.observed[:4]])
