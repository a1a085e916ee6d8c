"""Exact data: the stream of a seed is one and the same, bit for bit, whatever the batches, and equal to a plain loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from tensordict import TensorDictBase
from torch import nn

from reap.collectors import SyncDataCollector
from reap.envs import GymEnv, SerialEnv
from reap.testing import DictCount, MLPPolicy, Noise
from tests.pairwise import by_default, each_value, pairwise

SEED = 5
Make = Callable[[], gym.Env]


def chain(seed: int, count: int) -> list[int]:
    """The seeds of `count` envs: each further one is the next in the chain."""
    seeds = [seed]
    while len(seeds) < count:
        seeds.append(int(np.random.SeedSequence(seeds[-1]).generate_state(1)[0] >> 1))
    return seeds


def leaves_of(observation: Any, key: tuple[str, ...] = ()) -> dict[tuple[str, ...], torch.Tensor]:
    """The arrays of an observation under their keys."""
    if isinstance(observation, dict):
        nested = [leaves_of(value, (*key, name)) for name, value in observation.items()]
        return {name: value for one in nested for name, value in one.items()}
    return {key or ("observation",): torch.tensor(np.asarray(observation))}


class PlainLoop:
    """The reference: a loop over gymnasium envs as one writes it by hand.

    Args:
        make: makes an env.
        count: number of envs; None for a single one without batch dimension.
        policy: from the observation tensor (a dict of them where there are several) to actions.
        act: from one row of actions to what the env is given.
        encode: changes the leaves of an observation, where they are not delivered as the env returns them.
    """

    def __init__(
        self, make: Make, count: int | None, policy: Any, act: Callable[[torch.Tensor], Any], encode=lambda leaves: leaves
    ):
        self.envs = [make() for _ in range(count or 1)]
        self.single, self.policy, self.act = count is None, policy, act
        self.read = lambda observation: encode(leaves_of(observation))

    def collect(self, columns: int) -> dict[tuple[str, ...], torch.Tensor]:
        """Every key that is recorded, `[*batch, columns, ...]`."""
        torch.manual_seed(SEED)
        frames: dict[tuple[str, ...], list[torch.Tensor]] = {}
        seeds = chain(SEED, len(self.envs))
        now = [self.read(env.reset(seed=seed)[0]) for env, seed in zip(self.envs, seeds, strict=True)]
        with torch.inference_mode():
            for _ in range(columns):
                now = self.step(now, frames)
        stacked = {key: torch.stack(values, dim=int(not self.single)) for key, values in frames.items()}
        for env in self.envs:
            env.close()
        return {key: value.clone() for key, value in stacked.items()}

    def step(self, now: Sequence[Any], frames: dict[tuple[str, ...], list[torch.Tensor]]) -> list[Any]:
        def keep(key: tuple[str, ...], rows: list[torch.Tensor]) -> torch.Tensor:
            value = rows[0] if self.single else torch.stack(rows)
            frames.setdefault(key, []).append(value)
            return value

        given = {key: keep(key, [leaves[key] for leaves in now]) for key in now[0]}
        actions = self.policy(*given.values())
        frames.setdefault(("action",), []).append(actions)
        steps = [env.step(self.act(row)) for env, row in zip(self.envs, [actions] if self.single else actions, strict=True)]
        following = [self.read(step[0]) for step in steps]
        for key in following[0]:
            keep(("next", *key), [leaves[key] for leaves in following])
        keep(("next", "reward"), [torch.tensor([float(step[1])]) for step in steps])
        keep(("next", "terminated"), [torch.tensor([bool(step[2])]) for step in steps])
        keep(("next", "truncated"), [torch.tensor([bool(step[3])]) for step in steps])
        keep(("next", "done"), [torch.tensor([bool(step[2] or step[3])]) for step in steps])
        ends = [step[2] or step[3] for step in steps]
        return [
            self.read(env.reset()[0]) if over else leaves for env, over, leaves in zip(self.envs, ends, following, strict=True)
        ]


def stream(env: Any, policy: Any, frames_per_batch: int, columns: int) -> TensorDictBase:
    """The first `columns` columns of a seeded collector, its batches joined along time."""
    with SyncDataCollector(env, policy, frames_per_batch=frames_per_batch) as collector:
        collector.set_seed(SEED)
        per_batch = collector.batch_size[-1]
        batches = [batch for _, batch in zip(range(-(-columns // per_batch)), collector, strict=False)]
    return torch.cat(batches, -1)[..., :columns]


OWN = {("done",), ("terminated",), ("truncated",), ("collector", "traj_ids")}


def assert_equals(found: TensorDictBase, wanted: dict[tuple[str, ...], torch.Tensor]) -> None:
    """Bit for bit, every key; root flags are False, and ids count the episodes of all rows in the order of their start."""
    keys = {key if isinstance(key, tuple) else (key,) for key in found.keys(True, True)}
    assert keys == set(wanted) | OWN
    for key, value in wanted.items():
        got = found[key]
        assert (got.dtype, got.shape) == (value.dtype, value.shape), key
        assert torch.equal(got, value), (key, (got != value).nonzero()[:5])
    for flag in ("done", "terminated", "truncated"):
        assert not found[flag].any()
    done = wanted["next", "done"][..., 0]
    starts = torch.cat([torch.ones_like(done[..., :1]), done[..., :-1]], -1)
    by_column = starts.reshape(-1, starts.shape[-1]).T
    numbers = by_column.reshape(-1).cumsum(0).view(by_column.shape).T - 1
    ids = numbers.where(by_column.T, torch.zeros(())).cummax(-1).values.long()
    assert torch.equal(found["collector", "traj_ids"].reshape(ids.shape), ids)


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(11)
    return make()


@pytest.mark.parametrize(
    ("size", "count", "length"), each_value(pairwise([1, 4, 11, 17, 376], [None, 1, 2, 3, 4, 5], [7, 30, 50]))
)
def test_batches_of_7_30_and_50_are_one_stream(size: int, count: int | None, length: int) -> None:
    """Rows of 1, 11 or 17 floats lose their alignment where they are not copied to the stage."""
    columns = 210
    policy = seeded(lambda: MLPPolicy(size))
    make = lambda: Noise(size)  # noqa: E731
    wanted = PlainLoop(make, count, policy, int).collect(columns)
    assert wanted["next", "terminated"].any()
    assert wanted["next", "truncated"].any()
    if count is None:
        env = GymEnv(make(), categorical_action_encoding=True)
    else:
        env = SerialEnv(count, lambda: GymEnv(make(), categorical_action_encoding=True))
    assert_equals(stream(env, policy, length * (count or 1), columns), wanted)


@pytest.mark.parametrize("sizes", [(7, 30, 50)])
def test_frames_per_batch_that_is_rounded_up_is_the_same_stream(sizes: tuple[int, ...]) -> None:
    """7, 30 and 50 frames of four envs become 8, 32 and 52."""
    policy = seeded(lambda: MLPPolicy(11))
    wanted = PlainLoop(lambda: Noise(11), 4, policy, int).collect(104)
    for frames in sizes:
        env = SerialEnv(4, lambda: GymEnv(Noise(11), categorical_action_encoding=True))
        with pytest.warns(UserWarning, match=f"frames_per_batch={frames} "):
            found = stream(env, policy, frames, 104)
        assert_equals(found, wanted)


class Greedy(nn.Module):
    """A linear layer over all observations, flattened; one-hot of the largest, or its numbers through tanh."""

    def __init__(self, size: int, actions: int, *, scale: float | None = None, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.linear = nn.Linear(size, actions, dtype=dtype)
        self.scale, self.dtype = scale, dtype

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        values = self.linear(observation.to(self.dtype)) + torch.randn((), dtype=self.dtype)
        if self.scale is not None:
            return (values.tanh() * self.scale).to(torch.float32)
        return nn.functional.one_hot(values.argmax(-1), values.shape[-1])


def both(count: int | None, make: Make, **options: Any) -> Any:
    return GymEnv(make(), **options) if count is None else SerialEnv(count, lambda: GymEnv(make(), **options))


@pytest.mark.parametrize("count", [None, 3])
def test_cartpole(count: int | None) -> None:
    policy = seeded(lambda: Greedy(4, 2))
    wanted = PlainLoop(lambda: gym.make("CartPole-v1"), count, policy, lambda row: int(row.argmax())).collect(150)
    assert_equals(stream(both(count, lambda: gym.make("CartPole-v1")), policy, 50 * (count or 1), 150), wanted)


@pytest.mark.parametrize("count", [None, 3])
def test_pendulum(count: int | None) -> None:
    policy = seeded(lambda: Greedy(3, 1, scale=2.0))
    wanted = PlainLoop(lambda: gym.make("Pendulum-v1"), count, policy, lambda row: row.numpy().copy()).collect(250)
    assert wanted["next", "truncated"].any()
    assert_equals(stream(both(count, lambda: gym.make("Pendulum-v1")), policy, 50 * (count or 1), 250), wanted)


@pytest.mark.parametrize(("count", "indices"), each_value(pairwise([None, 3], [False, True])))
def test_frozen_lake(count: int | None, indices: bool) -> None:
    """Observations and actions are choices: one-hot int64, or indices."""

    class Policy(Greedy):
        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            one_hot = nn.functional.one_hot(observation, 16) if indices else observation
            action = super().forward(one_hot)
            return action.argmax(-1) if indices else action

    def encode(leaves):
        return {key: value if indices else nn.functional.one_hot(value, 16) for key, value in leaves.items()}

    policy = seeded(lambda: Policy(16, 4))
    act = int if indices else lambda row: int(row.argmax())
    wanted = PlainLoop(lambda: gym.make("FrozenLake-v1"), count, policy, act, encode).collect(200)
    env = both(count, lambda: gym.make("FrozenLake-v1"), categorical_action_encoding=indices)
    assert_equals(stream(env, policy, 40 * (count or 1), 200), wanted)


@pytest.mark.parametrize(("count", "dtype"), each_value(pairwise([None, 2], [torch.float64, torch.float32])))
def test_hopper(count: int | None, dtype: torch.dtype) -> None:
    """MuJoCo observes float64; `dtype` casts as the row is written."""
    policy = seeded(lambda: Greedy(11, 3, scale=1.0, dtype=dtype))

    def encode(leaves):
        return {key: value.to(dtype) for key, value in leaves.items()}

    act = lambda row: row.numpy().copy()  # noqa: E731
    wanted = PlainLoop(lambda: gym.make("Hopper-v5"), count, policy, act, encode).collect(150)
    assert wanted["next", "terminated"].any()
    env = both(count, lambda: gym.make("Hopper-v5"), dtype=None if dtype is torch.float64 else dtype)
    assert_equals(stream(env, policy, 50 * (count or 1), 150), wanted)


def make_pong() -> gym.Env:
    import ale_py

    gym.register_envs(ale_py)
    env = gym.make("ALE/Pong-v5", frameskip=1)
    env = gym.wrappers.AtariPreprocessing(env, noop_max=5)
    return gym.wrappers.FrameStackObservation(env, 4)


@pytest.mark.parametrize("count", by_default([None, 2], None))
def test_pong(count: int | None) -> None:
    class Pixels(Greedy):
        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            return super().forward(observation[..., ::7, ::7].flatten(-3).float() / 255)

    policy = seeded(lambda: Pixels(4 * 12 * 12, 6))
    wanted = PlainLoop(make_pong, count, policy, lambda row: int(row.argmax())).collect(60)
    assert wanted["observation",].shape[-3:] == (4, 84, 84)
    assert_equals(stream(both(count, make_pong), policy, 20 * (count or 1), 60), wanted)


@pytest.mark.parametrize("count", [None, 3])
def test_dict_observations(count: int | None) -> None:
    """Keys at the root, nested ones nested, choices one-hot, bits and pixels in their own dtypes."""
    keys = ("place", "image", "level", "bits")

    def policy(bits: torch.Tensor, image: torch.Tensor, level: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        total = bits.sum(-1) + image.flatten(-3).float().mean(-1) + level.argmax(-1) + place[..., 0]
        return (total + torch.randn(())).float().unsqueeze(-1)

    def by_name(*values: torch.Tensor) -> torch.Tensor:
        return policy(**dict(zip(keys, values, strict=True)))

    def encode(leaves):
        assert tuple(key[-1] for key in leaves) == keys
        level = {("agent", "level"): nn.functional.one_hot(leaves["agent", "level"], 4)}
        return {**leaves, **level}

    wanted = PlainLoop(lambda: DictCount(7), count, by_name, lambda row: row.numpy().copy(), encode).collect(100)
    assert_equals(stream(both(count, lambda: DictCount(7)), policy, 20 * (count or 1), 100), wanted)
