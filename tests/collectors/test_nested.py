"""Workers that run a collector of their own: derived classes, and collectors with processes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from reap import MultiaSyncDataCollector, MultiSyncDataCollector, SyncDataCollector, aSyncDataCollector
from reap.data import LazyTensorStorage, ReplayBuffer, SliceSampler
from reap.errors import OptionError, SpecMismatch
from reap.testing import Count
from tests.data.unseen import Unseen, WithoutIds, steps_of_slices

ENV = "Pendulum-v1"


class Punishing(SyncDataCollector):
    """Takes 100 from each reward."""

    def rollout(self) -> Any:
        batch = super().rollout()
        batch["next", "reward"] -= 100
        return batch


class Derived(SyncDataCollector):
    """A class of one's own."""


class Forgetful(SyncDataCollector):
    def rollout(self) -> Any:
        return super().rollout().exclude("action")


def leaves(batch: Any) -> dict[Any, Any]:
    return dict(batch.items(include_nested=True, leaves_only=True))


def test_the_rollout_of_a_derived_class_is_what_is_delivered() -> None:
    policy = nn.Linear(3, 1)
    plain = MultiSyncDataCollector([ENV] * 2, policy, frames_per_batch=40)
    derived = MultiSyncDataCollector([ENV] * 2, policy, frames_per_batch=40, collector_class=Punishing)
    with plain, derived:
        assert plain.set_seed(3) == derived.set_seed(3)
        for _ in range(2):
            expected, found = plain.next(), derived.next()
            expected["next", "reward"] -= 100
            for key, value in leaves(expected).items():
                assert torch.equal(found[key], value), key
        nn.init.zeros_(policy.weight)
        nn.init.zeros_(policy.bias)
        derived.update_policy_weights_()
        assert not derived.next()["action"].any()
        assert derived.getattr_env("max_torque") == [2.0, 2.0]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("inner", "outer", "shape", "leaves"),
    [
        ("sync", MultiSyncDataCollector, (2, 2, 10), {0, 1, 2, 3}),
        ("async", MultiSyncDataCollector, (2, 20), None),
        ("sync", MultiaSyncDataCollector, (2, 20), None),
    ],
)
def test_workers_with_workers(inner: str, outer: Any, shape: tuple[int, ...], leaves: set[int] | None) -> None:
    policy = nn.Linear(3, 1)
    envs: list[list[str]] = [[ENV] * 2] * 2
    with outer(envs, policy, frames_per_batch=40, total_frames=80, collector_class=inner) as collector:
        collector.set_seed(0)
        batches = [batch.clone() for batch in collector]
        assert [tuple(batch.shape) for batch in batches] == [shape] * 2
        if leaves is not None:
            assert {number >> 40 for number in batches[0]["collector", "traj_ids"].flatten().tolist()} == leaves


@pytest.mark.parametrize("inner", [Derived, "sync"])
def test_the_versions_of_frames_are_those_of_the_outer_collector(inner: Any) -> None:
    envs: list[Any] = [ENV if inner is Derived else [ENV]] * 2
    options: Any = {"frames_per_batch": 8, "collector_class": inner, "track_policy_version": True}
    with MultiSyncDataCollector(envs, nn.Linear(3, 1), **options) as collector:
        found = []
        for worker in (0, 0, 1, 0, None):
            collector.update_policy_weights_(worker_ids=worker)
            versions = collector.next()["collector", "policy_version"].reshape(2, 4)
            assert (versions == versions[:, :1]).all()
            found.append(versions[:, 0].tolist())
    assert found == [[1, 0], [2, 0], [2, 3], [4, 3], [5, 5]]


def test_a_policy_without_weights_has_versions_too() -> None:
    options: Any = {"frames_per_batch": 8, "collector_class": Derived, "track_policy_version": True}
    with MultiSyncDataCollector([ENV] * 2, lambda observation: observation[..., :1], **options) as collector:
        found = []
        for _ in range(3):
            collector.update_policy_weights_()
            found.append(collector.next()["collector", "policy_version"].unique().tolist())
    assert found == [[1], [2], [3]]


class Failing:
    """A postproc that raises in its second call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, batch: Any) -> Any:
        self.calls += 1
        if self.calls == 2:
            raise ZeroDivisionError
        return batch


@pytest.mark.parametrize("outer", [MultiSyncDataCollector, aSyncDataCollector])
@pytest.mark.parametrize("inner", ["derived", "sync"])
def test_the_episodes_of_a_lost_batch_do_not_continue(outer: Any, inner: str) -> None:
    env = partial(Count, 1_000)
    envs: list[Any] = [env] if inner == "derived" else [[env, env]]
    kind = Derived if inner == "derived" else inner
    with outer(envs, frames_per_batch=20, collector_class=kind, postproc=Failing()) as collector:
        first = collector.next().reshape(-1).clone()
        with pytest.raises(ZeroDivisionError):
            collector.next()
        after = collector.next().reshape(-1)
        assert not set(first["collector", "traj_ids"].tolist()) & set(after["collector", "traj_ids"].tolist())
        assert after["observation"].min() == 0
        assert after["observation"].max() == (9 if inner == "sync" else 19)


def test_a_state_of_derived_collectors_goes_on() -> None:
    policy = nn.Linear(3, 1)
    envs = [ENV] * 2
    with MultiSyncDataCollector(envs, policy, frames_per_batch=40, collector_class=Punishing) as collector:
        collector.set_seed(3)
        collector.next()
        nn.init.zeros_(policy.weight)
        nn.init.constant_(policy.bias, 0.5)
        collector.update_policy_weights_()
        collector.next()
        state = collector.state_dict()
    other = nn.Linear(3, 1)
    with MultiSyncDataCollector(envs, other, frames_per_batch=40, collector_class=Punishing) as collector:
        collector.load_state_dict(state)
        batch = collector.next()
        assert batch["action"].unique().tolist() == [0.5]
        assert collector.stats().frames == 120
        assert min(number & 0xFFFFFFFFFF for number in batch["collector", "traj_ids"].flatten().tolist()) > 0


@pytest.mark.parametrize("outer", [MultiSyncDataCollector, MultiaSyncDataCollector])
@pytest.mark.parametrize("worker", [Derived, "single"])
def test_no_slice_runs_across_a_load(worker: Any, outer: Any) -> None:
    """Nothing that is recorded tells the episodes before and after it apart."""
    buffer = ReplayBuffer(storage=LazyTensorStorage(40), sampler=SliceSampler(slice_len=2))
    options: Any = {"collector_class": worker, "postproc": WithoutIds(), "replay_buffer": buffer}
    with outer([Unseen], frames_per_batch=3, **options) as collector:
        collector.next()
        state = collector.state_dict()
        collector.next()
        collector.load_state_dict(state)
        for _ in range(2):
            collector.next()
    found = steps_of_slices(buffer, 2)
    assert {(0, 1), (1, 2), (3, 4)} <= found
    assert all(behind == step + 1 for step, behind in found)


APART: dict[str, Callable[[Any], Any]] = {
    "reset": lambda collector: collector.reset(),
    "set_seed": lambda collector: (collector.set_seed(3), collector.reset()),
}


@pytest.mark.parametrize("apart", APART)
@pytest.mark.parametrize("outer", [MultiSyncDataCollector, MultiaSyncDataCollector])
def test_no_slice_runs_across_a_reset(outer: Any, apart: str) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(40), sampler=SliceSampler(slice_len=2))
    options: Any = {"collector_class": Derived, "postproc": WithoutIds(), "replay_buffer": buffer}
    with outer([Unseen], frames_per_batch=3, **options) as collector:
        collector.next()
        APART[apart](collector)
        for _ in range(2):
            collector.next()
    found = steps_of_slices(buffer, 2)
    assert {(0, 1), (1, 2)} <= found
    assert all(behind == step + 1 for step, behind in found)


def test_single_is_a_worker_as_any() -> None:
    with MultiSyncDataCollector([ENV] * 2, frames_per_batch=40, collector_class="single") as collector:
        assert collector.next().shape == (2, 20)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"collector_class": "many"}, 'expected a class, "single", "sync" or "async"'),
        ({"collector_class": int}, "expected a collector class"),
        ({"collector_class": Punishing, "on_worker_failure": "restart"}, "excludes"),
        ({"collector_class": Punishing, "preemptive_threshold": 0.5}, "excludes"),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        MultiSyncDataCollector([ENV] * 2, frames_per_batch=40, **options)


def test_a_rollout_without_a_key_is_named() -> None:
    with MultiSyncDataCollector([ENV], frames_per_batch=40, collector_class=Forgetful) as collector:
        with pytest.raises(Exception, match="expected a batch with 'action', found none") as caught:
            collector.next()
        assert isinstance(caught.value.__cause__, SpecMismatch)
