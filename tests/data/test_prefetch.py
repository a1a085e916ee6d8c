"""Samples that a thread makes ahead: that it does, that its errors are seen, and that nothing of it is left."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import torch

from reap.data.buffers.replay import ReplayBuffer
from reap.data.samplers.base import Draw, Sampler
from reap.data.samplers.uniform import RandomSampler, SamplerWithoutReplacement
from reap.data.storages import LazyTensorStorage
from reap.errors import CallOrderError
from tests.data.claims import claimed
from tests.pairwise import by_default
from tests.warm import Program

PATIENCE = 100.0
"""Seconds after which a test does not wait any longer."""


class InOrder(Sampler):
    """The places 0, 1, 2, ..., and who chose them."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        self._next = 0

    def draw(self, storage: Any, size: int, generator: Any) -> Draw:
        self.threads.append(threading.current_thread().name)
        places = torch.arange(self._next, self._next + size) % len(storage)
        self._next += size
        return Draw(places)


class Gate:
    """A transform that counts what goes through, and lets through as much as it is told."""

    def __init__(self, passes: int = 1_000_000) -> None:
        self.entered = threading.Semaphore(0)
        self._passes = threading.Semaphore(passes)

    def __call__(self, data: Any) -> Any:
        self.entered.release()
        assert self._passes.acquire(timeout=PATIENCE)
        return data

    def open(self) -> None:
        self._passes.release()

    def wait_for(self, count: int) -> None:
        for _ in range(count):
            assert self.entered.acquire(timeout=PATIENCE), "no sample was begun"


def made(prefetch: int | None = 1, **options: Any) -> ReplayBuffer:
    buffer = ReplayBuffer(**{"storage": LazyTensorStorage(100), "prefetch": prefetch, "batch_size": 5, **options})
    buffer.extend(torch.arange(100))
    return buffer


@contextmanager
def closed(buffer: ReplayBuffer) -> Iterator[ReplayBuffer]:
    """The buffer; its thread has ended behind the block."""
    yield buffer
    buffer.set_sampler(RandomSampler())


def at_work() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("reap-prefetch")]


def joined(*, deadline: float = PATIENCE) -> None:
    for thread in threading.enumerate():
        if thread.name.startswith("reap-prefetch"):
            thread.join(deadline)
    assert not at_work()


# ---------------------------------------------------------------------- ahead


@pytest.mark.parametrize("ahead", [1, 3])
def test_so_many_samples_are_made_before_they_are_asked_for(ahead: int) -> None:
    gate, sampler = Gate(), InOrder()
    with closed(made(ahead, sampler=sampler, transform=gate)) as buffer:
        assert buffer.sample().tolist() == [0, 1, 2, 3, 4]
        gate.wait_for(1 + ahead)
        assert buffer.sample().tolist() == [5, 6, 7, 8, 9]
        gate.wait_for(1)
    assert len(sampler.threads) == 2 + ahead  # and no more than that
    assert {name.split("_")[0] for name in sampler.threads} == {"reap-prefetch"}


def test_the_next_sample_is_made_while_the_last_one_is_used() -> None:
    gate = Gate(passes=1)
    with closed(made(1, transform=gate)) as buffer:
        buffer.sample()
        gate.wait_for(2)  # the second is under way, and this thread goes on
        gate.open()
        gate.open()
        buffer.sample()
        gate.open()


@pytest.mark.parametrize("prefetch", [None, 0])
def test_without_it_the_caller_makes_samples(prefetch: int | None) -> None:
    sampler = InOrder()
    buffer = made(prefetch, sampler=sampler)
    assert [buffer.sample().tolist() for _ in range(2)] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert sampler.threads == [threading.current_thread().name] * 2


def test_samples_are_those_of_a_buffer_without_it() -> None:
    def samples(prefetch: int) -> list[torch.Tensor]:
        with closed(made(prefetch, generator=torch.Generator().manual_seed(3))) as buffer:
            return [buffer.sample() for _ in range(20)]

    assert all(one.equal(other) for one, other in zip(samples(0), samples(3), strict=True))


def test_samples_of_another_size() -> None:
    with closed(made(2, sampler=InOrder())) as buffer:
        assert buffer.sample(3).tolist() == [0, 1, 2]
        assert buffer.sample(3).tolist() == [3, 4, 5]
        assert len(buffer.sample(7)) == 7
        assert len(buffer.sample(3)) == 3


def test_info_comes_with_its_sample() -> None:
    with closed(made(3)) as buffer:
        for _ in range(10):
            sample, info = buffer.sample(return_info=True)
            assert info["index"].equal(sample)


def test_it_does_not_go_beyond_an_epoch() -> None:
    gate = Gate()
    with closed(made(3, sampler=SamplerWithoutReplacement(), transform=gate, batch_size=40)) as buffer:
        assert [len(batch) for batch in buffer] == [40, 40, 20]
        buffer.extend(torch.arange(100, 200))
        assert sorted(number for batch in buffer for number in batch.tolist()) == list(range(100, 200))
    gate.wait_for(6)
    assert not gate.entered.acquire(blocking=False)


@pytest.mark.parametrize("threads", [2, 4])
def test_several_threads_sample(threads: int) -> None:
    given: list[int] = []
    failures: list[BaseException] = []

    def take() -> None:
        try:
            for _ in range(100 // threads // 5):
                given.extend(buffer.sample().tolist())
        except BaseException as error:  # noqa: BLE001  shown below
            failures.append(error)

    with closed(made(3, sampler=SamplerWithoutReplacement())) as buffer:
        running = [threading.Thread(target=take) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(PATIENCE)
    assert not failures
    assert sorted(given) == list(range(100))


# ---------------------------------------------------------------------- changes, errors


@pytest.mark.parametrize(
    "change",
    [
        lambda buffer: buffer.set_sampler(RandomSampler()),
        lambda buffer: buffer.append_transform(lambda data: data),
        lambda buffer: buffer.set_storage(buffer.storage),
        lambda buffer: buffer.empty() or buffer.extend(torch.arange(1_000, 1_100)),
    ],
)
def test_what_was_made_ahead_is_dropped_when_a_part_changes(change: Callable[[ReplayBuffer], Any]) -> None:
    gate = Gate()
    with closed(made(2, transform=gate)) as buffer:
        buffer.sample()
        gate.wait_for(3)
        change(buffer)
        assert not at_work()
        buffer.extend(torch.arange(1_000, 1_100))
        assert buffer.sample().min() >= 1_000
        gate.wait_for(1)


def test_an_error_is_raised_where_the_sample_is_asked_for_and_the_next_is_made_again() -> None:
    failing = [False]

    def transform(data: torch.Tensor) -> torch.Tensor:
        if failing[0]:
            raise ZeroDivisionError("in a transform")
        return data

    with closed(made(1, sampler=InOrder(), transform=transform)) as buffer:
        failing[0] = True
        for _ in range(2):
            with pytest.raises(ZeroDivisionError, match="in a transform"):
                buffer.sample()
        failing[0] = False
        assert buffer.sample().tolist() == [10, 11, 12, 13, 14]


def test_an_empty_buffer_can_be_written_after_the_error() -> None:
    with closed(ReplayBuffer(storage=LazyTensorStorage(10), batch_size=4, prefetch=2)) as buffer:
        with pytest.raises(CallOrderError):
            buffer.sample()
        buffer.extend(torch.ones(3))
        assert buffer.sample().tolist() == [1.0] * 4


# ---------------------------------------------------------------------- copies, ends


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))])
@pytest.mark.parametrize("shared", [False, True])
def test_a_buffer_that_makes_samples_ahead_can_be_copied(copied: Callable[[ReplayBuffer], ReplayBuffer], shared: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    with closed(made(2, shared=shared, generator=generator)) as buffer:
        buffer.sample()
        with closed(copied(buffer)) as twin:
            assert twin.sample().shape == (5,)
            twin.extend(torch.arange(1_000, 1_100))
        assert (buffer[:].min() >= 1_000) == shared


def test_a_buffer_that_is_dropped_is_freed_and_its_thread_ends() -> None:
    buffer = made(3)
    buffer.sample()
    gone = weakref.ref(buffer)
    del buffer
    joined()
    gc.collect()
    assert gone() is None


def test_a_buffer_that_is_dropped_while_a_sample_is_made_is_freed_after_it() -> None:
    gate = Gate(passes=1)
    buffer = made(1, transform=gate)
    buffer.sample()
    gate.wait_for(2)
    gone = weakref.ref(buffer)
    del buffer
    gate.open()
    joined()
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("last", by_default(["", "raise SystemExit(3)", "raise KeyError('last')", "del buffer"], "del buffer"))
def test_an_interpreter_with_samples_under_way_ends(last: str) -> None:
    code = f"""
import torch
from reap.data.buffers.replay import ReplayBuffer
buffer = ReplayBuffer(batch_size=100, prefetch=3)
buffer.extend(torch.arange(1000))
buffer.sample()
print("sampled", flush=True)
{last}
"""
    with Program(code) as program:
        assert program.stdout.readline() == "sampled\n"
        expected = {"raise SystemExit(3)": 3, "raise KeyError('last')": 1}.get(last, 0)
        assert program.wait(PATIENCE) == expected
        errors = program.stderr.read()
        assert errors.strip().endswith("KeyError: 'last'") if "KeyError" in last else errors == ""


# ---------------------------------------------------------------------- refusals, states


def hidden(buffer: ReplayBuffer, sampler: Held) -> None:
    """Have a sample made ahead, and refused, while all of a buffer is being written; then the write ends."""
    ring = buffer.storage.ring
    claim = claimed(ring, ring.capacity)
    sampler.gate.open()
    assert buffer.state_dict()["ahead"]["samples"] == []  # it waits for what is being made
    ring.publish(claim, ring.capacity)


class Held(RandomSampler):
    """Makes its second draw when it is told to."""

    def __init__(self) -> None:
        self.gate, self.draws = Gate(0), 0

    def draw(self, storage: Any, size: int, generator: Any) -> Draw:
        self.draws += 1
        if self.draws == 2:
            self.gate(None)
        return super().draw(storage, size, generator)


def test_a_refusal_of_a_moment_that_is_over_is_not_raised() -> None:
    sampler = Held()
    with closed(made(1, sampler=sampler)) as buffer:
        buffer.sample()
        hidden(buffer, sampler)
        assert sampler.draws == 2
        assert buffer.sample().shape == (5,)
        assert buffer.sample().shape == (5,)


def test_a_refusal_is_raised_where_there_is_still_nothing() -> None:
    with closed(made(2)) as buffer:
        buffer.sample()
        claimed(buffer.storage.ring, 100)
        for _ in range(2 + 1):  # two may have been made before
            with suppress(CallOrderError):
                buffer.sample()
        with pytest.raises(CallOrderError, match="found none whose writing has ended"):
            buffer.sample()


def test_a_state_with_a_refusal_among_the_samples_made_ahead() -> None:
    sampler = Held()
    with closed(made(1, sampler=sampler)) as buffer:
        buffer.sample()
        hidden(buffer, sampler)
        assert buffer.state_dict()["ahead"]["samples"] == []


ONCE = {"sampler": SamplerWithoutReplacement, "storage": lambda: LazyTensorStorage(100)}


@pytest.mark.parametrize("ahead", [0, 1, 3, 6])
@pytest.mark.parametrize("moved", ["state", "state twice", "pickle", "copy"])
def test_what_was_made_ahead_is_given_first_by_who_goes_on(ahead: int, moved: str) -> None:
    def new(prefetch: int) -> ReplayBuffer:
        options: Any = ONCE
        return ReplayBuffer(prefetch=prefetch, batch_size=10, generator=torch.Generator().manual_seed(1), **options)

    with closed(new(3)) as source:
        source.extend(torch.arange(100))
        seen = [source.sample() for _ in range(3)]
        target = new(ahead)
        if moved == "pickle":
            target = pickle.loads(pickle.dumps(source))
        elif moved == "copy":
            target = copy.deepcopy(source)
        else:
            target.load_state_dict(source.state_dict())
        if moved == "state twice":
            first, target = target, new(ahead)
            target.load_state_dict(first.state_dict())
        with closed(target):
            rest = [target.sample() for _ in range(7)]
            assert torch.cat(seen + rest).sort().values.equal(torch.arange(100))
            assert all(one.equal(source.sample()) for one in rest)
            assert all(target.sample().equal(source.sample()) for _ in range(3))


def test_samples_of_another_size_are_no_longer_those_that_were_loaded() -> None:
    with closed(made(3, sampler=SamplerWithoutReplacement(shuffle=False))) as source:
        source.sample()
        target = made(0, sampler=SamplerWithoutReplacement(shuffle=False))
        target.load_state_dict(source.state_dict())
        assert target.sample(4).tolist() == [20, 21, 22, 23]
