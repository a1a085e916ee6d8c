"""Slices while others write: threads and processes, and writers that give up."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Sequence
from threading import Event, Thread
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from reap.data.buffers.replay import ReplayBuffer
from reap.data.samplers.slices import SliceSampler
from reap.data.samplers.slices_once import SliceSamplerWithoutReplacement
from reap.data.storages import LazyTensorStorage
from reap.errors import CallOrderError, OptionError
from tests.data.claims import claimed
from tests.data.slices_model import Env, check, frames_of, slices_indexed, slices_within

WRITERS = 3
SAMPLES = 60
LENGTH = 4


def new(sampler: Any = None, **options: Any) -> ReplayBuffer:
    sampler = SliceSampler(slice_len=LENGTH) if sampler is None else sampler
    return ReplayBuffer(storage=LazyTensorStorage(90), sampler=sampler, **options)


def require_runs(buffer: ReplayBuffer) -> bool:
    """Take a sample, if there is one: each slice consists of frames that followed each other."""
    try:
        sample = buffer.sample(8 * LENGTH)
    except CallOrderError:
        return False
    frames = sample["observation"].view(-1, LENGTH, 3)
    steps = (frames[:, 1:] - frames[:, :-1]).reshape(-1, 3).tolist()
    assert steps == [[0, 0, 1]] * len(steps)
    return True


def write(buffer: ReplayBuffer, number: int, is_over: Any) -> None:
    env, count = Env(number, number, longest=30), 0
    while not is_over.is_set():
        count += 1
        buffer.extend(env.frames(1 + (count + number) % 9))


def take_while_written(buffer: ReplayBuffer, writers: Sequence[Any], is_over: Any) -> None:
    """Take slices while threads or processes write, until `is_over`, and look at all that lies there afterwards."""
    for writer in writers:
        writer.start()
    try:
        taken = 0
        while taken < SAMPLES:
            taken += require_runs(buffer)
    finally:
        is_over.set()
        for writer in writers:
            writer.join()
    check(buffer, 3)


@pytest.mark.processes
@pytest.mark.parametrize(
    "kind", [lambda: SliceSampler(slice_len=LENGTH), lambda: SliceSamplerWithoutReplacement(slice_len=LENGTH)]
)
def test_threads_write_while_slices_are_taken(kind: Any) -> None:
    buffer, is_over = new(kind()), Event()
    ends = [ReplayBuffer(storage=buffer.storage) for _ in range(WRITERS)]
    take_while_written(buffer, [Thread(target=write, args=(end, n, is_over)) for n, end in enumerate(ends)], is_over)


@pytest.mark.processes
def test_processes_write_while_slices_are_taken() -> None:
    context = multiprocessing.get_context("forkserver")
    buffer, is_over = new(shared=True), context.Event()
    processes = [context.Process(target=write, args=(buffer, number, is_over)) for number in range(WRITERS - 1)]
    take_while_written(buffer, processes, is_over)


def test_columns_whose_writer_gave_up_are_in_no_slice() -> None:
    buffer, env = new(), Env(7, 1, longest=40)
    for round_ in range(4):
        buffer.extend(env.frames(9))
        ring = buffer.storage.ring
        ring.give_up(claimed(ring, 3))
        buffer.extend(env.frames(10))
        start = round_ * 22
        lost = [(start + 9 + k) % 90 for k in range(3)]
        assert {frame[0] for frame in frames_of(buffer[:])} == {7}
        for place in lost:
            with pytest.raises(OptionError, match=f"found place {place}, at which a write was broken off"):
                buffer[place]
        expected = slices_within(frames_of(buffer[:]), LENGTH)
        assert slices_indexed(buffer, LENGTH) == Counter(expected)


def test_a_slice_with_a_frame_that_was_written_over_is_drawn_again() -> None:
    buffer, env = new(), Env(0, 3, longest=30)
    buffer.extend(env.frames(90))
    storage, sampler = buffer.storage, buffer.sampler
    draw, reading = sampler.draw(storage, 40 * LENGTH, None), storage.ring.begin_reading()
    buffer.extend(env.frames(20))
    bad = storage.ring.touched(draw.places.numpy() % 90, reading)
    again = sampler.redraw(draw, bad, storage, None)
    kept = torch.from_numpy(~bad.reshape(-1, LENGTH).any(1))
    assert 0 < kept.sum() < 40
    count = int(kept.sum()) * LENGTH
    assert again.places[:count].equal(draw.places.view(-1, LENGTH)[kept].view(-1))
    assert len(again.places) == len(draw.places)
    frames = storage.leaf(("observation",))[again.places].view(-1, LENGTH, 3)
    assert (frames.diff(dim=1) == frames.new_tensor([0, 0, 1])).all()


def test_trajectories_that_are_broken_go_on_from_nothing() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(20), sampler=SliceSampler(slice_len=2))
    data = TensorDict({"next": {"done": torch.zeros(2, 1, dtype=torch.bool)}}, [2])
    buffer.extend(data)
    buffer.extend(data)
    buffer.break_trajectories()
    buffer.extend(data)
    firsts = buffer.sample(400, return_info=True)[1]["index"].view(-1, 2)[:, 0]
    assert set(firsts.tolist()) == {0, 1, 2, 4}
