"""Schemes over engines: alone between processes, in the right order only, and as options of collectors."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from reap import MultiSyncDataCollector
from reap.collectors.distributed import DistributedDataCollector, RPCDataCollector
from reap.errors import CallOrderError, ClosedError, OptionError, SpecMismatch
from reap.weight_update import DistributedWeightSyncScheme, RPCWeightSyncScheme
from tests.collectors.distributed.policies import Chooser
from tests.weights.receivers import net, serve
from tests.workers.rpc.agents import has_agent

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]

KINDS: list[Any] = [RPCWeightSyncScheme, DistributedWeightSyncScheme]
LIMIT = 60


class Receiver:
    """A receiver in a process of its own."""

    def __init__(self, scheme: Any, worker: int) -> None:
        context = multiprocessing.get_context("forkserver")
        self.connection, child = context.Pipe()
        self.process = context.Process(target=serve, args=(scheme, worker, child), daemon=True)
        self.process.start()

    def reply(self) -> Any:
        assert self.connection.poll(LIMIT), "no answer"
        return self.connection.recv()

    def ask(self, timeout: float | None = None) -> Any:
        self.connection.send(timeout)
        return self.reply()

    def end(self) -> None:
        if self.process.is_alive():
            self.connection.send("stop")
        self.process.join(LIMIT)
        assert not self.process.is_alive()


@pytest.fixture
def receiver() -> Iterator[Callable[..., Receiver]]:
    made: list[Receiver] = []

    def make(scheme: Any, worker: int = 0) -> Receiver:
        made.append(Receiver(scheme, worker))
        return made[-1]

    yield make
    for one in made:
        one.process.kill()
        one.process.join()


def until(receiver: Receiver, expected: list[float]) -> None:
    """Receive until the model has these values."""
    while True:
        receiver.connection.send(10.0)
        assert receiver.reply() == "waiting"
        found = receiver.reply()
        assert found[0] is True
        if found[1] == expected:
            return


@pytest.mark.parametrize("kind", KINDS)
def test_two_receivers(kind: Any, receiver: Callable[..., Receiver]) -> None:
    policy, scheme = net(1.0), kind()
    scheme.init_on_sender(model=policy, num_workers=2)
    first, second = (receiver(scheme, worker) for worker in range(2))
    assert [one.reply() for one in (first, second)] == ["connecting"] * 2
    scheme.connect()
    assert [one.reply() for one in (first, second)] == [[1.0], [1.0]]
    assert first.ask() == (False, [1.0])
    scheme.send(net(2.0))
    until(first, [2.0])
    scheme.send(net(3.0), worker_ids=1)
    until(second, [3.0])
    assert first.ask() == (False, [2.0])
    for one in (first, second):
        one.end()
    scheme.shutdown()
    assert not has_agent()


@pytest.mark.parametrize("kind", KINDS)
def test_the_latest_wins_and_nobody_waits(kind: Any, receiver: Callable[..., Receiver]) -> None:
    scheme = kind()
    scheme.init_on_sender(model=net(1.0))
    scheme.connect()
    for number in range(2, 200):  # the receiver is not there yet
        scheme.send(net(float(number)))
    other = receiver(scheme)
    assert other.reply() == "connecting"
    assert other.reply() == [199.0]
    for number in range(200, 300):
        scheme.send(net(float(number)))
    until(other, [299.0])
    other.end()
    scheme.shutdown()


@pytest.mark.parametrize("kind", KINDS)
def test_a_receiver_is_told_of_the_senders_end(kind: Any, receiver: Callable[..., Receiver]) -> None:
    scheme = kind()
    scheme.init_on_sender(model=net(1.0))
    scheme.connect()
    other = receiver(scheme)
    assert [other.reply(), other.reply()] == ["connecting", [1.0]]
    other.connection.send(30.0)
    assert other.reply() == "waiting"
    scheme.shutdown()
    assert other.reply() == "ClosedError: the sender of these weights has shut down, or is gone"
    assert other.ask() == other.ask()
    other.end()


@pytest.mark.parametrize("kind", KINDS)
def test_a_receiver_that_is_killed_is_nobodys_concern(kind: Any, receiver: Callable[..., Receiver]) -> None:
    scheme = kind()
    scheme.init_on_sender(model=net(1.0), num_workers=2)
    scheme.connect()
    first, second = (receiver(scheme, worker) for worker in range(2))
    assert [one.reply() for one in (first, second, first, second)] == ["connecting", "connecting", [1.0], [1.0]]
    assert first.process.pid
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.join()
    for number in range(2, 20):
        scheme.send(net(float(number)))
    until(second, [19.0])
    second.end()
    scheme.shutdown()


@pytest.mark.parametrize("kind", KINDS)
def test_what_does_not_fit_is_not_sent(kind: Any, receiver: Callable[..., Receiver]) -> None:
    scheme = kind()
    scheme.init_on_sender(model=net(1.0))
    scheme.connect()
    other = receiver(scheme)
    assert [other.reply(), other.reply()] == ["connecting", [1.0]]
    with pytest.raises(SpecMismatch, match=r"0\.weight"):
        scheme.send(net(2.0, width=4))
    assert other.ask(0.2) == "waiting"
    assert other.reply() == (False, [1.0])
    other.end()
    scheme.shutdown()


@pytest.mark.parametrize("kind", KINDS)
def test_an_update_returns_before_it_has_arrived(kind: Any) -> None:
    model = torch.nn.Linear(2000, 5000)  # 40 MB
    scheme = kind()
    scheme.init_on_sender(model=model)
    scheme.connect()
    receiver = pickle.loads(pickle.dumps(scheme))
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        scheme.send()
        times.append(time.perf_counter() - begun)
    assert min(times) < 1.0
    assert not receiver.initialized_on_sender
    scheme.shutdown()


@pytest.mark.parametrize("kind", KINDS)
def test_calls_in_the_wrong_order(kind: Any) -> None:
    scheme = kind()
    with pytest.raises(CallOrderError):
        scheme.send()
    unsent = kind()
    unsent.init_on_receiver(model=net(0.0))
    with pytest.raises(CallOrderError, match="call init_on_sender there before the scheme is pickled"):
        unsent.connect()
    scheme.init_on_sender(model=net(1.0), num_workers=2)
    other = pickle.loads(pickle.dumps(scheme))
    other.init_on_receiver(model=net(0.0))
    with pytest.raises(OptionError, match=r"worker_idx: expected one of \[0, 1\], got None"):
        other.connect()
    wide = pickle.loads(pickle.dumps(scheme))
    wide.init_on_receiver(model=net(0.0, width=4), worker_idx=0)
    with pytest.raises(SpecMismatch):
        wide.connect()
    scheme.shutdown()
    with pytest.raises(ClosedError):
        scheme.send()


def test_a_fork_is_refused() -> None:
    scheme = RPCWeightSyncScheme()
    scheme.init_on_sender(model=net(1.0))
    if not (child := os.fork()):
        try:
            scheme.init_on_receiver(model=net(0.0))
        except OptionError:
            os._exit(5)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    scheme.shutdown()


def test_backends() -> None:
    with pytest.raises(OptionError, match="backend"):
        DistributedWeightSyncScheme(backend="nccl")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("collector_class", [MultiSyncDataCollector, RPCDataCollector, DistributedDataCollector])
def test_in_a_collector(kind: Any, collector_class: Any) -> None:
    policy = Chooser()
    options: dict[str, Any] = {} if collector_class is MultiSyncDataCollector else {"sync": True}
    with collector_class(
        ["CartPole-v1"] * 2,
        policy,
        frames_per_batch=20,
        track_policy_version=True,
        weight_sync_schemes={"policy": kind()},
        **options,
    ) as collector:
        assert collector.next()["collector", "policy_version"].unique().tolist() == [0]
        with torch.no_grad():
            policy.scores.bias.copy_(torch.tensor([0.0, 1e6]))
        collector.update_policy_weights_()
        batch = collector.next()
        assert batch["collector", "policy_version"].unique().tolist() == [1]
        assert (batch["action"].argmax(-1) == 1).all()


def test_threads_end() -> None:
    before = set(threading.enumerate())
    for kind in KINDS:
        scheme = kind()
        scheme.init_on_sender(model=net(1.0), num_workers=3)
        scheme.connect()
        scheme.shutdown()
        scheme.shutdown()
    assert set(threading.enumerate()) == before
