"""Weight sync schemes: alone between processes, in the right order only, and as what a collector sends weights with."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest
import torch
from tensordict import TensorDict
from torch import nn

from reap.errors import CallOrderError, ClosedError, OptionError, SpecMismatch
from reap.weight_update import (
    MultiProcessWeightSyncScheme,
    NoWeightSyncScheme,
    SharedMemWeightSyncScheme,
    WeightSyncScheme,
)
from reap.weights.weight_layout import describe
from tests import warm
from tests.pairwise import by_default
from tests.weights.receivers import net, serve, values

SENDING = [SharedMemWeightSyncScheme, MultiProcessWeightSyncScheme]
ALL = [*SENDING, NoWeightSyncScheme]
LIMIT = 100

Make = Callable[..., tuple[WeightSyncScheme, list[WeightSyncScheme]]]


@pytest.fixture
def ends() -> Iterator[Make]:
    """A sender and its receivers, all in this process; they are shut down at the end."""
    made: list[WeightSyncScheme] = []

    def make(kind: type[WeightSyncScheme], workers: int = 1, **options: Any) -> tuple[Any, list[Any]]:
        sender = kind()
        sender.init_on_sender(**(options or {"model": net(1.0), "num_workers": workers}))
        receivers = [pickle.loads(pickle.dumps(sender)) for _ in range(workers)]
        for worker, receiver in enumerate(receivers):
            receiver.attach([os.dup(fd) for fd in sender.descriptors(worker)], worker)
        made.extend((sender, *receivers))
        return sender, receivers

    yield make
    for scheme in made:
        scheme.shutdown()


# ---------------------------------------------------------------------- between processes


def reply(connection: Any) -> Any:
    assert connection.poll(LIMIT), "no answer"
    return connection.recv()


def ask(connection: Any, timeout: float | None = None) -> Any:
    connection.send(timeout)
    return reply(connection)


@pytest.mark.parametrize("kind", SENDING)
@pytest.mark.parametrize("method", ["forkserver", pytest.param("spawn", marks=pytest.mark.processes)])
def test_two_receivers_in_processes_of_their_own(kind: type[WeightSyncScheme], method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    policy, scheme = net(1.0), kind()
    scheme.init_on_sender(model_id="policy", model=policy, num_workers=2)
    pairs = [context.Pipe() for _ in range(2)]
    processes = [context.Process(target=serve, args=(scheme, i, child), daemon=True) for i, (_, child) in enumerate(pairs)]
    try:
        for process in processes:
            process.start()
        first, second = (parent for parent, _ in pairs)
        for connection in (first, second):
            assert reply(connection) == "connecting"
        assert not first.poll(0.1), "it waits for the first weights"
        scheme.connect()
        assert [reply(first), reply(second)] == [[1.0], [1.0]]
        assert [ask(first), ask(second)] == [(False, [1.0])] * 2

        for value in (2.0, 3.0, 4.0):
            scheme.send(net(value))
        assert [ask(first), ask(first)] == [(True, [4.0]), (False, [4.0])], "the latest, once"
        scheme.send(net(5.0).state_dict(), worker_ids=0)
        assert [ask(first), ask(second)] == [(True, [5.0]), (True, [4.0])]
        assert ask(second) == (False, [4.0])

        assert ask(second, timeout=LIMIT) == "waiting"
        scheme.send(TensorDict.from_module(net(6.0)), worker_ids=[1])
        assert reply(second) == (True, [6.0])
        policy[0].weight.data.fill_(7.0)
        scheme.send()
        assert ask(first) == (True, [1.0, 7.0])

        scheme.shutdown()
        assert ask(second) == (True, [1.0, 7.0]), "what was sent arrives all the same"
        gone = "ClosedError: the sender of these weights has shut down, or is gone"
        assert [ask(first), ask(second)] == [gone] * 2
        for parent, _ in pairs:
            parent.send("stop")
        for process in processes:
            process.join(LIMIT)
            assert process.exitcode == 0
    finally:
        scheme.shutdown()
        for process in processes:
            process.kill()
            process.join()
        for parent, child in pairs:
            parent.close()
            child.close()


FORK = """
import multiprocessing, sys
import reap.weight_update
from tests.weights.receivers import net, serve

scheme = getattr(reap.weight_update, sys.argv[1])()
scheme.init_on_sender(model=net(1.0), num_workers=2)
scheme.connect()
context = multiprocessing.get_context("fork")
for worker in range(2):
    parent, child = context.Pipe()
    process = context.Process(target=serve, args=(scheme, worker, child), daemon=True)
    process.start()
    assert (parent.recv(), parent.recv()) == ("connecting", [1.0])
    for value in (2.0, 3.0):
        scheme.send(net(value))
    parent.send(None)
    print(parent.recv(), flush=True)
    parent.send("stop")
    process.join(100)
    print(process.exitcode, flush=True)
    scheme.send(net(1.0))
scheme.shutdown()
"""


@pytest.mark.processes
@pytest.mark.parametrize("kind", SENDING)
def test_a_forked_child_becomes_a_receiver(kind: type) -> None:
    assert warm.run(FORK, kind.__name__, timeout=180) == (0, "(True, [3.0])\n0\n" * 2, "")


@pytest.mark.parametrize("kind", ALL)
def test_descriptors_that_another_launcher_carries(kind: type[WeightSyncScheme], ends: Make) -> None:
    sender, (first, second) = ends(kind, workers=2)
    assert len(sender.descriptors()) == 2 * len(sender.descriptors(0))
    sender.connect()
    model = net(0.0)
    second.init_on_receiver(model=model)
    second.connect()
    first.init_on_receiver(model=net(0.0), worker_idx=0)
    first.connect(worker_idx=0)
    assert (first.worker_idx, second.worker_idx) == (0, 1)
    sender.send(net(3.0))
    got = second.receive()
    if kind is NoWeightSyncScheme:
        assert (got, values(model)) == (None, [0.0])
        return
    assert got["0", "weight"].tolist() == [[3.0] * 2] * 3
    assert got["0", "weight"].data_ptr() == model[0].weight.data_ptr()
    assert not got["0", "weight"].requires_grad
    assert values(model) == [3.0]


@pytest.mark.parametrize("kind", ALL)
def test_a_pickle_of_cloudpickle_has_no_descriptors(kind: type[WeightSyncScheme], ends: Make) -> None:
    sender, _ = ends(kind)
    copy = cloudpickle.loads(cloudpickle.dumps(sender))
    assert (copy.strategy, copy.model_id, copy.model) == ("tensordict", "policy", None)
    assert not copy.initialized_on_sender
    copy.init_on_receiver(model=net(0.0))
    if kind is NoWeightSyncScheme:
        copy.connect()
        return
    with pytest.raises(CallOrderError, match="connect: there is no way to the sender: call init_on_sender there before"):
        copy.connect()


class Named(SharedMemWeightSyncScheme):
    """A scheme with an attribute of its own."""

    def __init__(self, name: str) -> None:
        super().__init__(strategy="state_dict")
        self.name = name


def test_a_scheme_of_ones_own_travels_with_what_it_has() -> None:
    copy = pickle.loads(pickle.dumps(Named("mine")))
    assert (type(copy), copy.name, copy.strategy) == (Named, "mine", "state_dict")


@pytest.mark.parametrize("kind", SENDING)
def test_weights_arrive_while_a_receiver_waits_for_the_first(kind: type[WeightSyncScheme], ends: Make) -> None:
    sender, (receiver,) = ends(kind)
    model = net(0.0)
    receiver.init_on_receiver(model=model)
    thread = threading.Thread(target=receiver.connect, daemon=True)
    thread.start()
    sender.connect(weights=net(8.0).state_dict())
    thread.join(LIMIT)
    assert (thread.is_alive(), values(model)) == (False, [8.0])
    assert receiver.receive(timeout=0.01) is None


@pytest.mark.parametrize("kind", SENDING)
def test_a_sender_that_ends_before_it_has_sent(kind: type[WeightSyncScheme], ends: Make) -> None:
    sender, (receiver,) = ends(kind)
    receiver.init_on_receiver(model=net(0.0))
    sender.shutdown()
    with pytest.raises(ClosedError, match="the sender of these weights has shut down, or is gone"):
        receiver.connect()


# ---------------------------------------------------------------------- what is sent, and to whom


@pytest.mark.parametrize("kind", SENDING)
@pytest.mark.parametrize(
    ("options", "workers"),
    [
        ({"model": net(1.0)}, 1),
        ({"weights": net(1.0).state_dict(), "num_workers": 2}, 2),
        ({"weights": TensorDict.from_module(net(1.0)), "devices": ["cpu", "cpu", "cpu"]}, 3),
        ({"context": SimpleNamespace(policy=net(1.0), num_workers=2), "model_id": "mine"}, 2),
    ],
)
def test_where_weights_come_from(kind: type[WeightSyncScheme], ends: Make, options: Any, workers: int) -> None:
    sender, receivers = ends(kind, workers, **options)
    sender.connect()
    for receiver in receivers:
        model = net(0.0)
        receiver.init_on_receiver(context=SimpleNamespace(policy=model), model_id="mine")
        receiver.connect()
        assert values(model) == [1.0]
    assert len(sender.descriptors()) == workers * len(sender.descriptors(0))


@pytest.mark.parametrize("kind", SENDING)
def test_receivers_of_different_shapes(kind: type[WeightSyncScheme], ends: Make) -> None:
    sender, receivers = ends(kind, 2, params_map={0: net(1.0, width=3), 1: net(2.0, width=5)})
    sender.connect()
    models = [net(0.0, width=3), net(0.0, width=5)]
    for model, receiver in zip(models, receivers, strict=True):
        receiver.init_on_receiver(model=model)
        receiver.connect()
    assert [values(model) for model in models] == [[1.0], [2.0]]
    sender.send(net(4.0, width=5), worker_ids=1)
    for receiver in receivers:
        receiver.receive()
    assert [values(model) for model in models] == [[1.0], [4.0]]
    with pytest.raises(OptionError, match="weights: expected a module, a TensorDict or a state dict, got None"):
        sender.send()


@pytest.mark.parametrize("kind", SENDING)
def test_what_does_not_fit_is_not_sent(kind: type[WeightSyncScheme], ends: Make) -> None:
    sender, (receiver,) = ends(kind)
    sender.connect()
    model = net(0.0)
    receiver.init_on_receiver(model=model)
    receiver.connect()
    with pytest.raises(SpecMismatch, match="0.weight: expected shape"):
        sender.send(net(2.0, width=4))
    with pytest.raises(OptionError, match=r"worker_ids: expected some of \[0\], got \[1\]"):
        sender.send(net(2.0), worker_ids=1)
    assert (receiver.receive(), values(model)) == (None, [1.0])


@pytest.mark.parametrize("kind", SENDING)
def test_a_model_that_does_not_fit_what_is_sent(kind: type[WeightSyncScheme], ends: Make) -> None:
    sender, (receiver,) = ends(kind)
    sender.connect()
    model = net(0.0, width=4)
    receiver.init_on_receiver(model=model)
    with pytest.raises(SpecMismatch, match=r"0.weight: expected shape \(4, 2\), found \(3, 2\)"):
        receiver.connect()
    assert values(model) == [0.0]


@pytest.mark.parametrize("kind", ALL)
def test_the_senders_module_stays_as_it_is(kind: type[WeightSyncScheme], ends: Make) -> None:
    def state() -> list[Any]:
        tensors = {**dict(policy.named_parameters()), **dict(policy.named_buffers())}
        return [(n, id(t), t.data_ptr(), t.is_shared(), t.requires_grad, t._version, t.tolist()) for n, t in tensors.items()]

    policy = net(1.0)
    before = state()
    sender, _ = ends(kind, model=policy)
    sender.connect()
    sender.send()
    sender.shutdown()
    assert state() == before
    assert not any(row[3] for row in before)


def test_nothing_is_ever_sent(ends: Make) -> None:
    sender, (receiver,) = ends(NoWeightSyncScheme, model=net(1.0), model_id="mine")
    model = net(0.0)
    receiver.init_on_receiver(model=model)
    receiver.connect()
    assert values(model) == [0.0], "nobody waits for the first weights"
    sender.connect()
    sender.send()
    sender.send("not even weights")
    assert (receiver.receive(), receiver.receive(timeout=5.0), values(model)) == (None, None, [0.0])
    assert isinstance(sender.model, nn.Module)


# ---------------------------------------------------------------------- misuse


def new(kind: Any, make: Any) -> Any:
    return kind()


def sender(kind: Any, make: Any) -> Any:
    return make(kind)[0]


def connected_sender(kind: Any, make: Any) -> Any:
    scheme = make(kind)[0]
    scheme.connect()
    return scheme


def receiver(kind: Any, make: Any) -> Any:
    scheme = make(kind)[1][0]
    scheme.init_on_receiver(model=net(0.0))
    return scheme


def connected_receiver(kind: Any, make: Any) -> Any:
    source, (scheme,) = make(kind)
    source.connect()
    scheme.init_on_receiver(model=net(0.0))
    scheme.connect()
    return scheme


CALLS = {
    "init_on_sender": lambda scheme: scheme.init_on_sender(model=net(1.0)),
    "init_on_receiver": lambda scheme: scheme.init_on_receiver(model=net(1.0)),
    "connect": lambda scheme: scheme.connect(),
    "send": lambda scheme: scheme.send(),
    "receive": lambda scheme: scheme.receive(),
    "descriptors": lambda scheme: scheme.descriptors(),
    "attach": lambda scheme: scheme.attach([]),
}
NEW, SENDER, CONNECTED = "a scheme that is not initialised", "a sender before connect()", "a connected sender"
RECEIVER, LISTENING = "a receiver before connect()", "a connected receiver"
MISUSE = [
    (new, NEW, "connect", f"{SENDER} or {RECEIVER}"),
    (new, NEW, "send", CONNECTED),
    (new, NEW, "receive", LISTENING),
    (new, NEW, "descriptors", f"{SENDER} or {CONNECTED}"),
    (sender, SENDER, "init_on_sender", NEW),
    (sender, SENDER, "init_on_receiver", NEW),
    (sender, SENDER, "send", CONNECTED),
    (sender, SENDER, "receive", LISTENING),
    (sender, SENDER, "attach", NEW),
    (connected_sender, CONNECTED, "connect", f"{SENDER} or {RECEIVER}"),
    (connected_sender, CONNECTED, "receive", LISTENING),
    (receiver, RECEIVER, "send", CONNECTED),
    (receiver, RECEIVER, "receive", LISTENING),
    (receiver, RECEIVER, "init_on_sender", NEW),
    (connected_receiver, LISTENING, "send", CONNECTED),
    (connected_receiver, LISTENING, "connect", f"{SENDER} or {RECEIVER}"),
    (connected_receiver, LISTENING, "descriptors", f"{SENDER} or {CONNECTED}"),
]


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize(("state", "found", "call", "expected"), MISUSE)
def test_calls_in_the_wrong_order(kind: Any, ends: Make, state: Any, found: str, call: str, expected: str) -> None:
    scheme = state(kind, ends)
    with pytest.raises(CallOrderError) as caught:
        CALLS[call](scheme)
    assert str(caught.value) == f"{kind.__name__}.{call}: expected {expected}, found {found}"


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("state", [new, sender, connected_sender, receiver, connected_receiver])
def test_calls_after_shutdown(kind: Any, ends: Make, state: Any) -> None:
    scheme = state(kind, ends)
    scheme.shutdown()
    scheme.shutdown()
    for name, call in CALLS.items():
        with pytest.raises(ClosedError) as caught:
            call(scheme)
        assert str(caught.value) == f"{kind.__name__}.{name}: this scheme is shut down"


@pytest.mark.parametrize("kind", SENDING)
def test_options_that_cannot_work(kind: Any, ends: Make) -> None:
    with pytest.raises(OptionError, match=r"strategy: expected one of \['tensordict', 'state_dict'\], got 'td'"):
        kind(strategy="td")
    with pytest.raises(OptionError, match="init_on_sender: expected a model, weights, a params_map or a context"):
        kind().init_on_sender()
    with pytest.raises(OptionError, match="weight has no shape yet"):
        kind().init_on_sender(model=nn.LazyLinear(1))
    with pytest.raises(OptionError, match="init_on_receiver: expected a model, or a context with a policy"):
        kind().init_on_receiver()
    source = sender(kind, ends)
    copy = pickle.loads(pickle.dumps(source))
    with pytest.raises(OptionError, match="attach: expected the descriptors of 1 receivers, got 0 descriptors"):
        copy.attach([])
    copy.attach([os.dup(fd) for fd in source.descriptors()])
    copy.init_on_receiver(model=net(0.0))
    with pytest.raises(OptionError, match=r"worker_idx: expected one of \[0\], got 3"):
        copy.connect(worker_idx=3)
    copy.shutdown()


@pytest.mark.parametrize("kind", by_default(ALL, SharedMemWeightSyncScheme))
def test_nothing_is_left_of_schemes_that_are_dropped(kind: Any) -> None:
    def use() -> None:
        source = kind()
        source.init_on_sender(model=net(1.0), num_workers=2)
        source.connect()
        source.send()
        for _ in range(2):
            copy = pickle.loads(pickle.dumps(source))
            copy.attach([os.dup(fd) for fd in source.descriptors()])
        copy.init_on_receiver(model=net(0.0), worker_idx=1)
        copy.connect()

    use()
    gc.collect()
    before, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    use()
    gc.collect()
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == (before, threads)


# ---------------------------------------------------------------------- in a collector


@pytest.mark.parametrize("kind", SENDING)
def test_what_a_collector_builds_from_a_scheme(kind: Any) -> None:
    policy, copies = net(1.0), [net(0.0), net(0.0)]
    scheme = kind()
    boxes = {worker: scheme.mailbox.for_weights(describe(copy)) for worker, copy in enumerate(copies)}
    updater = scheme.updater(policy, boxes)
    others = [scheme.mailbox.attach(describe(copies[i]), *map(os.dup, box.descriptors())) for i, box in boxes.items()]
    owner = SimpleNamespace(policy_version=9)
    collector = torch.nn.Module()  # anything that can be referred to weakly
    collector.policy_version = owner.policy_version
    updater.register_collector(collector)
    updater.push_weights(worker_ids=[1])
    assert [other.read_into(copy, 0) for other, copy in zip(others, copies, strict=True)] == [0, 10]
    assert [values(copy) for copy in copies] == [[0.0], [1.0]]
    updater.mailboxes[1] = boxes[1].renewed()
    successor = scheme.mailbox.attach(describe(copies[0]), *map(os.dup, updater.mailboxes[1].descriptors()))
    assert (successor.read_into(copies[0], 0), values(copies[0])) == (10, [1.0])
    for box in (*updater.mailboxes.values(), *others, successor):
        box.close()


def test_a_collector_that_sends_nothing() -> None:
    scheme, log = NoWeightSyncScheme(), []
    updater = scheme.updater(None, {0: scheme.mailbox.for_weights(describe(net(0.0)))})
    updater.register_post_hook(lambda: log.append("pushed"))
    updater.push_weights()
    updater.push_weights(net(1.0), worker_ids=0)
    assert (log, updater.all_worker_ids()) == (["pushed", "pushed"], [0])
    with pytest.raises(OptionError, match="worker_ids"):
        updater.push_weights(worker_ids=2)
