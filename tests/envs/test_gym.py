"""`GymEnv` and `GymWrapper`: options, keys, seeds, life."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict

from reap.collectors import SyncDataCollector
from reap.data import Bounded, OneHot, Unbounded
from reap.envs import EnvCreator, GymEnv, GymWrapper, SerialEnv
from reap.errors import ClosedError, OptionError
from reap.seeds import next_seed
from reap.testing import Const, Count, DictCount, Id


def collect(env: Any, frames: int = 4) -> TensorDict:
    return SyncDataCollector(env, frames_per_batch=frames).next()


# ---------------------------------------------------------------------- dtype


class Doubles(Count):
    observation_space = spaces.Dict({"a": spaces.Box(-1e6, 1e6, (1,), np.float64), "n": spaces.Box(0, 9, (1,), np.int32)})

    def observe(self) -> Any:
        return {"a": np.array([self.steps / 3]), "n": np.array([self.steps], np.int32)}


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.float16, torch.float64])
def test_dtype_casts_float_observations_only(dtype: torch.dtype | None) -> None:
    batch = collect(GymEnv(Doubles(9), dtype=dtype))
    expected = torch.tensor([[0.0], [1 / 3], [2 / 3], [1.0]], dtype=torch.float64).to(dtype or torch.float64)
    for node in (batch, batch["next"]):
        assert node["a"].dtype == (dtype or torch.float64)
        assert node["n"].dtype == torch.int32
    assert torch.equal(batch["a"], expected)
    assert GymEnv(Doubles(9), dtype=dtype).observation_spec["a"].dtype == (dtype or torch.float64)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, "float32", np.float32])
def test_a_dtype_that_is_none(dtype: Any) -> None:
    with pytest.raises(OptionError) as caught:
        GymEnv(Count(3), dtype=dtype)
    assert str(caught.value) == f"dtype: expected a floating torch.dtype, for float observations, got {dtype!r}"


# ---------------------------------------------------------------------- info_keys


class Informed(Count):
    """Has `lives` in each step's info, `bonus` in every second one, and nothing at a reset."""

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, _ = super().step(action)
        info = {"lives": 3 - self.steps, "other": object()}
        if self.steps % 2 == 0:
            info["bonus"] = np.array([self.steps, -self.steps])
        return observation, reward, terminated, truncated, info


@pytest.mark.parametrize("rows", [0, 2])
def test_h05_info_values_that_are_absent_are_zero(rows: int) -> None:
    keys = {"lives": Unbounded((), dtype=torch.int64), "bonus": Unbounded((2,), dtype=torch.float32)}

    def build() -> GymEnv:
        return GymEnv(Informed(3), info_keys=keys)

    env = SerialEnv(rows, build) if rows else build()
    batch = collect(env, 4 * max(rows, 1))
    row = batch[0] if rows else batch
    assert row["lives"].tolist() == [0, 2, 1, 0]
    assert row["next", "lives"].tolist() == [2, 1, 0, 2]
    assert row["bonus"].tolist() == [[0, 0], [0, 0], [2, -2], [0, 0]]
    assert row["next", "bonus"].tolist() == [[0, 0], [2, -2], [0, 0], [0, 0]]
    assert (row["lives"].dtype, row["bonus"].dtype) == (torch.int64, torch.float32)


def test_a_list_of_info_keys_is_one_of_scalars() -> None:
    env = GymEnv(Informed(3), info_keys=["lives", "never"])
    assert env.observation_spec["lives"] == Unbounded((), dtype=torch.float32)
    batch = collect(env)
    assert batch["next", "lives"].tolist() == [2.0, 1.0, 0.0, 2.0]
    assert batch["next", "never"].tolist() == [0.0] * 4
    assert "bonus" not in batch.keys()


RENAME = "leave them out or rename the observation"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("lives", "info_keys: expected a list of names or a dict of specs, got the string 'lives'"),
        (
            ["observation"],
            "info_keys: ['observation'] are observations of the env already; leave them out or rename the observation",
        ),
    ],
)
def test_info_keys_that_cannot_be(given: Any, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        GymEnv(Informed(3), info_keys=given)
    assert str(caught.value) == message


# ---------------------------------------------------------------------- keys of the batch


class Keys(gym.Env[Any, Any]):
    action_space = spaces.Discrete(2)

    def __init__(self, *names: str) -> None:
        self.observation_space = spaces.Dict({name: spaces.Discrete(2) for name in names})


@pytest.mark.parametrize(
    "name", ["action", "reward", "done", "terminated", "truncated", "next", "collector", "is_init", "step_count"]
)
def test_observations_that_collide_with_keys_of_the_batch(name: str) -> None:
    advice = "rename them, e.g. with gymnasium.wrappers.TransformObservation"
    with pytest.raises(OptionError) as caught:
        GymEnv(Keys("a", name))
    assert str(caught.value) == f"<Keys instance>: observation keys {[name]} collide with keys of every batch; {advice}"
    with pytest.raises(OptionError, match="collide with keys of every batch"):
        GymEnv(Count(3), info_keys=[name])


def test_spaces_that_hold_nothing() -> None:
    with pytest.raises(
        OptionError, match=r"^<Keys instance>: expected an observation space that holds something, got Dict\(\)$"
    ):
        GymEnv(Keys())
    env = Count(3)
    env.action_space = spaces.Dict({})
    with pytest.raises(OptionError, match=r"^<Count instance>: expected an action space that holds something, got Dict\(\)$"):
        GymEnv(env)


# ---------------------------------------------------------------------- frame_skip


@pytest.mark.parametrize("rows", [0, 2])
def test_frame_skip_sums_rewards_and_stops_at_the_end(rows: int) -> None:
    made: list[Count] = []

    def build() -> GymEnv:
        made.append(Count(5))
        return GymEnv(made[-1], frame_skip=3)

    env = SerialEnv(rows, build) if rows else build()
    collector = SyncDataCollector(env, Const(), frames_per_batch=3 * max(rows, 1))
    batch = collector.next()
    row = batch[0] if rows else batch
    assert row["observation"].flatten().tolist() == [0, 3, 0]
    assert row["next", "observation"].flatten().tolist() == [3, 5, 3]
    assert row["next", "reward"].flatten().tolist() == [3, 2, 3]
    assert row["next", "terminated"].flatten().tolist() == [False, True, False]
    assert [inner.steps for inner in made] == [3] * len(made)


@pytest.mark.parametrize("value", [0, -1, 2.5, "2", True])
def test_a_frame_skip_that_is_none(value: Any) -> None:
    with pytest.raises(OptionError) as caught:
        GymEnv(Count(3), frame_skip=value)
    assert str(caught.value) == f"frame_skip: expected a positive integer, got {value!r}"


# ---------------------------------------------------------------------- pixels


class Drawn(Count):
    render_mode = "rgb_array"

    def render(self) -> Any:
        return np.full((2, 3, 3), self.steps, np.uint8)


def test_pixels_only() -> None:
    env = GymEnv(Drawn(3), from_pixels=True)
    assert env.observation_spec.keys() == ["pixels"]
    assert env.observation_spec["pixels"] == Bounded(0, 255, (2, 3, 3), dtype=torch.uint8)
    batch = collect(env)
    assert batch["pixels"].dtype == torch.uint8
    assert batch["pixels"].shape == (4, 2, 3, 3)
    assert batch["pixels"][:, 1, 2, 0].tolist() == [0, 1, 2, 0]
    assert batch["next", "pixels"][:, 0, 0, 2].tolist() == [1, 2, 3, 1]


def test_pixels_beside_the_observation() -> None:
    batch = collect(GymEnv(Drawn(3), from_pixels=True, pixels_only=False))
    assert batch["observation"].flatten().tolist() == batch["pixels"][:, 0, 0, 0].tolist() == [0, 1, 2, 0]


def test_pixels_need_a_render_mode() -> None:
    with pytest.raises(OptionError, match="^from_pixels needs render_mode='rgb_array', this env has None$"):
        GymEnv(Count(3), from_pixels=True)


# ---------------------------------------------------------------------- ids, kwargs, wrappers


def test_keywords_go_to_gymnasium_make() -> None:
    with GymEnv("FrozenLake-v1", is_slippery=False, map_name="8x8") as env:
        assert env.observation_spec["observation"] == OneHot(64, dtype=torch.int64)
        assert env.wrapped.unwrapped.spec.kwargs["is_slippery"] is False
    with pytest.raises(
        OptionError, match=r"^GymEnv: \['is_slippery'\] go to gymnasium.make and need an id, but an env was given$"
    ):
        GymEnv(Count(3), is_slippery=False)


@pytest.mark.parametrize("given", [3, None, Count])
def test_no_env(given: Any) -> None:
    with pytest.raises(OptionError, match="^GymEnv: expected a gymnasium id, env or vector env, got "):
        GymEnv(given)


def test_wrapper_takes_an_env_that_exists() -> None:
    inner = Count(3)
    env = GymWrapper(inner, frame_skip=2)
    assert isinstance(env, GymEnv)
    assert env.wrapped.unwrapped is inner
    assert collect(env)["observation"].flatten().tolist() == [0, 2, 0, 2]
    assert repr(GymWrapper(inner)) == "GymWrapper(<Count instance>)"


def test_wrappers_in_one_batch() -> None:
    env = SerialEnv(2, lambda: GymWrapper(Count(3)))
    assert collect(env, 8)["observation"].squeeze(-1).tolist() == [[0, 1, 2, 0]] * 2


# ---------------------------------------------------------------------- seeds


class Seeds(Count):
    def __init__(self) -> None:
        super().__init__(2)
        self.seeds: list[int | None] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seeds.append(seed)
        return super().reset(seed=seed)


def test_a_seed_reaches_the_env_once_with_its_next_reset() -> None:
    env = GymEnv(Seeds())
    assert env.set_seed(5) == next_seed(5)
    assert env.wrapped.seeds == []
    for _ in range(3):
        env.reset()
    assert env.set_seed(8, static_seed=True) == 8
    env.rollout(5, break_when_any_done=False)
    assert env.wrapped.seeds == [5, None, None, 8, None, None]


def test_the_same_seed_gives_the_same_episodes() -> None:
    def values(seed: int) -> torch.Tensor:
        with GymEnv("CartPole-v1") as env:
            env.set_seed(seed)
            return torch.cat([env.reset()["observation"] for _ in range(3)])

    assert torch.equal(values(1), values(1))
    assert not torch.equal(values(1), values(2))


# ---------------------------------------------------------------------- pickling, life


def test_it_pickles_as_its_recipe() -> None:
    env = GymEnv("CartPole-v1", frame_skip=2, categorical_action_encoding=True, sutton_barto_reward=True)
    env.rollout(2)
    again = pickle.loads(pickle.dumps(env))
    assert again.wrapped is not env.wrapped
    assert (again.observation_spec, again.action_spec) == (env.observation_spec, env.action_spec)
    for each in (env, again):
        each.set_seed(3)
    torch.manual_seed(1)
    first = env.rollout(6)
    torch.manual_seed(1)
    assert (first == again.rollout(6)).all()
    assert type(pickle.loads(pickle.dumps(GymWrapper(Count(3), frame_skip=2)))) is GymWrapper
    for each in (env, again):
        each.close()


def test_close_once() -> None:
    closings: list[int] = []
    inner = Count(3)
    inner.close = lambda: closings.append(1)
    with GymEnv(inner) as env:
        env.reset()
    env.close()
    assert closings == [1]
    assert env.closed
    for call in (env.reset, env.rand_step, lambda: env.rollout(2), lambda: env.set_seed(1), lambda: env.step(TensorDict())):
        with pytest.raises(ClosedError, match="^GymEnv is closed; build a new one$"):
            call()


def test_attributes_and_methods_through_wrappers() -> None:
    env = GymEnv(gym.wrappers.TimeLimit(Id(4), 3), frame_skip=1)
    env.reset()
    assert (env.get_attribute("number"), env.get_attribute("resets"), env.call("is_terminal")) == (4, 1, False)


def test_creator() -> None:
    creator = EnvCreator(Count, {"length": 2})
    first, second = creator(), creator(start=5)
    assert first is not second
    assert collect(first)["observation"].flatten().tolist() == [0, 1, 0, 1]
    assert collect(second)["observation"].flatten().tolist() == [5, 6, 5, 6]
    assert collect(pickle.loads(pickle.dumps(creator))())["observation"].flatten().tolist() == [0, 1, 0, 1]
    with EnvCreator("CartPole-v1", {"frame_skip": 2})() as env:
        assert env.rollout(1)["next", "reward"].item() == 2


def test_the_next_frame_holds_the_true_last_observation() -> None:
    batch = SyncDataCollector(GymEnv(DictCount(3)), frames_per_batch=6).next()
    assert batch["place"][:, 0].tolist() == [0, 1, 2, 0, 1, 2]
    assert batch["next", "place"][:, 0].tolist() == [1, 2, 3, 1, 2, 3]
    assert batch["next", "agent", "level"].argmax(-1).tolist() == [1, 2, 3, 1, 2, 3]
    assert batch["next", "image"][:, 5, 5, 1].tolist() == [1, 2, 3, 1, 2, 3]


def test_a_misspelt_option_that_went_to_gymnasium_is_named() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'categorical_encoding'") as info:
        GymEnv("CartPole-v1", categorical_encoding=True)
    (hint,) = info.value.__notes__
    assert hint.startswith("reap: 'categorical_encoding' is no option of GymEnv and went to gymnasium.make. ")
    assert hint.endswith("Did you mean 'categorical_action_encoding'?")
