"""`check_env` on every kind of env that collectors run: gymnasium's, EnvPool's, torchrl's, and those written for reap."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import vector as wrappers
from tensordict import TensorDict, TensorDictBase

from reap.envs import EnvBase, GymEnv, SerialEnv, check_env_specs
from reap.errors import SpecMismatch
from reap.recording.buffers import after
from reap.specs import Composite, Unbounded
from reap.testing import DictCount, DiscreteCount, IdRows, Masked, check_env
from tests.envs.vector_envs import CONTEXT, MODES, AutoresetMode, OneGenerator, Tagged, make_async
from tests.pairwise import by_default, each_value, pairwise

needs_envpool = pytest.mark.skipif(find_spec("envpool") is None, reason="envpool is not installed")
needs_torchrl = pytest.mark.skipif(find_spec("torchrl") is None, reason="torchrl is not installed")


class Drawn(gym.Env[Any, Any]):
    """Observations drawn from a space; episodes of 2 to 4 steps."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.observation_space = space
        self.resets = self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.observation_space.seed(seed)
            self.resets = 0
        self.resets, self.steps = self.resets + 1, 0
        return self.observation_space.sample(), {"resets": self.resets}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.observation_space.sample(), float(action), self.steps == 2 + self.resets % 3, False, {}


class Repeats(Tagged):
    """`Tagged` whose episodes are counted anew after a seed."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.episode = -1
        return super().reset(seed=seed, options=options)


def repeating(count: int, kind: str = "box") -> list[Callable[[], gym.Env[Any, Any]]]:
    return [partial(Repeats, number, kind=kind) for number in range(count)]


BOX = spaces.Box(-1, 1, (2,), np.float32)
OBJECTS: dict[str, Callable[[], spaces.Space[Any]]] = {
    "text": lambda: spaces.Text(5),
    "graph": lambda: spaces.Graph(BOX, spaces.Discrete(3)),
    "sequence": lambda: spaces.Sequence(spaces.Box(-1, 1, (2,), np.float32)),
    "tuple": lambda: spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float64), spaces.Text(4)]),
    "dict": lambda: spaces.Dict(
        text=spaces.Text(4), level=spaces.Discrete(3, start=-1), inner=spaces.Dict(graph=spaces.Graph(BOX, None))
    ),
}


class Coins(EnvBase):
    """An env written by arrays: each row observes a draw and its step; an episode ends with a draw above 0.8."""

    def __init__(self, rows: int) -> None:
        super().__init__(batch_size=(rows,) if rows else ())
        size = tuple(self.batch_size)
        self.observation_spec = Composite(draw=Unbounded((*size, 1)), step=Unbounded((*size, 1), dtype=torch.int64), shape=size)
        self.action_spec = Unbounded((*size, 1))
        self.add_truncated_keys()
        self.generator = np.random.default_rng()
        self.steps = np.zeros(max(1, rows), np.int64)

    def bind(self, stage: Any, slot: Any) -> None:
        self.first = {key: stage.arrays[key].reshape(-1, 1) for key in (("draw",), ("step",))}
        names = (("draw",), ("step",), ("reward",), ("done",), ("terminated",))
        self.written = {key: slot.by_row(after(key)) for key in names}
        self.actions = slot.by_row(("action",))

    def reset_rows(self, rows: Any, t: int) -> None:
        for row in range(len(self.steps)) if rows is None else rows:
            self.steps[row] = 0
            self.first["draw",][row], self.first["step",][row] = self.generator.random(), 0

    def step_rows(self, rows: Any, t: int) -> Any:
        ended = []
        for row in range(len(self.steps)) if rows is None else rows:
            self.steps[row] += 1
            draw = self.generator.random()
            self.written["draw",][row, t], self.written["step",][row, t] = draw, self.steps[row]
            self.written["reward",][row, t] = self.actions[row, t]
            if draw > 0.8:
                self.written["done",][row, t] = self.written["terminated",][row, t] = True
                ended.append(row)
        return ended or None

    def _set_seed(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)


class Walk(EnvBase):
    """An env written by TensorDicts, single or batched, that can be seeded; rows end 2 away from 0."""

    def __init__(self, size: tuple[int, ...] = ()) -> None:
        super().__init__(batch_size=size)
        self.observation_spec = Composite(place=Unbounded((*size, 1)), shape=size)
        self.action_spec = Unbounded((*size, 1))
        self.generator = torch.Generator()

    def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        place = torch.rand(*self.batch_size, 1, generator=self.generator)
        if tensordict is not None and "_reset" in tensordict:
            place = torch.where(tensordict["_reset"], place, tensordict["place"])
        return TensorDict({"place": place}, self.batch_size)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        place = tensordict["place"] + tensordict["action"]
        return TensorDict({"place": place, "reward": -place.abs(), "terminated": place.abs() > 2}, self.batch_size)

    def _set_seed(self, seed: int) -> None:
        self.generator.manual_seed(seed)


def vectors(count: int) -> GymEnv:
    return GymEnv(SyncVectorEnv(repeating(count)))


def pool(name: str) -> GymEnv:
    import envpool

    return GymEnv(envpool.make(name, env_type="gymnasium", num_envs=2, seed=0))


GYMNASIUM: dict[str, Any] = {
    "one": "CartPole-v1",
    "indices": partial(GymEnv, "CartPole-v1", categorical_action_encoding=True),
    "gymnasium's own": lambda: gym.make("Pendulum-v1"),
    "mujoco": "HalfCheetah-v5",
    "mujoco, float32": partial(GymEnv, "Hopper-v5", dtype=torch.float32),
    "blackjack": "Blackjack-v1",
    "dict": lambda: GymEnv(DictCount(5)),
    "dict and tuple": lambda: GymEnv(Repeats(2, kind="dict")),
    "choices": lambda: GymEnv(DiscreteCount(4)),
    "action masks": lambda: GymEnv(Masked(4)),
    "infos": lambda: GymEnv(Repeats(1), info_keys=["bonus"]),
    "serial": partial(SerialEnv, 3, "CartPole-v1"),
    "serial of dicts": lambda: SerialEnv(2, [lambda b=b: GymEnv(Repeats(b, kind="dict")) for b in range(2)]),
    "serial of action masks": lambda: SerialEnv(3, lambda: GymEnv(Masked(4))),
    "serial of vectors": lambda: SerialEnv(2, lambda: vectors(2)),
    "vector entry point": partial(GymEnv, "CartPole-v1", num_envs=3, vectorization_mode="vector_entry_point"),
    "by num_envs": partial(GymEnv, "CartPole-v1", num_envs=3),
}
ALIKE = {"indices", "mujoco, float32", "blackjack", "serial of dicts", "serial of action masks", "by num_envs"}
"""Those that differ from another one in one thing, which another one has too."""

CUSTOM: dict[str, Any] = {
    "by TensorDicts": Walk,
    "by TensorDicts, batched": lambda: Walk((2, 3)),
    "serial of those": lambda: SerialEnv(2, Walk),
    "serial of batched ones": lambda: SerialEnv(2, lambda: Walk((2,))),
    "by arrays": lambda: Coins(0),
    "by arrays, batched": lambda: Coins(3),
    "serial by arrays": lambda: SerialEnv(2, lambda: Coins(0)),
    "serial by batched arrays": lambda: SerialEnv(2, lambda: Coins(2)),
}


@pytest.mark.parametrize("name", by_default(GYMNASIUM, *set(GYMNASIUM) - ALIKE))
def test_gymnasium(name: str) -> None:
    check_env(GYMNASIUM[name])


@pytest.mark.parametrize(("name", "rows"), each_value(pairwise(list(OBJECTS), [0, 2])))
def test_objects(name: str, rows: int) -> None:
    def make() -> GymEnv:
        return GymEnv(Drawn(OBJECTS[name]()), info_keys=["resets"])

    check_env(partial(SerialEnv, rows, make) if rows else make)


class Rounded(DictCount):
    """Observes a value beside its bound."""

    def __init__(self, dtype: Any, value: float) -> None:
        super().__init__(5)
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), dtype)
        self.value = value

    def observe(self) -> Any:
        return np.array([self.value, 0.5], self.observation_space.dtype)


@pytest.mark.parametrize(
    ("dtype", "value", "rows"),
    each_value(
        (*case, rows)
        for case in [(np.float64, 1.0000000000000002), (np.float64, -1 - 9e-7), (np.float32, 1.0000005)]
        for rows in (0, 2)
    ),
)
def test_values_outside_of_their_box_by_rounding_pass_as_in_collectors(dtype: Any, value: float, rows: int) -> None:
    def make() -> GymEnv:
        return GymEnv(Rounded(dtype, value))

    check_env(partial(SerialEnv, rows, make) if rows else make)
    check_env_specs(make())


@pytest.mark.parametrize(
    ("dtype", "value"), [(np.float64, 1 + 2e-6), (np.float32, -1.00001), (np.float32, np.inf), (float, np.nan)]
)
def test_values_further_outside_do_not_pass(dtype: Any, value: float) -> None:
    with pytest.raises(AssertionError, match=r"^values_fit_the_specs: "):
        check_env(lambda: GymEnv(Rounded(dtype, value)))
    with pytest.raises(SpecMismatch, match="values in|NaN"):
        check_env_specs(GymEnv(Rounded(dtype, value)))


class TakesNoSeed(Drawn):
    """Takes one seed for none, as `if seed:` does with 0."""

    def __init__(self, not_taken: int) -> None:
        super().__init__(spaces.Box(-1, 1, (4,)))
        self.not_taken = not_taken

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=None if seed == self.not_taken else seed)


@pytest.mark.parametrize("seed", [0, 7, 11])
def test_episodes_are_repeated_with_the_seed_that_was_given(seed: int) -> None:
    with pytest.raises(AssertionError, match=r"^the_same_seed_gives_the_same_episodes: "):
        check_env(lambda: GymEnv(TakesNoSeed(seed)), seed=seed)
    check_env(lambda: GymEnv(TakesNoSeed(seed + 1)), seed=seed)


@pytest.mark.processes
def test_ale() -> None:
    import ale_py

    gym.register_envs(ale_py)
    check_env(partial(GymEnv, "ALE/Pong-v5", frame_skip=4))


@pytest.mark.parametrize(("is_wrapped", "kind", "mode"), each_value(pairwise([False, True], ["box", "dict"], MODES)))
def test_sync_vectors(is_wrapped: bool, kind: str, mode: Any) -> None:
    def make() -> GymEnv:
        env = SyncVectorEnv(repeating(3, kind), autoreset_mode=mode)
        return GymEnv(wrappers.TransformReward(env, lambda reward: reward) if is_wrapped else env)

    check_env(make)


@pytest.mark.parametrize("mode", by_default(MODES, *MODES[-1:]), ids=lambda mode: mode.name)
def test_async_vectors(mode: Any) -> None:
    check_env(GymEnv(make_async(repeating(2), autoreset_mode=mode)))


@needs_envpool
@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:.*precision lowered.*:UserWarning")
@pytest.mark.parametrize("name", ["CartPole-v1", "Pong-v5"])
def test_envpool(name: str) -> None:
    check_env(partial(pool, name), seeded=False)


@pytest.mark.parametrize(
    "name", by_default(CUSTOM, "by TensorDicts, batched", "serial of those", "by arrays", "serial by batched arrays")
)
def test_custom(name: str) -> None:
    check_env(CUSTOM[name])


UNSEEDED: dict[str, Any] = {
    "one": IdRows,
    "batched": lambda: IdRows((3,)),
    "next step": lambda: GymEnv(OneGenerator()),
    "same step": lambda: GymEnv(OneGenerator(mode=AutoresetMode.SAME_STEP)),
}


@pytest.mark.parametrize("name", UNSEEDED)
def test_envs_that_do_not_repeat_themselves(name: str) -> None:
    check_env(UNSEEDED[name], seeded=False)


TORCHRL = ("one", "transformed", "serial", "parallel")


def torchrl_env(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchrl import envs

    def one() -> Any:
        return envs.GymEnv("CartPole-v1")

    if name == "one":
        return one()
    if name == "transformed":
        return envs.TransformedEnv(one(), envs.Compose(envs.StepCounter(), envs.RewardSum()))
    if name == "serial":
        return envs.SerialEnv(2, one)
    # Not by fork: threads of EnvPool's, of tests before this one, would be missing in the children.
    return envs.ParallelEnv(2, one, mp_start_method=CONTEXT)


@needs_torchrl
@pytest.mark.parametrize("name", by_default(TORCHRL, TORCHRL[0]))
def test_torchrl(name: str) -> None:
    check_env(torchrl_env(name) if name == "parallel" else partial(torchrl_env, name))
