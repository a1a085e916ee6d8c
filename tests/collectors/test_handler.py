"""What a worker does: failures in a rollout, inference mode, policies that keep what they are given."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from reap.collectors import SyncDataCollector
from reap.envs import ExplorationType, GymEnv, SerialEnv, exploration_type
from reap.testing import Const, Count, Crash, KeepInputs
from tests.collectors.seams import pool_of


def observed(batch: Any) -> list[float]:
    return batch["observation"].flatten().tolist()


# ---------------------------------------------------------------------- failures


def test_an_error_of_the_env_comes_through_with_a_note_and_new_episodes_begin() -> None:
    collector = SyncDataCollector(Crash(6), Const(), frames_per_batch=4)
    assert observed(collector.next()) == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="^crashed in step 6, as requested") as caught:
        collector.next()
    assert caught.value.__notes__ == ["reap: raised in step of GymEnv(<Crash instance>), column 1 of a rollout"]
    batch = collector.next()
    assert observed(batch) == [0, 1, 2, 3]
    assert len(set(batch["collector", "traj_ids"].tolist())) == 1
    assert batch["collector", "traj_ids"][0] > 0
    assert collector.stats().frames == 8, "the failed rollout is not counted"


def test_an_error_names_the_env_of_several() -> None:
    env = SerialEnv(3, [lambda: Count(9), lambda: Count(9), lambda: Crash(3)])
    collector = SyncDataCollector(env, Const(), frames_per_batch=12)
    with pytest.raises(RuntimeError, match="crashed") as caught:
        collector.next()
    assert caught.value.__notes__ == ["reap: in env 2 of 3", f"reap: raised in step of {env!r}, column 2 of a rollout"]
    assert collector.next()["observation"][:, :, 0].tolist() == [[0, 1, 2, 3]] * 3


class CrashInReset(Count):
    """Raises in its third reset."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if self.resets == 2:
            self.resets += 1
            raise ValueError("no reset")
        return super().reset(seed=seed)


def test_an_error_in_a_reset() -> None:
    collector = SyncDataCollector(CrashInReset(2), Const(), frames_per_batch=6)
    with pytest.raises(ValueError, match="^no reset") as caught:
        collector.next()
    assert caught.value.__notes__ == ["reap: raised in reset of GymEnv(<CrashInReset instance>), column 3 of a rollout"]
    assert observed(collector.next()) == [0, 1, 0, 1, 0, 1]


class FailOnce(nn.Module):
    """Raises an error in the call with this number, the probe being number 0."""

    def __init__(self, call: int, error: type[BaseException] = KeyError) -> None:
        super().__init__()
        self.calls, self.call, self.error = 0, call, error

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == self.call + 1:
            raise self.error("no action")
        return observation


def test_an_error_of_the_policy_comes_through() -> None:
    collector = SyncDataCollector(Count(5), FailOnce(3), frames_per_batch=4)
    with pytest.raises(KeyError) as caught:
        collector.next()
    assert caught.value.__notes__ == ["reap: raised in policy of GymEnv(<Count instance>), column 2 of a rollout"]
    batch = collector.next()
    assert observed(batch) == [0, 1, 2, 3]
    assert not batch["next", "done"].any()
    assert collector.env.wrapped.resets == 2


def test_ctrl_c_in_a_rollout() -> None:
    collector = SyncDataCollector(Count(5), FailOnce(3, KeyboardInterrupt), frames_per_batch=4, total_frames=8)
    with pytest.raises(KeyboardInterrupt):
        list(collector)
    assert not collector.closed
    assert [observed(batch) for batch in collector] == [[0, 1, 2, 3], [4, 0, 1, 2]]


def test_failed_rollouts_use_up_no_slots() -> None:
    collector = SyncDataCollector(SerialEnv(1, Wide), Const(), frames_per_batch=4)
    for _ in range(5):
        with pytest.raises(RuntimeError, match="wide"):
            collector.next()
    pool = pool_of(collector)
    assert (len(pool.slots), pool.lent) == (1, 0)


class Wide(gym.Env[Any, Any]):
    """Has observations that are large enough to be lent, and raises in every second step."""

    observation_space = gym.spaces.Box(-1, 1, (100,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return np.zeros(100, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 2:
            raise RuntimeError("wide")
        return np.zeros(100, np.float32), 0.0, False, False, {}


def test_an_env_used_by_hand_between_batches_begins_new_episodes() -> None:
    env = GymEnv(Count(9))
    collector = SyncDataCollector(env, Const(), frames_per_batch=3)
    assert observed(collector.next()) == [0, 1, 2]
    assert observed(collector.next()) == [3, 4, 5]
    env.rollout(2)
    batch = collector.next()
    assert observed(batch) == [0, 1, 2]
    assert batch["collector", "traj_ids"].tolist() == [1, 1, 1]
    assert not batch["next", "done"].any()


def test_two_collectors_on_one_env_take_turns() -> None:
    env = GymEnv(Count(9))
    first = SyncDataCollector(env, Const(), frames_per_batch=3)
    second = SyncDataCollector(env, Const(), frames_per_batch=2)
    assert [observed(first.next()) for _ in range(2)] == [[0, 1, 2], [3, 4, 5]]
    assert [observed(second.next()) for _ in range(2)] == [[0, 1], [2, 3]]
    assert observed(first.next()) == [0, 1, 2]


# ---------------------------------------------------------------------- inference mode


class Modes(nn.Module):
    """Acts like `Const`; notes in which mode each call was, and keeps its activation where `keeps` says how."""

    def __init__(self, keeps: str = "") -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.keeps = keeps
        self.modes: list[str] = []
        self.last: Any = None

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        mode = "inference" if torch.is_inference_mode_enabled() else "grad" if torch.is_grad_enabled() else "no_grad"
        self.modes.append(mode)
        hidden = self.layer(observation)
        kept = {"tensor": hidden, "tuple": (hidden, 1), "dict": {"a": [hidden]}, "list": [hidden]}
        self.last = kept.get(self.keeps)
        return hidden


def test_rollouts_run_in_inference_mode_and_the_probe_does_not() -> None:
    policy = Modes()
    collector = SyncDataCollector(Count(5), policy, frames_per_batch=2)
    collector.next()
    collector.next()
    assert policy.modes == ["no_grad", "inference", "inference", "inference", "inference"]
    assert torch.is_grad_enabled()


class Samples(Modes):
    """Reads a property that distributions compute lazily, with gradients enabled."""

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return torch.distributions.Categorical(logits=super().forward(observation)).probs


def test_distributions_that_enable_gradients_do_not_need_them() -> None:
    policy = Samples()
    SyncDataCollector(Count(5), policy, frames_per_batch=2).next()
    assert policy.modes == ["no_grad", "inference", "inference"]


class Differentiates(Modes):
    """Enables gradients, and computes with them."""

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            return super().forward(observation).detach()


def test_a_policy_that_computes_with_gradients_does_not_run_in_inference_mode() -> None:
    policy = Differentiates()
    SyncDataCollector(Count(5), policy, frames_per_batch=2).next()
    assert policy.modes == ["grad", "grad", "grad"]


@pytest.mark.parametrize("keeps", ["tensor", "tuple", "list", "dict"])
def test_a_module_that_keeps_activations_is_found_after_its_first_rollout(keeps: str) -> None:
    policy = Modes(keeps)
    collector = SyncDataCollector(Count(5), policy, frames_per_batch=2)
    collector.next()
    kept = {"tensor": lambda: policy.last, "dict": lambda: policy.last["a"][0]}.get(keeps, lambda: policy.last[0])
    assert not kept().is_inference()
    (policy.layer.weight.sum() * kept()).sum().backward()
    collector.next()
    assert policy.modes == ["no_grad", "inference", "inference", "no_grad", "no_grad"]
    assert not kept().is_inference()
    assert isinstance(policy.last, {"tensor": torch.Tensor, "tuple": tuple, "list": list, "dict": dict}[keeps])


@pytest.mark.parametrize("same", [False, True])
def test_batches_are_ordinary_tensors(same: bool) -> None:
    net = nn.Linear(1, 1)
    batch = SyncDataCollector(Count(5), net, frames_per_batch=4, return_same_td=same).next()
    leaves = list(batch.values(include_nested=True, leaves_only=True))
    assert len(leaves) == 11
    assert not any(leaf.is_inference() or leaf.requires_grad for leaf in leaves)
    observation = batch["observation"].requires_grad_()
    net(observation).sum().backward()
    assert torch.equal(observation.grad, net.weight.expand(4, 1))
    batch["next", "reward"].add_(1)


def test_training_after_collecting_with_lazy_layers() -> None:
    policy = nn.Sequential(nn.LazyLinear(4), nn.Tanh(), nn.LazyLinear(1))
    batch = SyncDataCollector(Count(5), policy, frames_per_batch=4).next()
    assert not any(isinstance(p, nn.UninitializedParameter) or p.is_inference() for p in policy.parameters())
    policy(batch["observation"]).sum().backward()
    assert all(p.grad is not None for p in policy.parameters())


def test_a_layer_made_in_a_rollout_can_be_trained() -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            if self.calls == 3:
                self.bias = nn.Parameter(torch.ones(1))
                self.register_buffer("offset", torch.ones(1))
            return observation + (self.bias if self.calls > 2 else 0)

    policy = Late()
    collector = SyncDataCollector(Count(5), policy, frames_per_batch=4)
    collector.next()
    assert isinstance(policy.bias, nn.Parameter)
    policy(torch.zeros(1)).backward()
    assert policy.bias.grad.tolist() == [1.0]
    assert not policy.offset.is_inference()
    assert collector.next()["action"].flatten().tolist() == [5, 1, 2, 3]


# ---------------------------------------------------------------------- kept inputs


@pytest.mark.parametrize("rows", [1, 3])
def test_a_policy_that_keeps_its_inputs_is_given_copies(rows: int) -> None:
    policy = KeepInputs()
    collector = SyncDataCollector(SerialEnv(rows, lambda: Count(100)), policy, frames_per_batch=4 * rows)
    for i in range(3):
        expected = [[max(0.0, 4 * i + t - 1) for t in range(4)]] * rows
        assert collector.next()["action"].squeeze(-1).tolist() == expected
    assert [kept.flatten()[0].item() for kept in policy.kept[1:]] == list(range(12))


class KeepLater(nn.Module):
    """Keeps, from its k-th call on, its input in the way that `how` says; acts with what it kept last."""

    def __init__(self, how: str, k: int) -> None:
        super().__init__()
        self.how, self.k, self.calls = how, k, 0
        self.prev: Any = None

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        action = observation * 0 - 1 if self.prev is None else torch.as_tensor(self.prev).view(observation.shape).clone()
        if self.calls >= self.k:
            keep = {"itself": lambda x: x, "view": lambda x: x.view(-1), "numpy": lambda x: x.numpy(), "slice": lambda x: x[:]}
            self.prev = keep[self.how](observation)
        return action


@pytest.mark.parametrize("how", ["itself", "view", "numpy", "slice"])
def test_inputs_kept_from_the_probe_on(how: str) -> None:
    collector = SyncDataCollector(Count(100), KeepLater(how, 1), frames_per_batch=4)
    assert collector.next()["action"].flatten().tolist() == [0, 0, 1, 2]
    assert collector.next()["action"].flatten().tolist() == [3, 4, 5, 6]


@pytest.mark.parametrize("how", ["itself", "view", "numpy", "slice"])
def test_inputs_kept_later_are_copies_from_the_next_rollout_on(how: str) -> None:
    collector = SyncDataCollector(Count(100), KeepLater(how, 4), frames_per_batch=4)
    collector.next()
    second = collector.next()["action"].flatten().tolist()
    assert second[1:] == [4, 5, 6]
    assert collector.next()["action"].flatten().tolist() == [7, 8, 9, 10]


def test_inputs_that_are_not_kept_are_not_copied() -> None:
    places: set[int] = set()

    def policy(observation: torch.Tensor) -> torch.Tensor:
        places.add(observation.data_ptr())
        return observation.clone()

    collector = SyncDataCollector(Count(100), policy, frames_per_batch=16)
    collector.next()
    collector.next()
    assert len(places) == 1


# ---------------------------------------------------------------------- exploration


def test_exploration_type_holds_in_a_rollout_and_not_outside() -> None:
    seen: list[Any] = []

    def policy(tensordict: Any) -> Any:
        seen.append(exploration_type())
        return tensordict.set("action", tensordict["observation"])

    for chosen in (None, ExplorationType.MODE):
        seen.clear()
        SyncDataCollector(Count(5), policy, frames_per_batch=2, exploration_type=chosen).next()
        assert seen == [chosen or ExplorationType.RANDOM] * 3


def test_e12_a_policy_inside_an_exploration_module() -> None:
    class Epsilon(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("eps", torch.tensor(0.5))

        def forward(self, action: torch.Tensor) -> torch.Tensor:
            return action + self.eps

    inner = TensorDictModule(Const(1.0), in_keys=["observation"], out_keys=["action"])
    noisy = TensorDictModule(Epsilon(), in_keys=["action"], out_keys=["action"])
    policy = TensorDictSequential(inner, noisy)
    collector = SyncDataCollector(Count(5), policy, frames_per_batch=2, device="cpu")
    assert collector.next()["action"].flatten().tolist() == [1.5, 1.5]
    weights = {name: value * 2 for name, value in policy.state_dict().items()}
    collector.update_policy_weights_(weights)
    assert collector.next()["action"].flatten().tolist() == [3.0, 3.0]
    with torch.no_grad():
        inner.module.w.fill_(7.0)
    assert collector.next()["action"].flatten().tolist() == [8.0, 8.0]
