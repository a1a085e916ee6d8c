"""Policies in any form, closures and bound methods too: what they hold travels, is copied and is saved as a module's."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn

from reap.collectors import MultiProcessedWeightUpdater, MultiSyncDataCollector, SyncDataCollector
from reap.errors import OptionError, SpecMismatch
from reap.evaluation import evaluate
from reap.recording.buffers import IDS
from reap.testing import Const, Count
from reap.weight_update import MultiProcessWeightSyncScheme, NoWeightSyncScheme, SharedMemWeightSyncScheme
from reap.weights.base import VanillaWeightUpdater
from reap.weights.pending import PendingWeightUpdater
from tests.collectors.buffers import Buffer, collecting
from tests.collectors.seams import pids_of
from tests.collectors.worker_kinds import CLASSES, take
from tests.interruptions import each_moment
from tests.pairwise import by_default
from tests.policy.forms import FORMS, Agent, Hiding, Player, a_closure, in_tensordict, itself

VERSION = ("collector", "policy_version")
FEW = ("bound method", "closure", "method of a player", "tensordict around a method", "list in a module")
IN_WORKERS = by_default(FORMS, "bound method", "tensordict around a method", "list in a module")


def two(policy: Any, **options: Any) -> MultiSyncDataCollector:
    return MultiSyncDataCollector([partial(Count, 9)] * 2, policy, **{"frames_per_batch": 4, **options})


def actions(collector: Any) -> list[float]:
    """The action of each worker."""
    rows = collector.next()["action"].reshape(collector.num_workers, -1)
    assert (rows == rows[:, :1]).all()
    return rows[:, 0].tolist()


@pytest.mark.parametrize("form", IN_WORKERS)
def test_an_update_reaches_all_workers(form: str) -> None:
    make, name = FORMS[form]
    agent = Agent(1.0)
    with two(make(agent)) as collector:
        assert actions(collector) == [1, 1]
        nn.init.constant_(agent.w, 2.0)
        assert actions(collector) == [1, 1]
        collector.update_policy_weights_()
        assert actions(collector) == [2, 2]
        collector.update_policy_weights_({name: torch.full((1,), 3.0)}, worker_ids=1)
        assert actions(collector) == [2, 3]
        assert agent.w.item() == 2.0
        assert (list(collector.state_dict()["policy"]), collector.stats().staleness) == ([name], 0)


@pytest.mark.processes
@pytest.mark.parametrize("form", FEW)
@pytest.mark.parametrize("name", ["MultiaSync", "aSync"])
def test_an_update_reaches_workers_that_run_ahead(name: str, form: str) -> None:
    agent = Agent(1.0)
    with CLASSES[name]([partial(Count, 9)] * 2, FORMS[form][0](agent), frames_per_batch=4) as collector:
        take(collector, 4)
        nn.init.constant_(agent.w, 2.0)
        collector.update_policy_weights_()
        acted: dict[int, list[list[float]]] = {}
        for batch in take(collector, 6):  # whichever comes first: one worker's second may come before the other's first
            acted.setdefault(int(batch[IDS][0]) >> 40, []).append(batch["action"].unique().tolist())
        assert all(later == [2.0] for batches in acted.values() for later in batches[1:])


GIVEN: dict[str, Callable[[Agent], Any]] = {
    "module": lambda other: other,
    "state dict": lambda other: other.state_dict(),
    "TensorDict": TensorDict.from_module,
    "policy of the same form": a_closure,
}


@pytest.mark.parametrize("given", GIVEN)
def test_weights_of_the_module_that_has_them_all(given: str) -> None:
    """A closure around one module takes what the module would take."""
    policy = a_closure(Agent(1.0))
    with two(policy) as multi, SyncDataCollector(Count(9), policy, frames_per_batch=2) as sync:
        for collector in (multi, sync):
            collector.update_policy_weights_(GIVEN[given](Agent(5.0)))
            assert set(actions(collector)) == {5.0}
            with pytest.raises(SpecMismatch, match=r"missing \['net.w'\], unknown \['weight'\]"):
                collector.update_policy_weights_({"weight": torch.zeros(1)})
            with pytest.raises(SpecMismatch, match=r"net.w|w: expected shape \(1,\), found \(2,\)"):
                collector.update_policy_weights_(Const(1.0, 2))


def test_two_modules_have_no_short_names() -> None:
    actor, shift = Const(1.0), Const(10.0)

    def policy(observation: Tensor) -> Tensor:
        return actor(observation) + shift(observation)

    with two(policy) as collector:
        assert actions(collector) == [11, 11]
        with pytest.raises(SpecMismatch, match=r"missing \['actor.w', 'shift.w'\], unknown \['w'\]"):
            collector.update_policy_weights_(actor)
        collector.update_policy_weights_({"actor.w": torch.ones(1), "shift.w": torch.ones(1)})
        assert actions(collector) == [2, 2]


@pytest.mark.parametrize("kind", [SharedMemWeightSyncScheme, MultiProcessWeightSyncScheme])
def test_schemes_carry_them(kind: Any) -> None:
    agent = Agent(1.0)
    with two(agent.act, weight_sync_schemes={"policy": kind}) as collector:
        nn.init.constant_(agent.w, 2.0)
        agent.eps = 0.5
        collector.update_policy_weights_()
        assert actions(collector) == [2.5, 2.5]
    with two(agent.act, weight_sync_schemes={"policy": NoWeightSyncScheme}) as collector:
        nn.init.constant_(agent.w, 3.0)
        collector.update_policy_weights_()
        assert actions(collector) == [2.5, 2.5]


def test_an_updater_of_ones_own_gets_the_policy() -> None:
    seen: list[Any] = []

    class Doubling(MultiProcessedWeightUpdater):
        def _maybe_map_weights(self, server_weights: Any) -> Any:
            seen.append(server_weights)
            return {"net.w": server_weights.net.w * 2}

    player = Player(Const(1.0))
    with two(player, weight_updater=Doubling) as collector:
        collector.update_policy_weights_()
        assert actions(collector) == [2, 2]
    assert seen == [player]


def test_policies_made_in_the_workers() -> None:
    with two(None, policy_factory=lambda: a_closure(Agent(1.0))) as collector:
        assert actions(collector) == [1, 1]
        trained = Agent(2.0)
        collector.update_policy_weights_(trained)
        assert actions(collector) == [2, 2]
        trained.eps = 0.5
        collector.update_policy_weights_(a_closure(trained), worker_ids=[0])
        assert actions(collector) == [2.5, 2]
    with pytest.raises(OptionError, match="'net' is a set, which holds a Const that has no name there"):
        two(None, policy_factory=lambda: a_closure({Const(1.0)}))  # type: ignore[arg-type]


class Own(SyncDataCollector):
    """Derived, as users derive theirs."""


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["sync", Own])
def test_a_worker_with_a_collector_of_its_own(kind: Any) -> None:
    make = partial(Count, 9)
    envs: list[Any] = [make] * 2 if kind is Own else [[make] * 2] * 2
    options: dict[str, Any] = {"frames_per_batch": 8, "collector_class": kind}
    agent = Agent(1.0)
    with MultiSyncDataCollector(envs, agent.act, **options) as collector:
        assert collector.next()["action"].unique().tolist() == [1.0]
        nn.init.constant_(agent.w, 2.0)
        agent.eps = 0.5
        collector.update_policy_weights_()
        assert collector.next()["action"].unique().tolist() == [2.5]
        state = collector.state_dict()
    with MultiSyncDataCollector(envs, Agent(7.0).act, **options) as collector:
        collector.load_state_dict(state)
        assert collector.next()["action"].unique().tolist() == [2.5]


def test_a_successor_has_the_latest_weights() -> None:
    agent = Agent(1.0)
    with two(agent.act, on_worker_failure="restart") as collector:
        nn.init.constant_(agent.w, 2.0)
        agent.eps = 0.5
        collector.update_policy_weights_()
        collector.update_policy_weights_(agent.state_dict())
        os.kill(pids_of(collector)[1], signal.SIGKILL)
        assert actions(collector) == [2.5, 2.5]
        assert collector.stats().restarts == 1


# ---------------------------------------------------------------------- plain attributes


@pytest.mark.parametrize("make", [itself, lambda agent: agent.act, a_closure], ids=["module", "method", "closure"])
def test_attributes_travel_with_an_update(make: Any) -> None:
    agent = Agent(1.0)
    with two(make(agent)) as collector:
        agent.eps = 0.5
        assert actions(collector) == [1, 1]
        collector.update_policy_weights_(agent.state_dict())
        assert actions(collector) == [1, 1], "weights without their module have no attributes"
        collector.update_policy_weights_(worker_ids=0)
        assert actions(collector) == [1.5, 1]
        collector.update_policy_weights_()
        assert actions(collector) == [1.5, 1.5]
        agent.eps = 0.25
        collector.update_policy_weights_(agent)
        assert actions(collector) == [1.25, 1.25]


class Counting(Agent):
    def __init__(self) -> None:
        super().__init__(1.0)
        self.calls = 0

    def forward(self, observation: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(observation)


def test_what_workers_count_is_theirs() -> None:
    policy = Counting()
    with two(policy) as collector:
        take(collector, 2)
        before = collector.getattr_policy("calls")
        assert min(before) >= 4
        policy.eps = 0.5
        policy.train()
        collector.update_policy_weights_()
        assert actions(collector) == [1.5, 1.5]
        assert collector.getattr_policy("calls") == [calls + 2 for calls in before]
        policy.calls = 100
        collector.update_policy_weights_()
        take(collector, 1)
        assert collector.getattr_policy("calls") == [102, 102]


def test_attributes_of_policies_made_in_the_workers() -> None:
    """The first update sends what differs from what all of them were made with; what is each worker's own is left alone."""

    def make(calls: int) -> Counting:
        policy = Counting()
        policy.calls = calls
        return policy

    trained = Counting()
    trained.eps = 0.5
    with two(None, policy_factory=[partial(make, 100), partial(make, 200)]) as collector:
        collector.update_policy_weights_(trained)
        assert actions(collector) == [1.5, 1.5]
        found = collector.getattr_policy("calls")
        assert 100 < found[0] < 110
        assert 200 < found[1] < 210
        trained.calls = 7
        collector.update_policy_weights_(trained)
        take(collector, 1)
        assert collector.getattr_policy("calls") == [9, 9]


def test_attributes_that_were_sent_are_saved() -> None:
    agent = Agent(1.0)
    with two(agent) as collector:
        agent.eps = 0.5
        collector.update_policy_weights_()
        state = collector.state_dict()
    with two(Agent(7.0)) as collector:
        collector.load_state_dict(state)
        assert actions(collector) == [1.5, 1.5]


# ---------------------------------------------------------------------- in this process


@pytest.mark.parametrize("form", FORMS)
def test_the_background_has_a_copy(form: str) -> None:
    """What acts in the background changes by an update only, whatever the form."""
    agent, buffer = Agent(1.0), Buffer(0)
    with collecting(buffer, policy=FORMS[form][0](agent)) as collector:
        collector.start()
        for number, update in enumerate([False, True], 1):
            buffer.wait_for_arrival(number)
            nn.init.constant_(agent.w, number + 1.0)
            if update:
                collector.update_policy_weights_()
            buffer.allow()
        buffer.wait_for_arrival(3)
        buffer.allow(100)
    assert [batch["action"].unique().tolist() for batch in buffer.batches[:3]] == [[1.0], [1.0], [3.0]]


def test_attributes_in_the_background() -> None:
    agent, buffer = Agent(1.0), Buffer(0)
    with collecting(buffer, policy=agent.act) as collector:
        collector.start()
        buffer.wait_for_arrival(1)
        agent.eps = 0.5
        collector.update_policy_weights_()
        collector.update_policy_weights_(agent.state_dict())
        buffer.allow()
        buffer.wait_for_arrival(2)
        agent.eps = 0.25
        buffer.allow(100)
    assert [batch["action"].unique().tolist() for batch in buffer.batches[:2]] == [[1.0], [1.5]]


def test_attributes_that_a_copy_lacked_before_the_background_began() -> None:
    """Of a copy (on another device, say) from which another copy is made: the next update brings what neither has."""
    source = Agent(1.0)
    updater = VanillaWeightUpdater(Agent(1.0), source)
    source.eps = 0.5
    acting = Agent(1.0)
    pending = PendingWeightUpdater(acting, source, updater.changes)
    pending.push_weights()
    assert acting.eps == 0.0
    pending.apply()
    assert acting.eps == 0.5


@pytest.mark.parametrize("form", FORMS)
def test_weights_are_in_the_state(form: str) -> None:
    make, name = FORMS[form]
    with SyncDataCollector(Count(9), make(Agent(1.0)), frames_per_batch=2) as collector:
        state = collector.state_dict()
    assert {key: value.tolist() for key, value in state["policy"].items()} == {name: [1.0]}
    agent = Agent(5.0)
    with SyncDataCollector(Count(9), make(agent), frames_per_batch=2) as collector:
        collector.load_state_dict(state)
        assert collector.next()["action"].unique().tolist() == [1.0]
    assert agent.w.item() == 1.0


@pytest.mark.parametrize("form", IN_WORKERS)
def test_a_state_goes_back_to_the_workers(form: str) -> None:
    make, _ = FORMS[form]
    with two(make(Agent(5.0))) as collector:
        resumed = collector.state_dict()
        collector.load_state_dict(resumed)
        assert actions(collector) == [5, 5]


def test_a_policy_without_weights_is_never_stale() -> None:
    with two(lambda observation: observation, track_policy_version=True) as collector:
        for _ in range(3):
            collector.update_policy_weights_()
            collector.next()
        assert collector.state_dict()["policy"] is None
        assert collector.stats().staleness == 0


class Dropping(nn.Module):
    """Notes the mode that it acts in."""

    def __init__(self) -> None:
        super().__init__()
        self.modes: list[bool] = []
        self.drop, self.norm = nn.Dropout(0.5), nn.BatchNorm1d(1)

    def act(self, observation: Tensor) -> Tensor:
        self.norm(observation.reshape(-1, 1).repeat(2, 1))
        self.modes.append(self.drop.training)
        return observation

    forward = act


@pytest.mark.parametrize("make", [itself, lambda net: net.act, a_closure, lambda net: Hiding([net], lambda nets: nets[0])])
def test_evaluation_mode(make: Any) -> None:
    net = Dropping()
    evaluate(Count(3), make(net), episodes=2)
    assert len(net.modes) > 6
    assert not any(net.modes)
    assert (net.drop.training, net.norm.num_batches_tracked.item()) == (True, 0)


def test_the_first_call_leaves_no_trace() -> None:
    """The call at construction changes no statistics of a net in a closure."""
    net = Dropping()
    with SyncDataCollector(Count(9), a_closure(net), frames_per_batch=2):
        assert net.norm.num_batches_tracked.item() == 0


@pytest.mark.parametrize(
    "make",
    [
        a_closure,
        pytest.param(lambda net: net.act, marks=pytest.mark.processes),
        pytest.param(lambda net: in_tensordict(net.act), marks=pytest.mark.processes),
    ],
)
def test_compiled_policies(make: Any) -> None:
    agent = Agent(1.0)
    with SyncDataCollector(Count(9), make(agent), frames_per_batch=2, compile_policy={"backend": "eager"}) as collector:
        assert actions(collector) == [1]
        nn.init.constant_(agent.w, 2.0)
        assert actions(collector) == [2]


def test_lazy_layers_of_a_closure() -> None:
    net = nn.LazyLinear(1)
    with pytest.raises(OptionError, match="its lazy layers have no weights yet"):
        two(a_closure(net))
    with SyncDataCollector(Count(9), a_closure(net), frames_per_batch=2) as collector:
        collector.next()
    net(torch.zeros(1, 1)).sum().backward()


@pytest.mark.processes
def test_ctrl_c_reaches_all_workers_or_none() -> None:
    agent = Agent(0.0)
    with two(agent.act, track_policy_version=True) as collector:
        sent = {0: 0.0}

        def update() -> None:
            with torch.no_grad():
                agent.w += 1
            sent[collector.policy_version + 1] = agent.w.item()
            collector.update_policy_weights_()

        def look(_: Any) -> None:
            batch = collector.next()
            assert batch[VERSION].unique().tolist() == [collector.policy_version]
            found = batch["action"].unique().tolist()
            assert found == [sent[collector.policy_version]], "all workers had the update, or none"

        assert each_moment(update, 1, look) > 1
