"""Weights as messages: the writer never waits, a message that waits is replaced, and half a message is none."""

from __future__ import annotations

import gc
import os
import select
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from reap.errors import ClosedError, OptionError, SpecMismatch
from reap.weights import messages
from reap.weights.half import WeightHalf
from reap.weights.messages import MessageMailbox
from reap.weights.weight_layout import describe
from tests.warm import Program
from tests.weights.receivers import values

LIMIT = 100.0
"""Seconds after which a wait has failed."""

LARGE = 500_000
"""Numbers in a message that no pipe holds."""


def net(value: float, size: int = LARGE) -> nn.Module:
    module = nn.utils.skip_init(nn.Linear, size, 1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(value)
    return module


Ends = tuple[MessageMailbox, MessageMailbox]


@pytest.fixture
def large() -> Iterator[Ends]:
    yield from opened(LARGE)


@pytest.fixture
def small() -> Iterator[Ends]:
    yield from opened(3)


def opened(size: int) -> Iterator[Ends]:
    writer = MessageMailbox.for_weights(describe(net(0.0, size)))
    reader = MessageMailbox.attach(writer.described, *map(os.dup, writer.descriptors()))
    yield writer, reader
    writer.close()
    reader.close()


def test_a_writer_never_waits_and_the_latest_wins(large: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, reader = large
    for version in range(1, 9):
        writer.write(net(float(version)), version)
    assert writer.version == 8, "nobody has read"
    loaded: list[int] = []
    load = WeightHalf.load_into
    monkeypatch.setattr(WeightHalf, "load_into", lambda own, policy: (loaded.append(int(own.record[0])), load(own, policy)))
    policy = net(0.0)
    assert (reader.read_into(policy, 0), values(policy), reader.version) == (8, [8.0], 8)
    assert loaded[-1] == 8
    assert len(loaded) <= 2, "one message was under way, one waited; the others were replaced"
    assert (reader.read_into(policy, 8), reader.read_into(policy, 3)) == (8, 3)


@pytest.mark.processes
def test_small_messages_in_the_pipe_are_drained(small: Ends) -> None:
    writer, reader = small
    policy = net(0.0, 3)
    for version in range(1, 2_001):
        writer.write(net(float(version), 3), version)
        if version % 100 == 0:
            assert (reader.read_into(policy, 0), values(policy)) == (version, [version])


def test_a_reader_waits_for_what_was_sent_and_for_no_more(large: Ends) -> None:
    writer, reader = large
    policy = net(0.0)
    for version in range(1, 11):
        writer.write(net(float(version)), version)
        assert (reader.read_into(policy, version - 1), values(policy)) == (version, [version])


def test_half_a_message_is_none(large: Ends) -> None:
    writer, reader = large
    writer.write(net(1.0), 1)
    policy = net(7.0)
    assert reader.read_into(policy, 0) == 1
    writer.write(net(2.0), 2)
    # The thread has begun to write it, into a pipe that does not hold it.
    assert select.select([writer.descriptors()[0]], [], [], LIMIT)[0]
    writer.close()
    for _ in range(2):
        assert (reader.read_into(policy, 1), values(policy)) == (1, [1.0])


def test_small_weights_arrive_though_the_writer_ends(small: Ends) -> None:
    writer, reader = small
    writer.write(net(5.0, 3), 1)
    writer.close()
    policy = net(0.0, 3)
    assert (reader.read_into(policy, 0), values(policy)) == (1, [5.0])


def test_a_reader_that_is_gone_is_no_reason_to_fail(large: Ends) -> None:
    writer, reader = large
    reader.close()
    for version in range(1, 5):
        writer.write(net(1.0), version)
    assert writer.version == 4


def test_what_does_not_fit_is_not_sent(small: Ends) -> None:
    writer, reader = small
    writer.write(net(1.0, 3), 1)
    for call in (lambda: writer.write(net(2.0, 4), 2), lambda: writer.check(net(2.0, 4))):
        with pytest.raises(SpecMismatch) as caught:
            call()
        assert str(caught.value) == "weights: weight: expected shape (1, 3), found (1, 4)"
    with pytest.raises(OptionError, match="version: expected 1 or more, got 0"):
        writer.write(net(2.0, 3), 0)
    policy = net(0.0, 3)
    assert (reader.read_into(policy, 0), values(policy), writer.version) == (1, [1.0], 1)


def test_a_successor_gets_the_latest_weights(small: Ends) -> None:
    writer, _ = small
    writer.write(net(1.0, 3), 4)
    renewed = writer.renewed()
    with pytest.raises(ClosedError):
        writer.write(net(2.0, 3), 5)
    reader = MessageMailbox.attach(renewed.described, *map(os.dup, renewed.descriptors()))
    policy = net(0.0, 3)
    assert (reader.read_into(policy, 0), values(policy)) == (4, [1.0])
    renewed.write({"weight": torch.full((1, 3), 6.0), "bias": torch.full((1,), 6.0)}, 5)
    assert (reader.read_into(policy, 4), values(policy)) == (5, [6.0])
    renewed.close()
    reader.close()


def test_a_closed_mailbox(small: Ends) -> None:
    writer, _ = small
    writer.close()
    writer.close()
    policy = net(0.0, 3)
    calls = (
        lambda: writer.version,
        writer.descriptors,
        lambda: writer.write(policy, 1),
        lambda: writer.read_into(policy, 0),
    )
    for call in calls:
        with pytest.raises(ClosedError, match="this weight mailbox is closed"):
            call()


@pytest.mark.processes
def test_a_mailbox_that_is_dropped_leaves_no_thread_and_no_descriptor() -> None:
    gc.collect()
    before, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    writer = MessageMailbox.for_weights(describe(net(0.0)))
    writer.write(net(1.0), 1)
    assert threading.active_count() == threads + 1
    del writer
    gc.collect()
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == (before, threads)


def test_a_pipe_that_may_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(messages.fcntl, "fcntl", refuse)
    policy = net(0.0)
    writer, reader = next(ends := opened(LARGE))
    writer.write(net(2.0), 1)
    assert (reader.read_into(policy, 0), values(policy)) == (1, [2.0])
    assert list(ends) == []


KILLED = """
import os, signal, sys
from reap.weights.messages import MessageMailbox
from reap.weights.weight_layout import describe
from tests.weights.test_messages import LARGE, net

fds = list(map(int, sys.argv[1:3]))
writer = MessageMailbox(describe(net(0.0)), (os.dup(fds[0]), int(sys.argv[3])), fds[1])
os.set_blocking(int(sys.argv[3]), False)
writer.write(net(3.0), 3)
print("written", flush=True)
signal.pause()
"""


def test_a_writer_killed_in_the_middle_of_a_message() -> None:
    writer = MessageMailbox.for_weights(describe(net(0.0)))
    out, number = writer.descriptors()
    into = os.open(f"/proc/self/fd/{out}", os.O_WRONLY)  # the pipe's other end
    reader = MessageMailbox.attach(writer.described, os.dup(out), os.dup(number))
    with Program(KILLED, descriptors=[out, number, into]) as process:
        os.close(into)
        assert process.stdout.readline() == "written\n"
        writer.close()
        process.send_signal(signal.SIGKILL)
        policy = net(7.0)
        assert (reader.read_into(policy, 2), values(policy)) == (2, [7.0])
    reader.close()
