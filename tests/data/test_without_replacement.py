"""`SamplerWithoutReplacement`: each frame once an epoch, with what is written, overwritten and lost meanwhile."""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from typing import Any

import pytest
import torch

from reap.data.buffers.replay import ReplayBuffer
from reap.data.samplers.base import Draw
from reap.data.samplers.uniform import SamplerWithoutReplacement
from reap.data.storages import LazyTensorStorage
from reap.errors import CallOrderError
from tests.data.claims import claimed


def made(size: int, batch_size: int | None = None, *, ndim: int = 1, prefetch: int = 0, **options: Any) -> ReplayBuffer:
    return ReplayBuffer(
        storage=LazyTensorStorage(size, ndim=ndim),
        sampler=SamplerWithoutReplacement(**options),
        batch_size=batch_size,
        prefetch=prefetch,
        generator=torch.Generator().manual_seed(0),
    )


def epoch(buffer: ReplayBuffer) -> list[list[int]]:
    return [batch.tolist() for batch in buffer]


def flat(batches: list[list[int]]) -> list[int]:
    return [number for batch in batches for number in batch]


@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_an_epoch_gives_each_frame_once(prefetch: int, drop_last: bool) -> None:
    buffer = made(100, 7, prefetch=prefetch, drop_last=drop_last)
    buffer.extend(torch.arange(100))
    epochs = [epoch(buffer) for _ in range(3)]
    for batches in epochs:
        assert [len(batch) for batch in batches] == [7] * 14 + [2] * (not drop_last)
        assert len(set(flat(batches))) == (98 if drop_last else 100)
    assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.parametrize("prefetch", [0, 3])
def test_samples_that_are_asked_for_one_by_one_go_on_into_the_next_epoch(prefetch: int) -> None:
    buffer = made(10, 4, prefetch=prefetch)
    buffer.extend(torch.arange(10))
    samples = [buffer.sample().tolist() for _ in range(6)]
    assert [len(sample) for sample in samples] == [4, 4, 2, 4, 4, 2]
    assert sorted(flat(samples[:3])) == sorted(flat(samples[3:])) == list(range(10))


def test_a_batch_of_all() -> None:
    for drop_last in (False, True):
        buffer = made(10, 5, drop_last=drop_last)
        buffer.extend(torch.arange(5))
        assert [sorted(batch) for batch in epoch(buffer)] == [[0, 1, 2, 3, 4]]


def test_the_end_is_told() -> None:
    buffer = made(10, 4, drop_last=True)
    buffer.extend(torch.arange(10))
    ends = []
    for size in (4, 4, 4, 3, 6):
        buffer.sample(size)
        ends.append(buffer.sampler.ran_out)
    assert ends == [False, True, False, False, True]  # 2 are left, 6, 3: the epoch is over, 4


def test_without_shuffling_in_the_order_of_writing() -> None:
    buffer = made(10, 4, shuffle=False)
    buffer.extend(torch.arange(13))
    assert flat(epoch(buffer)) == list(range(3, 13))
    rows = made(8, 3, ndim=2, shuffle=False)
    rows.extend(torch.arange(10).view(2, 5))
    assert flat(epoch(rows)) == [1, 2, 3, 4, 6, 7, 8, 9]


def test_rows() -> None:
    buffer = made(13, 4, ndim=2)  # room for 7 columns
    buffer.extend(torch.arange(8).view(2, 4))
    assert sorted(flat(epoch(buffer))) == list(range(8))
    buffer.extend(torch.arange(10, 18).view(2, 4))
    assert sorted(flat(epoch(buffer))) == [1, 2, 3, 5, 6, 7, *range(10, 18)]


def test_shuffled_orders_are_alike() -> None:
    """Each frame comes first as often as any other."""
    buffer = made(10, 10)
    buffer.extend(torch.arange(10))
    first = torch.tensor([buffer.sample()[0] for _ in range(5_000)]).bincount(minlength=10)
    # χ² with 9 degrees of freedom: above 27.9 once in a thousand.
    assert ((first - 500) ** 2 / 500).sum() < 27.9


# ---------------------------------------------------------------------- writes meanwhile


def test_frames_that_are_written_meanwhile_come_in_the_next_epoch() -> None:
    buffer = made(20, 4)
    buffer.extend(torch.arange(10))
    seen = buffer.sample().tolist()
    buffer.extend(torch.arange(10, 15))
    seen += flat(epoch(buffer))
    assert sorted(seen) == list(range(10))
    assert sorted(flat(epoch(buffer))) == list(range(15))


def test_frames_that_are_overwritten_before_their_turn_are_left_out() -> None:
    buffer = made(10, 2, shuffle=False)
    buffer.extend(torch.arange(10))
    assert buffer.sample().tolist() == [0, 1]
    buffer.extend(torch.arange(10, 15))
    assert flat(epoch(buffer)) == [5, 6, 7, 8, 9]
    assert flat(epoch(buffer)) == list(range(5, 15))


@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_buffer_that_is_rewritten_after_each_epoch(prefetch: int, drop_last: bool) -> None:
    """As on-policy training does: nothing old comes back, ahead of its time or late."""
    buffer = made(20, 6, prefetch=prefetch, drop_last=drop_last)
    for start in (0, 100, 200):
        buffer.extend(torch.arange(start, start + 20))
        given = flat(epoch(buffer))
        assert len(given) == (18 if drop_last else 20)
        assert set(given) <= set(range(start, start + 20))
        assert len(set(given)) == len(given)


def test_an_epoch_that_is_broken_off_for_new_frames() -> None:
    buffer = made(20, 6)
    buffer.extend(torch.arange(20))
    next(iter(buffer))
    buffer.extend(torch.arange(100, 120))
    assert sorted(flat(epoch(buffer))) == list(range(100, 120))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_emptied_buffer(prefetch: int) -> None:
    buffer = made(10, 3, prefetch=prefetch)
    buffer.extend(torch.arange(10))
    buffer.sample()
    buffer.empty()
    with pytest.raises(CallOrderError, match="expected to find 1 frames at least whose writing has ended, found 0"):
        buffer.sample()
    buffer.extend(torch.arange(20, 24))
    assert sorted(flat(epoch(buffer))) == [20, 21, 22, 23]


def test_too_little_for_a_whole_sample() -> None:
    buffer = made(10, 5, drop_last=True)
    buffer.extend(torch.arange(4))
    with pytest.raises(CallOrderError, match="expected to find 5 frames at least"):
        buffer.sample()
    buffer.extend(torch.arange(4, 5))
    assert sorted(buffer.sample().tolist()) == [0, 1, 2, 3, 4]


def test_frames_that_are_being_written_come_in_the_next_epoch_and_those_of_a_dead_writer_never() -> None:
    buffer = made(12, 5)
    ring = buffer.storage.ring
    buffer.extend(torch.arange(4))
    slow, dead = claimed(ring, 2), claimed(ring, 3)
    buffer.extend(torch.arange(9, 11))
    assert sorted(flat(epoch(buffer))) == [0, 1, 2, 3, 9, 10]
    ring.give_up(dead)
    ring.publish(slow, 2)
    buffer[4:6] = torch.tensor([4, 5])
    assert sorted(flat(epoch(buffer))) == [0, 1, 2, 3, 4, 5, 9, 10]
    buffer.extend(torch.arange(11, 20))  # over a part of what the dead writer left
    assert sorted(flat(epoch(buffer))) == list(range(9, 20))
    buffer.extend(torch.arange(20, 24))
    assert sorted(flat(epoch(buffer))) == list(range(12, 24))


def test_nothing_is_lost_when_frames_are_overwritten_while_they_are_taken() -> None:
    buffer = made(12, 4, shuffle=False)
    buffer.extend(torch.arange(12))
    storage, real, claims = buffer.storage, buffer.storage.take, []

    def slow(places: Any) -> Any:
        data = real(places)
        if not claims:
            claims.append(claimed(storage.ring, 2))
        return data

    storage.take = slow  # type: ignore[method-assign]
    first = buffer.sample().tolist()
    storage.ring.publish(claims[0], 2)
    assert first == [2, 3, 4, 5]
    assert epoch(buffer) == [[6, 7, 8, 9], [10, 11]]


def test_a_write_that_ends_between_two_looks_loses_nothing() -> None:
    """Its frames are in the epoch, for it had ended then; the reader began before and takes them again."""
    buffer = made(12, 6, shuffle=False)
    buffer.extend(torch.arange(3))
    ring, sampler = buffer.storage.ring, buffer.sampler
    claim = claimed(ring, 3)
    real = sampler.draw

    def late(*arguments: Any) -> Any:
        if ring.readable == 3:
            ring.publish(claim, 3)
            buffer[3:6] = torch.tensor([3, 4, 5])
        return real(*arguments)

    sampler.draw = late  # type: ignore[method-assign]
    assert epoch(buffer) == [[0, 1, 2, 3, 4, 5]]


class Numbered(SamplerWithoutReplacement):
    """One that says of which epoch a frame is."""

    number = 0

    def _begin(self, *arguments: Any) -> None:
        super()._begin(*arguments)
        self.number += 1

    def _next(self, size: int) -> Draw:
        draw = super()._next(size)
        return Draw(draw.places, {"epoch": torch.full_like(draw.places, self.number)})


@pytest.mark.parametrize("prefetch", [0, 2])
def test_no_frame_comes_twice_in_an_epoch_while_another_thread_writes(prefetch: int) -> None:
    def frames(start: int, count: int) -> torch.Tensor:
        return torch.arange(start, start + count).unsqueeze(1).expand(count, 64)

    buffer = ReplayBuffer(storage=LazyTensorStorage(500), sampler=Numbered(), batch_size=64, prefetch=prefetch)
    buffer.extend(frames(0, 500))
    begun, ended = threading.Event(), threading.Event()

    def write() -> None:
        for start in range(500, 30_000, 20):
            buffer.extend(frames(start, 20))
            begun.set()
        ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert begun.wait(100)
    given: Counter[tuple[int, int]] = Counter()
    while not ended.is_set() or len(given) < 1_000:
        sample, info = buffer.sample(return_info=True)
        assert (sample == sample[:, :1]).all()  # whole frames
        given.update(zip(info["epoch"].tolist(), sample[:, 0].tolist(), strict=True))
    writer.join()
    assert set(given.values()) == {1}
    buffer.set_sampler(SamplerWithoutReplacement())
    assert sorted(number for batch in buffer for number in batch[:, 0].tolist()) == list(range(29_500, 30_000))
    buffer.empty()


# ---------------------------------------------------------------------- state


@pytest.mark.parametrize("drop_last", [False, True])
def test_after_a_load_it_goes_on_as_if_it_had_never_stopped(drop_last: bool) -> None:
    buffer = made(50, 7, drop_last=drop_last)
    buffer.extend(torch.arange(40))
    buffer.sample()
    state = buffer.sampler.state_dict()
    assert all(isinstance(value, int | torch.Tensor) for value in state.values())
    twin = pickle.loads(pickle.dumps(buffer))
    twin.set_sampler(SamplerWithoutReplacement(drop_last=drop_last))
    twin.sampler.load_state_dict(state)
    state["waiting"].zero_()
    for number in range(100):
        if number % 9 == 0:
            buffer.extend(torch.arange(number, number + 3))
            twin.extend(torch.arange(number, number + 3))
        assert twin.sample().equal(buffer.sample())
        assert twin.sampler.ran_out == buffer.sampler.ran_out


def test_says_what_it_is() -> None:
    assert repr(SamplerWithoutReplacement(True, False)) == "SamplerWithoutReplacement(drop_last=True, shuffle=False)"


def test_a_sampler_of_another_buffer_begins_an_epoch() -> None:
    large, small = made(1_000, 10, shuffle=False), made(30, 10, shuffle=False)
    large.extend(torch.arange(1_000))
    small.extend(torch.arange(30))
    large.sample()
    small.set_sampler(large.sampler)
    assert epoch(small) == [list(range(start, start + 10)) for start in (0, 10, 20)]


def test_a_copy_goes_on_in_the_middle_of_the_epoch() -> None:
    buffer = made(30, 10, shuffle=False)
    buffer.extend(torch.arange(30))
    buffer.sample()
    buffer.set_sampler(pickle.loads(pickle.dumps(buffer.sampler)))
    assert epoch(buffer) == [list(range(start, start + 10)) for start in (10, 20)]
