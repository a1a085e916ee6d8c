"""States of collectors with several workers: a resume is exact."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from reap.collectors import MultiSyncDataCollector
from reap.errors import OptionError, SpecMismatch
from reap.testing import Const, Count
from reap.testing.marked import Drawing, Marked
from tests.collectors.worker_kinds import (
    CLASSES,
    IDS,
    Gate,
    Gated,
    Recall,
    Seeded,
    Text,
    assert_same,
    interrupt_at,
    serial,
    steps,
    take,
    take_of_each,
)
from tests.pairwise import by_default

SEED = 7


def saved(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def resuming(name: str, make: Callable[[int], Any] = Marked, policy: Any = None, **options: Any) -> Any:
    torch.manual_seed(3)
    given = {"frames_per_batch": 12, "track_policy_version": True, **options}
    return CLASSES[name]([partial(make, w) for w in range(2)], policy or Drawing(), **given)


RESUMED: dict[str, dict[str, Any]] = {
    "plain": {},
    "recurrent": {"policy": Recall()},
    "serial": {"make": serial},
    "episodes": {"trajs_per_batch": 3},
    "warm-up": {"init_random_frames": 60},
}


@pytest.mark.parametrize("scenario", by_default(RESUMED, "recurrent", "episodes"))
def test_a_resume_is_exact(scenario: str) -> None:
    options = RESUMED[scenario]
    with resuming("MultiSync", **options) as collector:
        collector.set_seed(SEED)
        take(collector, 2)
        collector.update_policy_weights_()
        take(collector, 1)
        state = saved(collector.state_dict())
        expected = take(collector, 2)
        collector.update_policy_weights_()
        expected += take(collector, 2)
    with resuming("MultiSync", **options) as other:
        other.set_seed(99)
        take(other, 3)
        other.load_state_dict(state)
        found = take(other, 2)
        other.update_policy_weights_()
        found += take(other, 2)
        assert other.policy_version == 2
        assert other.stats().staleness == 0
    for one, wanted in zip(found, expected, strict=True):
        assert_same(one, wanted)


@pytest.mark.processes
@pytest.mark.parametrize("name", ["MultiaSync", "aSync"])
def test_a_resume_with_results_that_wait(name: str) -> None:
    def streams(collector: Any) -> dict[int, list[Any]]:
        return {worker: batches[:3] for worker, batches in take_of_each(collector, 3).items()}

    with resuming(name) as collector:
        collector.set_seed(SEED)
        take(collector, 3)
        state = saved(collector.state_dict())
        assert len(state["results"]) >= 1
        frames = collector.stats().frames
        expected = streams(collector)
    with resuming(name) as other:
        take(other, 2)
        other.load_state_dict(state)
        assert other.stats().frames == frames
        found = streams(other)
    assert found.keys() == expected.keys()
    for worker, batches in expected.items():
        for one, wanted in zip(found[worker], batches, strict=True):
            assert_same(one, wanted)


def test_the_weights_of_a_state_are_those_that_act() -> None:
    policy = Const(1.0)
    with MultiSyncDataCollector([partial(Count, 9)] * 2, policy, frames_per_batch=8) as collector:
        nn.init.constant_(policy.w, 5.0)  # trained on, not sent
        state = saved(collector.state_dict())
        collector.update_policy_weights_(Const(7.0), worker_ids=1)
        newer = saved(collector.state_dict())
    other = Const(0.0)
    with MultiSyncDataCollector([partial(Count, 9)] * 2, other, frames_per_batch=8) as collector:
        collector.load_state_dict(state)
        assert collector.next()["action"].unique().tolist() == [1.0]
        assert other.w.item() == 5.0
        collector.load_state_dict(newer)
        assert collector.next()["action"][..., 0, 0].tolist() == [1.0, 7.0]
        collector.update_policy_weights_()
        assert collector.next()["action"].unique().tolist() == [5.0]


def test_the_weights_of_policies_that_factories_made() -> None:
    def make() -> Any:
        factories = [partial(Const, 1.0), partial(Const, 2.0)]
        return MultiSyncDataCollector([partial(Count, 9)] * 2, policy_factory=factories, frames_per_batch=8)

    with make() as collector:
        collector.update_policy_weights_(Const(9.0), worker_ids=0)
        state = saved(collector.state_dict())
    with make() as collector:
        collector.load_state_dict(state)
        assert collector.next()["action"][..., 0, 0].tolist() == [9.0, 2.0]


@pytest.mark.processes
def test_a_state_that_does_not_fit_changes_nothing() -> None:
    with resuming("MultiSync") as collector:
        collector.set_seed(SEED)
        take(collector, 2)
        state = saved(collector.state_dict())
        expected = take(collector, 2)
    with resuming("MultiSync", make=serial, frames_per_batch=24) as stranger:
        foreign = saved(stranger.state_dict())
    with resuming("MultiSync") as collector:
        collector.load_state_dict(state)
        half = {**state, "workers": [foreign["workers"][0], state["workers"][0]]}
        other_half = {**state, "workers": [state["workers"][1], foreign["workers"][1]]}
        wrong = [({}, OptionError), ({**state, "class": "aSyncDataCollector"}, OptionError), (foreign, SpecMismatch)]
        wrong += [(half, SpecMismatch), (other_half, SpecMismatch), ({**state, "workers": state["workers"][:1]}, OptionError)]
        spoilt = {**state["workers"][1], "warm_up_state": torch.zeros(3)}
        wrong += [({**state, "workers": [state["workers"][0], spoilt]}, SpecMismatch)]
        for one, kind in wrong:
            with pytest.raises(kind):
                collector.load_state_dict(one)
        for found, wanted in zip(take(collector, 2), expected, strict=True):
            assert_same(found, wanted)


def test_envs_without_a_state_begin_new_episodes_with_new_seeds() -> None:
    with MultiSyncDataCollector([partial(Seeded, 5)] * 2, Const(), frames_per_batch=8) as collector:
        following = collector.set_seed(SEED)
        ids = set(collector.next()[IDS].flatten().tolist())
        state = saved(collector.state_dict())
        collector.load_state_dict(state)
        batch = collector.next()
        assert steps(batch) == [[0, 1, 2, 3]] * 2
        assert not set(batch[IDS].flatten().tolist()) & ids
        seeds = collector.getattr_env("seeds")
    assert all(len(set(own)) == 2 for own in seeds)
    assert following


class GatedText(Text, Gated):
    """`Gated` that says its count in words."""


@pytest.mark.parametrize("name", by_default(CLASSES, "MultiaSync"))
def test_objects_of_results_that_wait_are_part_of_the_state(name: str, tmp_path: Path) -> None:
    gate = Gate(tmp_path)

    def make(gates: Sequence[int] = ()) -> Any:
        return CLASSES[name]([partial(GatedText, gate.paths, gates), partial(Text, 1000, 7)], frames_per_batch=4)

    # The others record ahead; this one is interrupted in its second batch, the rest of which is recorded.
    with make([3] if name == "MultiSync" else []) as collector:
        collector.next()
        if name == "MultiSync":
            interrupt_at(gate, collector.next)
        state = saved(collector.state_dict())
        expected = [collector.next() for _ in state["results"]]
        assert expected
    with make() as other:
        other.load_state_dict(state)
        for wanted in expected:
            found = other.next()
            assert found["text"] == wanted["text"]
            assert_same(found, wanted)
    gate.close()
