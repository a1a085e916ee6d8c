"""`TransformedEnv` around envs of reap, and envs of reap where torchrl's own code expects its envs."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import reap
from reap.envs import EnvBase, GymEnv, ParallelEnv, SerialEnv, TransformedEnv
from reap.envs.adapters.torchrl import TorchRLEnv
from tests import warm

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    envs: Any = pytest.importorskip("torchrl.envs")
    from torchrl import collectors
    from torchrl.envs.utils import check_env_specs

pytestmark = pytest.mark.filterwarnings("ignore")


def cartpole() -> EnvBase:
    return GymEnv("CartPole-v1")


def counted() -> Any:
    return TransformedEnv(cartpole(), envs.Compose(envs.StepCounter(), envs.RewardSum()))


def theirs() -> Any:
    return envs.TransformedEnv(envs.GymEnv("CartPole-v1"), envs.Compose(envs.StepCounter(), envs.RewardSum()))


def test_a_transformed_env_gives_what_torchrls_own_does() -> None:
    batches = []
    for env in (counted(), theirs()):
        env.set_seed(0)
        torch.manual_seed(0)
        batches.append(env.rollout(60, break_when_any_done=False))
    assert {key: (value.shape, value.dtype) for key, value in batches[0].items(True, True)} == {
        key: (value.shape, value.dtype) for key, value in batches[1].items(True, True)
    }


def test_the_class() -> None:
    env = counted()
    assert isinstance(env, TransformedEnv)
    assert isinstance(env, envs.TransformedEnv)
    assert isinstance(theirs(), TransformedEnv)
    assert not isinstance(cartpole(), TransformedEnv)
    assert repr(env.base_env) == "GymEnv(CartPole-v1).as_torchrl()"
    twin = pickle.loads(pickle.dumps(env))
    assert twin.rollout(3)["next", "step_count"].flatten().tolist() == [1, 2, 3]
    assert cartpole().append_transform(envs.StepCounter()).rollout(2)["step_count"].flatten().tolist() == [0, 1]
    assert TransformedEnv(env=envs.GymEnv("CartPole-v1")).rollout(2).shape == (2,)

    class Mine(TransformedEnv):
        """A subclass."""

    assert isinstance(Mine(cartpole(), envs.StepCounter()), envs.TransformedEnv)


def test_collectors_take_transformed_envs() -> None:
    with reap.SyncDataCollector(counted(), None, frames_per_batch=12) as collector:
        batch = collector.next()
        assert isinstance(collector.env, TorchRLEnv)
    assert batch["next", "step_count"][:8].flatten().tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    whole = TransformedEnv(SerialEnv(2, "CartPole-v1"), envs.StepCounter())
    assert whole.rollout(3, break_when_any_done=False)["step_count"].squeeze(-1).tolist() == [[0, 1, 2]] * 2


@pytest.mark.processes
def test_processes_take_transformed_envs() -> None:
    with ParallelEnv(2, counted) as env:
        assert env.rollout(3, break_when_any_done=False)["step_count"].squeeze(-1).tolist() == [[0, 1, 2]] * 2
    env = envs.ParallelEnv(2, lambda: cartpole().as_torchrl())
    assert env.rollout(3, break_when_any_done=False).shape == (2, 3)
    env.close()


def test_numbers_outside_of_bounds_are_told_through_torchrl_too() -> None:
    class Wild(EnvBase):
        """Observes 1, then 9, where 2 is the most."""

        def __init__(self) -> None:
            super().__init__()
            self.observation_spec = reap.Composite(observation=reap.Bounded(0, 2, (1,)))
            self.action_spec = reap.OneHot(2)

        def _reset(self, tensordict: Any) -> Any:
            return self.observation_spec.one()

        def _step(self, tensordict: Any) -> Any:
            done = torch.zeros(1, dtype=torch.bool)
            return self.observation_spec.one().update(
                {"observation": torch.full((1,), 9.0), "reward": torch.ones(1), "done": done}
            )

        def _set_seed(self, seed: int) -> None: ...

    with pytest.warns(reap.errors.BoundsWarning, match="observation: expected values in"):
        assert Wild().as_torchrl().rollout(2)["next", "observation"].flatten().tolist() == [9, 9]


COLLECTOR: Any = getattr(collectors, "Collector", None) or collectors.SyncDataCollector
"""The class has the first name since torchrl 0.13."""


def collector_of(create: Any) -> Any:
    return next(iter(COLLECTOR(create, None, frames_per_batch=10, total_frames=10)))


EXPECTING: dict[str, tuple[Callable[[], Any], type[Exception]]] = {
    "check_env_specs": (lambda: check_env_specs(cartpole()), TypeError),
    "a collector": (lambda: collector_of(cartpole()), TypeError),
    "a collector with a factory": (lambda: collector_of(cartpole), TypeError),
    "SerialEnv": (lambda: envs.SerialEnv(2, cartpole).rollout(3), AttributeError),
    "TransformedEnv": (lambda: envs.TransformedEnv(cartpole(), envs.StepCounter()).rollout(2), TypeError),
}


@pytest.mark.parametrize("name", EXPECTING)
def test_code_of_torchrls_that_is_given_an_env_of_reap_says_what_to_give(name: str) -> None:
    call, kind = EXPECTING[name]
    with pytest.raises(kind, match=r"env.as_torchrl\(\)"):
        call()


def test_code_of_torchrls_takes_the_conversion() -> None:
    check_env_specs(cartpole().as_torchrl())
    check_env_specs(counted())
    assert collector_of(cartpole().as_torchrl()).shape == (10,)
    assert envs.SerialEnv(2, lambda: cartpole().as_torchrl()).rollout(3).shape == (2, 3)


@pytest.mark.processes
def test_specs_that_were_made_before_torchrl_was_imported() -> None:
    code = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "from reap.envs import GymEnv, TransformedEnv\n"
        "env = GymEnv('CartPole-v1'); spec = env.action_spec\n"
        "import torchrl.data as data\n"
        "print(isinstance(env.action_spec, data.OneHot), isinstance(spec, data.TensorSpec), env.action_spec is spec)"
    )
    assert warm.run(code, timeout=180)[:2] == (0, "True True True\n")
