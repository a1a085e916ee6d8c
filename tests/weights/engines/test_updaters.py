"""Updaters by engine: alone, with what is in another process, and as options of collectors."""

from __future__ import annotations

import json
import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from reap import MultiSyncDataCollector
from reap.collectors import RemoteModuleWeightUpdater
from reap.collectors.distributed import (
    DistributedDataCollector,
    DistributedWeightUpdater,
    RPCDataCollector,
    RPCWeightUpdater,
)
from reap.errors import ClosedError, OptionError
from tests.collectors.distributed.policies import Chooser
from tests.weights.receivers import net, serve
from tests.workers.scripts import Script

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.timeout(120),
]

KINDS: list[Any] = [RemoteModuleWeightUpdater, RPCWeightUpdater, DistributedWeightUpdater]
LIMIT = 60


def test_what_is_in_another_process_by_references_to_it(tmp_path: Path) -> None:
    with Script("", ["-m", "tests.weights.engines.references", str(tmp_path / "store")]) as script:
        found = json.loads(script.line())
    assert found["module"].pop("another shape").startswith("weights: 0.weight: expected shape")
    assert "a RemoteModuleWeightUpdater sends what it is given" in found["module"].pop("nothing")
    assert found["module"] == {"a module": [2.0], "a TensorDict": [3.0], "a state dict": [4.0], "the latest": [99.0]}
    assert found["remote module"] == [[[1.0, 1.0]], [1.0]]
    assert found["collector"] == [[1] * 4, [1] * 4]
    assert found["gone"].startswith("weights no longer arrive at 'other'")


def test_references_are_counted() -> None:
    with pytest.raises(OptionError, match="num_workers=2: got 0 collector_rrefs"):
        RPCWeightUpdater(policy_weights=net(1.0), num_workers=2)


def test_by_torch_distributed_alone() -> None:
    policy = net(1.0)
    updater = DistributedWeightUpdater(policy_weights=policy, num_workers=1)
    context = multiprocessing.get_context("forkserver")
    connection, child = context.Pipe()
    process = context.Process(target=serve, args=(updater.scheme, 0, child), daemon=True)
    process.start()
    updater.push_weights()
    assert [connection.recv(), connection.recv()] == ["connecting", [1.0]]
    updater.push_weights(net(2.0))
    connection.send(30.0)
    assert [connection.recv(), connection.recv()] == ["waiting", (True, [2.0])]
    connection.send("stop")
    process.join(LIMIT)
    updater.close()
    with pytest.raises(ClosedError):
        updater.push_weights()


def test_a_number_of_receivers_and_no_weights() -> None:
    with pytest.raises(OptionError, match="expected a model, weights"):
        DistributedWeightUpdater(num_workers=1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("collector_class", [MultiSyncDataCollector, RPCDataCollector, DistributedDataCollector])
def test_in_a_collector(kind: Any, collector_class: Any) -> None:
    policy = Chooser()
    options: dict[str, Any] = {} if collector_class is MultiSyncDataCollector else {"sync": True}
    with collector_class(
        ["CartPole-v1"] * 2, policy, frames_per_batch=20, track_policy_version=True, weight_updater=kind, **options
    ) as collector:
        with torch.no_grad():
            policy.scores.bias.copy_(torch.tensor([0.0, 1e6]))
        collector.update_policy_weights_(policy)
        batch = collector.next()
        assert batch["collector", "policy_version"].unique().tolist() == [1]
        assert (batch["action"].argmax(-1) == 1).all()
        if kind is RemoteModuleWeightUpdater:
            with pytest.raises(OptionError, match="sends what it is given"):
                collector.update_policy_weights_()
        assert type(collector.weight_updater) is kind


def test_what_is_handed_to_receivers_can_be_pickled() -> None:
    updater = DistributedWeightUpdater(policy_weights=net(1.0), num_workers=1)
    assert not pickle.loads(pickle.dumps(updater.scheme)).initialized_on_sender
    updater.close()
