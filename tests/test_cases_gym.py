"""Field cases of gymnasium envs (CASES.md, area H), each under its id."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from torch import nn

from reap.collectors import SyncDataCollector
from reap.envs import GymEnv, SerialEnv
from reap.errors import SpecMismatch
from reap.specs import Unbounded
from reap.testing import Const, Count, CountTL, Masked, MLPPolicy, Noise
from reap.testing.envs import Step


def collect(env: Any, policy: Any, batches: int, seed: int | None = None, **options: Any) -> TensorDictBase:
    """Batches joined along time."""
    with SyncDataCollector(env, policy, **options) as collector:
        if seed is not None:
            collector.set_seed(seed)
        return torch.cat([batch for _, batch in zip(range(batches), collector, strict=False)], -1)


def both(count: int | None, make: Any, **options: Any) -> Any:
    return GymEnv(make(), **options) if count is None else SerialEnv(count, lambda: GymEnv(make(), **options))


def rows_of(batch: TensorDictBase) -> list[TensorDictBase]:
    return [batch] if batch.ndim == 1 else list(batch)


def numbers(tensor: torch.Tensor) -> list[Any]:
    return tensor.squeeze(-1).tolist()


EITHER = pytest.mark.parametrize("count", [None, 3])


@EITHER
@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_h01_the_last_observation_is_the_true_one(count: int | None, end: str) -> None:
    """The reset observation follows at the root; the policy never sees the last one."""
    seen: list[float] = []

    def policy(observation: torch.Tensor) -> torch.Tensor:
        seen.extend(observation.flatten().tolist())
        return observation[..., :1]

    make = (lambda: CountTL(4, 100)) if end == "terminated" else (lambda: CountTL(100, 4))
    batch = collect(both(count, make), policy, 3, frames_per_batch=6 * (count or 1))
    for row in rows_of(batch):
        assert numbers(row["observation"]) == ([0, 1, 2, 3] * 5)[:18]
        assert numbers(row["next", "observation"]) == ([1, 2, 3, 4] * 5)[:18]
        assert torch.nonzero(row["next", end][:, 0]).flatten().tolist() == [3, 7, 11, 15]
    assert max(seen) == 3.0
    other = "truncated" if end == "terminated" else "terminated"
    assert not batch["next", other].any()
    assert torch.equal(batch["next", "done"], batch["next", end])


class OddReward(Count):
    """`Count` with rewards of another form."""

    def __init__(self, convert: Any) -> None:
        super().__init__(4)
        self.convert = convert

    def step(self, action: Any) -> Step:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, self.convert(self.steps), terminated, truncated, info


@pytest.mark.parametrize("count", [None, 1, 3])
@pytest.mark.parametrize(
    "convert",
    [float, int, np.float64, np.float32, lambda r: np.array([r], np.float32), np.array, torch.tensor],
    ids=["float", "int", "float64", "float32", "array1", "array0", "tensor"],
)
def test_h04_rewards_have_one_shape(count: int | None, convert: Any) -> None:
    batch = collect(both(count, lambda: OddReward(convert)), Const(), 2, frames_per_batch=6 * (count or 1))
    assert batch["next", "reward"].shape == (*batch.batch_size, 1)
    assert batch["next", "reward"].dtype is torch.float32
    for row in rows_of(batch):
        assert numbers(row["next", "reward"]) == [1, 2, 3, 4] * 3


class OddFlags(Count):
    """`Count` whose flags are numpy's, or arrays of one element."""

    def __init__(self, convert: Any) -> None:
        super().__init__(4)
        self.convert = convert

    def step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, self.convert(terminated), self.convert(truncated), info


@EITHER
@pytest.mark.parametrize(
    "convert", [np.bool_, int, lambda flag: np.array([flag]), torch.tensor], ids=["bool_", "int", "array", "tensor"]
)
def test_h04_flags_have_one_shape(count: int | None, convert: Any) -> None:
    batch = collect(both(count, lambda: OddFlags(convert)), Const(), 2, frames_per_batch=6 * (count or 1))
    for row in rows_of(batch):
        assert numbers(row["next", "done"]) == [False, False, False, True] * 3
        assert torch.equal(row["next", "done"], row["next", "terminated"])


class SomeInfo(Count):
    """`Count` with info that is there at steps only, and then at odd counts only."""

    def step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, _ = super().step(action)
        info = {"lives": self.steps, "place": np.full(2, self.steps, np.float32)}
        return observation, reward, terminated, truncated, info if self.steps % 2 else {}


@EITHER
@pytest.mark.parametrize("keys", [["lives"], {"lives": Unbounded((), dtype=torch.int64), "place": Unbounded(2)}])
def test_h05_infos_are_zero_where_they_are_absent(count: int | None, keys: Any) -> None:
    env = both(count, lambda: SomeInfo(4), info_keys=keys)
    batch = collect(env, lambda observation: observation, 2, frames_per_batch=6 * (count or 1))
    for row in rows_of(batch):
        assert row["lives"].tolist() == [0, 1, 0, 3] * 3
        assert row["next", "lives"].tolist() == [1, 0, 3, 0] * 3
        if isinstance(keys, dict):
            assert row["next", "lives"].dtype is torch.int64
            assert row["next", "place"][:, 1].tolist() == [1, 0, 3, 0] * 3


@EITHER
@pytest.mark.parametrize("indices", [False, True])
def test_h06_tuple_observations(count: int | None, indices: bool) -> None:
    """Blackjack: three choices under ("observation", "0"), ...; equal to the plain env."""
    env = both(count, lambda: gym.make("Blackjack-v1"), categorical_action_encoding=indices)
    batch = collect(env, None, 2, seed=3, frames_per_batch=40 * (count or 1))
    plain = gym.make("Blackjack-v1")
    row = rows_of(batch)[0]
    keys = [("observation", str(i)) for i in range(3)]

    def choices(td: TensorDictBase, t: int) -> list[int]:
        return [int(td[key][t] if indices else td[key][t].argmax()) for key in keys]

    now, _ = plain.reset(seed=3)
    for t in range(80):
        assert choices(row, t) == [int(value) for value in now]
        action = int(row["action"][t] if indices else row["action"][t].argmax())
        now, reward, terminated, *_ = plain.step(action)
        assert choices(row["next"], t) == [int(value) for value in now]
        assert float(row["next", "reward"][t]) == reward
        now = plain.reset()[0] if terminated else now


class TreeActions(Count):
    """`Count` that observes its last action, of a nested space."""

    action_space = spaces.Dict(
        {"a": spaces.Discrete(3, start=2), "b": spaces.Box(-1, 1, (2,), np.float32), "c": spaces.Tuple([spaces.Discrete(2)])}
    )
    observation_space = spaces.Box(-10, 10, (4,), np.float32)
    last = np.zeros(4, np.float32)

    def observe(self) -> np.ndarray:
        return self.last

    def step(self, action: Any) -> Step:
        assert self.action_space.contains(action)
        self.last = np.array([action["a"], *action["b"], action["c"][0]], np.float32)
        return super().step(action)


@EITHER
@pytest.mark.parametrize("indices", [False, True])
def test_h06_tree_actions(count: int | None, indices: bool) -> None:
    """Keys nested under "action", written by random actions and by a policy."""
    a, c = ("action", "a"), ("action", "c", "0")

    class Policy(nn.Module):
        def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, ...]:
            first = (observation[..., 0] == 3).long()
            second = (observation[..., -1] == 0).long()
            if not indices:
                first, second = nn.functional.one_hot(first, 3), nn.functional.one_hot(second, 2)
            return first, observation[..., 1:3] / 2 + 0.25, second

    module = TensorDictModule(Policy(), in_keys=["observation"], out_keys=[a, ("action", "b"), c])
    env = both(count, lambda: TreeActions(4), categorical_action_encoding=indices)
    batch = collect(env, module, 4, frames_per_batch=6 * (count or 1), init_random_frames=6 * (count or 1))
    first, second = (batch[key] if indices else batch[key].argmax(-1) for key in (a, c))
    wanted = torch.cat([first.unsqueeze(-1) + 2, batch["action", "b"], second.unsqueeze(-1)], -1)
    assert torch.equal(batch["next", "observation"], wanted)


@EITHER
@pytest.mark.parametrize("convert", [lambda action: action.unsqueeze(-1), torch.Tensor.float])
def test_h07_an_index_of_another_form_is_refused_at_once(count: int | None, convert: Any) -> None:
    """The spec's form is int64 without a dimension of its own; the message says so."""
    policy = MLPPolicy(2)
    env = both(count, lambda: Noise(2), categorical_action_encoding=True)
    with pytest.raises(SpecMismatch, match=r"action.*int64"):
        SyncDataCollector(env, lambda observation: convert(policy(observation)), frames_per_batch=6)


def test_h07_float64_observations_reach_a_float32_policy_with_dtype() -> None:
    class Wide(Noise):
        def __init__(self) -> None:
            super().__init__(3)
            self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)

        def observe(self) -> np.ndarray:
            return super().observe().astype(np.float64)

    policy = MLPPolicy(3)
    env = GymEnv(Wide(), categorical_action_encoding=True, dtype=torch.float32)
    batch = collect(env, policy, 1, frames_per_batch=6)
    assert batch["observation"].dtype is torch.float32
    with pytest.raises(Exception, match="dtype"):
        SyncDataCollector(GymEnv(Wide(), categorical_action_encoding=True), policy, frames_per_batch=6)


def noisy(seed: int, count: int = 2, **options: Any) -> TensorDictBase:
    torch.manual_seed(1)
    policy = MLPPolicy(4)
    env = SerialEnv(count, lambda: GymEnv(Noise(4), categorical_action_encoding=True))
    return collect(env, policy, 6, seed=seed, frames_per_batch=10 * count, **options)


def assert_same(one: TensorDictBase, other: TensorDictBase) -> None:
    for key in one.keys(True, True):
        assert torch.equal(one[key], other[key]), key


@pytest.mark.parametrize("options", [{}, {"init_random_frames": 40}, {"max_frames_per_traj": 3}, {"reset_at_each_iter": True}])
def test_h12_one_seed_one_stream(options: dict[str, Any]) -> None:
    """Random warm-up included, whatever the global generators hold."""
    first = noisy(3, **options)
    torch.manual_seed(99)
    np.random.seed(99)  # noqa: NPY002
    assert_same(first, noisy(3, **options))
    assert not torch.equal(first["observation"], noisy(4, **options)["observation"])


def test_h12_neighbouring_seeds_share_no_env() -> None:
    streams = [row["observation"] for seed in (3, 4, 5) for row in noisy(seed, 3)]
    starts = {tuple(stream[0].tolist()) for stream in streams}
    assert len(starts) == 9


def test_h12_static_seed_gives_all_envs_the_same() -> None:
    env = SerialEnv(3, lambda: GymEnv(Noise(4), categorical_action_encoding=True))
    with SyncDataCollector(env, None, frames_per_batch=3) as collector:
        assert collector.set_seed(3, static_seed=True) == 3
        batch = collector.next()
    assert torch.equal(batch["observation"][0], batch["observation"][1])
    assert torch.equal(batch["observation"][0], batch["observation"][2])


def test_h12_the_training_loop_may_draw() -> None:
    """And finds its own generator as it left it."""
    policy = MLPPolicy(4)

    def streams(draws: bool) -> tuple[list[TensorDictBase], torch.Tensor]:
        with SyncDataCollector(GymEnv(Noise(4), categorical_action_encoding=True), policy, frames_per_batch=10) as collector:
            collector.set_seed(3)
            batches: list[TensorDictBase] = []
            torch.manual_seed(8)
            for _, batch in zip(range(4), collector, strict=False):
                batches.append(batch)
                if draws:
                    torch.rand(7)
            return batches, torch.rand(3)

    quiet, drawn = streams(False)
    torch.manual_seed(8)
    assert torch.equal(drawn, torch.rand(3))
    for one, other in zip(quiet, streams(True)[0], strict=True):
        assert_same(one, other)


@EITHER
@pytest.mark.parametrize("options", [{}, {"reset_when_done": False}, {"reset_at_each_iter": True}])
@pytest.mark.parametrize("indices", [False, True])
def test_h15_random_actions_obey_the_mask(count: int | None, options: dict[str, Any], indices: bool) -> None:
    """Of `RandomPolicy` and of the warm-up; the env raises at any other, and allows none where an episode is over."""
    lengths = iter([5, 9, 7])
    env = both(count, lambda: Masked(next(lengths)), categorical_action_encoding=indices)
    batch = collect(env, None, 12, frames_per_batch=8 * (count or 1), **options)
    action = batch["action"] if indices else batch["action"].argmax(-1)
    valid = batch.get(("collector", "mask"), torch.ones(batch.batch_size, dtype=torch.bool))
    allowed = batch["action_mask"].gather(-1, action.unsqueeze(-1)).squeeze(-1)
    assert allowed[valid].all()
    assert len(action[valid].unique()) == 4


@EITHER
def test_h15_the_warm_up_obeys_the_mask(count: int | None) -> None:
    def policy(action_mask: torch.Tensor) -> torch.Tensor:
        return action_mask.long().argmax(-1)

    env = both(count, lambda: Masked(5), categorical_action_encoding=True)
    rows = count or 1
    batch = collect(env, policy, 6, frames_per_batch=8 * rows, init_random_frames=24 * rows)
    first = batch["action_mask"].long().argmax(-1)
    assert torch.equal(batch["action"][..., 24:], first[..., 24:])
    assert not torch.equal(batch["action"][..., :24], first[..., :24])
