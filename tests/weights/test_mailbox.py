"""Weight mailboxes: every kind of weight arrives bit by bit, and whole, whoever is killed while doing what."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from reap.errors import ClosedError, OptionError, SpecMismatch
from reap.system.locks import ProcessLock
from reap.weights import half as stored
from reap.weights.base import load_weights
from reap.weights.mailbox import WeightMailbox, describe
from reap.weights.messages import MessageMailbox
from tests.pairwise import pairwise
from tests.warm import Program

LIMIT = 100
"""Seconds that another process has for what it does."""


def pair(policy: nn.Module) -> tuple[WeightMailbox, WeightMailbox]:
    """Both ends of a mailbox, in one process."""
    writer = WeightMailbox.for_weights(describe(policy))
    return writer, WeightMailbox.attach(pickle.loads(pickle.dumps(writer.described)), os.dup(writer.fd))


Pair = Callable[[nn.Module], tuple[Any, Any]]


@pytest.fixture(params=[WeightMailbox, MessageMailbox])
def both(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Makes both ends of a mailbox of each kind; they are closed at the end."""
    made: list[Any] = []

    def make(policy: nn.Module) -> tuple[Any, Any]:
        writer = request.param.for_weights(describe(policy))
        described = pickle.loads(pickle.dumps(writer.described))
        made[:] = [*made, writer, request.param.attach(described, *map(os.dup, writer.descriptors()))]
        return made[-2], made[-1]

    yield make
    for end in made:
        end.close()


def filled(policy: nn.Module, value: float) -> nn.Module:
    with torch.no_grad():
        for tensor in (*policy.parameters(), *policy.buffers()):
            tensor.fill_(value)
    return policy


def values(policy: nn.Module) -> list[float]:
    return sorted({value for tensor in (*policy.parameters(), *policy.buffers()) for value in tensor.flatten().tolist()})


class Holding(nn.Module):
    """A buffer with the given value."""

    def __init__(self, value: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("value", value)


# ---------------------------------------------------------------------- what arrives

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
    torch.bool, torch.complex64, torch.float8_e4m3fn,
]  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "shape", "both"),
    pairwise(DTYPES, [(), (0,), (7,), (2, 3, 5), (3, 0)], [WeightMailbox, MessageMailbox]),
    indirect=["both"],
)
def test_every_dtype_arrives_bit_by_bit(dtype: torch.dtype, shape: tuple[int, ...], both: Pair) -> None:
    count = int(np.prod(shape)) * dtype.itemsize
    data = torch.arange(1, count + 1, dtype=torch.uint8) % (2 if dtype is torch.bool else 251)
    sent = torch.empty(shape, dtype=dtype)
    target = Holding(torch.zeros(shape, dtype=dtype))
    if count:
        sent.view(-1).view(torch.uint8).copy_(data)
    writer, reader = both(target)
    writer.write(Holding(sent), 1)
    assert reader.read_into(target, 0) == 1
    assert (target.value.dtype, target.value.shape) == (dtype, shape)
    if count:
        assert torch.equal(target.value.view(-1).view(torch.uint8), data)


def test_nans_keep_their_payloads(both: Pair) -> None:
    bits = torch.tensor([0x7FC12345, 0x7F812345, -0x3EDCBB], dtype=torch.int32)
    sent, target = Holding(bits.view(torch.float32)), Holding(torch.zeros(3))
    writer, reader = both(target)
    writer.write(sent, 1)
    reader.read_into(target, 0)
    assert target.value.view(torch.int32).tolist() == bits.tolist()


def test_weights_in_any_order_of_memory(both: Pair) -> None:
    sent, target = nn.Linear(3, 2, bias=False), nn.Linear(3, 2, bias=False)
    sent.weight = nn.Parameter(torch.arange(6.0).view(3, 2).t())
    target.weight = nn.Parameter(torch.zeros(4, 6)[::2, ::2])
    before = (target.weight.data_ptr(), target.weight.stride(), target.weight.requires_grad)
    writer, reader = both(target)
    writer.write(sent, 1)
    reader.read_into(target, 0)
    assert target.weight.tolist() == [[0, 2, 4], [1, 3, 5]]
    assert (target.weight.data_ptr(), target.weight.stride(), target.weight.requires_grad) == before
    assert target.weight.grad_fn is None


class Tied(nn.Module):
    """Two layers that share their weight."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(2, 2), nn.Linear(2, 2)
        self.decoder.weight = self.encoder.weight
        filled(self, value)


def test_a_shared_parameter_lies_there_once(both: Pair) -> None:
    described = describe(Tied(0.0))
    assert list(described) == ["encoder.weight", "encoder.bias", "decoder.bias"]
    assert described.aliases == {"decoder.weight": "encoder.weight"}
    given = {name: value for name, value in Tied(2.0).state_dict().items() if name != "encoder.weight"}
    for weights in (Tied(2.0), Tied(2.0).state_dict(), given):
        target = Tied(1.0)
        writer, reader = both(target)
        writer.write(weights, 1)
        reader.read_into(target, 0)
        assert values(target) == [2.0]
        assert target.decoder.weight is target.encoder.weight


def test_a_policy_without_weights(both: Pair) -> None:
    writer, reader = both(nn.Tanh())
    writer.write(nn.Tanh(), 4)
    assert reader.read_into(nn.Tanh(), 0) == 4


def test_buffers_that_are_left_out_stay_as_they_were_sent_last(both: Pair) -> None:
    source, target = nn.BatchNorm1d(1), nn.BatchNorm1d(1)
    filled(target, 9.0)
    writer, reader = both(target)
    writer.write(dict(filled(source, 1.0).named_parameters()), 1)
    assert reader.read_into(target, 0) == 1
    assert (target.weight.item(), target.running_mean.item(), target.num_batches_tracked.item()) == (1.0, 9.0, 9)
    writer.write(filled(source, 2.0), 2)
    for version in (3, 4, 5):
        writer.write(dict(filled(source, float(version)).named_parameters()), version)
    assert reader.read_into(target, 1) == 5
    assert (target.weight.item(), target.running_mean.item(), target.num_batches_tracked.item()) == (5.0, 2.0, 2)


class Remembering(nn.Module):
    """State beyond tensors."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.state = state

    def get_extra_state(self) -> Any:
        return self.state

    def set_extra_state(self, state: Any) -> None:
        self.state = state


def test_state_beyond_tensors(both: Pair) -> None:
    source, target = nn.Sequential(nn.Linear(1, 1), Remembering(0)), nn.Sequential(nn.Linear(1, 1), Remembering(0))
    writer, reader = both(target)
    assert writer.described.extras == {"1._extra_state"}
    version = 0
    # Longer and shorter than the one before: the memory grows, and never is what can be read written over.
    for state in ("a", {"b": torch.ones(2)}, "c" * 5_000, "d", "e" * 70_000, "f" * 70_001, "", "g" * 300_000, 3, "h" * 9):
        source[1].state = state
        for given in (source, source.state_dict()):
            writer.write(given, version + 1)
            version = reader.read_into(target, version)
            assert str(target[1].state) == str(state)
    writer.write(source, version + 1, extra={"1._extra_state": "given"})
    assert (reader.read_into(target, version), target[1].state) == (version + 1, "given")
    writer.write(dict(source.named_parameters()), version + 2)
    assert (reader.read_into(target, version + 1), target[1].state) == (version + 2, "given")


def test_state_that_is_published_is_not_written_over() -> None:
    target, source = Remembering(None), Remembering(None)
    writer, reader = pair(target)
    for version, size in enumerate((10, 4000, 300, 4000, 4000, 20, 9000, 1), 1):
        place, taken = (int(number) for number in writer._halves[writer._serial[0] & 1].record[1:])
        before = os.pread(writer.fd, taken, place)
        source.state = "x" * size
        writer.write(source, version)
        assert os.pread(writer.fd, taken, place) == before
        reader.read_into(target, version - 1)
        assert target.state == source.state
    assert os.fstat(writer.fd).st_size < 30_000


def test_state_beyond_tensors_without_a_mailbox() -> None:
    source, target = nn.Sequential(Remembering({"k": 1})), nn.Sequential(Remembering(None))
    load_weights(target, source)
    assert target[0].state == {"k": 1}
    source[0].state = 2
    load_weights(target, source.state_dict())
    assert target[0].state == 2


# ---------------------------------------------------------------------- versions


def test_only_what_is_newer_is_read() -> None:
    policy = filled(nn.Linear(1, 1), 0.0)
    writer, reader = pair(policy)
    assert (reader.version, reader.read_into(policy, 0), values(policy)) == (0, 0, [0.0])
    writer.write(filled(nn.Linear(1, 1), 1.0), 3)
    writer.write(filled(nn.Linear(1, 1), 2.0), 5)
    assert (reader.version, writer.version) == (5, 5)
    assert (reader.read_into(policy, 0), values(policy)) == (5, [2.0])
    filled(policy, 7.0)
    taken, done = threading.Event(), threading.Event()

    def hold_the_lock() -> None:
        with ProcessLock(writer.fd):
            taken.set()
            done.wait(LIMIT)

    holder = threading.Thread(target=hold_the_lock)
    holder.start()
    assert taken.wait(LIMIT)
    assert (reader.read_into(policy, 5), reader.version) == (5, 5)  # without the lock
    done.set()
    holder.join()
    assert values(policy) == [7.0], "there is nothing newer"


def test_a_reader_that_is_up_to_date_does_not_read_at_first() -> None:
    policy = filled(nn.Linear(1, 1), 7.0)
    writer, reader = pair(policy)
    writer.write(filled(nn.Linear(1, 1), 1.0), 3)
    assert (reader.read_into(policy, 3), values(policy)) == (3, [7.0])
    assert (reader.read_into(policy, 2), values(policy)) == (3, [1.0])


def test_numbers_that_start_again_are_newer_all_the_same(both: Pair) -> None:
    policy = filled(nn.Linear(1, 1), 0.0)
    writer, reader = both(policy)
    for since, version, value in ((0, 9, 1.0), (9, 2, 2.0), (2, 2, 3.0), (9, 2, 4.0)):
        writer.write(filled(nn.Linear(1, 1), value), version)
        assert (reader.read_into(policy, since), values(policy)) == (version, [value])


@pytest.mark.parametrize("version", [0, -1])
def test_versions_count_from_one(version: int, both: Pair) -> None:
    writer, _ = both(nn.Linear(1, 1))
    with pytest.raises(OptionError, match=f"version: expected 1 or more, got {version}"):
        writer.write(nn.Linear(1, 1), version)


# ---------------------------------------------------------------------- what does not fit

WRONG = {
    "missing": ({"weight": torch.zeros(1, 1)}, "weights: expected the names of the policy; missing ['bias'], unknown []"),
    "unknown": (
        {**nn.Linear(1, 1).state_dict(), "v": torch.zeros(1)},
        "weights: expected the names of the policy; missing [], unknown ['v']",
    ),
    "shape": (nn.Linear(2, 1), "weights: weight: expected shape (1, 1), found (1, 2)"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_does_not_fit_changes_nothing(wrong: str) -> None:
    policy = filled(nn.Linear(1, 1), 0.0)
    writer, reader = pair(policy)
    writer.write(filled(nn.Linear(1, 1), 1.0), 1)
    given, message = WRONG[wrong]
    before = os.pread(writer.fd, 1 << 20, 0)
    for call in (lambda: writer.write(given, 2), lambda: writer.check(given)):
        with pytest.raises(SpecMismatch) as caught:
            call()
        assert str(caught.value) == message
    assert os.pread(writer.fd, 1 << 20, 0) == before
    assert (reader.read_into(policy, 0), values(policy)) == (1, [1.0])


def test_weights_that_cannot_be_described() -> None:
    with pytest.raises(OptionError, match="weights: weight has no shape yet; call the policy once"):
        describe(nn.LazyLinear(2))
    with pytest.raises(OptionError, match="weights: value: expected a dense tensor, found torch.sparse_coo"):
        describe(Holding(torch.zeros(2).to_sparse()))
    with pytest.raises(OptionError, match="got int"):
        describe(3)


def test_an_exception_in_the_middle_of_a_write(monkeypatch: pytest.MonkeyPatch, both: Pair) -> None:
    policy = filled(nn.Linear(2, 2), 0.0)
    writer, reader = both(policy)
    writer.write(filled(nn.Linear(2, 2), 1.0), 1)

    def break_off(targets: Any, sources: Any) -> None:
        next(iter(targets)).fill_(5.0)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stored, "copy_weights", break_off)
        with pytest.raises(KeyboardInterrupt):
            writer.write(filled(nn.Linear(2, 2), 2.0), 2)
    assert (reader.read_into(policy, 0), values(policy)) == (1, [1.0])
    writer.write(filled(nn.Linear(2, 2), 3.0), 2)
    assert (reader.read_into(policy, 1), values(policy)) == (2, [3.0])


def test_a_closed_mailbox() -> None:
    policy = nn.Linear(1, 1)
    writer, reader = pair(policy)
    writer.close()
    writer.close()
    for call in (
        lambda: writer.fd,
        lambda: writer.version,
        lambda: writer.write(policy, 1),
        lambda: writer.read_into(policy, 0),
    ):
        with pytest.raises(ClosedError, match="this weight mailbox is closed"):
            call()
    assert reader.read_into(policy, 0) == 0, "the other end is another's"


@pytest.mark.processes
def test_descriptors_do_not_grow_in_number() -> None:
    policy = nn.Linear(1, 1)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    writer, reader = pair(policy)
    held = len(os.listdir("/proc/self/fd"))
    for version in range(1, 50):
        writer.write(policy, version)
        reader.read_into(policy, 0)
    assert len(os.listdir("/proc/self/fd")) == held
    writer.close()
    reader.close()
    del writer, reader
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


# ---------------------------------------------------------------------- other processes

START = """
import os, signal, sys, torch
from torch import nn
import reap.weights.mailbox
import reap.weights.half as module
from reap.weights.mailbox import WeightMailbox, describe

torch.set_num_threads(1)

def net():
    return nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.Linear(30, 10))

def filled(policy, value):
    with torch.no_grad():
        for tensor in (*policy.parameters(), *policy.buffers()):
            tensor.fill_(value)
    return policy

def values(policy):
    return sorted({value for one in (*policy.parameters(), *policy.buffers()) for value in one.flatten().tolist()})

box = WeightMailbox.attach(describe(net()), int(sys.argv[1]))
"""


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.Linear(30, 10))


def other_process(box: WeightMailbox, script: str) -> Program:
    """Another process with the mailbox as `box`; it ends with the block."""
    return Program(START + script, descriptors=[box.fd])


def line_of(process: Program) -> str:
    return process.stdout.readline().strip()


READ_ALL = """
policy, version, reads, seen = filled(net(), 0.0), 0, 0, 0
print("ready", flush=True)
while version < LAST:
    newest = box.version
    assert newest >= seen, (newest, seen)
    seen = newest
    got = box.read_into(policy, version)
    assert got >= version and got >= newest, (got, version, newest)
    if got > version:
        reads += 1
        assert values(policy) == [got % 1000], (got, values(policy))
        if reads == 1:
            print("read", flush=True)
    version = got
print(reads, flush=True)
"""


@pytest.mark.parametrize("versions", [400, pytest.param(10_000, marks=pytest.mark.soak)])
def test_no_read_is_torn(versions: int) -> None:
    writer, source = WeightMailbox.for_weights(describe(net())), net()
    with other_process(writer, READ_ALL.replace("LAST", str(versions))) as process:
        assert line_of(process) == "ready"
        for version in range(1, versions + 1):
            writer.write(filled(source, float(version % 1000)), version)
            if version == versions // 2:  # it has begun by then, however slow it is
                assert line_of(process) == "read"
        assert int(line_of(process)) > 1
        assert process.wait(LIMIT) == 0


@pytest.mark.parametrize("versions", [200, pytest.param(2_000, marks=pytest.mark.soak)])
def test_no_read_is_torn_between_threads(both: Pair, versions: int) -> None:
    policy = net()
    writer, reader = both(policy)
    torn: list[Any] = []

    def read() -> None:
        version = 0
        while version < versions:
            version = reader.read_into(policy, version)
            if version and values(policy) != [version % 1000]:
                torn.append(version)

    thread = threading.Thread(target=read)
    thread.start()
    source = net()
    for version in range(1, versions + 1):
        writer.write(filled(source, float(version % 1000)), version)
    thread.join(LIMIT)
    assert not thread.is_alive()
    assert torn == []


READ_HALF = """
def stop_in_the_middle(targets, sources):
    print("reading", flush=True)
    signal.pause()

module.copy_weights = stop_in_the_middle
box.read_into(net(), 0)
"""


def test_a_reader_killed_while_it_reads() -> None:
    writer = WeightMailbox.for_weights(describe(net()))
    writer.write(filled(net(), 1.0), 1)
    with other_process(writer, READ_HALF) as process:
        assert line_of(process) == "reading"
        thread = threading.Thread(target=lambda: writer.write(filled(net(), 2.0), 2), daemon=True)
        thread.start()
        thread.join(0.2)
        assert thread.is_alive(), "the lock is held"
        assert writer.version == 1
        process.send_signal(signal.SIGKILL)
        thread.join(LIMIT)
        assert not thread.is_alive()
    policy = net()
    reader = WeightMailbox.attach(writer.described, os.dup(writer.fd))
    assert (reader.read_into(policy, 0), values(policy)) == (2, [2.0])


WRITE_HALF = """
copy = module.copy_weights

def stop_in_the_middle(targets, sources):
    targets, sources = list(targets), list(sources)
    copy(targets[:3], sources[:3])
    print("writing", flush=True)
    signal.pause()

module.copy_weights = stop_in_the_middle
box.write(filled(net(), 2.0), 2)
"""


@pytest.mark.parametrize("before", [0, 1])
def test_a_writer_killed_while_it_writes(before: int) -> None:
    box = WeightMailbox.for_weights(describe(net()))
    if before:
        box.write(filled(net(), 1.0), before)
    with other_process(box, WRITE_HALF) as process:
        assert line_of(process) == "writing"
        assert box.version == before
        process.send_signal(signal.SIGKILL)
        assert process.wait(LIMIT) == -signal.SIGKILL
    policy = filled(net(), 7.0)
    assert (box.read_into(policy, 0), values(policy)) == (before, [1.0] if before else [7.0])
    box.write(filled(net(), 3.0), 2)
    assert (box.read_into(policy, before), values(policy)) == (2, [3.0])


def test_a_closed_descriptor_of_one_end_leaves_the_other() -> None:
    policy = filled(nn.Linear(1, 1), 0.0)
    writer, reader = pair(policy)
    writer.write(filled(nn.Linear(1, 1), 1.0), 1)
    writer.close()
    del writer
    gc.collect()
    assert (reader.read_into(policy, 0), values(policy)) == (1, [1.0])
