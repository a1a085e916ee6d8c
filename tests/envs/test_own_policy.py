"""An env's `rand_action` or `rand_step` as a policy: random actions, and one step a frame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import reap
from reap.collectors import MultiSyncDataCollector, SyncDataCollector
from reap.envs import EnvBase, GymEnv, SerialEnv
from reap.envs.own_policy import as_policy
from reap.errors import OptionError
from reap.testing import Const, Count, IdRows

NAMES = ["rand_action", "rand_step"]


def torchrl_env() -> Any:
    return pytest.importorskip("torchrl.envs").GymEnv("CartPole-v1")


def transformed() -> Any:
    envs = pytest.importorskip("torchrl.envs")
    return envs.TransformedEnv(envs.GymEnv("CartPole-v1"), envs.StepCounter())


ENVS: dict[str, Callable[[], Any]] = {
    "one": lambda: GymEnv("CartPole-v1"),
    "rows": lambda: SerialEnv(2, "CartPole-v1"),
    "by TensorDicts": lambda: IdRows((2,)),
    "torchrl's": torchrl_env,
    "torchrl's, transformed": transformed,
    "as torchrl's": lambda: GymEnv("CartPole-v1").as_torchrl(),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ENVS)
def test_random_actions(kind: str, name: str) -> None:
    def batches(choose: Callable[[Any], Any]) -> list[Any]:
        env = ENVS[kind]()
        collector = SyncDataCollector(env, choose(env), frames_per_batch=30, total_frames=60)
        if kind != "by TensorDicts":
            collector.set_seed(3)
        return list(collector)

    found = batches(lambda env: getattr(env, name))
    torch.manual_seed(0)
    wanted = batches(lambda env: None)
    for one, other in zip(found, wanted, strict=True):
        assert set(one.keys(True, True)) == set(other.keys(True, True))
        if kind != "by TensorDicts":
            assert torch.equal(one["action"], other["action"])
            assert torch.equal(one["next", "observation"], other["next", "observation"])
    assert found[0]["action"].float().std() > 0


@pytest.mark.parametrize("name", NAMES)
def test_one_step_a_frame(name: str) -> None:
    env = GymEnv(Count(5))
    with SyncDataCollector(env, getattr(env, name), frames_per_batch=10) as collector:
        assert collector.next()["observation"].flatten().tolist() == [0, 1, 2, 3, 4] * 2
    assert reap.evaluate(GymEnv(Count(5)), getattr(GymEnv(Count(5)), name), 2).lengths.tolist() == [5, 5]


@pytest.mark.parametrize("name", NAMES)
def test_one_step_a_frame_by_hand(name: str) -> None:
    env = GymEnv(Count(5))
    assert env.rollout(3, getattr(env, name))["next", "observation"].flatten().tolist() == [1, 2, 3]


@pytest.mark.parametrize("name", NAMES)
def test_in_workers(name: str) -> None:
    policy = getattr(GymEnv(Count(5)), name)
    with MultiSyncDataCollector([Count] * 2, policy, create_env_kwargs={"length": 5}, frames_per_batch=8) as collector:
        assert collector.policy is None
        assert collector.next()["observation"].squeeze(-1).tolist() == [[0, 1, 2, 3]] * 2


class Cautious(IdRows):
    """Draws its random actions in a way of its own."""

    def rand_action(self, tensordict: Any = None) -> Any:
        drawn = super().rand_action(tensordict)
        return drawn.set("action", drawn["action"] * 0 + 0.25)


@pytest.mark.parametrize("name", NAMES)
def test_an_env_with_random_actions_of_its_own(name: str) -> None:
    env = Cautious((2,))
    with SyncDataCollector(env, getattr(env, name), frames_per_batch=6) as collector:
        assert collector.next()["action"].flatten().tolist() == [0.25] * 6


def test_other_policies_stay_what_they_are() -> None:
    class Agent:
        def rand_step(self, observation: torch.Tensor) -> torch.Tensor:
            return observation

    for policy in (Const(), Agent().rand_step, EnvBase.rand_step, GymEnv(Count(5)).reset, None):
        assert as_policy(policy) == policy
    with pytest.raises(OptionError, match="policy and policy_factory"):
        SyncDataCollector(GymEnv(Count(5)), GymEnv(Count(5)).rand_step, policy_factory=Const, frames_per_batch=1)
