"""Policies that do what policies should not have to avoid: reassign buffers, keep outputs, differentiate, share weights."""

from __future__ import annotations

import copy
from collections import deque
from typing import Any

import pytest
import torch
from torch import nn

from reap.collectors import SyncDataCollector
from reap.envs import GymEnv, SerialEnv
from reap.errors import CallOrderError, SpecMismatch


class RunningMean(nn.Module):
    """Puts a new tensor in the place of a buffer with each call."""

    mean: torch.Tensor
    last: torch.Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("last", None)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        self.mean = self.mean + 1
        self.last = observation.clone()
        return observation[..., :1]


def test_a_buffer_that_the_first_call_reassigns_is_restored() -> None:
    policy = RunningMean()
    collector = SyncDataCollector("Pendulum-v1", policy, frames_per_batch=5)
    assert policy.mean.tolist() == [0, 0, 0]
    assert policy.last is None
    collector.next()
    assert policy.mean.tolist() == [5, 5, 5]


class Guided(nn.Module):
    """Follows a gradient that it takes in its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Linear(4, 1)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            action = torch.zeros(*observation.shape[:-1], 1, requires_grad=True)
            (slope,) = torch.autograd.grad(self.value(torch.cat([observation, action], -1)).sum(), action)
        return slope


@pytest.mark.parametrize("envs", [0, 2])
def test_a_policy_may_differentiate_in_its_forward(envs: int) -> None:
    env = SerialEnv(envs, lambda: GymEnv("Pendulum-v1")) if envs else GymEnv("Pendulum-v1")
    policy = Guided()
    batch = SyncDataCollector(env, policy, frames_per_batch=10).next()
    assert torch.equal(batch["action"], policy.value.weight[0, 3].detach().expand_as(batch["action"]))
    assert not batch["action"].requires_grad


class Activations(nn.Module):
    """Keeps its last activations in a deque."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(3, 4), nn.Linear(4, 1)
        self.kept: deque[torch.Tensor] = deque(maxlen=2)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        self.kept.append(self.hidden(observation))
        return self.head(self.kept[-1])


def test_activations_kept_in_a_deque_can_be_trained_on() -> None:
    policy = Activations()
    SyncDataCollector("Pendulum-v1", policy, frames_per_batch=5).next()
    assert policy.kept.maxlen == 2
    policy.head(policy.kept[-1]).sum().backward()


class Agent:
    """A policy that is no module but has one, and keeps its outputs."""

    def __init__(self) -> None:
        self.net = nn.Linear(3, 1)
        self.values: list[torch.Tensor] = []

    def __call__(self, observation: torch.Tensor) -> torch.Tensor:
        self.values.append(self.net(observation))
        return self.values[-1]

    def act(self, observation: torch.Tensor) -> torch.Tensor:
        return self(observation)


@pytest.mark.parametrize("form", ["object", "method", "closure"])
def test_outputs_kept_by_a_policy_that_is_no_module_can_be_trained_on(form: str) -> None:
    agent = Agent()
    net, values = agent.net, agent.values

    def closure(observation: torch.Tensor) -> torch.Tensor:
        values.append(net(observation))
        return values[-1]

    policy: Any = {"object": agent, "method": agent.act, "closure": closure}[form]
    collector = SyncDataCollector("Pendulum-v1", policy, frames_per_batch=5)
    for _ in range(2):
        collector.next()
    assert values is agent.values
    assert len(values) == 11, "the call at construction, and ten frames"
    (net(torch.ones(3)) * torch.stack(values).sum()).sum().backward()


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_torchscript_policy() -> None:
    net = nn.Linear(3, 1)
    batch = SyncDataCollector("Pendulum-v1", torch.jit.trace(net, torch.zeros(3)), frames_per_batch=5).next()
    assert torch.allclose(batch["action"], net(batch["observation"]))


class Tied(nn.Module):
    """One layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 1)
        self.second = self.first

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.second(observation)


def test_weights_that_layers_share_are_updated_and_resumed() -> None:
    policy, other = Tied(), Tied()
    collector = SyncDataCollector("Pendulum-v1", policy, frames_per_batch=5)
    collector.update_policy_weights_(other.state_dict())
    assert torch.equal(policy.first.weight, other.first.weight)
    collector.update_policy_weights_(dict(Tied().named_parameters()))
    collector.update_policy_weights_(copy.deepcopy(other))
    assert torch.equal(policy.first.weight, other.first.weight)
    collector.load_state_dict(collector.state_dict())
    with pytest.raises(SpecMismatch, match=r"missing \['first.bias'\]"):
        collector.update_policy_weights_({"second.weight": other.first.weight})


@pytest.mark.parametrize("name", ["next", "collector", "extra", ("action", "part")])
def test_outputs_of_which_one_lies_under_the_other_are_refused(name: Any) -> None:
    def policy(observation: torch.Tensor) -> Any:
        return {"action": observation[:1], name: observation, ("extra", "part"): observation}

    with pytest.raises(SpecMismatch, match="cannot be a tensor and hold"):
        SyncDataCollector("Pendulum-v1", policy, frames_per_batch=5)


def test_a_policy_that_asks_for_a_batch_is_told_so() -> None:
    asking: list[SyncDataCollector] = []

    def policy(observation: torch.Tensor) -> torch.Tensor:
        if asking:
            asking[0].next()
        return observation[:1]

    collector = SyncDataCollector("Pendulum-v1", policy, frames_per_batch=5)
    asking.append(collector)
    with pytest.raises(CallOrderError, match="is already collecting"):
        collector.next()
    asking.clear()
    assert collector.next().shape == (5,)


@pytest.mark.parametrize("options", [{"split_trajs": True}, {"trajs_per_batch": 1}, {}])
def test_batches_are_ordinary_tensors_in_a_loop_under_inference_mode(options: dict[str, Any]) -> None:
    collector = SyncDataCollector("CartPole-v1", frames_per_batch=60, **options)
    with torch.inference_mode():
        batch = collector.next()
    assert not any(value.is_inference() for value in batch.values(True, True))
