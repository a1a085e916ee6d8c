"""Weights by Ray: a scheme between processes of a cluster, an updater of actors, and both as options of collectors."""

from __future__ import annotations

import pickle
import threading
import time
from typing import Any

import pytest
import torch

from reap import MultiSyncDataCollector
from reap.collectors import RayWeightUpdater
from reap.collectors.distributed import RayCollector
from reap.errors import CallOrderError, ClosedError, OptionError, SpecMismatch
from reap.weight_update import RayWeightSyncScheme
from reap.workers.ray.cluster import Cluster
from tests.collectors.distributed.policies import Chooser
from tests.weights.receivers import net, values
from tests.workers.handlers import patience
from tests.workers.ray.local import _nothing_left_running, local_ray, on_ray  # noqa: F401  fixtures
from tests.workers.ray.pool import PooledCluster

ray = pytest.importorskip("ray")

pytestmark = on_ray()


class Receiver:
    """A receiver in an actor."""

    def __init__(self, scheme: Any, worker: int = 0) -> None:
        self.model, self.scheme = net(0.0), scheme
        scheme.init_on_receiver(model=self.model, worker_idx=worker)

    def connect(self) -> list[float]:
        self.scheme.connect()
        return values(self.model)

    def receive(self, timeout: float | None = None) -> tuple[bool, list[float]]:
        return self.scheme.receive(timeout) is not None, values(self.model)

    def update_policy_weights_(self, weights: Any) -> None:
        self.model.load_state_dict(weights)

    def values(self) -> list[float]:
        return values(self.model)


def until(actor: Any, expected: list[float]) -> None:
    deadline = time.monotonic() + patience(60)
    while ray.get(actor.receive.remote(10.0))[1] != expected:
        assert time.monotonic() < deadline


def remote(scheme: Any, worker: int = 0) -> Any:
    return ray.remote(Receiver).options(num_cpus=0).remote(scheme, worker)


def test_actors_receive_the_latest() -> None:
    scheme = RayWeightSyncScheme()
    scheme.init_on_sender(model=net(1.0), num_workers=2)
    first, second = (remote(scheme, worker) for worker in range(2))
    connecting = [one.connect.remote() for one in (first, second)]
    scheme.connect()
    assert ray.get(connecting) == [[1.0], [1.0]]
    assert ray.get(first.receive.remote()) == (False, [1.0])
    for number in range(2, 50):
        scheme.send(net(float(number)))
    until(first, [49.0])
    until(second, [49.0])
    scheme.send(net(60.0), worker_ids=1)
    until(second, [60.0])
    assert ray.get(first.receive.remote()) == (False, [49.0])
    waiting = first.receive.remote(60.0)
    scheme.shutdown()
    with pytest.raises(ClosedError, match="has shut down, or is gone"):
        ray.get(waiting)
    for actor in (first, second):
        ray.kill(actor)


def test_in_one_process_and_in_the_wrong_order() -> None:
    scheme = RayWeightSyncScheme()
    with pytest.raises(CallOrderError):
        scheme.send()
    scheme.init_on_sender(model=net(1.0))
    receiver, model = pickle.loads(pickle.dumps(scheme)), net(0.0)
    wide = pickle.loads(pickle.dumps(scheme))
    wide.init_on_receiver(model=net(0.0, width=4), worker_idx=0)
    with pytest.raises(SpecMismatch):
        wide.connect()
    receiver.init_on_receiver(model=model)
    scheme.connect()
    receiver.connect()
    assert values(model) == [1.0]
    with pytest.raises(SpecMismatch, match=r"0\.weight"):
        scheme.send(net(2.0, width=4))
    assert receiver.receive() is None
    before = {one.name for one in threading.enumerate()}
    receiver.shutdown()
    scheme.shutdown()
    assert "reap-ray-weights" in before
    assert "reap-ray-weights" not in {one.name for one in threading.enumerate()}
    late = pickle.loads(pickle.dumps(wide))
    late.init_on_receiver(model=net(0.0))
    with pytest.raises(ClosedError):
        late.connect()


def test_an_update_returns_after_one_copy() -> None:
    model = torch.nn.Linear(2000, 5000)  # 40 MB
    scheme = RayWeightSyncScheme()
    scheme.init_on_sender(model=model)
    scheme.connect()
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        scheme.send()
        times.append(time.perf_counter() - begun)
    assert min(times) < 0.5
    scheme.shutdown()


def test_an_updater_of_actors() -> None:
    scheme = RayWeightSyncScheme()
    scheme.init_on_sender(model=net(1.0))
    actors = [remote(scheme) for _ in range(2)]
    policy = net(5.0)
    updater = RayWeightUpdater(policy, actors)
    updater.push_weights()
    updater.push_weights(net(7.0), worker_ids=1)
    deadline = time.monotonic() + patience(60)
    while (found := ray.get([one.values.remote() for one in actors])) != [[5.0], [7.0]]:
        assert time.monotonic() < deadline, found
    updater.close()
    scheme.shutdown()
    for actor in actors:
        ray.kill(actor)
    with pytest.raises(OptionError, match="policy_weights"):
        RayWeightUpdater(None, actors)


class Pooled(RayCollector):
    def _make_cluster(self) -> Cluster:
        return PooledCluster("Pooled")


OPTIONS: list[dict[str, Any]] = [
    {"weight_sync_schemes": {"policy": RayWeightSyncScheme()}},
    {"weight_updater": RayWeightUpdater},
]


@pytest.mark.parametrize("options", OPTIONS, ids=["scheme", "updater"])
@pytest.mark.parametrize("collector_class", [MultiSyncDataCollector, Pooled])
def test_in_a_collector(options: dict[str, Any], collector_class: Any) -> None:
    policy = Chooser()
    sync = {} if collector_class is MultiSyncDataCollector else {"sync": True}
    with collector_class(
        ["CartPole-v1"] * 2, policy, frames_per_batch=20, track_policy_version=True, **sync, **options
    ) as collector:
        assert collector.next()["collector", "policy_version"].unique().tolist() == [0]
        with torch.no_grad():
            policy.scores.bias.copy_(torch.tensor([0.0, 1e6]))
        collector.update_policy_weights_()
        batch = collector.next()
        assert batch["collector", "policy_version"].unique().tolist() == [1]
        assert (batch["action"].argmax(-1) == 1).all()
