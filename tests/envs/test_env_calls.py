"""What envs have of torchrl's besides `reset` and `step`: names, groups of specs, partial resets, rollouts, batches, infos."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import nn

import reap.envs
from reap.envs import EnvBase, EnvCreator, GymEnv, GymWrapper, ParallelEnv, SerialEnv, default_info_dict_reader
from reap.envs.batched_envs import SerialEnv as SameSerialEnv
from reap.envs.common import EnvBase as SameEnvBase
from reap.envs.libs.gym import gym_backend, set_gym_backend
from reap.errors import CallOrderError, ClosedError, OptionError, SpecMismatch
from reap.specs import Categorical, Composite, NonTensor, Unbounded
from reap.testing import Id, IdRows


@pytest.fixture
def cartpole() -> EnvBase:
    return GymEnv("CartPole-v1")


def test_first_arguments_have_torchrls_names() -> None:
    assert GymEnv(env_name="CartPole-v1").env_name == "CartPole-v1"
    assert GymWrapper(gym.make("CartPole-v1"), True).action_spec == Categorical(2)
    assert GymWrapper(env=gym.make("CartPole-v1")).env_name == "CartPole-v1"
    assert GymEnv("CartPole-v1", batch_size=[], allow_done_after_reset=False).batch_size == ()
    assert GymEnv("CartPole-v1", num_envs=2, batch_size=(2,)).batch_size == (2,)
    with pytest.raises(OptionError, match=r"batch_size: expected \[\], the size of this env, got \[2\]; .*num_envs=n"):
        GymEnv("CartPole-v1", batch_size=[2])
    assert (GymEnv.libname, GymEnv("CartPole-v1").lib) == ("gymnasium", gym)
    assert "CartPole-v1" in GymEnv.available_envs
    assert (SameEnvBase, SameSerialEnv) == (EnvBase, SerialEnv)


class Takes(gym.Env[Any, Any]):
    """Keeps the actions that it is given."""

    observation_space = gym.spaces.Box(-1, 1, (1,))
    action_space = gym.spaces.Dict(a=gym.spaces.Box(-1, 1, (2,)), b=gym.spaces.Discrete(3))

    def __init__(self) -> None:
        self.given: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {"count": 0, "_hidden": 1}

    def step(self, action: Any) -> Any:
        self.given.append(action)
        return np.zeros(1, np.float32), 0.0, False, False, {"count": 1, "name": "x", "wide": np.ones((2,), np.float64)}


def test_actions_as_tensors() -> None:
    for as_arrays, kind in ((True, np.ndarray), (False, torch.Tensor)):
        env = Takes()
        GymEnv(env, convert_actions_to_numpy=as_arrays).rollout(1)
        assert isinstance(env.given[0]["a"], kind)
        assert isinstance(env.given[0]["b"], torch.Tensor) is not as_arrays
    with pytest.raises(OptionError, match="convert_actions_to_numpy"):
        GymEnv(gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1")]), convert_actions_to_numpy=False)


def test_infos_become_observations() -> None:
    env = GymEnv(Takes()).auto_register_info_dict()
    assert dict(env.observation_spec.items())["wide"] == Unbounded((2,), dtype=torch.float64)
    assert env.observation_spec["name"].dtype is None
    assert "_hidden" not in env.observation_spec
    assert env.rollout(2)["next", "count"].tolist() == [1, 1]
    assert "_hidden" in GymEnv(Takes()).set_info_dict_reader(ignore_private=False).observation_spec
    reader = default_info_dict_reader(["count"], [Unbounded((), dtype=torch.int64)])
    env = GymEnv("CartPole-v1", num_envs=2).set_info_dict_reader(reader)
    assert env.rollout(2)["count"].shape == (2, 2)
    assert default_info_dict_reader(spec={"t": NonTensor(())}).info_keys == {"t": NonTensor(())}
    with pytest.raises(OptionError, match="makes observations of infos already"):
        env.set_info_dict_reader(reader)
    with pytest.raises(OptionError, match=r"GymEnv\(info_keys="):
        GymEnv(Takes()).set_info_dict_reader(lambda info, td: td)  # pyright: ignore[reportArgumentType]
    with pytest.raises(OptionError, match="expected one for each"):
        default_info_dict_reader(["a", "b"], [Unbounded(())])
    with pytest.raises(TypeError, match=r"defines \['read_reward'\], which nothing calls"):
        type("Mine", (GymEnv,), {"read_reward": lambda self, reward: reward})


def test_backend() -> None:
    with set_gym_backend("gymnasium"):
        assert gym_backend() is gym
    set_gym_backend(lambda: gym).set()
    assert set_gym_backend(gym)(gym_backend)("spaces") is gym.spaces
    with pytest.raises(OptionError, match="expected 'gymnasium', got 'gym'"):
        set_gym_backend("gym")


@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
def test_specs_in_groups(shape: tuple[int, ...]) -> None:
    env: EnvBase = IdRows(shape) if shape else GymEnv(Id(0))
    assert env.specs.keys() == ["output_spec", "input_spec"]
    assert env.output_spec["full_done_spec"] == env.full_done_spec
    assert env.input_spec["full_action_spec"] == env.full_action_spec
    assert env.state_spec == env.full_state_spec == Composite(shape=shape)
    assert (env.shape, env.ndim, env.batch_dims, env.ndimension(), env.numel()) == (
        shape,
        len(shape),
        len(shape),
        len(shape),
        torch.Size(shape).numel(),
    )
    one = env.observation_spec_unbatched
    assert one.shape == ()
    assert one.expand(*shape) == env.observation_spec
    for name in ("action", "reward", "done", "observation", "state"):
        assert getattr(env, f"full_{name}_spec_unbatched").shape == ()
        assert getattr(env, f"{name}_spec_unbatched") is not None
    assert env.output_spec_unbatched.shape == env.input_spec_unbatched.shape == ()
    fake = env.fake_tensordict()
    rolled = env.rollout(1, break_when_any_done=False).squeeze(-1)
    assert {key: (value.shape, value.dtype) for key, value in fake.items(True, True)} == {
        key: (value.shape, value.dtype) for key, value in rolled.items(True, True)
    }
    assert not any(value.any() for value in fake.values(True, True))


def test_keys(cartpole: EnvBase) -> None:
    assert cartpole.done_keys == ["done", "terminated", "truncated"]
    assert (cartpole.done_key, cartpole.reset_keys, cartpole.observation_keys, cartpole.state_keys) == (
        "done",
        ["_reset"],
        ["observation"],
        [],
    )
    assert cartpole.done_keys_groups == [["done", "terminated", "truncated"]]
    assert (cartpole.cardinality(), cartpole.all_actions()["action"].tolist()) == (2, [[1, 0], [0, 1]])
    cartpole.state_spec = Composite(hidden=Unbounded(3))
    assert cartpole.state_keys == ["hidden"]
    assert cartpole.fake_tensordict()["hidden"].shape == (3,)
    cartpole.done_spec = Composite(a=Composite(done=Categorical(2, (1,), dtype=torch.bool)), done=Categorical(2, (1,)))
    assert cartpole.reset_keys == [("a", "_reset"), "_reset"]
    with pytest.raises(OptionError, match="expected one done flag"):
        _ = cartpole.done_key


def test_specs_of_envs_are_locked(cartpole: EnvBase) -> None:
    given = Composite(seen=Unbounded(3))
    for env in (cartpole, SerialEnv(2, "CartPole-v1")):
        for name in ("observation_spec", "full_action_spec", "full_reward_spec", "full_done_spec"):
            with pytest.raises(CallOrderError, match="it is locked"):
                getattr(env, name).set("x", Unbounded(1))
    cartpole.observation_spec = given
    given["more"] = Unbounded(1)
    assert cartpole.observation_spec.keys() == ["seen"]
    with pytest.raises(OptionError, match=r"found None under \['x'\]"):
        cartpole.observation_spec = Composite(x=None)


def test_partial_resets() -> None:
    env = SerialEnv(2, [lambda: Id(0), lambda: Id(1)])
    td = env.reset()
    ended, rows = 0, set[int]()
    for _ in range(40):
        stepped, following = env.step_and_maybe_reset(env.rand_action(td))
        done = stepped["next", "done"].squeeze(-1)
        assert not following["done"].any()
        assert "_reset" not in following.keys()
        kept = following["observation"][~done]
        assert torch.equal(kept, stepped["next", "observation"][~done])
        assert (following["observation"][done][:, 2] == 0).all()
        ended += int(done.sum())
        rows |= set(done.nonzero().flatten().tolist())
        td = following
    assert ended > 2
    assert rows == {0, 1}
    td = env.reset()
    assert env.maybe_reset(td) is td
    assert not env.any_done(td)
    td["done"][1] = td["terminated"][1] = True
    assert env.any_done(td)
    assert td["_reset"].tolist() == [[False], [True]]


def test_rollouts(cartpole: EnvBase) -> None:
    seen: list[Any] = []
    batch = cartpole.rollout(5, None, lambda env, td: seen.append((env, td["next", "observation"])))
    assert [env is cartpole for env, _ in seen] == [True] * 5
    assert torch.equal(torch.stack([value for _, value in seen]), batch["next", "observation"])
    actions = [torch.tensor([1, 0]), TensorDict({"action": torch.tensor([0, 1])}), torch.tensor([1, 0])]
    assert cartpole.rollout(9, actions=actions)["action"].tolist() == [[1, 0], [0, 1], [1, 0]]
    assert cartpole.rollout(2, actions=iter(actions))["action"].tolist() == [[1, 0], [0, 1]]
    lazy = cartpole.rollout(3, return_contiguous=False)
    assert isinstance(lazy, LazyStackedTensorDict)
    assert lazy.names == ["time"]
    assert cartpole.rollout(2, storing_device="meta")["observation"].device.type == "meta"
    policy = TensorDictModule(nn.Linear(4, 2), ["observation"], ["action"]).to(torch.float32)
    pendulum = GymEnv("Pendulum-v1")
    policy = TensorDictModule(nn.Linear(3, 1), ["observation"], ["action"])
    with torch.no_grad():
        assert pendulum.rollout(2, policy, auto_cast_to_device=True)["action"].shape == (2, 1)
    with pytest.raises(OptionError, match="expected a policy with parameters on one device, found"):
        cartpole.rollout(2, lambda td: td, auto_cast_to_device=True)
    with pytest.raises(OptionError, match="a policy or actions, got both"):
        cartpole.rollout(2, policy, actions=actions)
    with pytest.raises(OptionError, match="rollout: max_steps: expected a positive integer, got 0"):
        cartpole.rollout(0)


def test_devices_and_modes(cartpole: EnvBase) -> None:
    assert cartpole.training
    assert cartpole.eval() is cartpole
    assert not cartpole.training
    assert cartpole.train().training
    cartpole.rollout(2)
    assert cartpole.to("cpu") is cartpole is cartpole.cpu()
    assert cartpole.rollout(2).device == torch.device("cpu")
    with pytest.raises(OptionError, match="expected a device, got torch.float64"):
        cartpole.to(torch.float64)  # pyright: ignore[reportArgumentType]
    assert not cartpole.is_closed
    cartpole.close(raise_if_closed=True)
    assert cartpole.is_closed
    cartpole.close()
    with pytest.raises(ClosedError):
        cartpole.close(raise_if_closed=True)


def test_an_env_is_not_called(cartpole: EnvBase) -> None:
    with pytest.raises(TypeError, match=r"is an env, and is not called: .*take env.as_torchrl\(\)"):
        cartpole()


class Ends(EnvBase):
    """Its episodes end with their reset."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.observation_spec = Composite(seen=Unbounded(1))
        self.action_spec = Unbounded(1)

    def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        return TensorDict({"seen": torch.zeros(1), "done": torch.ones(1, dtype=torch.bool)})

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return TensorDict({"seen": torch.zeros(1), "reward": torch.zeros(1), "done": torch.zeros(1, dtype=torch.bool)})


def test_done_after_a_reset() -> None:
    assert Ends(allow_done_after_reset=True).reset()["done"].all()
    with pytest.raises(SpecMismatch, match="expected no episode to end with its reset.*allow_done_after_reset=True"):
        Ends().reset()
    with pytest.raises(SpecMismatch, match="expected no episode to end"):
        reap.SyncDataCollector(Ends(), None, frames_per_batch=2).next()


def test_batches_take_the_options_of_torchrls(recwarn: pytest.WarningsRecorder) -> None:
    defaults: dict[str, Any] = {"shared_memory": True, "num_sub_threads": 1, "daemon": False, "mp_start_method": None}
    env = ParallelEnv(1, "CartPole-v1", serial_for_single=True, **defaults)
    assert type(env) is SerialEnv
    assert not recwarn.list
    assert SerialEnv(2, "CartPole-v1", **defaults).num_workers == ParallelEnv(2, "CartPole-v1").num_workers == 2
    for kind in (SerialEnv, ParallelEnv):
        with pytest.warns(DeprecationWarning, match=rf"{kind.__name__}: options \['use_buffers'\] say how data travels"):
            kind(2, "CartPole-v1", use_buffers=True)
        with pytest.raises(OptionError, match="unknown option 'use_bufers'. Did you mean 'use_buffers'"):
            kind(2, "CartPole-v1", use_bufers=True)


def test_keywords_of_factories_can_be_changed() -> None:
    env = SerialEnv(2, "CartPole-v1", create_env_kwargs={"categorical_action_encoding": True})
    env.start()
    assert env.action_spec.shape == (2,)
    env.update_kwargs({"categorical_action_encoding": False})
    assert env.rollout(2)["action"].shape == (2, 2, 2)
    with reap.SyncDataCollector(env, None, frames_per_batch=4) as collector:
        collector.next()
        with pytest.raises(CallOrderError, match="before a collector drives the envs"):
            env.update_kwargs({})
    creator = EnvCreator("CartPole-v1", {"max_episode_steps": 3}, categorical_action_encoding=True)
    assert creator.make_variant(categorical_action_encoding=False)().rollout(9)["action"].shape == (3, 2)
    assert creator().action_spec == Categorical(2)
    with pytest.raises(OptionError, match="share_memory"):
        EnvCreator("CartPole-v1", share_memory=False)


@pytest.mark.processes
def test_keywords_of_a_parallel_env_before_its_processes_start() -> None:
    with ParallelEnv(2, "CartPole-v1") as env:
        env.update_kwargs([{"max_episode_steps": 3}, {"max_episode_steps": 4}])
        twin = env.another()
        env.start()
        for one in (env, twin):
            batch = one.rollout(4, break_when_any_done=False)
            assert batch["next", "truncated"].squeeze(-1).tolist() == [[False, False, True, False], [False] * 3 + [True]]
        twin.close()
        with pytest.raises(CallOrderError, match="before the processes start"):
            env.update_kwargs({})
        with pytest.raises(CallOrderError, match="it is locked"):
            env.observation_spec.set("x", Unbounded(1))


def test_transforms_are_torchrls() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs: Any = pytest.importorskip("torchrl.envs")
    from_envs: Any = reap.envs
    names: dict[str, Any] = {}
    exec("from reap.envs.transforms import *", names)
    assert names["StepCounter"] is theirs.StepCounter is from_envs.StepCounter
    assert names["TransformedEnv"] is from_envs.TransformedEnv
    with pytest.raises(AttributeError, match="no attribute 'GymEvn'. Did you mean 'GymEnv'"):
        _ = from_envs.GymEvn
    with pytest.raises(AttributeError):
        _ = from_envs.transforms.Nothing
