"""Programs with groups of agents, with the modules and losses of torchrl, over envs of torchrl and of PettingZoo."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from tensordict.nn.distributions import NormalParamExtractor
from torch import nn
from torchrl.modules import MultiAgentMLP, ProbabilisticActor, TanhNormal
from torchrl.objectives import ClipPPOLoss, ValueEstimators

from reap import (
    LazyTensorStorage,
    MultiaSyncDataCollector,
    MultiSyncDataCollector,
    ParallelEnv,
    ReplayBuffer,
    SyncDataCollector,
)
from reap.collectors.distributed import DistributedSyncDataCollector
from reap.data import SamplerWithoutReplacement
from reap.envs import PettingZooWrapper
from reap.envs.adapters.torchrl import TorchRLEnv
from tests.envs.agents import Team, Walkers
from tests.recording.test_nested_sizes import act, expected, sizes

Collectors: dict[str, Callable[..., Any]] = {
    "sync": SyncDataCollector,
    "multi": lambda make, policy, **options: MultiSyncDataCollector([make, make], policy, cat_results=0, **options),
}


def network(observations: int, outputs: int, agents: int, *, centralized: bool = False) -> MultiAgentMLP:
    return MultiAgentMLP(
        observations,
        outputs,
        agents,
        centralized=centralized,
        share_params=True,
        depth=1,
        num_cells=8,
        activation_class=nn.Tanh,
    )


def continuous_actor(group: str, observations: int, agents: int) -> ProbabilisticActor:
    net = nn.Sequential(network(observations, 2, agents), NormalParamExtractor())
    keys: Any = [(group, "loc"), (group, "scale")]
    return ProbabilisticActor(
        TensorDictModule(net, in_keys=[(group, "observation")], out_keys=keys),
        in_keys=keys,
        out_keys=[(group, "action")],
        distribution_class=TanhNormal,
        return_log_prob=True,
        log_prob_key=(group, "sample_log_prob"),
    )


def discrete_actor(group: str, observations: int, agents: int) -> ProbabilisticActor:
    keys: Any = [(group, "logits")]
    return ProbabilisticActor(
        TensorDictModule(network(observations, 3, agents), in_keys=[(group, "observation")], out_keys=keys),
        in_keys=keys,
        out_keys=[(group, "action")],
        distribution_class=torch.distributions.Categorical,
        return_log_prob=True,
        log_prob_key=(group, "sample_log_prob"),
    )


@pytest.mark.parametrize("kind", Collectors)
@pytest.mark.parametrize(
    ("make", "actor", "group", "agents"),
    [
        (Team, continuous_actor, "agents", 3),
        (partial(PettingZooWrapper, Walkers(), group_map={"agents": Walkers.possible_agents}), discrete_actor, "agents", 3),
    ],
    ids=["torchrl", "pettingzoo"],
)
def test_multi_agent_ppo(kind: str, make: Any, actor: Any, group: str, agents: int) -> None:
    torch.manual_seed(0)
    policy = actor(group, 2, agents)
    critic = TensorDictModule(
        network(2, 1, agents, centralized=True), in_keys=[(group, "observation")], out_keys=[(group, "state_value")]
    )
    loss = ClipPPOLoss(policy, critic, normalize_advantage=False)
    names = ("reward", "action", "done", "terminated", "sample_log_prob", "advantage", "value_target")
    loss.set_keys(value=(group, "state_value"), **{name: (group, name) for name in names})
    loss.make_value_estimator(ValueEstimators.GAE, gamma=0.9, lmbda=0.9)
    optimizer = torch.optim.Adam(loss.parameters(), 1e-2)
    before = [parameter.clone() for parameter in policy.parameters()]
    buffer = ReplayBuffer(storage=LazyTensorStorage(40), sampler=SamplerWithoutReplacement(), batch_size=20)
    with Collectors[kind](make, policy, frames_per_batch=40, total_frames=80) as collector:
        for batch in collector:
            assert batch[group].batch_size == batch["next", group].batch_size == (40, agents)
            for name in ("done", "terminated"):
                flag = batch["next", name].unsqueeze(-1).expand(40, agents, 1)
                batch["next", group, name] = flag.clone()
            with torch.no_grad():
                loss.value_estimator(batch, params=loss.critic_network_params, target_params=loss.target_critic_network_params)
            assert batch[group, "advantage"].shape == (40, agents, 1)
            buffer.extend(batch)
            for _ in range(2):
                sample = buffer.sample()
                assert sample[group].batch_size == (20, agents)
                losses = loss(sample)
                total = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
                total.backward()
                optimizer.step()
                optimizer.zero_grad()
            collector.update_policy_weights_()
    assert torch.isfinite(total)
    assert all(not torch.equal(old, new) for old, new in zip(before, policy.parameters(), strict=True))


# ---------------------------------------------------------------------- over processes


def test_batches_of_several_workers() -> None:
    teams = [Team, Team]
    with MultiSyncDataCollector(teams, act, frames_per_batch=16) as collector:
        assert sizes(collector.next()) == expected(2, 8)
    with MultiaSyncDataCollector(teams, act, frames_per_batch=16) as collector:
        assert sizes(collector.next()) == expected(16)
    unequal = [partial(Team, (2,)), partial(Team, (3,))]
    with MultiSyncDataCollector(unequal, act, frames_per_batch=24) as collector:
        assert sizes(collector.next()) == expected(2, 3, 6)


@pytest.mark.processes
def test_batches_of_workers_that_share_no_memory() -> None:
    with DistributedSyncDataCollector([Team, Team], act, frames_per_batch=16, total_frames=16, launcher="mp") as collector:
        assert sizes(collector.next()) == expected(2, 8)


def test_an_env_in_several_processes() -> None:
    with ParallelEnv(2, Team) as env, SyncDataCollector(env, act, frames_per_batch=16) as collector:
        assert sizes(collector.next()) == expected(2, 8)
        assert env.rollout(3)["next", "agents"].batch_size == (2, 3, Team.n)


def test_workers_that_write_to_a_buffer() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(64), batch_size=4)
    with MultiaSyncDataCollector([Team, Team], act, frames_per_batch=16, total_frames=32, replay_buffer=buffer) as collector:
        for _ in collector:
            pass
    assert sizes(buffer.sample()) == expected(4)
    assert sizes(buffer[:]) == expected(32)


# ---------------------------------------------------------------------- private keys and flags of agents


class Secretive(TensorDictModuleBase):
    in_keys: ClassVar[Any] = [("agents", "observation"), "state"]
    out_keys: ClassVar[Any] = [("agents", "action"), "_hidden", ("agents", "_hidden"), ("_node", "x"), "shown"]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        tensordict["agents", "action"] = tensordict["agents", "observation"][..., :1] * 0
        tensordict["agents", "_hidden"] = tensordict["agents", "observation"].clone()
        for key in ("_hidden", ("_node", "x"), "shown"):
            tensordict[key] = tensordict["state"].clone()
        return tensordict


@pytest.mark.parametrize("options", [{}, {"return_same_td": True}], ids=["lent", "same"])
def test_batches_leave_out_keys_that_begin_with_an_underscore(options: dict[str, Any]) -> None:
    with SyncDataCollector(Team(), Secretive(), frames_per_batch=8, **options) as collector:
        keys = [key if isinstance(key, tuple) else (key,) for key in collector.next().keys(include_nested=True)]
    assert ("shown",) in keys
    assert not [key for key in keys if any(name.startswith("_") for name in key)]


def test_workers_leave_them_out_too() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(64), batch_size=4)
    with MultiaSyncDataCollector([Team], Secretive(), frames_per_batch=8, total_frames=8, replay_buffer=buffer) as collector:
        for _ in collector:
            pass
    with MultiSyncDataCollector([Team], Secretive(), frames_per_batch=8) as collector:
        batch = collector.next()
    for data in (buffer[:], batch):
        assert set(data.keys()) == {
            "agents", "collector", "done", "next", "shown", "state", "terminated", "truncated"
        }  # fmt: skip


class Hidden(TensorDictModuleBase):
    in_keys: ClassVar[Any] = [("agents", "observation"), "_count"]
    out_keys: ClassVar[Any] = [("agents", "action"), ("next", "_count"), "count"]
    initial_state: ClassVar[Any] = {"_count": torch.zeros(1)}

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        tensordict["agents", "action"] = tensordict["agents", "observation"][..., :1] * 0
        tensordict["count"] = tensordict["_count"].clone()
        tensordict["next", "_count"] = tensordict["_count"] + 1
        return tensordict


def test_a_private_state_is_carried_on() -> None:
    with SyncDataCollector(Team(), Hidden(), frames_per_batch=6) as collector:
        batch = collector.next()
    assert batch["count"].flatten().tolist() == [0, 1, 2, 3, 0, 1]
    assert "_count" not in batch["next"].keys()


@pytest.mark.parametrize("kind", ["sync", "multi"])
def test_set_truncated_marks_the_flags_of_agents(kind: str) -> None:
    make = partial(Team, flags=True)
    frames = 6 if kind == "sync" else 12
    with Collectors[kind](make, act, frames_per_batch=frames, set_truncated=True) as collector:
        following = collector.next()["next"][:6]
    assert following["agents", "truncated"][..., 0].tolist() == [[False] * 3] * 5 + [[True] * 3]
    assert following["agents", "done"][..., 0].tolist() == [[False] * 3] * 3 + [[True] * 3, [False] * 3, [True] * 3]
    assert following["agents", "terminated"][..., 0].tolist() == [[False] * 3] * 3 + [[True] * 3] + [[False] * 3] * 2
    assert following["truncated"].flatten().tolist() == [False] * 5 + [True]


def test_batches_have_truncated_where_the_env_has_none() -> None:
    assert ("truncated",) not in [key for key, _ in TorchRLEnv(Team()).full_done_spec.leaves()]
    with SyncDataCollector(Team(), act, frames_per_batch=6, max_frames_per_traj=3) as collector:
        batch = collector.next()
    assert batch["next", "truncated"].flatten().tolist() == [False, False, True] * 2
