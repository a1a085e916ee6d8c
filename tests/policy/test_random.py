"""Random actions: the policy for people, and the actor of the loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl.envs.utils import RandomPolicy as TorchrlsPolicy

from reap.collectors import MultiSyncDataCollector, RandomPolicy, SyncDataCollector
from reap.data import Binary, Bounded, Categorical, Composite, MultiOneHot, OneHot
from reap.envs import GymEnv, PettingZooWrapper, SerialEnv
from reap.errors import SpecMismatch
from reap.policy.actors.random import RandomActor
from reap.recording.buffers import Slot, Stage
from reap.recording.layout import Field
from reap.testing import Count, DiscreteCount, Masked
from tests.envs.agents import Team, Walkers
from tests.neighbours import since_torchrl_013

SPEC = Bounded(-1, 1, (2,))


# ---------------------------------------------------------------------- RandomPolicy


def test_it_writes_into_the_tensordict_it_is_given() -> None:
    td = TensorDict({"observation": torch.zeros(3)})
    assert RandomPolicy(SPEC)(td) is td
    assert td["action"].shape == (2,)
    assert SPEC.is_in(td["action"])


def test_it_draws_from_the_global_generator() -> None:
    torch.manual_seed(3)
    first = RandomPolicy(SPEC)(TensorDict())["action"]
    torch.manual_seed(3)
    assert torch.equal(RandomPolicy(SPEC)(TensorDict())["action"], first)
    assert torch.equal(first, _drawn(3))


def _drawn(seed: int) -> torch.Tensor:
    torch.manual_seed(seed)
    return SPEC.rand()


def test_another_key() -> None:
    td = RandomPolicy(SPEC, action_key=("agent", "torque"))(TensorDict())
    assert list(td.keys(True, True)) == [("agent", "torque")]


def test_several_actions() -> None:
    spec = Composite({"move": OneHot(3), "arm": {"grip": Binary(2)}})
    td = RandomPolicy(spec)(TensorDict())
    assert set(td.keys(True, True)) == {"move", ("arm", "grip")}
    assert td["move"].sum() == 1


def test_it_obeys_an_action_mask() -> None:
    mask = torch.tensor([False, True, False])
    for _ in range(5):
        td = RandomPolicy(OneHot(3))(TensorDict({"action_mask": mask}))
        assert torch.equal(td["action"], mask.to(td["action"].dtype))
        assert RandomPolicy(Categorical(3))(TensorDict({"action_mask": mask}))["action"] == 1


def test_it_drives_a_rollout_of_an_env() -> None:
    env = SerialEnv(2, lambda: GymEnv(DiscreteCount(4)))
    td = env.rollout(3, RandomPolicy(env.action_spec), break_when_any_done=False)
    assert td["action"].sum(-1).eq(1).all()


def test_repr() -> None:
    assert repr(RandomPolicy(SPEC)) == f"RandomPolicy({SPEC})"
    assert repr(RandomPolicy()) == "RandomPolicy()"


AGENTS = [
    pytest.param(lambda: PettingZooWrapper(Walkers()), id="agents of PettingZoo"),
    pytest.param(Team, id="a group in an env of torchrl"),
    pytest.param(lambda: GymEnv(DiscreteCount(4)), id="one agent"),
]


@pytest.mark.parametrize("make", AGENTS)
@pytest.mark.parametrize("kind", [RandomPolicy, pytest.param(TorchrlsPolicy, marks=since_torchrl_013)])
def test_without_a_spec_it_takes_that_of_the_env(make: Any, kind: Any) -> None:
    policy, env = kind(), make()
    with pytest.raises(RuntimeError, match="RandomPolicy"):
        policy(TensorDict())
    with SyncDataCollector(env, policy, frames_per_batch=4) as collector:
        batch = collector.next()
        expected = dict(env.full_action_spec.items(True, True))
        for key, spec in expected.items():
            assert all(spec.is_in(action) for action in batch[key].unbind(0))
        drawn = policy(TensorDict())
    assert set(drawn.keys(True, True)) == set(expected)


def test_a_spec_that_it_has_stays() -> None:
    policy = RandomPolicy(SPEC)
    policy.set_action_spec_from_env(GymEnv(DiscreteCount(4)))
    assert policy.action_spec is SPEC


@pytest.mark.parametrize("kind", [RandomPolicy, pytest.param(TorchrlsPolicy, marks=since_torchrl_013)])
def test_without_a_spec_in_workers(kind: Any) -> None:
    with MultiSyncDataCollector([lambda: GymEnv(DiscreteCount(4))] * 2, kind(), frames_per_batch=8) as collector:
        assert collector.next()["action"].sum(-1).eq(1).all()


# ---------------------------------------------------------------------- RandomActor


def stage_of(fields: Mapping[Any, Field] | None = None, batch: tuple[int, ...] = (2,)) -> Stage:
    return Stage(fields or {("observation",): Field((1,), torch.float32)}, batch)


def drawn(actor: RandomActor, columns: int = 200, batch: tuple[int, ...] = (2,)) -> Slot:
    slot = Slot(dict(actor.outputs), batch, columns)
    actor.bind(slot)
    for t in range(columns):
        actor.act(t)
    return slot


WHOLE = Bounded(-2, 5, (), dtype=torch.int32)


@pytest.mark.parametrize("spec", [SPEC, WHOLE, OneHot(3), Categorical(4), MultiOneHot([2, 3]), Binary(3)])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_actions_are_in_the_spec(spec: Any, batch: tuple[int, ...]) -> None:
    given = Composite(action=spec).expand(*batch)
    actor = RandomActor(given, stage_of(batch=batch))
    assert actor.outputs == {("action",): Field(tuple(spec.shape), spec.dtype)}
    values = drawn(actor, 5, batch).tensor(("action",))
    assert values.shape == (*batch, 5, *spec.shape)
    assert spec.is_in(values)


def test_it_has_a_generator_of_its_own() -> None:
    def values(seed: int) -> torch.Tensor:
        actor = RandomActor(Composite(action=SPEC).expand(2), stage_of())
        actor.generator.manual_seed(seed)
        return drawn(actor).tensor(("action",))

    state = torch.get_rng_state()
    first = values(1)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    assert torch.equal(values(1), first)
    assert not torch.equal(values(2), first)


def test_rows_and_columns_are_drawn_apart() -> None:
    values = drawn(RandomActor(Composite(action=SPEC).expand(2), stage_of())).tensor(("action",))
    assert values.unique().numel() == values.numel()
    assert values.mean().abs() < 0.1
    assert (values.min() < -0.95) & (values.max() > 0.95)


def test_choices_are_uniform() -> None:
    values = drawn(RandomActor(Composite(action=OneHot(4)).expand(2), stage_of()), 1000).tensor(("action",))
    counts = values.sum((0, 1))
    assert counts.sum() == 2000
    assert counts.min() > 420


def test_other_outputs_of_the_policy_are_zero() -> None:
    others = {("log_prob",): Field((), torch.float32), ("next", "h"): Field((3,), torch.float64)}
    actor = RandomActor(Composite(action=SPEC).expand(2), stage_of(), {("action",): Field((2,), torch.float32), **others})
    assert set(actor.outputs) == {("action",), *others}
    slot = Slot(dict(actor.outputs), (2,), 4)
    for key in slot.fields:
        slot.by_row(key)[...] = 7
    actor.bind(slot)
    for t in range(4):
        actor.act(t)
    assert not slot.by_row(("log_prob",)).any()
    assert not slot.by_row(("next", "h")).any()
    assert (slot.by_row(("action",)) != 7).all()


def test_it_reads_the_mask_of_the_stage_in_each_column() -> None:
    stage = stage_of({("action_mask",): Field((3,), torch.int8)})
    actor = RandomActor(Composite(action=OneHot(3, dtype=torch.int64)).expand(2), stage)
    slot = Slot(dict(actor.outputs), (2,), 6)
    actor.bind(slot)
    for t in range(6):
        stage.arrays["action_mask",][...] = 0
        stage.arrays["action_mask",][0, t % 3] = stage.arrays["action_mask",][1, (t + 1) % 3] = 1
        actor.act(t)
    chosen = slot.tensor(("action",)).argmax(-1)
    assert chosen.tolist() == [[0, 1, 2, 0, 1, 2], [1, 2, 0, 1, 2, 0]]


def test_a_mask_that_allows_nothing() -> None:
    class Closed(Masked):
        def allowed(self, step: int) -> list[bool]:
            return [step < 2] * 4

    with pytest.raises(SpecMismatch, match="^action mask: expected at least one allowed action, found none") as caught:
        SyncDataCollector(Closed(9), frames_per_batch=4).next()
    assert caught.value.__notes__ == ["reap: raised in policy of GymEnv(<Closed instance>), column 2 of a rollout"]


def test_actions_of_a_collector_without_a_policy_follow_torchs_seed() -> None:
    def actions(seed: int) -> list[float]:
        torch.manual_seed(seed)
        return SyncDataCollector(Count(9), frames_per_batch=8).next()["action"].flatten().tolist()

    assert actions(1) == actions(1)
    assert actions(1) != actions(2)
