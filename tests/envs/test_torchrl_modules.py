"""torchrl's modules and losses with the specs of reap's envs, as they are."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import NormalParamExtractor, TensorDictModule, TensorDictSequential
from torch import nn

from reap.envs import EnvBase, GymEnv, SerialEnv
from reap.envs.utils import RandomPolicy
from reap.errors import OptionError
from reap.specs import Composite, OneHot, Unbounded

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("torchrl.modules")
    from torchrl import data as torchrl_data
    from torchrl import modules, objectives
    from torchrl.envs.utils import RandomPolicy as TorchrlsPolicy
    from torchrl.modules.tensordict_module import SafeModule

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def pendulum() -> EnvBase:
    return GymEnv("Pendulum-v1")


@pytest.fixture(scope="module")
def cartpole() -> EnvBase:
    return GymEnv("CartPole-v1")


class Both(nn.Module):
    """A critic of observations and actions."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, observation: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.cat([observation, action], -1))


def critic() -> Any:
    return TensorDictModule(Both(), in_keys=["observation", "action"], out_keys=["state_action_value"])


def gaussian(env: EnvBase, spec: Any, **options: Any) -> Any:
    net = TensorDictModule(nn.Sequential(nn.Linear(3, 2), NormalParamExtractor()), ["observation"], ["loc", "scale"])
    return modules.ProbabilisticActor(
        net,
        in_keys=["loc", "scale"],
        spec=spec,
        distribution_class=modules.TanhNormal,
        distribution_kwargs={"low": env.action_spec_unbatched.low, "high": env.action_spec_unbatched.high},
        return_log_prob=True,
        **options,
    )


def q_actor(spec: Any, **options: Any) -> Any:
    return modules.QValueActor(nn.Linear(4, 2), in_keys=["observation"], spec=spec, **options)


@pytest.mark.parametrize("name", ["action_spec", "full_action_spec"])
@pytest.mark.parametrize("rows", [0, 2])
def test_actors_of_numbers(name: str, rows: int) -> None:
    env = SerialEnv(rows, "Pendulum-v1") if rows else GymEnv("Pendulum-v1")
    spec = getattr(env, name)
    deterministic = modules.Actor(nn.Linear(3, 1), in_keys=["observation"], spec=spec)
    noise = modules.AdditiveGaussianModule(spec, sigma_init=9.0, sigma_end=9.0)
    tanh = TensorDictSequential(deterministic, modules.TanhModule(in_keys=["action"], out_keys=["action"], spec=spec))
    for policy in (gaussian(env, spec, safe=True), TensorDictSequential(deterministic, noise), tanh):
        batch = env.rollout(4, policy, break_when_any_done=False)
        assert batch["action"].shape == (*env.batch_size, 4, 1)
        assert (batch["action"].abs() <= 2).all()


@pytest.mark.parametrize("categorical", [False, True])
@pytest.mark.parametrize("rows", [0, 3])
def test_actors_of_choices(categorical: bool, rows: int) -> None:
    def build() -> EnvBase:
        return GymEnv("CartPole-v1", categorical_action_encoding=categorical)

    env = SerialEnv(rows, build) if rows else build()
    # A batched Categorical is no spec of torchrl's modules: they take its last batch dimension for a part of the value.
    specs = [env.action_spec_unbatched] if categorical else [env.action_spec, env.full_action_spec, env.action_spec_unbatched]
    for spec in specs:
        greedy = q_actor(spec)
        policy = TensorDictSequential(greedy, modules.EGreedyModule(spec, eps_init=1.0, eps_end=1.0))
        assert env.action_spec.is_in(env.rollout(1, policy)["action"].squeeze(len(env.batch_size)))
    assert (
        pickle.loads(pickle.dumps(greedy)).spec["action"] == copy.deepcopy(greedy).spec["action"] == env.action_spec_unbatched
    )


def test_a_mask_goes_to_the_module_and_not_to_the_env(cartpole: EnvBase) -> None:
    module = modules.EGreedyModule(cartpole.action_spec.clone(), eps_init=1.0, eps_end=1.0, action_mask_key="action_mask")
    given = TensorDict({"action": torch.tensor([1, 0]), "action_mask": torch.tensor([False, True])})
    assert all(module(given.clone())["action"].tolist() == [0, 1] for _ in range(10))
    assert cartpole.action_spec.mask is None


def test_safe_modules(pendulum: EnvBase) -> None:
    for spec in (pendulum.action_spec, pendulum.full_action_spec):
        module = SafeModule(nn.Linear(3, 1), ["observation"], ["action"], spec=spec, safe=True)
        with torch.no_grad():
            module.module.bias.fill_(100)
        assert module(pendulum.reset())["action"].tolist() == [2]
        assert module.to(torch.float64).spec["action"].dtype == torch.float64


def losses(pendulum: EnvBase, cartpole: EnvBase) -> dict[str, Callable[[], tuple[EnvBase, Any, Any]]]:
    spec, choices = pendulum.action_spec, cartpole.action_spec

    def with_gaussian(loss: Any, **options: Any) -> tuple[EnvBase, Any, Any]:
        actor = gaussian(pendulum, spec)
        return pendulum, actor, loss(actor, critic(), **options)

    def with_actor(loss: Any, **options: Any) -> tuple[EnvBase, Any, Any]:
        actor = modules.Actor(nn.Linear(3, 1), in_keys=["observation"], spec=spec)
        return pendulum, actor, loss(actor, critic(), **options)

    def dqn(space: Any) -> tuple[EnvBase, Any, Any]:
        actor = q_actor(choices)
        return cartpole, actor, objectives.DQNLoss(actor, action_space=space)

    def discrete_sac() -> tuple[EnvBase, Any, Any]:
        net = TensorDictModule(nn.Linear(4, 2), ["observation"], ["logits"])
        kind = modules.OneHotCategorical
        actor = modules.ProbabilisticActor(net, ["logits"], spec=choices, distribution_class=kind, return_log_prob=True)
        value = TensorDictModule(nn.Linear(4, 2), ["observation"], ["action_value"])
        return cartpole, actor, objectives.DiscreteSACLoss(actor, value, action_space=choices, num_actions=2)

    return {
        "SAC": lambda: with_gaussian(objectives.SACLoss),
        "SAC with a spec": lambda: with_gaussian(objectives.SACLoss, action_spec=spec),
        "SAC with a Composite": lambda: with_gaussian(objectives.SACLoss, action_spec=pendulum.full_action_spec),
        "REDQ": lambda: with_gaussian(objectives.REDQLoss, action_spec=spec),
        "TD3": lambda: with_actor(objectives.TD3Loss, action_spec=spec),
        "TD3 with a Composite": lambda: with_actor(objectives.TD3Loss, action_spec=pendulum.full_action_spec),
        "DQN": lambda: dqn(None),
        "DQN with a spec": lambda: dqn(choices),
        "discrete SAC": discrete_sac,
    }


@pytest.mark.parametrize(
    "name",
    [
        "SAC",
        "SAC with a spec",
        "SAC with a Composite",
        "REDQ",
        "TD3",
        "TD3 with a Composite",
        "DQN",
        "DQN with a spec",
        "discrete SAC",
    ],
)
def test_losses(name: str, pendulum: EnvBase, cartpole: EnvBase) -> None:
    env, actor, loss = losses(pendulum, cartpole)[name]()
    found = loss(env.rollout(5, actor, break_when_any_done=False))
    assert all(torch.isfinite(value).all() for key, value in found.items() if key.startswith("loss"))
    if name.startswith("SAC"):
        assert float(loss.target_entropy) == -1


def test_random_policies_take_specs_of_either_library(cartpole: EnvBase) -> None:
    for policy in (TorchrlsPolicy(cartpole.action_spec), TorchrlsPolicy(cartpole.full_action_spec)):
        assert cartpole.action_spec.is_in(policy(cartpole.reset())["action"])
    theirs = torchrl_data.Composite(a=torchrl_data.Bounded(-1, 1, (2,)), b=torchrl_data.Categorical(3))
    policy = RandomPolicy(theirs)
    assert policy(TensorDict())["a"].shape == (2,)
    assert policy.actions.keys() == ["a", "b"]
    assert RandomPolicy(torchrl_data.OneHot(3), "move")(TensorDict())["move"].sum() == 1
    with pytest.raises(OptionError, match="expected the spec of an action, env.action_spec, got 3"):
        RandomPolicy(3)


def test_envs_take_specs_of_torchrl() -> None:
    class Env(EnvBase):
        def __init__(self) -> None:
            super().__init__()
            self.observation_spec = torchrl_data.Composite(seen=torchrl_data.Unbounded(2))
            self.action_spec = torchrl_data.OneHot(3)
            self.reward_spec = torchrl_data.Unbounded(1)

        def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
            return TensorDict({"seen": torch.zeros(2)})

        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            return TensorDict({"seen": torch.ones(2), "reward": torch.ones(1), "done": torch.zeros(1, dtype=torch.bool)})

    env = Env()
    assert env.observation_spec == Composite(seen=Unbounded(2))
    assert env.action_spec == OneHot(3)
    assert env.rollout(2)["seen"].tolist() == [[0, 0], [1, 1]]
