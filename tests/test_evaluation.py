"""`reap.evaluate`: whole episodes, unbiased, and nothing else changed."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import nn

import reap
from reap.collectors import SyncDataCollector
from reap.envs import ExplorationType, GymEnv, SerialEnv
from reap.errors import ClosedError, OptionError, SpecMismatch
from reap.evaluation import EpisodeLog, Evaluation
from reap.evaluation.whole_episodes import COLUMNS
from reap.testing import BN, Const, Count, CountTL, Id, IdRows, Noise


def expected(rows: int, episodes: int, action: float) -> tuple[list[float], list[int]]:
    """Returns and lengths of `Id` envs, in the order of the result."""
    places = [(number % rows, number // rows) for number in range(episodes)]
    # The collector's first reset begins episode 0.
    lengths = [Id.length(b, k) for b, k in places]
    returns = [sum(Id.reward(b, k, t, action) for t in range(1, n + 1)) for (b, k), n in zip(places, lengths, strict=True)]
    return returns, lengths


@pytest.mark.parametrize("episodes", [1, 2, 3, 7, 30])
@pytest.mark.parametrize("rows", [1, 3])
def test_episodes_of_each_env_in_turn(rows: int, episodes: int) -> None:
    envs = [Id(b) for b in range(rows)]
    env = GymEnv(envs[0]) if rows == 1 else SerialEnv(rows, [lambda e=e: e for e in envs])
    result = reap.evaluate(env, Const(0.5), episodes)
    returns, lengths = expected(rows, episodes, 0.5)
    assert result.returns.tolist() == returns
    assert result.lengths.tolist() == lengths
    assert (result.returns.dtype, result.lengths.dtype) == (np.float64, np.int64)


def test_envs_with_any_batch_size() -> None:
    result = reap.evaluate(IdRows((2, 2)), Const(0.5), 10)
    assert (result.returns.tolist(), result.lengths.tolist()) == expected(4, 10, 0.5)


def test_b10_short_episodes_are_not_favoured() -> None:
    """Envs of length 1 and 50: half of the episodes come from each."""
    env = SerialEnv(2, [lambda: Count(1), lambda: Count(50)])
    result = reap.evaluate(env, Const(), 9)
    assert result.lengths.tolist() == [1, 50] * 4 + [1]


def test_vector_env_whose_reset_steps_are_no_frames() -> None:
    """A vector env that is not masked counts no frame for the step in which it resets itself."""
    env = gym.vector.SyncVectorEnv([lambda: Count(3), lambda: Count(5)])
    result = reap.evaluate(env, Const(), 6)
    assert result.lengths.tolist() == [3, 5] * 3
    assert result.returns.tolist() == [3, 5] * 3
    env.close()


@pytest.mark.parametrize("given", ["CartPole-v1", lambda: GymEnv("CartPole-v1"), lambda: gym.make("CartPole-v1")])
def test_a_seed_repeats_the_result(given: Any) -> None:
    first, again, other = (reap.evaluate(given, None, 8, seed=seed) for seed in (3, 3, 4))
    assert first.returns.tolist() == again.returns.tolist()
    assert first.returns.tolist() != other.returns.tolist()


def test_is_what_a_collector_sees() -> None:
    """The first eight episodes of each env, from a collector with the same seed."""
    policy = lambda observation: torch.nn.functional.one_hot((observation[..., 2] > 0).long(), 2)  # noqa: E731
    env = lambda: SerialEnv(3, "CartPole-v1")  # noqa: E731
    result = reap.evaluate(env, policy, 24, seed=5)
    log, found = EpisodeLog(3), [[], [], []]
    with SyncDataCollector(env(), policy, frames_per_batch=3 * 700) as collector:
        collector.set_seed(5)
        for ended in log.add(collector.next()):
            found[ended.row].append(ended)
    wanted = [found[number % 3][number // 3] for number in range(24)]
    assert result.lengths.tolist() == [one.length for one in wanted]
    assert result.returns.tolist() == [one.reward for one in wanted]


def probabilistic() -> ProbabilisticTensorDictSequential:
    linear = nn.Linear(3, 3)
    nn.init.normal_(linear.weight, generator=torch.Generator().manual_seed(0))
    return ProbabilisticTensorDictSequential(
        TensorDictModule(linear, in_keys=["observation"], out_keys=["logits"]),
        ProbabilisticTensorDictModule(
            in_keys=["logits"], out_keys=["action"], distribution_class=torch.distributions.Categorical
        ),
    )


def test_acts_deterministically_unless_told_otherwise() -> None:
    actions: dict[Any, set[Any]] = {}
    for kind in (ExplorationType.DETERMINISTIC, ExplorationType.RANDOM):
        kept: list[int] = []

        class Watched(Noise):
            def step(self, action: Any) -> Any:
                kept.append(int(action))  # noqa: B023
                self.steps += 1
                return np.ones(3, np.float32), 0.0, self.steps == 20, False, {}

            def observe(self) -> Any:
                super().observe()
                return np.ones(3, np.float32)

        reap.evaluate(GymEnv(Watched(3), categorical_action_encoding=True), probabilistic(), 2, kind)
        actions[kind] = set(kept)
    assert len(actions[ExplorationType.DETERMINISTIC]) == 1
    assert len(actions[ExplorationType.RANDOM]) == 3


class Moody(nn.Module):
    """Draws, counts its calls, normalises by batch statistics and replaces a buffer; a part of it is in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = BN(1)
        self.frozen = nn.Dropout().eval()
        self.register_buffer("calls", torch.zeros(()))
        self.modes: list[bool] = []

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        self.modes.append(self.training)
        self.calls = self.calls + 1
        return self.norm(observation) + torch.rand(observation.shape)


@pytest.mark.parametrize("seed", [None, 1])
def test_policy_and_generator_stay_as_they_were(seed: int | None) -> None:
    policy = Moody()
    before, calls = copy.deepcopy(policy.state_dict()), policy.calls
    state = torch.get_rng_state()
    reap.evaluate(SerialEnv(3, lambda: Count(4)), policy, 6, seed=seed)
    assert torch.equal(torch.get_rng_state(), state)
    assert policy.calls is calls
    assert all(torch.equal(value, before[key]) for key, value in policy.state_dict().items())
    assert (policy.training, policy.norm.training, policy.frozen.training) == (True, True, False)
    assert policy.modes
    assert not any(policy.modes)


def test_a_policy_that_fails_stays_as_it_was() -> None:
    policy = Moody()
    policy.norm.forward = lambda observation: 1 / 0  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        reap.evaluate(lambda: Count(4), policy)
    assert policy.training
    assert policy.calls == 0


def test_envs_that_are_passed_stay_open() -> None:
    class Closing(Count):
        closed = False

        def close(self) -> None:
            self.closed = True

    inner, made = Closing(3), Closing(3)
    reap.evaluate(inner, Const(), 2)
    env = GymEnv(inner)
    reap.evaluate(env, Const(), 2)
    assert not inner.closed
    assert not env.closed
    assert env.rollout(10)["observation"].shape == (3, 1)
    reap.evaluate(lambda: made, Const(), 2)
    assert made.closed
    env.close()
    with pytest.raises(ClosedError):
        reap.evaluate(env, Const())


def test_a_collector_that_shares_the_env_begins_new_episodes() -> None:
    env = GymEnv(Count(10))
    with SyncDataCollector(env, Const(), frames_per_batch=4) as collector:
        collector.next()
        reap.evaluate(env, Const(), 2)
        batch = collector.next()
    assert batch["observation"].flatten().tolist() == [0, 1, 2, 3]
    assert batch["collector", "traj_ids"].tolist() == [1] * 4


def test_a_limit_for_envs_that_never_end() -> None:
    result = reap.evaluate(SerialEnv(2, lambda: CountTL(10**6, 10**6)), Const(), 5, max_frames_per_traj=40)
    assert result.lengths.tolist() == [40] * 5


def test_reads_well() -> None:
    result = Evaluation(np.array([1.0, 2.0, 6.0]), np.array([10, 20, 30]))
    assert (result.mean, round(result.std, 4)) == (3.0, 2.1602)
    assert str(result) == "return 3.0 ± 2.2 (1.0 to 6.0), length 20.0, 3 episodes"
    assert str(Evaluation(np.array([1.0]), np.array([10]))).endswith("1 episode")


@pytest.mark.parametrize("episodes", [0, -1, 1.5, True, None])
def test_a_number_of_episodes_is_wanted(episodes: Any) -> None:
    with pytest.raises(OptionError, match="episodes: expected a positive number"):
        reap.evaluate("CartPole-v1", None, episodes)


def test_one_reward_per_frame_is_wanted() -> None:
    batch = TensorDict({"next": {"reward": torch.zeros(2, 3, 4), "done": torch.zeros(2, 3, 1, dtype=torch.bool)}}, [2, 3])
    with pytest.raises(SpecMismatch, match=r"one reward per frame, \[2, 3, 1\], found \[2, 3, 4\]"):
        EpisodeLog(2).add(batch)


class Counted(Count):
    """`Count` that counts its resets and steps over all episodes."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.calls = {"reset": 0, "step": 0}

    def reset(self, **options: Any) -> Any:
        self.calls["reset"] += 1
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        self.calls["step"] += 1
        return super().step(action)


@pytest.mark.parametrize(
    ("lengths", "episodes", "columns"),
    [
        ([1], 1, 1),
        ([1], 5, 5),
        ([3], 2, 6),
        ([32], 1, 32),
        ([33], 1, 33),
        ([40], 2, 80),
        ([1, 1, 1], 3, 1),
        ([1, 1, 1], 4, 2),
        ([2, 7], 1, 2),
        ([2, 7], 2, 7),
        ([2, 7], 3, 7),
        ([50, 1], 2, 50),
    ],
)
def test_at_most_one_column_is_stepped_in_vain(lengths: list[int], episodes: int, columns: int) -> None:
    envs = [Counted(length) for length in lengths]
    env = GymEnv(envs[0]) if len(envs) == 1 else SerialEnv(len(envs), [lambda e=e: e for e in envs])
    result = reap.evaluate(env, Const(), episodes)
    assert result.lengths.tolist() == [lengths[number % len(lengths)] for number in range(episodes)]
    for length, one in zip(lengths, envs, strict=True):
        assert one.calls["step"] == columns + (columns % COLUMNS > 0)  # none where a rollout ends with the last episode
        assert one.calls["reset"] <= 1 + one.calls["step"] // length


@pytest.mark.parametrize("rows", [0, 3])
def test_a_limit_ends_it_as_soon(rows: int) -> None:
    envs = [Counted(100) for _ in range(rows or 1)]
    env = SerialEnv(rows, [lambda e=e: e for e in envs]) if rows else GymEnv(envs[0])
    result = reap.evaluate(env, Const(), rows or 1, max_frames_per_traj=4)
    assert result.lengths.tolist() == [4] * (rows or 1)
    assert [one.calls["step"] for one in envs] == [5] * (rows or 1)


def test_a_vector_env_that_resets_itself_ends_it_as_soon() -> None:
    envs = [Counted(2), Counted(2)]
    result = reap.evaluate(gym.vector.SyncVectorEnv([lambda e=e: e for e in envs]), Const(), 2)
    assert result.lengths.tolist() == [2, 2]
    assert [one.calls["step"] for one in envs] == [3, 3]
