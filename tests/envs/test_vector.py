"""Gymnasium's SyncVectorEnv and AsyncVectorEnv give the data of a SerialEnv of the same envs, in every autoreset mode."""

from __future__ import annotations

from itertools import product
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import vector as wrappers

from reap import GymEnv, SerialEnv, SyncDataCollector
from reap.data import Unbounded
from reap.errors import OptionError, SpecMismatch
from tests.envs.vector_envs import (
    CONTEXT,
    KINDS,
    MODES,
    ROWS,
    AutoresetMode,
    act,
    act_on_tag,
    assert_equal,
    collected,
    factories,
    ids_of,
    make_async,
    make_vector,
    needs_modes,
)
from tests.pairwise import each_value, pairwise

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "limit": {"max_frames_per_traj": 3},
    "limit_of_one": {"max_frames_per_traj": 1, "set_truncated": True},
    "set_truncated": {"set_truncated": True},
    "reset_at_each_iter": {"reset_at_each_iter": True},
    "split_trajs": {"split_trajs": True},
    "one_column": {"frames_per_batch": ROWS},
}
OWN_KEYWORDS = {"sync": {}, "async": {"context": CONTEXT}}
every_mode = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)


def value_of(one: Any) -> Any:
    return one.value if isinstance(one, AutoresetMode) else None


few = pytest.mark.parametrize(("kind", "mode"), each_value(product(KINDS, MODES)), ids=value_of)


def serial(env_kind: str = "box", **keywords: Any) -> SerialEnv:
    makers = factories(kind=env_kind)
    return SerialEnv(ROWS, [lambda make=make: GymEnv(make(), categorical_action_encoding=True, **keywords) for make in makers])


def vector(kind: str, mode: AutoresetMode, env_kind: str = "box", **keywords: Any) -> GymEnv:
    return GymEnv(make_vector(kind, mode, env_kind=env_kind), categorical_action_encoding=True, **keywords)


@pytest.mark.parametrize(("kind", "mode", "name"), each_value(pairwise(KINDS, MODES, list(OPTIONS))))
def test_equals_serial_env_bit_for_bit(kind: str, mode: AutoresetMode, name: str) -> None:
    options = {"frames_per_batch": 7 * ROWS, **OPTIONS[name]}
    with collected(serial(), **options) as expected, collected(vector(kind, mode), **options) as found:
        for _ in range(6):
            assert_equal(found.next(), expected.next())
        assert found.stats().episodes == expected.stats().episodes
        assert found.stats().frames == expected.stats().frames


@few
def test_reset_of_one_row_and_of_all(kind: str, mode: AutoresetMode) -> None:
    with collected(serial(), frames_per_batch=12) as expected, collected(vector(kind, mode), frames_per_batch=12) as found:
        for rows in (1, [0, 2], None, [2]):
            assert_equal(found.next(), expected.next())
            for collector in (found, expected):
                collector.reset(rows)
        assert_equal(found.next(), expected.next())


@few
def test_a_seed_begins_new_episodes(kind: str, mode: AutoresetMode) -> None:
    def make_rows() -> list[Any]:
        return [lambda: gym.make("CartPole-v1", max_episode_steps=12)] * ROWS

    env: Any = (
        make_async(make_rows(), autoreset_mode=mode) if kind == "async" else SyncVectorEnv(make_rows(), autoreset_mode=mode)
    )
    env = wrappers.ClipReward(env, 0, 1) if kind == "wrapped" else env
    makers = [lambda make=make: GymEnv(make()) for make in make_rows()]
    with (
        collected(SerialEnv(ROWS, makers), None, frames_per_batch=7 * ROWS) as expected,
        collected(env, None, frames_per_batch=7 * ROWS) as found,
    ):
        for seed in range(5):
            assert_equal(found.next(), expected.next())
            assert_equal(found.next(), expected.next())
            assert found.set_seed(seed) == expected.set_seed(seed)


@every_mode
def test_rows_of_a_sync_vector_env_idle_until_all_are_done(mode: AutoresetMode) -> None:
    options: dict[str, Any] = {"frames_per_batch": 6 * ROWS, "reset_when_done": False}
    with collected(serial(), **options) as expected, collected(vector("sync", mode), **options) as found:
        for _ in range(5):
            assert_equal(found.next(), expected.next())


@pytest.mark.parametrize("kind", ["wrapped", "async"])
@every_mode
def test_rows_that_are_stepped_together_cannot_idle(kind: str, mode: AutoresetMode) -> None:
    with vector(kind, mode) as env, pytest.raises(OptionError, match=r"reset_when_done=False: .* cannot wait"):
        SyncDataCollector(env, act, frames_per_batch=6, reset_when_done=False)


@few
def test_infos_that_come_and_go(kind: str, mode: AutoresetMode) -> None:
    infos = {"bonus": Unbounded((), dtype=torch.float64), "final": Unbounded((2,), dtype=torch.int64)}

    def policy(observation: torch.Tensor, bonus: torch.Tensor, final: torch.Tensor) -> torch.Tensor:
        return act(observation)

    with (
        collected(serial(info_keys=infos), policy, frames_per_batch=21, max_frames_per_traj=4) as expected,
        collected(vector(kind, mode, info_keys=infos), policy, frames_per_batch=21, max_frames_per_traj=4) as found,
    ):
        for _ in range(4):
            batch = found.next()
            assert_equal(batch, expected.next())
        assert (batch["next", "final"].abs().sum(-1) > 0).any()
        assert (batch["bonus"] >= 100).any()


@pytest.mark.parametrize(("kind", "mode", "categorical"), each_value(product(KINDS, MODES, [True, False])), ids=value_of)
def test_dict_and_tuple_spaces(kind: str, mode: AutoresetMode, categorical: bool) -> None:
    makers = [lambda make=make: GymEnv(make(), categorical_action_encoding=categorical) for make in factories(kind="dict")]
    policy = act_on_tag if categorical else None
    env = GymEnv(make_vector(kind, mode, env_kind="dict"), categorical_action_encoding=categorical)
    with (
        collected(SerialEnv(ROWS, makers), policy, frames_per_batch=21) as expected,
        collected(env, policy, frames_per_batch=21) as found,
    ):
        assert found.observation_spec == expected.observation_spec
        assert found.action_spec == expected.action_spec
        for _ in range(4):
            assert_equal(found.next(), expected.next())


def test_dtype_casts_observations() -> None:
    def make() -> Any:
        return gym.wrappers.DtypeObservation(gym.make("CartPole-v1"), np.float64)

    for env in (SyncVectorEnv([make] * 2), wrappers.ClipReward(SyncVectorEnv([make] * 2), 0, 1)):
        with collected(GymEnv(env, dtype=torch.float32), None, frames_per_batch=10) as found:
            assert found.observation_spec["observation"].dtype == torch.float32
            assert found.next()["observation"].dtype == torch.float32


def test_static_seed_gives_all_rows_the_same() -> None:
    with collected(GymEnv("CartPole-v1", num_envs=3), None, seed=None, frames_per_batch=3) as c:
        assert c.set_seed(5, static_seed=True) == 5
        first = c.next()["observation"][:, 0]
        assert torch.equal(first[0], first[1])
        assert torch.equal(first[0], first[2])


# ---------------------------------------------------------------------- by id


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=needs_modes)])
def test_num_envs_equals_serial_env(mode: str) -> None:
    env = GymEnv("CartPole-v1", num_envs=3, vectorization_mode=mode, vector_kwargs=OWN_KEYWORDS[mode])
    with (
        collected(SerialEnv(3, "CartPole-v1"), None, frames_per_batch=90, max_frames_per_traj=17) as expected,
        collected(env, None, frames_per_batch=90, max_frames_per_traj=17) as found,
    ):
        for _ in range(3):
            assert_equal(found.next(), expected.next())


def test_collectors_take_vector_envs_and_their_factories() -> None:
    def make() -> Any:
        return SyncVectorEnv(factories())

    with collected(lambda: GymEnv(make(), categorical_action_encoding=True), frames_per_batch=21) as expected:
        batch = expected.next()
    for given in (make, make()):
        with SyncDataCollector(given, frames_per_batch=21) as collector:
            assert collector.batch_size == batch.batch_size == (ROWS, 7)
            assert collector.next().batch_size == batch.batch_size


def test_num_envs_with_frame_skip_and_pixels() -> None:
    makers = lambda: GymEnv("CartPole-v1", frame_skip=2, from_pixels=True, pixels_only=False)  # noqa: E731
    env = GymEnv("CartPole-v1", num_envs=2, frame_skip=2, from_pixels=True, pixels_only=False)
    with (
        collected(SerialEnv(2, makers), None, frames_per_batch=8) as expected,
        collected(env, None, frames_per_batch=8) as found,
    ):
        assert_equal(found.next(), expected.next())
        assert set(found.observation_spec.keys()) == {"observation", "pixels"}


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"num_envs": -1}, "num_envs: expected a number of envs"),
        ({"num_envs": True}, "num_envs: expected a number of envs"),
        ({"num_envs": 2, "vectorization_mode": "threads"}, "vectorization_mode: expected one of"),
        ({"num_envs": 2, "vectorization_mode": "vector_entry_point", "frame_skip": 2}, "frame_skip"),
        ({"num_envs": 2, "vectorization_mode": "vector_entry_point", "vector_kwargs": {"copy": False}}, "vector_kwargs"),
    ],
)
def test_bad_options_with_an_id(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        GymEnv("CartPole-v1", **keywords)


def test_unknown_ids_and_missing_entry_points_are_named() -> None:
    for mode in ("sync", "vector_entry_point"):
        with pytest.raises(OptionError, match=r"unknown env id 'CartPoll-v1'.*CartPole-v1"):
            GymEnv("CartPoll-v1", num_envs=2, vectorization_mode=mode)
    with pytest.raises(OptionError, match="vector entry point"):
        GymEnv("Acrobot-v1", num_envs=2, vectorization_mode="vector_entry_point")


@pytest.mark.parametrize("keywords", [{"num_envs": 2}, {"frame_skip": 2}, {"from_pixels": True}, {"render_mode": "rgb_array"}])
def test_options_that_a_given_vector_env_cannot_have(keywords: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(keywords))):
        GymEnv(SyncVectorEnv(factories()), **keywords)


# ---------------------------------------------------------------------- the TensorDict face, batches of batches


@pytest.mark.parametrize("kind", KINDS)
@every_mode
def test_rollout_by_tensordicts(kind: str, mode: AutoresetMode) -> None:
    with serial() as first, vector(kind, mode) as second:
        assert first.set_seed(3) == second.set_seed(3)
        rollouts = []
        for env in (first, second):
            torch.manual_seed(1)
            rollouts.append(env.rollout(11, break_when_any_done=False))
        assert_equal(rollouts[1], rollouts[0])


@pytest.mark.parametrize("kind", KINDS)
@every_mode
def test_serial_env_of_vector_envs(kind: str, mode: AutoresetMode) -> None:
    with (
        collected(SerialEnv(2, serial), frames_per_batch=42, max_frames_per_traj=4) as expected,
        collected(SerialEnv(2, lambda: vector(kind, mode)), frames_per_batch=42, max_frames_per_traj=4) as found,
    ):
        assert found.batch_size == (2, ROWS, 7)
        for _ in range(3):
            assert_equal(found.next(), expected.next())


def test_envs_of_a_batch_have_one_autoreset_mode() -> None:
    makers = [
        lambda: GymEnv("CartPole-v1", num_envs=2),
        lambda: GymEnv("CartPole-v1", num_envs=2, vectorization_mode="vector_entry_point"),
    ]
    with pytest.raises(SpecMismatch, match="differs from env 0 in its autoreset mode"):
        SerialEnv(2, makers)


def test_attributes_and_methods_of_the_envs() -> None:
    for env in (SyncVectorEnv(factories()), make_async(factories()), wrappers.ClipReward(SyncVectorEnv(factories()), 0, 1)):
        with GymEnv(env) as made:
            assert made.get_attribute("number") == [0, 1, 2]
            made.reset()
            assert [observation[0] for observation in made.call("_observe")] == [0, 1, 2]


@needs_modes
def test_ids_are_unique_over_rows_and_batches() -> None:
    with collected(vector("wrapped", AutoresetMode.SAME_STEP), frames_per_batch=21) as collector:
        seen: dict[int, tuple[int, int]] = {}
        for _ in range(4):
            batch = collector.next()
            tags = batch["observation"][..., :2].reshape(-1, 2).tolist()
            for number, tag in zip(ids_of(batch).reshape(-1).tolist(), tags, strict=True):
                assert seen.setdefault(number, tuple(tag)) == tuple(tag)
        assert len(set(seen.values())) == len(seen)
