"""Slices of what collectors wrote, where flags of ends are all that tells episodes apart: none goes on over a reset."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from reap.data import LazyTensorStorage, ReplayBuffer, SliceSampler
from reap.testing.marked import Told
from tests.collectors.replays import EVERY, places, serials, singles

pytestmark = pytest.mark.processes


def bare(batch: Any) -> Any:
    """Without ids, and with nothing that one frame takes over from another."""
    return batch.exclude("collector", ("next", "observation"))


def told_by_ends(**options: Any) -> ReplayBuffer:
    sampler = SliceSampler(slice_len=2, end_key=("next", "done"))
    return ReplayBuffer(storage=LazyTensorStorage(1_000, **options), sampler=sampler, write_transform=bare, batch_size=4_000)


def pairs(buffer: ReplayBuffer) -> set[Any]:
    """Env, episode and step of both frames of each slice."""
    observed = buffer.sample()["observation"][:, :3].long().view(-1, 2, 3).tolist()
    return {tuple(map(tuple, pair)) for pair in observed}


def require_all(buffer: ReplayBuffer) -> None:
    """Whatever followed each other is a slice, and nothing else is."""
    there = set(places(buffer))
    expected = {((e, n, k), (e, n, k + 1)) for e, n, k in there if (e, n, k + 1) in there}
    assert pairs(buffer) == expected


@pytest.mark.parametrize("how", ["reset", "seed", "each"])
@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("rows", [1, 2])
def test_what_is_written_after_a_reset_continues_no_episode(name: str, how: str, rows: int) -> None:
    buffer = told_by_ends(ndim=rows)
    factories = (singles if rows == 1 else serials)(1)
    options: Any = {"frames_per_batch": 5 * rows, "total_frames": 30 * rows, "reset_at_each_iter": how == "each"}
    with EVERY[name](factories, Told(), replay_buffer=buffer, **options) as collector:
        for number in range(6):
            collector.next()
            if number % 2 and how == "reset":
                collector.reset()
            if number % 2 and how == "seed":
                collector.set_seed(number)
    assert buffer.write_count == 30 * rows
    require_all(buffer)


def test_flags_of_first_frames_are_respected() -> None:
    """Where a loop of one's own wrote them."""
    buffer = ReplayBuffer(storage=LazyTensorStorage(100), sampler=SliceSampler(slice_len=2, end_key="done"), batch_size=400)
    begins = [0, 4, 5, 9]
    data = {
        "place": torch.arange(12),
        "is_init": torch.tensor([[place in begins] for place in range(12)]),
        "done": torch.tensor([[place == 8] for place in range(12)]),
    }
    for start, end in ((0, 3), (3, 5), (5, 12)):
        buffer.extend(TensorDict({key: value[start:end] for key, value in data.items()}, [end - start]))
        if end > 3:
            found = {tuple(pair) for pair in buffer.sample()["place"].view(-1, 2).tolist()}
            assert found == {(place, place + 1) for place in range(end - 1) if place + 1 not in begins}
