"""`SerialEnv`: envs of any kind as one batch."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict, TensorDictBase

from reap.collectors import SyncDataCollector
from reap.data import Composite, Unbounded
from reap.envs import EnvBase, EnvCreator, GymEnv, SerialEnv
from reap.errors import ClosedError, OptionError, SpecMismatch
from reap.seeds import seed_chain
from reap.testing import Const, Count, DiscreteCount, Id, IdRows


def observed(batch: Any) -> Any:
    return batch["observation"].squeeze(-1).tolist()


def collect(env: EnvBase, columns: int = 4) -> TensorDictBase:
    return SyncDataCollector(env, Const(), frames_per_batch=columns * env.batch_size.numel()).next()


# ---------------------------------------------------------------------- what it is made of


@pytest.mark.parametrize(
    "given",
    [
        lambda: Count(3),
        lambda: GymEnv(Count(3)),
        EnvCreator(lambda: Count(3)),
        [lambda: Count(3), EnvCreator(Count, {"length": 3})],
        (lambda: GymEnv(Count(3)), lambda: Count(3)),
    ],
)
def test_factories(given: Any) -> None:
    env = SerialEnv(2, given)
    assert env.batch_size == (2,)
    assert observed(collect(env)) == [[0, 1, 2, 0]] * 2


def test_ids_and_keywords() -> None:
    with SerialEnv(2, "CartPole-v1", create_env_kwargs={"frame_skip": 2}) as env:
        assert collect_random(env)["next", "reward"].unique().tolist() == [2]
    env = SerialEnv(2, Count, create_env_kwargs=[{"length": 2}, {"length": 3, "start": 5}])
    assert observed(collect(env)) == [[0, 1, 0, 1], [5, 6, 7, 5]]


def collect_random(env: EnvBase) -> TensorDictBase:
    return SyncDataCollector(env, frames_per_batch=6).next()


@pytest.mark.parametrize("count", [0, -1, True, 2.0, "2", None])
def test_a_number_of_envs_that_is_none(count: Any) -> None:
    with pytest.raises(OptionError) as caught:
        SerialEnv(count, lambda: Count(3))
    assert str(caught.value) == f"num_workers: expected a positive number of envs, got {count!r}"


@pytest.mark.parametrize(
    ("factories", "kwargs", "message"),
    [
        ([Count, Count, Count], None, "create_env_fn: expected one or 2 entries, got 3"),
        (Count, [{"length": 3}], "create_env_kwargs: expected one or 2 entries, got 1"),
    ],
)
def test_lists_of_another_length(factories: Any, kwargs: Any, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        SerialEnv(2, factories, create_env_kwargs=kwargs)
    assert str(caught.value) == message


def test_a_factory_that_returns_nothing() -> None:
    with pytest.raises(OptionError, match="expected it to return an env, got NoneType: None; does it lack a return"):
        SerialEnv(2, lambda: None)


class Closing(Count):
    """Notes that it is closed."""

    closings = 0

    def close(self) -> None:
        self.closings += 1


def test_envs_that_are_built_are_closed_when_another_cannot_be() -> None:
    made = Closing(3)
    with pytest.raises(ZeroDivisionError):
        SerialEnv(2, [lambda: GymEnv(made), lambda: 1 // 0])
    assert made.closings == 1
    made = Closing(3)
    with pytest.raises(SpecMismatch):
        SerialEnv(2, [lambda: GymEnv(made), lambda: Id(0)])
    assert made.closings == 1


# ---------------------------------------------------------------------- specs


@pytest.mark.parametrize(
    ("other", "name"),
    [
        (lambda: GymEnv(Id(0)), "observation_spec"),
        (lambda: GymEnv(Count(3), dtype=torch.float64), "observation_spec"),
        (lambda: GymEnv(Count(3), info_keys=["x"]), "observation_spec"),
        (lambda: GymEnv(Acting()), "full_action_spec"),
    ],
)
def test_unequal_specs(other: Any, name: str) -> None:
    first, second = GymEnv(Count(3)), other()
    with pytest.raises(SpecMismatch) as caught:
        SerialEnv(3, [lambda: GymEnv(Count(3)), lambda: GymEnv(Count(3)), other])
    assert str(caught.value) == (
        f"env 2 differs from env 0 in {name}: expected {getattr(first, name)}, found {getattr(second, name)}; the envs of a "
        "batch have equal keys, shapes and dtypes"
    )


class Acting(Count):
    action_space = spaces.Box(-1e6, 1e6, (2,))

    def __init__(self) -> None:
        super().__init__(3)


def test_specs_have_the_batch_dimensions() -> None:
    env = SerialEnv(3, lambda: GymEnv(DiscreteCount(3)))
    assert env.observation_spec["observation"].shape == (3, 5)
    assert env.action_spec.shape == (3, 5)
    assert env.reward_spec.shape == (3, 1)
    assert {spec.shape for spec in env.full_done_spec.values()} == {torch.Size([3, 1])}
    assert SerialEnv(2, lambda: IdRows((3,))).observation_spec["observation"].shape == (2, 3, 3)


# ---------------------------------------------------------------------- envs of several kinds


class Own(EnvBase):
    """`Count(3)` by TensorDicts."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded((1,)))
        self.action_spec = GymEnv(Count(3)).action_spec
        self.add_truncated_keys()
        self.steps = 0

    def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        self.steps = 0
        return TensorDict({"observation": torch.zeros(1)})

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.steps += 1
        done = torch.tensor([self.steps == 3])
        values = {"observation": torch.tensor([float(self.steps)]), "reward": torch.ones(1)}
        return TensorDict({**values, "done": done, "terminated": done})

    def _set_seed(self, seed: int) -> None:
        self.seed = seed


def test_mixed_kinds_of_equal_specs() -> None:
    env = SerialEnv(3, [lambda: GymEnv(Count(3)), Own, lambda: Count(2)])
    collector = SyncDataCollector(env, Const(), frames_per_batch=12)
    batch = collector.next()
    assert observed(batch) == [[0, 1, 2, 0], [0, 1, 2, 0], [0, 1, 0, 1]]
    assert observed(batch["next"]) == [[1, 2, 3, 1], [1, 2, 3, 1], [1, 2, 1, 2]]
    assert batch["next", "terminated"].squeeze(-1).int().tolist() == [[0, 0, 1, 0], [0, 0, 1, 0], [0, 1, 0, 1]]
    assert observed(collector.next()) == [[1, 2, 0, 1], [1, 2, 0, 1], [0, 1, 0, 1]]
    assert collector.set_seed(4) == seed_chain(4, 3)[-1]
    assert env.envs[1].seed == seed_chain(4, 3)[1]


def test_batched_envs_in_a_batch() -> None:
    env = SerialEnv(2, lambda: IdRows((2, 3)))
    assert env.batch_size == (2, 2, 3)
    batch = collect(env, 9)
    single = collect(IdRows((2, 3)), 9)
    for child in batch.unbind(0):
        for key in ("observation", ("next", "observation"), ("next", "reward"), ("next", "done")):
            assert torch.equal(child[key], single[key])
    assert batch["collector", "traj_ids"].unique().numel() > 12


def test_a_batch_of_batches_of_gymnasium_envs() -> None:
    env = SerialEnv(2, lambda: SerialEnv(3, lambda: Count(3)))
    assert env.batch_size == (2, 3)
    assert observed(collect(env)) == [[[0, 1, 2, 0]] * 3] * 2


# ---------------------------------------------------------------------- seeds, attributes, life


@pytest.mark.parametrize("static", [False, True])
def test_seeds_go_along_the_chain(static: bool) -> None:
    env = SerialEnv(3, Own)
    following = env.set_seed(9, static_seed=static)
    chain = seed_chain(9, 3, static=static)
    assert [each.seed for each in env.envs] == chain[:3]
    assert following == chain[3]
    nested = SerialEnv(2, lambda: SerialEnv(2, Own))
    assert nested.set_seed(9, static_seed=static) == seed_chain(9, 4, static=static)[-1]
    assert [each.seed for inner in nested.envs for each in inner.envs] == seed_chain(9, 4, static=static)[:4]


def test_envs_with_seeds_of_the_chain_are_those_of_single_envs() -> None:
    with SerialEnv(3, "CartPole-v1") as env:
        env.set_seed(5)
        first = env.reset()["observation"]
    for i, seed in enumerate(seed_chain(5, 3)[:3]):
        with GymEnv("CartPole-v1") as single:
            single.set_seed(seed)
            assert torch.equal(single.reset()["observation"], first[i])


def test_attributes_and_calls_are_lists() -> None:
    env = SerialEnv(2, [lambda: Id(3), lambda: Id(5)])
    env.reset()
    assert env.get_attribute("number") == [3, 5]
    assert env.call("length", 0, 0) == [1, 1]


def test_close() -> None:
    inner = [Closing(3), Closing(3)]
    env = SerialEnv(2, [lambda: inner[0], lambda: inner[1]])
    env.close()
    env.close()
    assert [each.closings for each in inner] == [1, 1]
    for call in (env.reset, env.rand_step, lambda: env.rollout(2), lambda: env.set_seed(1), env.row_stepper):
        with pytest.raises(ClosedError, match="^SerialEnv is closed; build a new one$"):
            call()


def test_it_pickles_as_its_recipe() -> None:
    env = SerialEnv(2, [EnvCreator(Count, {"length": 2}), EnvCreator(Count, {"length": 3})])
    again = pickle.loads(pickle.dumps(env))
    assert observed(collect(again)) == observed(collect(env)) == [[0, 1, 0, 1], [0, 1, 2, 0]]


def test_repr() -> None:
    assert repr(SerialEnv(2, lambda: Count(3))) == "SerialEnv(2, GymEnv(<Count instance>))"


# ---------------------------------------------------------------------- one env given for several rows


@pytest.mark.parametrize("given", [GymEnv("CartPole-v1"), [GymEnv("CartPole-v1")] * 2], ids=["one", "list"])
def test_an_env_by_id_is_built_again_for_each_row(given: Any) -> None:
    with SerialEnv(2, given) as env:
        assert env.envs[0].wrapped.unwrapped is not env.envs[1].wrapped.unwrapped
        env.set_seed(3)
        first = env.reset()["observation"]
    assert not torch.equal(first[0], first[1])


def test_an_env_that_is_an_object_cannot_be_several_rows() -> None:
    with pytest.raises(OptionError, match="was given for several rows, but it is one env: give a factory"):
        SerialEnv(2, gym.make("CartPole-v1"))


def test_one_env_for_several_rows_is_refused() -> None:
    wrapped = Count(5)
    env = GymEnv(wrapped)
    for factory in (lambda: env, lambda: GymEnv(wrapped)):
        with pytest.raises(OptionError, match="expected an env of its own for each row, .* make it inside of the factory"):
            SerialEnv(2, factory)


def test_all_envs_are_closed_though_one_raises() -> None:
    closed: list[int] = []

    class Closing(Count):
        def close(self) -> None:
            closed.append(1)
            raise ValueError("in close")

    env = SerialEnv(3, lambda: GymEnv(Closing(5)))
    with pytest.raises(ValueError, match="in close"):
        env.close()
    assert len(closed) == 3
