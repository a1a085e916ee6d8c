"""What it takes to choose slices: as much in a large buffer as in a small one, also right after a write."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from reap.data.buffers.replay import ReplayBuffer
from reap.data.samplers.slices import SliceSampler
from reap.data.storages import LazyTensorStorage

LENGTH = 200
SLICES, SLICE = 8, 32


def episodes(first: int, count: int) -> TensorDict:
    """Episodes of `LENGTH` frames, `[count * LENGTH]`."""
    steps = torch.arange(LENGTH).repeat(count)
    ids = torch.arange(first, first + count).repeat_interleave(LENGTH)
    done = (steps == LENGTH - 1).unsqueeze(1)
    return TensorDict({"episode": ids, "step": steps, "next": {"done": done}}, [count * LENGTH])


def calls(function: Callable[[], Any]) -> int:
    """Calls of Python and C functions."""
    counted = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return counted


def memory(function: Callable[[], Any]) -> int:
    """Bytes of the arrays and objects that were there at the same time."""
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture(params=["episodes", "frames"])
def buffers(request: pytest.FixtureRequest) -> list[tuple[ReplayBuffer, Callable[[], Any]]]:
    """A small buffer and one a hundred times as large, both full, and what chooses slices of them."""
    made: list[tuple[ReplayBuffer, Callable[[], Any]]] = []
    for count in (50, 5_000):
        sampler = SliceSampler(slice_len=SLICE, uniform_over=request.param)
        buffer = ReplayBuffer(storage=LazyTensorStorage(count * LENGTH), sampler=sampler)
        buffer.extend(episodes(0, count))

        def draw(sampler: SliceSampler = sampler, buffer: ReplayBuffer = buffer) -> Any:
            return sampler.draw(buffer.storage, SLICES * SLICE, None)

        draw()
        buffer.extend(episodes(count, 1))
        draw()
        made.append((buffer, draw))
    return made


def test_a_draw_takes_the_same_work_whatever_the_buffer_holds(buffers: Any) -> None:
    (_, small), (_, large) = buffers
    assert calls(large) == calls(small)
    assert memory(large) < memory(small) + 1_000 < 40_000


def test_what_was_written_is_taken_in_with_work_for_what_was_written(buffers: Any) -> None:
    needed: list[tuple[int, int]] = []
    for number, (buffer, draw) in enumerate(buffers):
        buffer.extend(episodes(10_000 * (number + 1), 2))
        counted = calls(draw)
        buffer.extend(episodes(10_000 * (number + 1) + 2, 2))
        needed.append((counted, memory(draw)))
    (small_calls, small_memory), (large_calls, large_memory) = needed
    assert large_calls < small_calls + 100
    assert large_memory < 1.5 * small_memory + 10_000
