"""`RayCollector` on a cluster of three nodes: nodes that go, are drained, and come."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reap import GymEnv
from reap.collectors.distributed import RayCollector
from reap.errors import WorkerDied
from reap.recording.trajectories import LEAF_SHIFT
from reap.testing.marked import Marked
from reap.workers.ray.cluster import Cluster
from reap.workers.ray.group import ray_group
from tests.collectors.seams import pids_of
from tests.kept import stop_all
from tests.workers.handlers import Doer, ask, patience
from tests.workers.ray.local import ONE_RAY, ROOT, SLOW_STARTS, _nothing_left_running  # noqa: F401  a fixture

ray = pytest.importorskip("ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")

pytestmark = [pytest.mark.distributed, pytest.mark.ray, ONE_RAY, SLOW_STARTS, pytest.mark.timeout(600)]

COLUMNS = 40
PAUSE = 0.01
"""Seconds of a step: a rollout takes long enough for something to happen in it."""


class Slow(Marked):
    """Takes its time, and writes down that it has begun."""

    def __init__(self, flag: str) -> None:
        super().__init__()
        self._flag = Path(flag)

    def step(self, action: Any) -> Any:
        time.sleep(PAUSE)
        self._flag.with_suffix(f".{os.getpid()}").touch()
        return super().step(action)


class SlowEnv:
    """Makes the env of a worker."""

    def __init__(self, folder: Path) -> None:
        self._flag = str(folder / "stepped")
        self.folder = folder

    def __call__(self) -> GymEnv:
        return GymEnv(Slow(self._flag))

    def wait_for(self, pid: int) -> None:
        """Wait for a step of a worker."""
        flag = Path(self._flag).with_suffix(f".{pid}")
        flag.unlink(missing_ok=True)
        deadline = time.monotonic() + patience(30)
        while not flag.exists():
            assert time.monotonic() < deadline
            time.sleep(0.001)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Its head runs no workers."""
    stop_all()
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")  # Ray's own, about what it will change
        patch.setenv("PYTHONPATH", os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")]))
        made = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        made.add_node(num_cpus=2)
        made.add_node(num_cpus=2)
        ray.init(address=made.address, log_to_driver=False, logging_level="error")
        yield made
        ray.shutdown()
        made.shutdown()


@pytest.fixture
def env(tmp_path: Path) -> SlowEnv:
    return SlowEnv(tmp_path)


@pytest.fixture
def make(cluster: Any, env: SlowEnv) -> Iterator[Callable[..., RayCollector]]:
    """Makes collectors; afterwards there are two nodes again."""
    made: list[RayCollector] = []

    def collector(factory: Any = env, **options: Any) -> RayCollector:
        made.append(RayCollector(factory, frames_per_batch=COLUMNS, num_collectors=2, **options))
        return made[-1]

    yield collector
    for one in made:
        one.shutdown()
    staying = {one["NodeID"] for one in ray.nodes() if one["Alive"]} - set(ray._private.state.state.get_draining_nodes())
    for number, node in enumerate(list(cluster.worker_nodes)):
        if node.node_id not in staying or number >= 2:  # one that was drained ends by itself when nothing runs there
            cluster.remove_node(node)
    while len(cluster.worker_nodes) < 2:
        cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()


class Located:
    """A command that is posted: memory, of which the worker keeps where it is mapped from."""

    def __init__(self) -> None:
        self.numbers = np.full(3_000_000, 7, np.uint8)

    def __call__(self, doer: Doer) -> None:
        address = self.numbers.ctypes.data
        for line in Path("/proc/self/maps").read_text().splitlines():
            extent, _, offset, device, inode, *_ = line.split()
            start, end = (int(number, 16) for number in extent.split("-"))
            if start <= address < end:
                doer.kept = device, inode, int(offset, 16) + address - start


def kept(doer: Doer) -> Any:
    return doer.kept


def test_weights_are_put_once_and_each_node_has_one_copy(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    puts: list[Any] = []
    monkeypatch.setattr(ray, "put", lambda value, put=ray.put: puts.append(value) or put(value))
    group = ray_group([Doer] * 3, cluster=Cluster("test"))
    try:
        posted = Located()
        for worker in range(3):
            group.post(worker, posted)
        places = [(ask(group, worker, kept), group.facts(worker).node) for worker in range(3)]
    finally:
        group.stop()
    assert len({node for _, node in places}) == 2, "two workers share a node, and the other node has one"
    assert len(set(places)) == len({place for place, _ in places}) == 2
    assert len(puts) == 1


def node_of(collector: RayCollector, cluster: Any, worker: int = 0) -> Any:
    place = collector.stats().workers[worker].place
    assert place is not None
    return next(node for node in cluster.worker_nodes if node.node_id == place.node)


def nodes_of(collector: RayCollector) -> list[str]:
    return [one.place.node for one in collector.stats().workers if one.place is not None]


def drain(node: Any) -> None:
    """As `ray drain-node` does; the node has two minutes left."""
    from ray._raylet import GcsClient
    from ray.core.generated.autoscaler_pb2 import DrainNodeReason

    client = GcsClient(address=ray.get_runtime_context().gcs_address)
    deadline = int((time.time() + 120) * 1000)
    accepted, reason = client.drain_node(node.node_id, DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION, "a test", deadline)
    assert accepted, reason


def batches_until(collector: RayCollector, done: Callable[[], bool]) -> list[Any]:
    batches = []
    deadline = time.monotonic() + patience(90)
    while not done():
        assert time.monotonic() < deadline
        batches.append(collector.next())
    return batches


def deliver_from(collector: RayCollector, worker: int) -> None:
    """Take batches up to one of a worker, which records its next rollout then; before, it may be waiting for its turn."""
    deadline = time.monotonic() + patience(90)
    while int(collector.next()["collector", "traj_ids"][0]) >> LEAF_SHIFT != worker:
        assert time.monotonic() < deadline


def on_two_nodes(cluster: Any, make: Callable[..., RayCollector], **options: Any) -> RayCollector:
    """A collector whose workers have a node each, in a cluster where a third is free: by default Ray may use one for both."""
    cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    collector = make(remote_configs={"num_cpus": 2}, **options)
    batches_until(collector, lambda: all(one.frames for one in collector.stats().workers))
    assert len(set(nodes_of(collector))) == 2
    return collector


def has_no_gaps(batch: Any) -> bool:
    """Whether each step of a batch follows the one before, where the episode is the same."""
    ids, steps = batch["collector", "traj_ids"], batch["observation"][..., 2]
    same = ids[1:] == ids[:-1]
    return torch.equal(steps[1:][same], steps[:-1][same] + 1)


class ThirdIsSlow(SlowEnv):
    """Of three workers in turn the last is not made before the test lets it go on."""

    @property
    def made(self) -> int:
        """How many have begun to be made."""
        return len(list(self.folder.glob("made.*")))

    @property
    def go(self) -> Path:
        """Lets the last go on when it is there."""
        return self.folder / "go"

    def __call__(self) -> GymEnv:
        is_third = self.made == 2
        (self.folder / f"made.{os.getpid()}").touch()
        while is_third and not self.go.exists():
            time.sleep(0.01)
        return super().__call__()


@pytest.mark.parametrize("graceful", [True, False], ids=["terminated", "killed"])
def test_a_node_is_removed_in_a_rollout(
    cluster: Any, make: Callable[..., RayCollector], tmp_path: Path, graceful: bool
) -> None:
    env = ThirdIsSlow(tmp_path)
    collector = on_two_nodes(cluster, make, factory=env, on_worker_failure="restart")
    deliver_from(collector, 0)
    victim, pid = node_of(collector, cluster), pids_of(collector)[0]
    env.wait_for(pid)
    cluster.remove_node(victim, allow_graceful=graceful)
    with pytest.warns(RuntimeWarning, match=r"worker 0 is replaced now.*pid \d+ on .*Ray node \w+: Actor"):
        batches = batches_until(collector, lambda: env.made == 3)
    batches += [collector.next() for _ in range(2)]  # the other worker delivers while the successor starts
    env.go.touch()
    batches += batches_until(collector, lambda: collector.stats().restarts == 1)
    batches += [collector.next() for _ in range(4)]
    assert all(has_no_gaps(batch) for batch in batches)
    assert victim.node_id not in nodes_of(collector)


def test_the_error_names_node_and_reason(cluster: Any, make: Callable[..., RayCollector], env: SlowEnv) -> None:
    collector = on_two_nodes(cluster, make)
    victim, pid = node_of(collector, cluster), pids_of(collector)[0]
    cluster.remove_node(victim)
    with pytest.raises(
        WorkerDied, match=rf"(?s)Worker 0 was lost.*pid {pid} on .*Ray node {victim.node_id[:12]}.*node has died"
    ):
        batches_until(collector, lambda: False)


def test_a_node_is_removed_while_its_worker_is_idle(cluster: Any, make: Callable[..., RayCollector]) -> None:
    collector = on_two_nodes(cluster, make, sync=True, on_worker_failure="restart")
    victim = node_of(collector, cluster)
    cluster.remove_node(victim)
    with pytest.warns(RuntimeWarning, match="worker . is replaced"):
        batch = collector.next()
    assert batch.shape == (2, COLUMNS // 2)
    assert victim.node_id not in nodes_of(collector)


@pytest.mark.filterwarnings("ignore:worker . is replaced:RuntimeWarning")
def test_a_node_is_removed_while_a_successor_starts(cluster: Any, make: Callable[..., RayCollector], tmp_path: Path) -> None:
    env = ThirdIsSlow(tmp_path)
    collector = make(env, on_worker_failure="restart")
    collector.next()
    left = nodes_of(collector)[0]
    os.kill(pids_of(collector)[0], signal.SIGKILL)
    batches_until(collector, lambda: env.made == 3)  # the other delivers
    victim = node_of(collector, cluster)
    assert victim.node_id != left, "a successor is put on another node"
    cluster.remove_node(victim)
    env.go.touch()
    batches = batches_until(collector, lambda: nodes_of(collector) == [left, left])
    batches += [collector.next() for _ in range(4)]
    assert all(has_no_gaps(batch) for batch in batches)


def test_a_drained_node_is_left(cluster: Any, make: Callable[..., RayCollector], env: SlowEnv) -> None:
    collector = on_two_nodes(cluster, make, on_worker_failure="restart")
    deliver_from(collector, 0)
    victim, pid = node_of(collector, cluster), pids_of(collector)[0]
    env.wait_for(pid)
    drain(victim)
    with pytest.warns(RuntimeWarning, match="worker 0 is replaced now.*told to leave.*drained"):
        batches_until(collector, lambda: collector.stats().restarts == 1)
    batches = [collector.next() for _ in range(4)]
    assert collector.stats().discarded_frames == 0
    assert all(batch.numel() == COLUMNS and has_no_gaps(batch) for batch in batches)
    assert victim.node_id not in nodes_of(collector)


def test_workers_go_to_a_node_that_comes_later(cluster: Any, make: Callable[..., RayCollector]) -> None:
    collector = make(remote_configs={"num_cpus": 2}, min_workers=2)
    collector.next()
    collector.add_collectors(1)
    collector.next()
    assert [one.place.is_joining for one in collector.stats().workers if one.place] == [False, False, True]
    node = cluster.add_node(num_cpus=2)
    batches_until(collector, lambda: collector.stats().workers[2].frames > 0)
    assert nodes_of(collector)[2] == node.node_id
    cluster.remove_node(node)
