"""Frames that are no steps: no sampler gives one, and the others are as likely as if it were not there."""

from __future__ import annotations

import pickle
from collections import Counter
from itertools import chain
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from reap.data.buffers.replay import ReplayBuffer
from reap.data.samplers.prioritized import PrioritizedSampler
from reap.data.samplers.uniform import RandomSampler, SamplerWithoutReplacement
from reap.data.storages import LazyTensorStorage
from reap.errors import CallOrderError

SAMPLERS = {
    "uniform": RandomSampler,
    "once": SamplerWithoutReplacement,
    "priorities": lambda: PrioritizedSampler(4_000, 0.7, 0.5),
}


def masked(mask: torch.Tensor, first: int = 0) -> TensorDict:
    """Frames with these masks, numbered from `first`."""
    numbers = torch.arange(first, first + mask.numel()).view(mask.shape)
    return TensorDict({"number": numbers, "collector": {"mask": mask}}, mask.shape)


def made(sampler: str, size: int = 40, ndim: int = 2, **options: Any) -> ReplayBuffer:
    generator = torch.Generator().manual_seed(2)
    return ReplayBuffer(storage=LazyTensorStorage(size, ndim=ndim), sampler=SAMPLERS[sampler], generator=generator, **options)


def some(rows: int, columns: int) -> torch.Tensor:
    """About two thirds are valid."""
    return torch.rand(rows, columns, generator=torch.Generator().manual_seed(1)) < 0.66


def numbers_of(sample: Any) -> list[int]:
    assert sample["collector", "mask"].all()
    return sample["number"].tolist()


def chi_square(counts: Counter[int], numbers: list[int]) -> float:
    """In units of its spread above what is expected by chance where all these are alike."""
    share = counts.total() / len(numbers)
    freedom = len(numbers) - 1
    return (sum((counts[number] - share) ** 2 / share for number in numbers) - freedom) / (2 * freedom) ** 0.5


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("columns", [7, 10])
def test_valid_frames_are_alike_and_no_others_come(sampler: str, columns: int) -> None:
    mask = some(4, columns)
    buffer = made(sampler)
    buffer.extend(masked(mask))
    valid = mask.flatten().nonzero().flatten().tolist()
    counts: Counter[int] = Counter()
    for _ in range(1_000 if sampler == "once" else 40):
        counts.update(numbers_of(buffer.sample(len(valid) if sampler == "once" else 500)))
    assert set(counts) == set(valid)
    assert len(set(counts.values())) == 1 if sampler == "once" else chi_square(counts, valid) < 4


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_few_valid_frames_among_many(sampler: str) -> None:
    mask = torch.zeros(4, 1_000, dtype=torch.bool)
    mask[1, 7] = mask[3, 999] = True
    buffer = made(sampler, 4_000)
    buffer.extend(masked(mask))
    counts = Counter(number for _ in range(50) for number in numbers_of(buffer.sample(2)))
    assert set(counts) == {1_007, 3_999}
    assert chi_square(counts, [1_007, 3_999]) < 4


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_where_no_frame_is_valid(sampler: str) -> None:
    buffer = made(sampler)
    buffer.extend(masked(torch.zeros(4, 5, dtype=torch.bool)))
    with pytest.raises(CallOrderError, match="replay buffer: expected"):
        buffer.sample(2)
    buffer.extend(masked(torch.ones(4, 1, dtype=torch.bool), 100))
    assert set(numbers_of(buffer.sample(4))) <= {100, 101, 102, 103}


def test_what_is_written_over_and_told_apart_again() -> None:
    """Rings that come round, in which other frames are valid."""
    for sampler in SAMPLERS:
        buffer = made(sampler)
        for number in range(9):
            buffer.extend(masked(some(4, 11)[:, number : number + 3], 100 * number))
            kept = buffer[:]
            valid = kept["number"][kept["collector", "mask"]].tolist()
            assert set(numbers_of(buffer.sample(min(6, len(valid))))) <= set(valid)


def test_a_priority_makes_no_frame_valid() -> None:
    mask = some(4, 10)
    buffer = made("priorities")
    index = buffer.extend(masked(mask))
    buffer.update_priority(index, torch.full((40,), 5.0))
    assert set(numbers_of(buffer.sample(500))) == set(mask.flatten().nonzero().flatten().tolist())
    _, info = buffer.sample(10, return_info=True)
    assert info["priority_weight"].tolist() == [1.0] * 10


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("ndim", [1, 2])
def test_frames_that_are_put_in_the_place_of_others(sampler: str, ndim: int) -> None:
    """In the middle of an epoch too."""
    shape = (2, 10) if ndim == 2 else (20,)
    buffer = made(sampler, 20, ndim)
    buffer.extend(masked(torch.ones(shape, dtype=torch.bool)))
    seen = numbers_of(buffer.sample(5))
    for place in range(0, 20, 2):
        index = (place // 10, place % 10) if ndim == 2 else place
        buffer[index] = masked(torch.tensor(False), place)
    rest = [numbers_of(buffer.sample(5)) for _ in range(20)]
    assert {number % 2 for numbers in rest for number in numbers} == {1}
    if sampler == "once":
        left = {number for number in range(1, 20, 2) if number not in seen}
        assert set(chain.from_iterable(rest[: -(-len(left) // 5)])) >= left
    buffer[(0, 0) if ndim == 2 else 0] = masked(torch.tensor(True), 0)
    assert 0 in {number for _ in range(40) for number in numbers_of(buffer.sample(5))}


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("moved", ["handle", "copy", "state"])
def test_whoever_has_the_buffer_knows_which_are_valid(sampler: str, moved: str) -> None:
    buffer = made(sampler, shared=moved == "handle")
    mask = some(4, 10)
    buffer.extend(masked(mask))
    other = made(sampler) if moved == "state" else pickle.loads(pickle.dumps(buffer))
    if moved == "state":
        other.load_state_dict(buffer.state_dict())
    valid = set(mask.flatten().nonzero().flatten().tolist())
    assert {number for _ in range(30) for number in numbers_of(other.sample(len(valid)))} == valid
    if moved == "handle":
        other.extend(masked(~mask, 100))
        assert min(numbers_of(buffer.sample(20))) >= 100
