"""Numbers outside of their bounds: told once for each key, counted, and errors where that is asked for."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict, TensorDictBase

from reap import MultiSyncDataCollector, SyncDataCollector, evaluate
from reap.envs import EnvBase, GymEnv, SerialEnv
from reap.envs.checks.looks import Bounds, number_looks
from reap.errors import BoundsWarning, OptionError, SpecMismatch
from reap.specs import Bounded, Composite


class Leaves(gym.Env[Any, Any]):
    """Leaves its box at chosen steps; episodes of 5 steps."""

    action_space = spaces.Discrete(2)

    def __init__(self, *at: int, by: float = 0.5, low: Any = -1.0, high: Any = 1.0) -> None:
        self.at, self.by = at, by
        self.observation_space = spaces.Box(np.full(2, low, np.float32), np.full(2, high, np.float32))
        self.t = 0

    def _observe(self) -> Any:
        return np.array([0.0, 1.0 + self.by * (self.t in self.at)], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self._observe(), 1.0, self.t == 5, False, {}


def test_one_warning_for_each_key_and_a_count() -> None:
    with SyncDataCollector(lambda: GymEnv(Leaves(3, 4)), frames_per_batch=10) as collector:
        with pytest.warns(BoundsWarning) as caught:
            batch = collector.next()
        assert len(caught) == 1
        assert str(caught[0].message) == (
            "env.step: 'observation': expected values in [-1.0, 1.0], found 1.5 at index (1,) (in row 0, column 2). It "
            "and later ones under this key are recorded as they are; collector.stats() counts them; "
            'check="all" makes them errors'
        )
        assert caught[0].filename == __file__
        assert batch["next", "observation"][:, 1].tolist() == [1, 1, 1.5, 1.5, 1] * 2
        collector.next()  # no more warnings
        stats = collector.stats()
        assert stats.out_of_bounds == 8
        assert [(one.key, one.frames) for one in stats.outside] == [(("observation",), 8)]
        assert "out of bounds: 'observation' in 8 frames" in str(stats)


def test_a_reset_counts_where_it_begins_an_episode() -> None:
    with SyncDataCollector(lambda: GymEnv(Leaves(0)), frames_per_batch=4) as collector:
        with pytest.warns(BoundsWarning, match="^env.reset: 'observation'.* row 0, column 0"):
            collector.next()
        assert collector.stats().out_of_bounds == 1
        collector.next()  # frames 4 to 7: an episode begins with frame 5
        assert collector.stats().out_of_bounds == 2


def test_rounding_is_no_matter() -> None:
    with warnings.catch_warnings(), SyncDataCollector(lambda: GymEnv(Leaves(3, by=5e-7)), frames_per_batch=10) as collector:
        warnings.simplefilter("error")
        collector.next()
        assert collector.stats().out_of_bounds == 0


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("at", [0, 1, 3])
def test_all_makes_them_errors(at: int, rows: int) -> None:
    env = SerialEnv(rows, [lambda: GymEnv(Leaves())] * (rows - 1) + [lambda: GymEnv(Leaves(at))])
    with (
        pytest.raises(SpecMismatch, match=r"expected values in \[-1.0, 1.0\], found 1.5 at index \(1,\)"),
        SyncDataCollector(env, frames_per_batch=rows * 10, check="all") as collector,
    ):
        collector.next()


def test_bounds_that_differ_and_have_no_end() -> None:
    low, high = np.array([-np.inf, 0.0], np.float32), np.array([0.0, np.inf], np.float32)
    with SyncDataCollector(lambda: GymEnv(Leaves(3, by=-3.0, low=low, high=high)), frames_per_batch=10) as collector:
        with pytest.warns(BoundsWarning, match=r"expected values in \[0.0, inf\], found -2.0 at index \(1,\)"):
            collector.next()
        assert collector.stats().out_of_bounds == 2


@pytest.mark.parametrize("nested", [False, True])
def test_workers(nested: bool) -> None:
    class Derived(SyncDataCollector):
        """A class of one's own: a worker runs a collector."""

    options: dict[str, Any] = {"collector_class": Derived} if nested else {}
    envs = [lambda: GymEnv(Leaves(3)), lambda: GymEnv(Leaves())]
    with MultiSyncDataCollector(envs, frames_per_batch=20, **options) as collector:
        with pytest.warns(BoundsWarning) as caught:
            collector.next()
        assert len(caught) == 1
        collector.next()
        stats = collector.stats()
        assert stats.out_of_bounds == 4
        assert [worker.out_of_bounds for worker in stats.workers] == [4, 0]


def test_idle_frames_do_not_count() -> None:
    class Positive(gym.ObservationWrapper[Any, Any, Any]):
        def observation(self, observation: Any) -> Any:
            return observation + np.array([1.0, 0.0], np.float32)

    envs = [lambda: GymEnv(Positive(Leaves(low=1.0, high=2.0)))] * 2
    with (
        warnings.catch_warnings(),
        SyncDataCollector(SerialEnv(2, envs), frames_per_batch=20, reset_when_done=False) as collector,
    ):
        warnings.simplefilter("error", BoundsWarning)  # idle frames are zeros, which are below 1
        batch = collector.next()
        assert batch["collector", "mask"].sum() == 10
        assert collector.stats().out_of_bounds == 0


def test_by_hand() -> None:
    env = GymEnv(Leaves(2, 3))
    with pytest.warns(BoundsWarning, match=r"^GymEnv._step: key observation: expected values in .* found 1.5") as caught:
        env.rollout(8, break_when_any_done=False)
    assert len(caught) == 1
    env.set_check("all")
    with pytest.raises(SpecMismatch, match="found 1.5"):
        env.rollout(8, break_when_any_done=False)


def test_evaluation() -> None:
    with pytest.warns(BoundsWarning):
        evaluate(lambda: GymEnv(Leaves(3)), episodes=1)
    with pytest.raises(SpecMismatch):
        evaluate(lambda: GymEnv(Leaves(3)), episodes=1, check="all")


@pytest.mark.parametrize("check", ["none", True, 1, "types "])
def test_levels(check: Any) -> None:
    with pytest.raises(OptionError, match=r"^check: expected one of \['types', 'all', 'first'\], got"):
        SyncDataCollector("CartPole-v1", frames_per_batch=8, check=check)


class Rewarding(EnvBase):
    """An env whose rewards have bounds."""

    def __init__(self, reward: float) -> None:
        super().__init__()
        self.observation_spec = Composite(observation=Bounded(0, 1, (1,)))
        self.action_spec = Bounded(-1, 1, (1,))
        self.reward_spec = Bounded(0, 1, (1,))
        self.reward = reward

    def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        return TensorDict({"observation": torch.zeros(1)})

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        reward, flag = torch.full((1,), self.reward), torch.zeros(1, dtype=torch.bool)
        return TensorDict({"observation": torch.zeros(1), "reward": reward, "done": flag})


def test_rewards_with_bounds() -> None:
    with SyncDataCollector(lambda: Rewarding(2.0), frames_per_batch=4) as collector:
        with pytest.warns(BoundsWarning, match=r"'reward': expected values in \[0.0, 1.0\], found 2.0"):
            collector.next()
        assert collector.stats().out_of_bounds == 4


# ---------------------------------------------------------------------- against a plain model


@pytest.mark.parametrize("seed", range(20))
def test_looks_against_a_plain_model(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, columns, size = int(rng.integers(1, 4)), int(rng.integers(1, 6)), int(rng.integers(1, 4))
    uniform = bool(rng.integers(2))
    low = np.full(size, -1.0, np.float32) if uniform else rng.uniform(-2, 0, size).astype(np.float32)
    high = np.full(size, 1.0, np.float32) if uniform else rng.uniform(0, 2, size).astype(np.float32)
    if not uniform:
        low[rng.integers(size)] = -np.inf
    values = rng.uniform(-1.2, 1.2, (rows, columns, size)).astype(np.float32)
    spec = Bounded(torch.from_numpy(low), torch.from_numpy(high), (size,))
    _, bounds = number_looks(spec.expand(rows, size), 1)
    assert isinstance(bounds, Bounds)
    expected = np.array(
        [[any(not (lo <= v <= hi) for v, lo, hi in zip(f, low, high, strict=True)) for f in row] for row in values]
    )
    assert bounds.wrong(values).tolist() == expected.tolist()
    assert bounds.is_fine(values) == (not expected.any())
