"""What carries weights to policies: shared memory, messages, or nothing; in one process they are copied."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch
from torch import nn

from reap.collectors import (
    MultiaSyncDataCollector,
    MultiProcessedWeightUpdater,
    MultiSyncDataCollector,
    SyncDataCollector,
)
from reap.errors import OptionError
from reap.weight_update import MultiProcessWeightSyncScheme, NoWeightSyncScheme, SharedMemWeightSyncScheme
from tests.collectors.buffers import Buffer
from tests.collectors.seams import pids_of

ENV = "Pendulum-v1"


class Constant(nn.Module):
    """Its action is its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.weight.expand(*observation.shape[:-1], 1)

    def set(self, value: float) -> None:
        self.weight.data.fill_(value)


def actions(batch: Any) -> list[float]:
    """The one action of each worker."""
    action = batch["action"].squeeze(-1)
    assert (action == action[:, :1]).all()
    return action[:, 0].tolist()


@pytest.mark.parametrize(
    "scheme", [None, SharedMemWeightSyncScheme(), MultiProcessWeightSyncScheme, MultiProcessWeightSyncScheme()]
)
def test_weights_reach_the_workers_and_their_successors(scheme: Any) -> None:
    policy = Constant()
    options: dict[str, Any] = {} if scheme is None else {"weight_sync_schemes": {"policy": scheme}}
    with MultiSyncDataCollector([ENV] * 2, policy, frames_per_batch=10, on_worker_failure="restart", **options) as collector:
        assert actions(collector.next()) == [0.0, 0.0]
        policy.set(1.0)
        assert actions(collector.next()) == [0.0, 0.0]
        collector.update_policy_weights_()
        assert actions(collector.next()) == [1.0, 1.0]
        os.kill(pids_of(collector)[0], signal.SIGKILL)
        assert actions(collector.next()) == [1.0, 1.0]
        policy.set(1.5)
        collector.update_policy_weights_(worker_ids=0)
        assert actions(collector.next()) == [1.5, 1.0]
        collector.update_policy_weights_(worker_ids=[1])
        assert actions(collector.next()) == [1.5, 1.5]


def test_no_scheme_sends_nothing() -> None:
    policy = Constant()
    schemes = {"policy": NoWeightSyncScheme()}
    with MultiSyncDataCollector([ENV] * 2, policy, frames_per_batch=10, weight_sync_schemes=schemes) as collector:
        policy.set(1.0)
        collector.update_policy_weights_()
        assert actions(collector.next()) == [0.0, 0.0]
        assert collector.policy_version == 1


def test_async_collectors_take_a_scheme_too() -> None:
    policy = Constant()
    schemes = {"policy": MultiProcessWeightSyncScheme()}
    with MultiaSyncDataCollector([ENV], policy, frames_per_batch=5, weight_sync_schemes=schemes) as collector:
        policy.set(1.0)
        collector.update_policy_weights_()
        assert collector.next()["action"].unique().tolist() == [1.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight_sync_schemes": {3: SharedMemWeightSyncScheme()}}, 'expected {"policy": scheme}'),
        ({"weight_sync_schemes": {}}, 'expected {"policy": scheme}'),
        ({"weight_sync_schemes": SharedMemWeightSyncScheme()}, 'expected {"policy": scheme}'),
        ({"weight_sync_schemes": {"policy": 3}}, "expected a WeightSyncScheme, got 3"),
        (
            {"weight_sync_schemes": {"policy": SharedMemWeightSyncScheme()}, "weight_updater": MultiProcessedWeightUpdater},
            "expected one of them, got both",
        ),
    ],
)
def test_what_is_no_scheme_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        MultiSyncDataCollector([ENV] * 2, Constant(), frames_per_batch=10, **options)
    with pytest.raises(OptionError, match=message):
        SyncDataCollector(ENV, Constant(), frames_per_batch=10, **options)


# ---------------------------------------------------------------------- in one process


@pytest.mark.parametrize("scheme", [SharedMemWeightSyncScheme, MultiProcessWeightSyncScheme(), NoWeightSyncScheme()])
def test_a_policy_of_this_process_is_copied_to_unless_nothing_is_sent(scheme: Any) -> None:
    policy, newer = Constant(), Constant()
    newer.set(2.0)
    with SyncDataCollector(ENV, policy, frames_per_batch=5, weight_sync_schemes={"policy": scheme}) as collector:
        policy.set(1.0)
        assert collector.next()["action"].unique().tolist() == [1.0], "it is the policy itself"
        collector.update_policy_weights_(newer)
        sent = [1.0] if isinstance(scheme, NoWeightSyncScheme) else [2.0]
        assert collector.next()["action"].unique().tolist() == sent
        assert collector.policy_version == 1


def test_a_private_copy_gets_weights_unless_nothing_is_sent() -> None:
    for scheme, expected in ((SharedMemWeightSyncScheme(), [1.0]), (NoWeightSyncScheme(), [0.0])):
        policy, buffer = Constant(), Buffer(1)
        options: Any = {"replay_buffer": buffer, "weight_sync_schemes": {"policy": scheme}}
        with SyncDataCollector(ENV, policy, frames_per_batch=5, **options) as collector:
            collector.start()
            buffer.wait_for_arrival(1)
            policy.set(1.0)
            collector.update_policy_weights_()
            buffer.allow(3)
            buffer.wait_for_writes(4)
            buffer.allow(1000)
        assert buffer.batches[3]["action"].unique().tolist() == expected


def test_a_policy_without_weights_takes_a_scheme_too() -> None:
    schemes = {"policy": SharedMemWeightSyncScheme()}
    with SyncDataCollector(ENV, frames_per_batch=5, weight_sync_schemes=schemes) as collector:
        assert collector.weight_updater is None
