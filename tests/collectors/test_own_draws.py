"""Random actions that an env draws itself: an overridden `rand_action` or `rand_step`."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase

from reap.collectors import MultiSyncDataCollector, RandomPolicy, SyncDataCollector
from reap.errors import OptionError, SpecMismatch
from reap.testing import Const
from tests.collectors.test_devices import Steps


class OwnAction(Steps):
    """Draws a number that says how many steps were taken."""

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        assert tensordict is not None
        return tensordict.set("action", tensordict["observation"] + 7)


class OwnStep(Steps):
    """Steps with such a number; counts the steps that were taken."""

    taken = 0

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.taken += 1
        return super()._step(tensordict)

    def rand_step(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        assert tensordict is not None
        return self.step(tensordict.set("action", tensordict["observation"] + 7))


@pytest.mark.parametrize("env", [OwnAction, OwnStep])
def test_random_frames_are_the_envs_own(env: Any) -> None:
    collector = SyncDataCollector(env(), Const(2.0), frames_per_batch=3, init_random_frames=6)
    assert [collector.next()["action"].flatten().tolist() for _ in range(3)] == [[7, 8, 9], [10, 11, 12], [2.0] * 3]


@pytest.mark.parametrize("env", [OwnAction, OwnStep])
def test_without_a_policy_all_are(env: Any) -> None:
    assert SyncDataCollector(env(), frames_per_batch=3).next()["action"].flatten().tolist() == [7, 8, 9]


@pytest.mark.parametrize("env", [OwnAction, OwnStep])
def test_workers_have_them_too(env: Any) -> None:
    with MultiSyncDataCollector([env] * 2, Const(2.0), frames_per_batch=6, init_random_frames=6) as collector:
        assert collector.next()["action"].squeeze(-1).tolist() == [[7, 8, 9]] * 2


def test_what_they_get_is_where_the_env_is() -> None:
    given: list[Any] = []

    class Asked(Steps):
        def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
            assert tensordict is not None
            given.append(tensordict.device)
            return tensordict.set("action", torch.zeros(1))

    SyncDataCollector(Asked(), frames_per_batch=2, env_device="cpu").next()
    SyncDataCollector(Asked(), frames_per_batch=1).next()
    assert given == [torch.device("cpu")] * 2 + [None]


def test_a_random_step_is_one_step() -> None:
    env = OwnStep()
    SyncDataCollector(env, frames_per_batch=5).next()
    assert env.taken == 5
    assert "step" not in vars(env)


def test_a_random_policy_draws_from_its_spec() -> None:
    torch.manual_seed(0)
    found = SyncDataCollector(OwnAction(), RandomPolicy(OwnAction().action_spec), frames_per_batch=3).next()["action"]
    assert found.flatten().tolist() != [7, 8, 9]


def test_other_outputs_of_the_policy_are_zero() -> None:
    def policy(observation: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"action": observation * 2, "value": torch.ones(1)}

    batch = SyncDataCollector(OwnAction(), policy, frames_per_batch=2, init_random_frames=2).next()
    assert (batch["action"].flatten().tolist(), batch["value"].flatten().tolist()) == ([7, 8], [0, 0])


def test_draws_that_do_not_fit() -> None:
    class Wide(Steps):
        def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
            assert tensordict is not None
            return tensordict.set("action", torch.zeros(3))

    with pytest.raises(SpecMismatch, match=r"rand_action: output 'action': expected .*\(1,\).*, found .*\(3,\)"):
        SyncDataCollector(Wide(), frames_per_batch=2).next()


def test_a_random_step_that_does_not_step() -> None:
    class Idle(Steps):
        def rand_step(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
            assert tensordict is not None
            return tensordict

    with pytest.raises(OptionError, match=r"Idle\.rand_step: expected it to call self\.step\(tensordict\) once, found 0 calls"):
        SyncDataCollector(Idle(), frames_per_batch=2).next()


@pytest.mark.parametrize("transformed", [False, True])
def test_a_torchrl_env_draws_itself(transformed: bool) -> None:
    envs = pytest.importorskip("torchrl.envs")

    class Always(envs.GymEnv):
        def rand_action(self, tensordict: Any = None) -> Any:
            return tensordict.set("action", torch.tensor([0, 1]))

    env = Always("CartPole-v1")
    collector = SyncDataCollector(
        envs.TransformedEnv(env, envs.StepCounter()) if transformed else env, frames_per_batch=8, init_random_frames=8
    )
    assert collector.next()["action"].argmax(-1).tolist() == [1] * 8


def test_draws_repeat_after_a_seed() -> None:
    class Noisy(Steps):
        def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
            assert tensordict is not None
            return tensordict.set("action", torch.randn(1))

    collector = SyncDataCollector(partial(Noisy), frames_per_batch=3)
    found = []
    for _ in range(2):
        collector.set_seed(3)
        found.append(collector.next()["action"].tolist())
    assert found[0] == found[1]
