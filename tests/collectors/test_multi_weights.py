"""Weights of policies in worker processes: they change when they are sent, between rollouts; the caller's stay untouched."""

from __future__ import annotations

import hashlib
from functools import partial
from itertools import count
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from reap.collectors import (
    MultiaSyncDataCollector,
    MultiProcessedWeightUpdater,
    MultiSyncDataCollector,
    SyncDataCollector,
    WeightUpdaterBase,
)
from reap.errors import OptionError, SpecMismatch
from reap.testing import BN, Const, Count
from tests.collectors.worker_kinds import CLASSES, Gate, Gated, Uniform, take, take_of_each, workers_of
from tests.pairwise import by_default

VERSION = ("collector", "policy_version")
FORMS: dict[str, Any] = {
    "module": Const,
    "TensorDict": lambda value: TensorDict.from_module(Const(value)),
    "TensorDict of data": lambda value: TensorDict.from_module(Const(value)).data,
    "state dict": lambda value: Const(value).state_dict(),
}


def counting(policy: Any, **options: Any) -> MultiSyncDataCollector:
    return MultiSyncDataCollector([partial(Count, 9)] * 2, policy, **{"frames_per_batch": 4, **options})


def actions(batch: Any) -> list[float]:
    """The action of each worker, which is the same in all of its frames."""
    rows = batch["action"].reshape(2, -1)
    assert (rows == rows[:, :1]).all()
    return rows[:, 0].tolist()


def test_forms_of_weights_and_workers_that_get_them() -> None:
    policy = Const(1.0)
    with counting(policy) as collector:
        assert actions(collector.next()) == [1, 1]
        for number, make in enumerate(FORMS.values()):
            collector.update_policy_weights_(make(10.0 + number))
            assert actions(collector.next()) == [10 + number] * 2
        nn.init.constant_(policy.w, 2.0)
        assert actions(collector.next()) == [13, 13], "they change by an update only"
        collector.update_policy_weights_()
        assert actions(collector.next()) == [2, 2]
        collector.update_policy_weights_(Const(3.0), worker_ids=1)
        assert actions(collector.next()) == [2, 3]
        collector.update_policy_weights_(Const(4.0), worker_ids=[0])
        assert actions(collector.next()) == [4, 3]
        collector.update_policy_weights_(Const(5.0), worker_ids=[0, 1])
        assert actions(collector.next()) == [5, 5]
        with pytest.raises(OptionError, match=r"worker_ids: expected some of \[0, 1\], got \[2\]"):
            collector.update_policy_weights_(worker_ids=[1, 2])
        with pytest.raises(SpecMismatch):
            collector.update_policy_weights_(nn.Linear(2, 2))
        with pytest.raises(OptionError):
            collector.update_policy_weights_("weights")
        assert actions(collector.next()) == [5, 5]
        assert policy.w.item() == 2.0


@pytest.mark.parametrize("name", by_default(CLASSES, "MultiaSync"))
def test_e09_the_callers_module_is_untouched(name: str) -> None:
    policy = nn.Sequential(BN(1), nn.Linear(1, 1))
    policy[0].norm.weight.requires_grad_(False)
    kept = policy.state_dict(keep_vars=True)
    before = {key: (value.data_ptr(), value.is_shared(), value.requires_grad, value.device) for key, value in kept.items()}
    with CLASSES[name]([lambda: Batched(2)] * 2, policy, frames_per_batch=8) as collector:
        checksum = hashed(policy)
        for _ in range(3):
            collector.next()
            collector.update_policy_weights_()
        assert hashed(policy) == checksum, "batch statistics of the workers stay there"
    assert collector.policy is policy
    kept = policy.state_dict(keep_vars=True)
    assert before == {
        key: (value.data_ptr(), value.is_shared(), value.requires_grad, value.device) for key, value in kept.items()
    }
    assert not policy._forward_hooks
    assert policy.training


def Batched(rows: int) -> Any:  # noqa: N802  stands for a class
    from reap.envs import SerialEnv

    return SerialEnv(rows, [partial(Count, 9)] * rows)


def hashed(module: nn.Module) -> str:
    digest = hashlib.sha256()
    for value in module.state_dict().values():
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()


def test_buffers_go_with_the_parameters() -> None:
    policy = BN(1)
    policy.eval()
    with MultiSyncDataCollector([lambda: Batched(2)] * 2, policy, frames_per_batch=8) as collector:
        batch = collector.next()
        assert torch.allclose(batch["action"], batch["observation"], atol=1e-4)
        policy.norm.running_mean.fill_(5.0)
        collector.update_policy_weights_()
        batch = collector.next()
        assert torch.allclose(batch["action"], batch["observation"] - 5, atol=1e-4)


def test_an_update_at_each_batch() -> None:
    policy = Const(0.0)
    with counting(policy, update_at_each_batch=True, track_policy_version=True) as collector:
        for value in range(1, 4):
            nn.init.constant_(policy.w, value)
            batch = collector.next()
            assert actions(batch) == [value] * 2
            assert batch[VERSION].unique().tolist() == [value]
    with MultiaSyncDataCollector([partial(Count, 9)] * 2, policy, frames_per_batch=2, update_at_each_batch=True) as collector:
        nn.init.constant_(policy.w, 9.0)
        last = {worker: batches[-1] for worker, batches in workers_of(take(collector, 8)).items()}
        assert {batch["action"].unique().item() for batch in last.values()} == {9.0}


@pytest.mark.parametrize("name", by_default(CLASSES, "aSync"))
def test_no_update_waits_for_a_rollout(name: str, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    policy = Const(1.0)
    factories = [partial(Count, 9), partial(Gated, gate.paths, [2])]
    with CLASSES[name](factories, policy, frames_per_batch=8 if name == "MultiSync" else 4) as collector:
        found: list[Any] = []
        slow = 1 if name == "MultiaSync" else 0

        def collect() -> None:
            """Until the worker behind the gate has delivered; the other may deliver any number before."""
            while not found or (name != "MultiSync" and slow not in workers_of(found)):
                found.extend(take(collector, 1))

        collects = Thread(target=collect)
        collects.start()
        gate.wait_for_entry()
        for value in range(2, 50):  # its rollout is in the middle, and the gate is closed
            collector.update_policy_weights_(Const(value))
        gate.open()
        collects.join()
        late = workers_of(b for batch in found for b in (batch if name == "MultiSync" else [batch]))
        worker = 0 if name == "aSync" else 1
        assert late[worker][0]["action"].flatten().tolist() == [1.0] * 4, "one rollout, one version"
        found.clear()
        collect()
        late = workers_of(b for batch in found for b in (batch if name == "MultiSync" else [batch]))
        assert late[worker][-1]["action"].flatten().tolist() == [49.0] * 4
    gate.close()


@pytest.mark.processes
@pytest.mark.parametrize("name", CLASSES)
def test_no_rollout_mixes_two_versions(name: str) -> None:
    policy = Uniform()
    collector = CLASSES[name]([partial(Count, 9)] * 2, policy, frames_per_batch=8, track_policy_version=True)
    sent, several = Uniform(), Event()

    def update() -> None:
        """Update 300 times, and until several versions have acted."""
        numbers = count(1)
        while (n := next(numbers)) <= 300 or not several.is_set():
            sent.become(n)
            collector.update_policy_weights_(sent)

    with collector:
        updates = Thread(target=update)
        updates.start()
        seen: set[float] = set()
        try:
            while updates.is_alive():
                batch = collector.next()
                assert not batch["spread"].any(), "torn"
                rows = batch["action"].reshape(-1, 4 if name == "MultiSync" else 8)
                assert (rows == rows[:, :1]).all(), "two versions in one rollout"
                assert torch.equal(batch[VERSION].reshape(rows.shape).float(), rows)
                seen.update(rows[:, 0].tolist())
                if len(seen) > 1:
                    several.set()
        finally:
            several.set()
            updates.join()
        last = [collector.next()] if name == "MultiSync" else [batches[1] for batches in take_of_each(collector, 2).values()]
        assert {batch["action"].unique().item() for batch in last} == {float(collector.policy_version)}


def test_a_policy_for_each_worker() -> None:
    """E06: each has its own, and each can be updated."""
    factories = [partial(Const, 1.0), partial(Const, 2.0)]
    with counting(None, policy_factory=factories) as collector:
        assert actions(collector.next()) == [1, 2]
        assert collector.policy is None
        collector.update_policy_weights_(Const(7.0), worker_ids=1)
        assert actions(collector.next()) == [1, 7]
        collector.update_policy_weights_(Const(8.0))
        assert actions(collector.next()) == [8, 8]
        with pytest.raises(OptionError, match="each worker builds its own policy, so there is none here to send"):
            collector.update_policy_weights_()
    with pytest.raises(OptionError, match="policy and policy_factory: expected one of them, got both"):
        counting(Const(), policy_factory=Const)
    with pytest.raises(OptionError, match="policy_factory: expected it to return a policy, got None"):
        counting(None, policy_factory=lambda: None)


def test_policies_without_weights() -> None:
    with counting(lambda observation: observation * 2, track_policy_version=True) as collector:
        assert collector.weight_updater is None
        collector.update_policy_weights_()
        batch = collector.next()
        assert torch.equal(batch["action"], batch["observation"] * 2)
        with pytest.raises(OptionError, match="this MultiSyncDataCollector has no policy with weights to update"):
            collector.update_policy_weights_(Const(1.0))
    with counting(None) as collector:
        collector.update_policy_weights_()
        assert collector.next()["action"].unique().numel() == 4


@pytest.mark.parametrize("name", ["MultiaSync", "aSync"])
def test_at_most_one_older_batch_of_each_worker_follows_an_update(name: str) -> None:
    policy = Const(0.0)
    with CLASSES[name]([partial(Count, 9)] * 2, policy, frames_per_batch=4) as collector:
        take(collector, 4)
        for value in range(1, 20):
            collector.update_policy_weights_(Const(value))
            for batches in workers_of(take(collector, 4)).values():
                older = [batch["action"].flatten().tolist() != [float(value)] * 4 for batch in batches]
                assert not any(older[1:])


def test_e03_lazy_layers() -> None:
    for policy in (nn.LazyLinear(1), nn.Sequential(nn.Linear(1, 2), nn.LazyLinear(1))):
        with pytest.raises(OptionError) as caught:
            counting(policy)
        assert str(caught.value) == (
            f"policy {type(policy).__name__}: its lazy layers have no weights yet, and each worker would draw its own; call it "
            "once before, for example policy(env.reset()['observation'])"
        )
    policy = nn.LazyLinear(1)
    policy(torch.zeros(1))
    with counting(policy) as collector, torch.no_grad():
        batch = collector.next()
        assert torch.allclose(batch["action"], policy(batch["observation"]))


class Doubled(MultiProcessedWeightUpdater):
    """Sends twice the weights."""

    def _maybe_map_weights(self, server_weights: Any) -> Any:
        return {name: 2 * value for name, value in server_weights.state_dict().items()}


@pytest.mark.parametrize(
    "given", [Doubled, Doubled(), Doubled(Const(3.0)), lambda: Doubled(get_server_weights=lambda: Const(3.0))]
)
def test_updaters_of_the_users(given: Any) -> None:
    policy = Const(3.0)
    with counting(policy, weight_updater=given, track_policy_version=True) as collector:
        pushed: list[int] = []
        assert isinstance(collector.weight_updater, Doubled)
        assert collector.weight_updater.collector is collector
        assert list(collector.weight_updater.all_worker_ids()) == [0, 1]
        collector.weight_updater.register_post_hook(lambda: pushed.append(len(pushed)))
        assert actions(collector.next()) == [3, 3]
        collector.update_policy_weights_()
        batch = collector.next()
        assert actions(batch) == [6, 6]
        assert batch[VERSION].unique().tolist() == [1]
        collector.update_policy_weights_(Const(5.0), worker_ids=0)
        assert actions(collector.next()) == [10, 6]
    assert pushed == [0, 1]


class ThroughTheCollector(WeightUpdaterBase):
    """Has nothing of reap's but the base."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[Any] = []

    def _get_server_weights(self) -> Any:
        return self.collector.policy

    def _sync_weights_with_worker(self, *, worker_id: Any, server_weights: Any) -> None:
        self.sent.append((worker_id, server_weights.w.item()))

    def all_worker_ids(self) -> list[int]:
        return list(range(self.collector.num_workers))


def test_an_updater_written_from_the_base() -> None:
    with counting(Const(3.0), weight_updater=ThroughTheCollector) as collector:
        collector.update_policy_weights_()
        collector.update_policy_weights_(Const(4.0), worker_ids=[1])
        assert collector.weight_updater.sent == [(0, 3.0), (1, 3.0), (1, 4.0)]
    with pytest.raises(OptionError, match="weight_updater: expected a WeightUpdaterBase or a constructor of one"):
        counting(Const(), weight_updater=3)


def test_every_class_has_the_same_weights_after_an_update() -> None:
    """E10: in this process a module acts as it is; in a worker it does after an update."""
    policy = Const(1.0)
    with SyncDataCollector(partial(Count, 9), policy, frames_per_batch=4) as sync, counting(policy) as multi:
        nn.init.constant_(policy.w, 2.0)
        assert sync.next()["action"].unique().tolist() == [2.0]
        assert multi.next()["action"].unique().tolist() == [1.0]
        for collector in (sync, multi):
            collector.update_policy_weights_()
            assert collector.next()["action"].unique().tolist() == [2.0]
