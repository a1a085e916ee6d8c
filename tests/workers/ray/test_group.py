"""Workers in real Ray actors: what comes and goes, how they end, and that nothing stays."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reap.errors import ClosedError, OptionError, WorkerDied, WorkerRaised
from reap.workers.ray.actor import Whereabouts
from reap.workers.ray.cluster import Cluster
from reap.workers.ray.group import RayGroup, ray_group
from tests.machine import of_another_version
from tests.workers.handlers import Doer, Harmless, ask, descriptors, have_ended, watch
from tests.workers.ray.local import _nothing_left_running, local_ray, on_ray  # noqa: F401  fixtures
from tests.workers.ray.pool import PooledCluster

ray = pytest.importorskip("ray")

pytestmark = on_ray()

MakeGroup = Callable[..., RayGroup]
LARGE = 3_000_000


@pytest.fixture
def make_group() -> Iterator[MakeGroup]:
    made: list[RayGroup] = []

    def make(*arguments: Any, cluster: Cluster | None = None, **options: Any) -> RayGroup:
        made.append(ray_group(*arguments, cluster=cluster or PooledCluster("test"), **options))
        return made[-1]

    yield make
    for group in made:
        group.stop()


@pytest.fixture
def group(make_group: MakeGroup) -> RayGroup:
    return make_group([Doer] * 2)


@pytest.fixture
def mortal(make_group: MakeGroup) -> RayGroup:
    """Its actors are not used again: they die."""
    return make_group([Doer] * 2, cluster=Cluster("test"), on_failure="report")


def pid_of(doer: Doer) -> int:
    return os.getpid()


def pause(doer: Doer) -> None:
    """Longer than any test."""
    time.sleep(600)


def until_told(doer: Doer) -> str:
    """A rollout that is asked to end with a column."""
    while not doer.control[2]:
        time.sleep(0.005)
    return "told"


def fail(doer: Doer) -> None:
    raise KeyError("no such key")


def ones(doer: Doer) -> np.ndarray:
    return np.ones(LARGE, np.uint8)


def kept(doer: Doer) -> Any:
    return doer.kept


class Keep:
    """A command that can be posted: large, and the worker keeps the first number of what it got."""

    def __init__(self, number: int) -> None:
        self.numbers = np.full(LARGE, number, np.uint8)

    def __call__(self, doer: Doer) -> None:
        doer.kept = int(self.numbers[0]), self.numbers.flags.writeable, int((doer.kept or (0, 0, 0))[2]) + 1


class OtherKind(Keep):
    """Of another type."""

    def __call__(self, doer: Doer) -> None:
        doer.kept = "other"


def test_commands_are_answered_in_order(group: RayGroup) -> None:
    for number in range(5):
        group.request(0, ("add", number, 1))
    assert [group.ready([0])[1] for _ in range(5)] == [1, 2, 3, 4, 5]
    assert ask(group, 1, ("mul", 6, 7)) == 42


def test_large_replies_are_mapped_and_not_to_be_written(group: RayGroup) -> None:
    reply = ask(group, 0, ones)
    assert (reply.sum(), reply.flags.writeable) == (LARGE, False)
    facts = group.facts(0)
    assert facts.bytes >= LARGE
    assert facts.transfer_seconds > 0
    assert (facts.host, len(facts.node)) == (Whereabouts.here("").host, 56)


def test_a_command_sees_what_was_posted_before(group: RayGroup) -> None:
    for number in range(1, 20):
        group.post(0, Keep(number))
        assert ask(group, 0, kept)[:2] == (number, False)


def test_the_latest_post_wins_where_a_worker_is_busy(group: RayGroup) -> None:
    ask(group, 0, kept)
    group.request(0, until_told)
    for number in range(1, 31):
        group.post(0, Keep(number))
    group.request(0, kept)
    group.stop_early(0)
    assert group.ready([0])[1] == "told"
    number, _, handled = group.ready([0])[1]
    assert number == 30
    assert handled < 30


def test_posts_of_other_types_are_not_replaced(group: RayGroup) -> None:
    group.post(0, Keep(1))
    group.post(0, OtherKind(2))
    assert ask(group, 0, kept) == "other"


def test_posts_of_the_same_memory_are_put_once(group: RayGroup) -> None:
    post = Keep(3)
    for worker in range(2):
        group.post(worker, post)
        ask(group, worker, kept)
    objects = {one.reference for line in group.carrier.lines.values() for own in line._latest.values() for one in own.objects}
    assert len(objects) == 1


def test_a_wish_ends_a_command(group: RayGroup) -> None:
    group.request(1, until_told)
    group.stop_early(1)
    assert group.ready([1]) == (1, "told")
    group.clear(1)
    assert ask(group, 1, lambda doer: doer.control[2]) == 0


def test_harmless_exceptions_end_nothing(group: RayGroup) -> None:
    with pytest.raises(WorkerRaised, match="ZeroDivisionError"):
        ask(group, 0, Harmless(0))
    assert ask(group, 0, Harmless(2)) == 0.5


def test_exceptions_come_with_their_traceback(make_group: MakeGroup) -> None:
    group = make_group([Doer], on_failure="report")
    with pytest.raises(WorkerRaised, match="no such key") as caught:
        ask(group, 0, fail)
    assert "def fail" not in caught.value.traceback
    assert "in fail" in caught.value.traceback
    assert isinstance(caught.value.error, KeyError)


def test_a_killed_actor_is_reported_in_a_command_and_idle(mortal: RayGroup) -> None:
    pids = [ask(mortal, worker, pid_of) for worker in range(2)]
    mortal.request(0, pause)
    os.kill(pids[0], signal.SIGKILL)
    with pytest.raises(WorkerDied, match=rf"(?s)Worker 0 was lost.*pid {pids[0]} on .*Ray node \w+: ActorDiedError"):
        mortal.ready([0])
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(WorkerDied, match="Worker 1 was lost"):
        ask(mortal, 1, pid_of)
    mortal.replace(0, Doer)
    assert ask(mortal, 0, pid_of) not in pids


class Telling:
    """`until_told`, which says that it has begun: a worker that leaves before takes no command any more."""

    def __init__(self, fifo: Path) -> None:
        self.fifo = str(fifo)
        os.mkfifo(fifo)

    def __call__(self, doer: Doer) -> str:
        with open(self.fifo, "w") as begun:
            begun.write(".")
        return until_told(doer)


def test_sigterm_lets_a_worker_finish_what_it_is_at(mortal: RayGroup, tmp_path: Path) -> None:
    pids = [ask(mortal, worker, pid_of) for worker in range(2)]
    telling = Telling(tmp_path / "begun")
    mortal.request(0, telling)
    assert Path(telling.fifo).read_text() == "."
    os.kill(pids[0], signal.SIGTERM)
    assert mortal.ready([0]) == (0, "told")
    with pytest.raises(WorkerDied, match="told to leave"):
        ask(mortal, 0, pid_of)
    os.kill(pids[1], signal.SIGTERM)
    with pytest.raises(WorkerDied, match="told to leave"):
        ask(mortal, 1, pause)
    ended = watch(pids)
    mortal.stop()
    assert have_ended(ended)


def wait_and_be_interrupted(group: RayGroup) -> None:
    threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()  # here: on a busy machine it may come at once
    group.ready([0])


def test_ctrl_c_ends_a_wait_and_the_reply_comes_later(group: RayGroup) -> None:
    group.request(0, until_told)
    with pytest.raises(KeyboardInterrupt):
        wait_and_be_interrupted(group)
    group.stop_early(0)
    assert group.ready([0]) == (0, "told")


def test_stop_ends_all_processes_and_gives_descriptors_back(make_group: MakeGroup) -> None:
    make_group([Doer], cluster=Cluster("test")).stop()  # what Ray opens once
    before, threads = len(descriptors()), threading.active_count()
    group = make_group([Doer] * 2, cluster=Cluster("test"))
    ended = watch([ask(group, worker, pid_of) for worker in range(2)])
    group.request(0, pause)
    group.stop(0.1)
    assert have_ended(ended)
    assert threading.active_count() == threads
    assert len(descriptors()) <= before + 2  # connections that Ray keeps for later
    with pytest.raises(ClosedError):
        group.request(0, pause)


def test_a_group_that_is_dropped_is_stopped(make_group: MakeGroup) -> None:
    group = ray_group([Doer], cluster=Cluster("test"))
    ended = watch([ask(group, 0, pid_of)])
    del group
    assert have_ended(ended)


def test_workers_are_added(group: RayGroup) -> None:
    assert group.add([Doer]) == [2]
    assert ask(group, 2, ("add", 1, 1)) == 2


def test_gpus_are_hidden_from_those_who_get_none(group: RayGroup) -> None:
    assert ask(group, 0, lambda doer: os.environ["CUDA_VISIBLE_DEVICES"]) == ""


IMPOSSIBLE = [
    ({"num_gpus": 1}, "no node of the cluster offers 1 CPU, 1 GPU, which one worker asks for; nodes offer 16 CPU, "),
    ({"resources": {"tpu-pod": 2}}, "no node of the cluster offers 1 CPU, 2 tpu-pod"),
    ({"num_cpus": 10}, "2 workers ask for 10 CPU each, and there is room for 1; nodes offer 16 CPU"),
    ({"num_cpus": "one"}, "remote_configs: The type of keyword 'num_cpus'"),
    ({"cpus": 1}, "remote_configs: Invalid option keyword cpus"),
    ({"max_restarts": 3}, 'max_restarts=3 is not for workers: .*on_worker_failure="restart"'),
    ({"lifetime": "detached"}, "workers end with their collector"),
]


@pytest.mark.parametrize(("options", "message"), IMPOSSIBLE, ids=[str(one[0]) for one in IMPOSSIBLE])
def test_what_cannot_be_is_said_at_once(options: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        ray_group([Doer] * 2, cluster=Cluster("test"), options=[options])


def test_descriptors_are_refused(group: RayGroup) -> None:
    with pytest.raises(OptionError, match="descriptors do not travel"):
        group.request(0, pause, [0])


def test_modules_that_are_missing_on_a_node_show_the_remedy(make_group: MakeGroup) -> None:
    with pytest.raises(WorkerRaised, match="No module named 'nowhere_to_be_found'") as caught:
        ask(make_group([Doer], cluster=Cluster("test"), setup=[Missing()]), 0, kept)
    assert "runtime_env" in "".join(caught.value.error.__notes__)


class Missing:
    """Cannot be loaded where it arrives."""

    def __reduce__(self) -> Any:
        return __import__, ("nowhere_to_be_found",)


def test_a_worker_with_other_versions(make_group: MakeGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    of_another_version(monkeypatch)
    with pytest.raises(WorkerRaised, match=r"a worker on .*, Ray node .*, has other versions: reap 0\.0\.1 here, ") as caught:
        ask(make_group([Doer]), 0, kept)
    assert isinstance(caught.value.error, OptionError)
