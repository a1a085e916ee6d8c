"""Every kind of gymnasium space: what is recorded of observations, and which actions an env is given."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from reap.collectors import SyncDataCollector
from reap.envs import GymEnv, SerialEnv
from reap.envs.gymnasium.values import action_leaves, assemble, observation_leaves
from reap.errors import OptionError, SpecMismatch
from reap.testing import KeepActions
from tests.pairwise import pairwise

TWO = spaces.Discrete(2)


class Fixed(gym.Env[Any, Any]):
    """Observes one value for ever; keeps its actions."""

    def __init__(self, observation_space: Any, value: Any, action_space: Any = TWO) -> None:
        self.observation_space, self.action_space, self.value = observation_space, action_space, value
        self.actions: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.value, {}

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        return self.value, 0.0, False, False, {}


# ---------------------------------------------------------------------- observations

I8, I64, F32 = torch.int8, torch.int64, torch.float32
OBSERVATIONS: dict[str, tuple[Any, Any, dict[Any, Any], dict[Any, Any]]] = {
    # space, value, recorded one-hot, recorded as indices (None: the same)
    "Box": (spaces.Box(-1, 1, (2,)), np.array([0.5, -0.5], np.float32), {"observation": (F32, [0.5, -0.5])}, {}),
    "Box ()": (spaces.Box(-1, 1, ()), np.float32(0.5), {"observation": (F32, 0.5)}, {}),
    "Box float64": (
        spaces.Box(-1, 1, (1,), np.float64),
        np.array([0.1]),
        {"observation": (torch.float64, [0.1])},
        {},
    ),
    "Box uint8": (
        spaces.Box(0, 255, (1, 2), np.uint8),
        np.array([[0, 255]], np.uint8),
        {"observation": (torch.uint8, [[0, 255]])},
        {},
    ),
    "Box bool": (spaces.Box(0, 1, (2,), np.bool_), np.array([True, False]), {"observation": (torch.bool, [True, False])}, {}),
    "Discrete": (spaces.Discrete(3), 2, {"observation": (I64, [0, 0, 1])}, {"observation": (I64, 2)}),
    "Discrete start": (spaces.Discrete(3, start=-1), -1, {"observation": (I64, [1, 0, 0])}, {"observation": (I64, 0)}),
    "Discrete numpy": (spaces.Discrete(2), np.int64(1), {"observation": (I64, [0, 1])}, {"observation": (I64, 1)}),
    "MultiDiscrete": (
        spaces.MultiDiscrete([2, 3]),
        np.array([1, 2]),
        {"observation": (I64, [0, 1, 0, 0, 1])},
        {"observation": (I64, [1, 2])},
    ),
    "MultiDiscrete start": (
        spaces.MultiDiscrete([2, 3], start=[5, -1]),
        np.array([5, 1]),
        {"observation": (I64, [1, 0, 0, 0, 1])},
        {"observation": (I64, [0, 2])},
    ),
    "MultiDiscrete rank 2": (
        spaces.MultiDiscrete(np.array([[2, 3], [2, 2]])),
        np.array([[1, 0], [0, 1]]),
        {"observation": (I64, [0, 1, 1, 0, 0, 1, 0, 0, 1])},
        {"observation": (I64, [[1, 0], [0, 1]])},
    ),
    "MultiBinary": (spaces.MultiBinary(3), np.array([1, 0, 1], np.int8), {"observation": (I8, [1, 0, 1])}, {}),
    "MultiBinary rank 2": (
        spaces.MultiBinary((2, 1)),
        np.array([[1], [0]], np.int8),
        {"observation": (I8, [[1], [0]])},
        {},
    ),
    "Dict": (
        spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Dict({"c": spaces.MultiBinary(2), "d": spaces.Box(0, 9, (1,))})}),
        {"a": 1, "b": {"c": np.array([0, 1], np.int8), "d": np.array([7], np.float32)}},
        {"a": (I64, [0, 1]), ("b", "c"): (I8, [0, 1]), ("b", "d"): (F32, [7])},
        {"a": (I64, 1), ("b", "c"): (I8, [0, 1]), ("b", "d"): (F32, [7])},
    ),
    "Tuple": (
        spaces.Tuple((spaces.Discrete(2), spaces.Dict({"c": spaces.Box(0, 9, (1,))}))),
        (1, {"c": np.array([7], np.float32)}),
        {("observation", "0"): (I64, [0, 1]), ("observation", "1", "c"): (F32, [7])},
        {("observation", "0"): (I64, 1), ("observation", "1", "c"): (F32, [7])},
    ),
}


def recorded(batch: Any, keys: Any) -> dict[Any, Any]:
    return {key: (batch[key].dtype, batch[key].tolist()) for key in keys}


def repeated(values: dict[Any, Any], times: int) -> dict[Any, Any]:
    return {key: (dtype, [value] * times) for key, (dtype, value) in values.items()}


@pytest.mark.parametrize("categorical", [False, True])
@pytest.mark.parametrize("name", OBSERVATIONS)
def test_h06_observations(name: str, categorical: bool) -> None:
    space, value, one_hot, indices = OBSERVATIONS[name]
    expected = (indices or one_hot) if categorical else one_hot
    env = GymEnv(Fixed(space, value), categorical_action_encoding=categorical)
    assert set(env.observation_spec.keys(include_nested=True, leaves_only=True)) == set(expected)
    batch = SyncDataCollector(env, frames_per_batch=2).next()
    assert recorded(batch, expected) == repeated(expected, 2)
    assert recorded(batch["next"], expected) == repeated(expected, 2)
    assert env.observation_spec.is_in(env.reset().select(*expected))

    several = SerialEnv(2, lambda: GymEnv(Fixed(space, value), categorical_action_encoding=categorical))
    batch = SyncDataCollector(several, frames_per_batch=6).next()
    assert recorded(batch, expected) == repeated(repeated(expected, 3), 2)


def test_a_discrete_value_out_of_range_is_an_error_and_not_another_value() -> None:
    (leaf,) = observation_leaves(spaces.Discrete(3, start=2), ("observation",), categorical=False)
    assert leaf.read(4).tolist() == [0, 0, 1]
    for value in (1, 5, -1):
        with pytest.raises(SpecMismatch, match=rf"^'observation': expected an integer from 2 to 4, found {value} \(int\)"):
            leaf.read(value)


# ---------------------------------------------------------------------- actions

ACTIONS: dict[str, tuple[Any, dict[Any, Any], dict[Any, Any], Any]] = {
    # space, action of the policy one-hot, as indices (empty: the same), what the env is given
    "Box": (spaces.Box(-1, 1, (2,)), {"action": (F32, [0.5, -0.5])}, {}, np.array([0.5, -0.5], np.float32)),
    "Box ()": (spaces.Box(-1, 1, ()), {"action": (F32, 0.5)}, {}, np.array(0.5, np.float32)),
    "Box int32": (spaces.Box(0, 9, (1,), np.int32), {"action": (torch.int32, [7])}, {}, np.array([7], np.int32)),
    "Discrete": (spaces.Discrete(3), {"action": (I64, [0, 0, 1])}, {"action": (I64, 2)}, 2),
    "Discrete start": (spaces.Discrete(3, start=5), {"action": (I64, [0, 1, 0])}, {"action": (I64, 1)}, 6),
    "MultiDiscrete": (
        spaces.MultiDiscrete([2, 3]),
        {"action": (I64, [0, 1, 0, 0, 1])},
        {"action": (I64, [1, 2])},
        np.array([1, 2]),
    ),
    "MultiDiscrete start": (
        spaces.MultiDiscrete([2, 3], start=[5, -1]),
        {"action": (I64, [1, 0, 0, 0, 1])},
        {"action": (I64, [0, 2])},
        np.array([5, 1]),
    ),
    "MultiDiscrete rank 2": (
        spaces.MultiDiscrete(np.array([[2, 3], [2, 2]])),
        {"action": (I64, [0, 1, 1, 0, 0, 1, 0, 0, 1])},
        {"action": (I64, [[1, 0], [0, 1]])},
        np.array([[1, 0], [0, 1]]),
    ),
    "MultiBinary": (spaces.MultiBinary(2), {"action": (I8, [1, 0])}, {}, np.array([1, 0], np.int8)),
    "Dict": (
        spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Dict({"c": spaces.Box(-1, 1, (1,))})}),
        {("action", "a"): (I64, [0, 1]), ("action", "b", "c"): (F32, [0.5])},
        {("action", "a"): (I64, 1), ("action", "b", "c"): (F32, [0.5])},
        {"a": 1, "b": {"c": np.array([0.5], np.float32)}},
    ),
    "Tuple": (
        spaces.Tuple((spaces.Box(-1, 1, (1,)), spaces.Discrete(2))),
        {("action", "0"): (F32, [0.5]), ("action", "1"): (I64, [0, 1])},
        {("action", "0"): (F32, [0.5]), ("action", "1"): (I64, 1)},
        (np.array([0.5], np.float32), 1),
    ),
}


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return type(found) is dict and list(found) == list(expected) and all(same(found[k], expected[k]) for k in expected)
    if isinstance(expected, tuple):
        return type(found) is tuple and all(map(same, found, expected))
    if isinstance(expected, np.ndarray):
        return type(found) is np.ndarray and found.dtype == expected.dtype and np.array_equal(found, expected)
    return type(found) is type(expected) and found == expected


@pytest.mark.parametrize(("name", "rows", "categorical"), pairwise(list(ACTIONS), [0, 1, 3], [False, True]))
def test_actions(name: str, rows: int, categorical: bool) -> None:
    space, one_hot, indices, given = ACTIONS[name]
    values = (indices or one_hot) if categorical else one_hot
    made: list[KeepActions] = []

    def build() -> GymEnv:
        made.append(KeepActions(9, space))
        return GymEnv(made[-1], categorical_action_encoding=categorical)

    def policy(observation: torch.Tensor) -> dict[Any, torch.Tensor]:
        tensors = {key: torch.tensor(value, dtype=dtype) for key, (dtype, value) in values.items()}
        return {key: tensor.expand((*observation.shape[:-1], *tensor.shape)) for key, tensor in tensors.items()}

    env = SerialEnv(rows, build) if rows else build()
    assert set(env.full_action_spec.keys(include_nested=True, leaves_only=True)) == set(values)
    batch = SyncDataCollector(env, policy, frames_per_batch=4 * max(rows, 1)).next()
    assert recorded(batch, values) == (repeated(repeated(values, 4), rows) if rows else repeated(values, 4))
    for inner in made:
        assert len(inner.actions) == 4
        assert all(same(action, given) and space.contains(action) for action in inner.actions)


@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize("name", ACTIONS)
def test_random_actions_are_in_the_space(name: str, rows: int) -> None:
    space = ACTIONS[name][0]
    for categorical in (False, True):
        made: list[KeepActions] = []

        def build(made: list[KeepActions] = made, categorical: bool = categorical) -> GymEnv:
            made.append(KeepActions(9, space))
            return GymEnv(made[-1], categorical_action_encoding=categorical)

        SyncDataCollector(SerialEnv(rows, build) if rows else build(), frames_per_batch=6 * max(rows, 1)).next()
        assert all(space.contains(action) for inner in made for action in inner.actions)
        assert sum(len(inner.actions) for inner in made) == 6 * max(rows, 1)


@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize("space", [spaces.Box(-1e6, 1e6, (1,)), spaces.Dict({"a": spaces.Box(-1e6, 1e6, (1,))})])
def test_envs_are_given_copies_of_their_actions(rows: int, space: Any) -> None:
    made: list[KeepActions] = []

    def build() -> GymEnv:
        made.append(KeepActions(5, space))
        return GymEnv(made[-1])

    key = "action" if isinstance(space, spaces.Box) else ("action", "a")
    env = SerialEnv(rows, build) if rows else build()
    collector = SyncDataCollector(env, lambda observation: {key: observation + 10}, frames_per_batch=4 * max(1, rows))
    batches = [collector.next() for _ in range(3)]
    for batch in batches:
        batch[key].zero_()
    expected = [10.0, 11, 12, 13, 14] * 2 + [10, 11]
    for inner in made:
        kept = [action if isinstance(action, np.ndarray) else action["a"] for action in inner.actions]
        assert [value.item() for value in kept] == expected


@pytest.mark.parametrize("space", [spaces.Text(3), spaces.Sequence(spaces.Discrete(2)), spaces.Dict({"a": spaces.Text(3)})])
def test_actions_that_are_no_arrays(space: Any) -> None:
    with pytest.raises(OptionError, match="expected Box, Discrete, MultiDiscrete, MultiBinary, or Dict and Tuple of these"):
        GymEnv(KeepActions(5, space))


def test_assemble_follows_the_order_of_the_leaves() -> None:
    space = spaces.Dict({"b": spaces.Tuple((spaces.Discrete(2), spaces.Discrete(3))), "a": spaces.Discrete(4)})
    leaves = action_leaves(space, ("action",), categorical=True)
    names = [leaf.key for leaf in leaves]
    assert assemble(space, names) == {"a": ("action", "a"), "b": (("action", "b", "0"), ("action", "b", "1"))}
