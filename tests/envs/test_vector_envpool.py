"""EnvPool: rows are reset and stepped by id. A stand-in of the same interface takes its place where it is not installed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.wrappers import vector as wrappers

from reap import GymEnv, SerialEnv, SyncDataCollector
from reap.errors import OptionError
from tests.envs.vector_envs import ROWS, act, assert_equal, collected, factories, ids_of, leaves, needs_modes, valid

needs_envpool = pytest.mark.skipif(find_spec("envpool") is None, reason="envpool is not installed")
# EnvPool's spaces are of float64 and become float32.
pytestmark = pytest.mark.filterwarnings("ignore:.*precision lowered.*:UserWarning")


class StandIn:
    """Tagged envs behind EnvPool's interface, as its source has it: results of the rows asked for, in their order.

    Rows that ended and are not reset are reset by their next step, with reward 0.
    """

    __module__ = "envpool.stand_in"

    def __init__(self, **config: Any) -> None:
        self.config = {"num_envs": ROWS, "batch_size": ROWS, **config}
        self.envs = [make() for make in factories()]
        self.observation_space, self.action_space = self.envs[0].observation_space, self.envs[0].action_space
        self.ended = np.zeros(ROWS, bool)
        self.sent: tuple[Any, Any] = (None, None)
        self.reset_ids: list[list[int]] = []
        self.stepped_ids: list[list[int]] = []

    def reset(self, env_id: Any = None) -> Any:
        ids = np.arange(ROWS) if env_id is None else env_id
        self.reset_ids.append(ids.tolist())
        self.ended[ids] = False
        observations, infos = zip(*(self.envs[b].reset() for b in ids), strict=True)
        return np.stack(observations), {"env_id": ids, "bonus": np.array([info["bonus"] for info in infos])}

    def step(self, actions: Any, env_id: Any = None) -> Any:
        self.send(actions, env_id)
        return self.recv()

    def send(self, actions: Any, env_id: Any = None) -> None:
        self.sent = actions, np.arange(ROWS) if env_id is None else env_id

    def recv(self) -> Any:
        actions, ids = self.sent
        assert len(actions) == len(ids)
        self.stepped_ids.append(ids.tolist())
        results = [self._step_one(b, action) for b, action in zip(ids, actions, strict=True)]
        observation, reward, terminated, truncated, info = zip(*results, strict=True)
        self.ended[ids] = np.array(terminated) | np.array(truncated)
        bonus = np.array([one.get("bonus", 0.0) for one in info])
        flags = np.array(terminated), np.array(truncated)
        return np.stack(observation), np.array(reward, np.float32), *flags, {"env_id": ids, "bonus": bonus}

    def _step_one(self, b: int, action: Any) -> Any:
        if self.ended[b]:
            return self.envs[b].reset()[0], 0.0, False, False, {}
        return self.envs[b].step(action)

    def close(self) -> None:
        for env in self.envs:
            env.close()


def serial(**keywords: Any) -> SerialEnv:
    return SerialEnv(
        ROWS, [lambda make=make: GymEnv(make(), categorical_action_encoding=True, **keywords) for make in factories()]
    )


def stand_in(**keywords: Any) -> GymEnv:
    env = StandIn()
    for b, single in enumerate(env.envs):
        single.reset(seed=b)
        single.episode = -1
    return GymEnv(env, categorical_action_encoding=True, **keywords)


def seeded_serial(**keywords: Any) -> SerialEnv:
    env = serial(**keywords)
    for b, single in enumerate(env.envs):
        single.wrapped.reset(seed=b)
        single.wrapped.episode = -1
    return env


@pytest.mark.parametrize(
    "options",
    [{}, {"max_frames_per_traj": 3}, {"reset_at_each_iter": True}, {"reset_when_done": False}, {"set_truncated": True}],
    ids=str,
)
def test_stand_in_equals_serial_env(options: dict[str, Any]) -> None:
    keywords: dict[str, Any] = {"seed": None, "frames_per_batch": 7 * ROWS, **options}
    with collected(seeded_serial(), **keywords) as expected, collected(stand_in(), **keywords) as found:
        for _ in range(6):
            assert_equal(found.next(), expected.next())
        assert found.stats().episodes == expected.stats().episodes


def test_infos_and_serial_env_of_pools() -> None:
    def policy(observation: torch.Tensor, bonus: torch.Tensor) -> torch.Tensor:
        return act(observation)

    with collected(SerialEnv(2, lambda: stand_in(info_keys=["bonus"])), policy, seed=None, frames_per_batch=42) as found:
        batch = found.next()
    with collected(seeded_serial(info_keys=["bonus"]), policy, seed=None, frames_per_batch=21) as one:
        expected = one.next()
    for key in ("observation", "bonus", ("next", "bonus"), ("next", "observation"), ("next", "reward")):
        assert torch.equal(batch[key][0], expected[key])
        assert torch.equal(batch[key][1], expected[key])


def test_only_the_rows_that_ended_are_reset_and_idle_rows_are_not_stepped() -> None:
    env = stand_in()
    with collected(env, seed=None, frames_per_batch=7 * ROWS) as collector:
        batch = collector.next()
        ends = batch["next", "done"].squeeze(-1)
        asked = [rows.nonzero().flatten().tolist() for rows in ends.unbind(1)[:-1] if rows.any()]
        assert env.wrapped.reset_ids == [list(range(ROWS)), *asked]
    env = stand_in()
    with collected(env, seed=None, frames_per_batch=6 * ROWS, reset_when_done=False) as collector:
        batch = collector.next()
        assert env.wrapped.stepped_ids == [rows.nonzero().flatten().tolist() for rows in valid(batch).unbind(1) if rows.any()]


def test_seeds_are_refused_with_the_line_to_write() -> None:
    with stand_in() as env, pytest.raises(OptionError, match=r"envpool\.make\(\.\.\., seed=seed\)"):
        env.set_seed(3)


def test_rows_as_they_get_ready_are_refused() -> None:
    with pytest.raises(OptionError, match="batch_size 2 of 3 envs"):
        GymEnv(StandIn(batch_size=2))


# ---------------------------------------------------------------------- the real one


def make_pool(name: str = "CartPole-v1", **keywords: Any) -> Any:
    import envpool

    return envpool.make(name, env_type="gymnasium", **{"num_envs": 4, "seed": 3, **keywords})


@needs_envpool
@pytest.mark.parametrize("columns", [1, 30, 60])
def test_cart_pole_equals_a_plain_loop(columns: int) -> None:
    with collected(make_pool(max_episode_steps=15), None, seed=None, frames_per_batch=4 * columns) as collector:
        batch = torch.cat([collector.next() for _ in range(60 // columns)], -1)
    env = make_pool(max_episode_steps=15)
    observation, _ = env.reset()
    ends, expected = [], []
    for t in range(60):
        following, reward, terminated, truncated, _ = env.step(batch["action"][:, t].argmax(-1).numpy())
        expected.append([observation.copy(), following.copy(), reward[:, None], terminated[:, None], truncated[:, None]])
        observation, rows = following.copy(), np.flatnonzero(terminated | truncated)
        ends.append(terminated | truncated)
        if len(rows):
            observation[rows] = env.reset(rows.astype(np.int32))[0]
    keys = ("observation", ("next", "observation"), ("next", "reward"), ("next", "terminated"), ("next", "truncated"))
    for key, values in zip(keys, zip(*expected, strict=True), strict=True):
        assert torch.equal(batch[key], torch.from_numpy(np.stack(values, 1))), key
    assert batch["next", "truncated"].any()
    assert batch["next", "terminated"].any()
    assert len(ids_of(batch).unique()) == 4 + np.stack(ends)[:-1].sum()
    assert ("collector", "mask") not in leaves(batch)


@needs_envpool
def test_no_frame_is_a_reset_step_by_its_own_step_count() -> None:
    with collected(GymEnv(make_pool(), info_keys=["elapsed_step"]), None, seed=None, frames_per_batch=400) as collector:
        batch = collector.next()
        assert (batch["next", "elapsed_step"] == batch["elapsed_step"] + 1).all()
        collector.reset([1, 2])
        batch = collector.next()
        assert batch["elapsed_step"][1:3, 0].tolist() == [0, 0]
        assert (batch["next", "elapsed_step"] == batch["elapsed_step"] + 1).all()


@needs_envpool
def test_idle_rows() -> None:
    with collected(make_pool(), None, seed=None, frames_per_batch=400, reset_when_done=False) as collector:
        for _ in range(3):
            batch = collector.next()
            mask = valid(batch)
            assert mask.any()
            assert not mask.all()
            assert (batch["next", "reward"].squeeze(-1)[mask] == 1).all()
            assert (batch["next", "done"].squeeze(-1).sum(-1) <= 1).all()


@needs_envpool
def test_pong() -> None:
    with collected(
        make_pool("Pong-v5", num_envs=2, noop_max=1, frame_skip=4), None, seed=None, frames_per_batch=20
    ) as collector:
        batch = collector.next()
    assert batch["observation"].shape == (2, 10, 4, 84, 84)
    assert batch["observation"].dtype == torch.uint8
    assert torch.equal(batch["observation"][:, 1:], batch["next", "observation"][:, :-1])


@needs_envpool
@pytest.mark.parametrize("name", ["Pendulum-v1", "Blackjack-v1", "FrozenLake-v1"])
def test_other_spaces(name: str) -> None:
    with collected(make_pool(name), None, seed=None, frames_per_batch=80) as collector:
        assert collector.next()["observation"].isfinite().all()


@needs_envpool
@needs_modes
def test_statistics_around_it_agree_with_ours() -> None:
    recorded = wrappers.RecordEpisodeStatistics(make_pool(max_episode_steps=15))
    with collected(recorded, None, seed=None, frames_per_batch=400) as collector:
        collector.next()
        ours = [(episode.reward, episode.length) for episode in collector.stats().episodes]
        assert sorted(zip(recorded.return_queue, recorded.length_queue, strict=True)) == sorted(ours)
        assert len(ours) > 10


@needs_envpool
@pytest.mark.filterwarnings("ignore::reap.errors.BoundsWarning")  # twice an observation leaves the space, which it keeps
def test_wrappers_of_observations_keep_the_reset_steps() -> None:
    """EnvPool gives the rows of a mask only, which such wrappers do not expect: nothing is reset by mask."""

    class Twice(gym.vector.VectorObservationWrapper):
        def observations(self, observations: Any) -> Any:
            return 2 * observations

    with collected(Twice(make_pool()), None, seed=None, frames_per_batch=400) as collector:
        batch = collector.next()
        assert not valid(batch).all()
        assert (batch["next", "reward"].squeeze(-1)[valid(batch)] == 1).all()


@needs_envpool
def test_the_dm_interface_is_refused() -> None:
    import envpool

    pool = envpool.make("CartPole-v1", env_type="dm", num_envs=2)
    with pytest.raises(OptionError, match="env_type='gymnasium'"):
        SyncDataCollector(pool, None, frames_per_batch=4)


@needs_envpool
def test_infos_that_are_absent_are_zeros_where_some_rows_are_reset() -> None:
    with SyncDataCollector(GymEnv(make_pool(), info_keys=["absent"]), frames_per_batch=300) as collector:
        batch = collector.next()
    assert batch["next", "done"].any()
    assert not batch["next", "absent"].any()
    assert not batch["absent"].any()
