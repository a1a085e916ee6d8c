"""Modules of torchrl that choose by values, called by their parts: the same bits, or the modules themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict.nn import InteractionType, TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.data import Bounded, Categorical, Composite, OneHot
from torchrl.modules import Actor, EGreedyModule, QValueActor, QValueModule

from reap import GymEnv, SyncDataCollector
from tests.policy.recording import Recording, check, check_rollout

ONE_HOT = OneHot(2, (3, 2), dtype=torch.int64)


def net(outputs: int = 2) -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, outputs))


def values(spec: Any = ONE_HOT) -> Any:
    return QValueActor(net(), in_keys=["observation"], spec=spec)


def greedy(spec: Any = ONE_HOT, eps: float = 0.5, **options: Any) -> Any:
    return EGreedyModule(spec, eps_init=eps, eps_end=0.0, **options)


POLICIES: dict[str, Callable[[], Any]] = {
    "values": values,
    "indices": lambda: values(Categorical(2)),
    "several choices": lambda: TensorDictSequential(
        TensorDictModule(net(5), ["observation"], ["action_value"]),
        QValueModule(action_space="mult_one_hot", var_nums=[2, 3]),
    ),
    "other keys": lambda: TensorDictSequential(
        TensorDictModule(net(), ["observation"], ["q"]),
        QValueModule(action_space="one-hot", action_value_key="q", out_keys=["action", "q", "best"]),
    ),
    "values, then draws": lambda: TensorDictSequential(values(), greedy()),
    "draws of indices": lambda: TensorDictSequential(values(Categorical(2)), greedy(Categorical(2, (3,)))),
    "draws of a spec of one row": lambda: TensorDictSequential(values(), greedy(OneHot(2, dtype=torch.int64))),
    "draws of a composite": lambda: TensorDictSequential(values(), greedy(Composite(action=ONE_HOT, shape=(3,)))),
    "draws in place of numbers": lambda: TensorDictSequential(
        Actor(net(), in_keys=["observation"], spec=Bounded(-1, 1, (3, 2))), greedy(Bounded(-1, 1, (3, 2)))
    ),
    "always draws": lambda: TensorDictSequential(values(), greedy(eps=1.0)),
    "never draws": lambda: TensorDictSequential(values(), greedy(eps=0.0)),
}


@pytest.mark.parametrize("interaction", [InteractionType.RANDOM, InteractionType.DETERMINISTIC])
@pytest.mark.parametrize("name", POLICIES)
def test_the_same_bits(name: str, interaction: InteractionType) -> None:
    check(POLICIES[name](), "unwrapped", interaction=interaction)


def test_what_changes_counts_at_once() -> None:
    policy = POLICIES["values, then draws"]()
    recording = Recording(policy)
    check_rollout(recording, policy)
    policy[1].step(400)
    assert policy[1].eps < 0.4
    check_rollout(recording, policy)
    with torch.no_grad():
        policy[0].module[0].module[0].weight.mul_(-1)
    check_rollout(recording, policy)
    assert recording.actor.kind == "unwrapped"


def other_spec(policy: Any) -> None:
    policy[1]._spec = Composite(action=OneHot(2, (3, 2), dtype=torch.int64), shape=(3,))


def other_space(policy: Any) -> None:
    policy[0].module[1].action_value_func_mapping = {"one_hot": lambda values, action: values[..., :1]}


def a_hook(policy: Any) -> None:
    policy[1].register_forward_hook(lambda *_: None)


@pytest.mark.parametrize("change", [other_spec, other_space, a_hook])
def test_modules_that_are_changed_do_their_work_themselves(change: Callable[[Any], None]) -> None:
    policy = POLICIES["values, then draws"]()
    recording = Recording(policy)
    change(policy)
    check_rollout(recording, policy)
    assert recording.actor.kind == "tensordict"


class Own(QValueModule):
    """A class of a user."""


@pytest.mark.parametrize(
    "make",
    [
        lambda: TensorDictSequential(TensorDictModule(net(), ["observation"], ["action_value"]), Own(action_space="one-hot")),
        lambda: TensorDictSequential(values(), greedy(action_mask_key="mask")),
    ],
)
def test_what_may_do_something_else_is_called_as_it_is(make: Callable[[], Any]) -> None:
    if "mask" in (policy := make()).in_keys:
        with pytest.raises(Exception, match="mask"):
            Recording(policy)
    else:
        check(policy, "tensordict")


def test_draws_of_indices_in_an_env_without_a_batch() -> None:
    env = GymEnv("CartPole-v1", categorical_action_encoding=True)
    spec = Categorical(2)
    policy = TensorDictSequential(values(spec), greedy(spec))
    with SyncDataCollector(env, policy, frames_per_batch=200, seed=0) as collector:
        assert "(unwrapped)" in repr(collector)
        actions = collector.next()["action"]
    assert actions.shape == (200,)
    assert set(actions.tolist()) == {0, 1}
