"""`RayCollector`: what is its own. The facts that hold for every collector are in `test_ray_contract.py`."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from reap import GymEnv, MultiSyncDataCollector, SerialEnv
from reap.collectors.distributed import RayCollector
from reap.data import LazyTensorStorage, ReplayBuffer
from reap.data.buffers.ray_buffer import RayReplayBuffer
from reap.errors import OptionError, WorkerDied, WorkerRaised
from reap.recording.buffers import IDS, VERSION
from reap.testing.marked import Drawing, Marked, Told
from reap.weights.schemes import NoWeightSyncScheme, SharedMemWeightSyncScheme
from reap.workers.ray.cluster import Cluster
from tests.collectors.distributed.rollouts import check_landing, check_slots, check_travel, check_waiting
from tests.collectors.distributed.starts import Point
from tests.collectors.distributed.updates import ONLY_ONE, Whole, check_leaves, when_only_one_worker_is_updated
from tests.collectors.replays import wait_until
from tests.collectors.seams import pids_of
from tests.collectors.worker_kinds import Uniform
from tests.workers.handlers import have_ended, watch
from tests.workers.ray.local import _nothing_left_running, local_ray, on_ray  # noqa: F401  fixtures
from tests.workers.ray.pool import PooledCluster

ray = pytest.importorskip("ray")

pytestmark = on_ray()

ENVS, COLUMNS, WORKERS = 3, 8, 2


class Pooled(RayCollector):
    """A collector whose actors are used again."""

    def _make_cluster(self) -> Cluster:
        return PooledCluster("Pooled")


def marked(number: int) -> GymEnv:
    return GymEnv(Marked(number))


def batch_env(worker: int) -> SerialEnv:
    return SerialEnv(ENVS, [partial(marked, ENVS * worker + row) for row in range(ENVS)])


def env_of(worker: int) -> GymEnv:
    return GymEnv(Marked(worker))


ENV_FACTORIES = [partial(batch_env, worker) for worker in range(WORKERS)]
FRAMES = ENVS * COLUMNS


def single(made: Callable[..., Any] = Pooled, policy: Any = None, **options: Any) -> Any:
    """A collector of one env a worker."""
    options = {"frames_per_batch": COLUMNS, "sync": False, **options}
    return made([partial(env_of, worker) for worker in range(WORKERS)], policy, **options)


def test_sync_batches_are_bit_for_bit_those_of_processes() -> None:
    found = []
    for make in (MultiSyncDataCollector, partial(Pooled, sync=True)):
        torch.manual_seed(3)
        with make(ENV_FACTORIES, Drawing(), frames_per_batch=WORKERS * FRAMES) as collector:
            collector.set_seed(11)
            found.append([collector.next().clone() for _ in range(3)])
    for one, other in zip(*found, strict=True):
        assert one.batch_size == other.batch_size == (WORKERS, ENVS, COLUMNS)
        keys = set(one.keys(True, True))
        assert keys == set(other.keys(True, True))
        assert all(torch.equal(one[key], other[key]) for key in keys)


def test_batches_are_writable_and_stay_while_others_come() -> None:
    with single() as collector:
        first = collector.next()
        kept = first.clone()
        for _ in range(8):
            collector.next()
        assert (first == kept).all()
        first["observation"].zero_()


def test_weights_arrive_with_their_version() -> None:
    policy = Told()
    with single(policy=policy, sync=True, frames_per_batch=2 * COLUMNS, track_policy_version=True) as collector:
        for number in range(1, 6):
            with torch.no_grad():
                policy.offset.fill_(number)
            collector.update_policy_weights_()
            batch = collector.next()
            assert (batch[VERSION] == number).all()
            assert torch.equal(batch["action"], batch["observation"][..., 2:3] / 2 + number)


def test_only_chosen_workers_are_updated() -> None:
    policy = Told()
    with single(policy=policy, sync=True, frames_per_batch=2 * COLUMNS) as collector:
        with torch.no_grad():
            policy.offset.fill_(4.0)
        collector.update_policy_weights_(worker_ids=1)
        batch = collector.next()
        offsets = (batch["action"] - batch["observation"][..., 2:3] / 2).amax(dim=(1, 2))
        assert offsets.tolist() == [0.0, 4.0]


def test_no_worker_goes_without_an_update_for_longer_than_the_interval() -> None:
    assert when_only_one_worker_is_updated(Pooled) == ONLY_ONE


@pytest.mark.parametrize("workers", [1, 3])
def test_weights_are_put_once_for_all_workers(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    puts: list[int] = []
    monkeypatch.setattr(ray, "put", lambda value, put=ray.put: puts.append(value.nbytes) or put(value))
    policy = Uniform()
    nbytes = sum(part.nbytes for part in policy.parts)
    with Pooled([partial(env_of, 0)] * workers, policy, sync=True, frames_per_batch=workers * COLUMNS) as collector:
        for number in range(1, 4):
            policy.become(float(number))
            collector.update_policy_weights_()
            batch = collector.next()
            assert batch["action"].unique().tolist() == [number]
            assert not batch["spread"].any()
            assert len(puts) == number
            assert nbytes <= puts[-1] < nbytes + 1_000


def test_weights_are_sent_before_each_batch_where_that_is_asked_for() -> None:
    policy = Told()
    with single(
        policy=policy, sync=True, frames_per_batch=2 * COLUMNS, update_after_each_batch=True, track_policy_version=True
    ) as collector:
        assert [int(collector.next()[VERSION].max()) for _ in range(3)] == [1, 2, 3]


LEAVES: dict[str, dict[str, Any]] = {
    "policy": {"sync": True, "frames_per_batch": 4 * COLUMNS},
    "factory": {"policy": None, "policy_factory": Whole, "sync": True, "frames_per_batch": 4 * COLUMNS},
    "class": {"collector_class": MultiSyncDataCollector, "sync": False, "frames_per_batch": 2 * COLUMNS},
}


@pytest.mark.parametrize("case", LEAVES)
def test_all_of_a_policy_reaches_the_workers_of_workers(case: str) -> None:
    """Ray -> a collector in each actor -> its processes."""
    batch = check_leaves(Pooled, collector_kwargs={"max_frames_per_traj": 5}, **LEAVES[case])
    assert batch["step_count"].max() == 4


def numbered() -> GymEnv:
    return GymEnv(Marked(int(os.environ.get("REAP_TEST_NUMBER", "5"))))


def test_options_of_each_actor() -> None:
    """A placement group for one worker, a label and a runtime environment for the other."""
    group = ray.util.placement_group([{"CPU": 2}])
    ray.get(group.ready())
    strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group)
    label = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
    configs = [
        {"num_cpus": 2, "scheduling_strategy": strategy},
        {"label_selector": label, "runtime_env": {"env_vars": {"REAP_TEST_NUMBER": "7"}}},
    ]
    options: Any = {"num_collectors": 2, "sync": True, "frames_per_batch": 2 * COLUMNS, "use_env_creator": True}
    with RayCollector(numbered, remote_configs=configs, **options) as collector:
        assert collector.next()["observation"][:, 0, 0].tolist() == [5, 7]
        assert collector.use_env_creator
        pid = pids_of(collector)[0]
        ray.util.remove_placement_group(group)  # its workers end with it
        with pytest.raises(WorkerDied, match=f"pid {pid} "):
            list(collector)


def test_an_observation_travels_once_and_a_rollout_in_one_piece() -> None:
    check_travel(Pooled)


def test_a_rollout_lands_by_one_copy() -> None:
    check_landing(Pooled)


@pytest.mark.parametrize("is_sync", [True, False], ids=["sync", "async"])
def test_workers_wait_for_a_trainer_that_takes_nothing(is_sync: bool) -> None:
    check_waiting(Pooled, is_sync)


def test_memory_grows_with_results_that_wait() -> None:
    check_slots(Pooled)


def doubled(batch: TensorDict) -> TensorDict:
    return batch.set("double", batch["action"] * 2)


def test_postproc_and_split_trajs() -> None:
    with single(postproc=doubled, split_trajs=True) as collector:
        batch = collector.next()
        assert torch.equal(batch["double"], batch["action"] * 2)
        assert batch["collector", "mask"].sum() == COLUMNS


def test_the_trainers_buffer_is_filled() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=4)
    with single(replay_buffer=buffer, total_frames=5 * COLUMNS) as collector:
        assert list(collector) == [None] * 5
    assert len(buffer) == 5 * COLUMNS
    assert (buffer[:]["observation"][:, 2] >= 0).all()


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_workers_write_to_a_ray_buffer_themselves(sync: bool) -> None:
    with RayReplayBuffer(storage=LazyTensorStorage(1000), batch_size=4, remote_config={"num_cpus": 0}) as buffer:
        frames = COLUMNS * (WORKERS if sync else 1)
        with single(sync=sync, frames_per_batch=frames, replay_buffer=buffer, total_frames=6 * frames) as collector:
            assert list(collector) == [None] * 6
            sent = sum(one.place.bytes for one in collector.stats().workers)
        assert len(buffer) == 6 * frames
        assert sent < 100_000
        written = buffer[:]
        envs = {int(number) for number in written["observation"][:, 0]}
        assert envs <= {0, 1}
        for number in envs:  # the frames of an env follow each other
            rows = written[written["observation"][:, 0] == number]
            ended = rows["next", "done"][:-1, 0]
            assert torch.equal(rows["next", "observation"][:-1, :3][~ended], rows["observation"][1:, :3][~ended])


def test_the_background_fills_a_ray_buffer() -> None:
    with RayReplayBuffer(storage=LazyTensorStorage(1000), batch_size=4, remote_config={"num_cpus": 0}) as buffer:
        with single(replay_buffer=buffer, total_frames=5 * COLUMNS) as collector:
            collector.start()
            while collector.is_running():
                with collector.pause():
                    len(buffer)
        assert len(buffer) == 5 * COLUMNS


def test_states_are_saved_and_loaded() -> None:
    with single(sync=True, frames_per_batch=2 * COLUMNS, policy=Drawing()) as collector:
        collector.set_seed(5)
        collector.next()
        state = collector.state_dict()
        expected = collector.next()[IDS].shape
    with single(sync=True, frames_per_batch=2 * COLUMNS, policy=Drawing()) as collector:
        collector.load_state_dict(state)
        assert collector.next()[IDS].shape == expected
        assert collector.stats().frames == 4 * COLUMNS


def test_two_collectors_at_once_and_ray_stays() -> None:
    with single() as one, single(sync=True, frames_per_batch=2 * COLUMNS) as other:
        for _ in range(3):
            assert (one.next().numel(), other.next().numel()) == (COLUMNS, 2 * COLUMNS)
    assert ray.is_initialized()


def test_names_of_torchrl() -> None:
    policy = Told()
    with single(policy=policy) as collector:
        assert collector.num_collectors == len(collector.remote_collectors) == WORKERS
        assert collector.local_policy is policy
        assert (collector.sync, collector.requested_frames_per_batch) == (False, COLUMNS)
        collector.stop_remote_collectors()
        assert collector.closed


def test_collectors_are_added() -> None:
    with single() as collector:
        collector.next()
        collector.add_collectors(1, partial(env_of, 7))
        assert collector.num_workers == WORKERS + 1
        while True:
            if collector.next()["observation"][0, 0] == 7:
                break


def test_collection_begins_before_all_are_there() -> None:
    with single(min_workers=1, num_collectors=2) as collector:
        found = {int(collector.next()["observation"][0, 0])}
        while len(found) < 2:
            found.add(int(collector.next()["observation"][0, 0]))


class Crashing(Marked):
    """Ends its process, or raises, in a step, once."""

    def __init__(self, number: int, how: str, flag: str) -> None:
        super().__init__(number)
        self._how, self._flag, self._steps = how, flag, 0

    def step(self, action: Any) -> Any:
        self._steps += 1
        if self._steps == 12 and not os.path.exists(self._flag):
            with open(self._flag, "w", encoding="utf-8"):
                pass
            if self._how == "raise":
                raise ValueError("on purpose")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


def crashing(how: str, flag: str) -> GymEnv:
    return GymEnv(Crashing(0, how, flag))


KINDS: dict[str, type[RayCollector]] = {"raise": Pooled, "kill": RayCollector}


@pytest.mark.parametrize("how", KINDS)
def test_a_worker_that_fails_is_replaced(how: str, tmp_path: Any) -> None:
    factory = partial(crashing, how, str(tmp_path / "flag"))
    options: Any = {"num_collectors": 1, "sync": True, "frames_per_batch": COLUMNS, "on_worker_failure": "restart"}
    with KINDS[how](factory, **options) as collector:
        with pytest.warns(RuntimeWarning, match="worker 0 is replaced"):
            batches = [collector.next() for _ in range(3)]
        assert collector.stats().restarts == 1
    assert all(batch.numel() == COLUMNS for batch in batches)


@pytest.mark.parametrize(("how", "kind"), [("raise", WorkerRaised), ("kill", WorkerDied)])
def test_failures_are_raised(how: str, kind: type[Exception], tmp_path: Any) -> None:
    factory = partial(crashing, how, str(tmp_path / "flag"))
    words = "on purpose" if how == "raise" else "Ray node"
    with KINDS[how](factory, num_collectors=1, frames_per_batch=COLUMNS) as collector, pytest.raises(kind, match=words):
        list(zip(range(3), collector, strict=False))


def test_ctrl_c_loses_nothing() -> None:
    with single(sync=True, frames_per_batch=2 * COLUMNS, policy=Told()) as collector:
        batches, tries = [], 0
        while tries < 20 or len(batches) < 3:  # on a busy machine each try may be too short
            tries += 1
            timer = threading.Timer(0.005, os.kill, [os.getpid(), signal.SIGINT])
            try:
                timer.start()  # here: on a busy machine it may ring before this returns
                batches.append(collector.next())
                timer.join()
            except KeyboardInterrupt:
                continue
    steps = torch.cat([batch["observation"][:, :, :3] for batch in batches], 1)
    for row in steps:
        same = row[1:, 1] == row[:-1, 1]
        assert torch.equal(row[1:, 2][same], row[:-1, 2][same] + 1)


def test_ctrl_c_while_actors_start(tmp_path: Path) -> None:
    point, before = Point(tmp_path), actors_alive()
    ended = watch([point.interrupts(lambda: RayCollector([partial(env_of, 0), point], frames_per_batch=COLUMNS))])
    assert have_ended(ended)
    wait_until(lambda: actors_alive() <= before, "there are more actors")  # Ray is told of their ends later


def actors_alive() -> set[str]:
    """The actors of this Ray that have not ended."""
    return {one["ActorID"] for one in ray._private.state.actors().values() if one["State"] != "DEAD"}


def locked_policy() -> nn.Module:
    module = Told()
    module.lock = threading.Lock()
    return module


BAD: list[tuple[dict[str, Any], str]] = [
    ({"remote_configs": [{}] * 3}, "remote_configs: expected a dict, or a list of 2"),
    ({"remote_configs": {"num_gpus": 1}}, "no node of the cluster offers 1 CPU, 1 GPU"),
    ({"sync": True, "min_workers": 1}, "min_workers"),
    ({"weight_sync_schemes": {"policy": SharedMemWeightSyncScheme()}}, "do not leave this machine"),
    ({"collector_kwargs": {"remote_configs": {}}}, "got 'remote_configs'; give it to .* itself$"),
    ({"num_collectors": 3}, "num_workers=3 and 2 entries"),
    ({"frame_per_batch": 3}, "Did you mean 'frames_per_batch'"),
    ({"policy": locked_policy()}, "policy_factory"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[next(iter(one[0])) for one in BAD])
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        single(RayCollector, **options)


def test_collectors_that_wait_for_all_take_no_more() -> None:
    refused = pytest.raises(OptionError, match="expected sync=False")
    with single(sync=True, frames_per_batch=2 * COLUMNS) as collector, refused:
        collector.add_collectors(1)


def test_no_weights_are_sent_with_such_a_scheme() -> None:
    policy = Told()
    with single(policy=policy, weight_sync_schemes={"policy": NoWeightSyncScheme()}) as collector:
        with torch.no_grad():
            policy.offset.fill_(9.0)
        collector.update_policy_weights_()
        for _ in range(4):
            batch = collector.next()
            assert torch.equal(batch["action"], batch["observation"][..., 2:3] / 2)
