"""`PrioritizedSliceSampler`: how often slices begin where, weights, and which slices there are."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from reap.data.buffers.replay import ReplayBuffer
from reap.data.samplers import prioritized_slices
from reap.data.samplers.prioritized_slices import PrioritizedSliceSampler
from reap.data.samplers.slices import SliceSampler
from reap.data.storages import LazyTensorStorage
from reap.errors import CallOrderError, OptionError
from tests.data.slices_model import Env, frames_of, slices_within, stacked
from tests.pairwise import each_value, pairwise

LENGTHS = [5, 3, 6, 4]
LENGTH = 4


def sliced(priorities: list[float] | None = None, **options: Any) -> ReplayBuffer:
    """Episodes of `LENGTHS`; the observation is (0, episode, step)."""
    frames = torch.tensor([(0, number, step) for number, length in enumerate(LENGTHS) for step in range(length)])
    options = {"alpha": 1.0, "beta": 1.0, "eps": 0.0, "slice_len": LENGTH, **options}
    buffer = ReplayBuffer(storage=LazyTensorStorage(18), sampler=PrioritizedSliceSampler(18, **options))
    index = buffer.extend(TensorDict({"observation": frames, "episode": frames[:, 1]}, [18]))
    if priorities is not None:
        buffer.update_priority(index, torch.tensor(priorities))
    return buffer


@pytest.mark.parametrize("scale", [1.0, 1e-6])
def test_slices_begin_as_often_as_the_priorities_of_their_first_frames_say(scale: float) -> None:
    """With large priorities where no slice can begin, too."""
    may_begin = [0, 1, 8, 9, 10, 14]
    priorities = [1.0] * 18
    for place, priority in zip(may_begin, (1, 2, 3, 0, 4, 6), strict=True):
        priorities[place] = priority * scale
    sample, info = sliced(priorities).sample(LENGTH * 4_000, return_info=True)
    drawn = Counter(info["index"].view(-1, LENGTH)[:, 0].tolist())
    assert set(drawn) == {0, 1, 8, 10, 14}
    for place, share in {0: 1 / 16, 1: 2 / 16, 8: 3 / 16, 10: 4 / 16, 14: 6 / 16}.items():
        assert abs(drawn[place] / 4_000 - share) < 0.03
    assert (sample["observation"].view(-1, LENGTH, 3).diff(dim=1) == torch.tensor([0, 0, 1])).all()
    assert sample["next", "truncated"].view(-1, LENGTH).tolist() == [[False, False, False, True]] * 4_000
    lowest = min(priority for priority in priorities if priority)
    expected = torch.tensor([lowest / priorities[place] for place in info["index"].view(-1, LENGTH)[:, 0].tolist()])
    assert torch.allclose(info["priority_weight"].view(-1, LENGTH), expected.unsqueeze(1))


def test_short_trajectories_as_a_whole_without_strict_length() -> None:
    buffer = sliced(strict_length=False)
    found = set()
    for _ in range(200):
        frames = frames_of(buffer.sample(LENGTH))
        found.add((*frames[0][1:], len(frames)))
    assert found == {(0, 0, 4), (0, 1, 4), (1, 0, 3), (2, 0, 4), (2, 1, 4), (2, 2, 4), (3, 0, 4)}


@pytest.mark.parametrize("seed", range(3))
def test_all_slices_that_there_are_of_several_rows_and_writers(seed: int) -> None:
    chance = random.Random(seed)
    envs = [Env(number, seed, longest=20) for number in range(2)]
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(60), sampler=PrioritizedSliceSampler(60, 0.6, 0.4, num_slices=400), batch_size=1_200
    )
    for _ in range(20):
        env = chance.choice(envs)
        buffer.extend(env.frames(chance.randint(1, 12)))
        if len(buffer) == 60:
            frames = frames_of(buffer.sample())
            pieces = {tuple(frames[start : start + 3]) for start in range(0, len(frames), 3)}
            expected = slices_within(frames_of(buffer[:]), 3)
            assert pieces <= expected
            assert len(pieces) > 0.9 * len(expected)


def test_rows_and_a_state_to_go_on_from() -> None:
    def new() -> ReplayBuffer:
        sampler = PrioritizedSliceSampler(60, 0.6, 0.4, slice_len=3)
        generator = torch.Generator().manual_seed(3)
        return ReplayBuffer(storage=LazyTensorStorage(60, ndim=2), sampler=sampler, batch_size=12, generator=generator)

    buffer, envs = new(), [Env(number, 1, longest=20) for number in range(2)]
    for _ in range(5):
        buffer.extend(stacked(envs, 8))
        _, info = buffer.sample(return_info=True)
        buffer.update_priority(info["index"], torch.rand(12))
    loaded = new()
    loaded.load_state_dict(buffer.state_dict())
    for _ in range(30):
        assert torch.equal(buffer.sample()["observation"], loaded.sample()["observation"])


def test_a_slice_with_a_frame_that_was_written_over_is_drawn_again() -> None:
    buffer, env = (
        ReplayBuffer(storage=LazyTensorStorage(60), sampler=PrioritizedSliceSampler(60, 1.0, 1.0, slice_len=3)),
        Env(0, 3),
    )
    buffer.extend(env.frames(60))
    storage, sampler = buffer.storage, buffer.sampler
    draw, reading = sampler.draw(storage, 90, None), storage.ring.begin_reading()
    buffer.extend(env.frames(20))
    bad = storage.ring.touched(draw.places.numpy() % 60, reading)
    again = sampler.redraw(draw, bad, storage, None)
    kept = int((~bad.reshape(-1, 3).any(1)).sum())
    assert 0 < kept < 30
    assert len(again.places) == len(again.info["priority_weight"]) == 90
    pieces = storage.leaf(("observation",))[again.places].view(-1, 3, 3).tolist()
    assert {tuple(map(tuple, piece)) for piece in pieces} <= slices_within(frames_of(buffer[:]), 3)


def test_what_cannot_be() -> None:
    with pytest.raises(OptionError, match="expected uniform_over='frames', got 'episodes': the weights"):
        sliced(uniform_over="episodes")
    with pytest.raises(OptionError, match="expected num_slices or slice_len"):
        sliced(slice_len=None)
    with pytest.raises(OptionError, match="a multiple of slice_len=4, got 6"):
        sliced().sample(6)
    with pytest.raises(CallOrderError, match="at least 7 frames, the longest in the buffer has 6 frames"):
        sliced(slice_len=7).sample(7)
    only_last = [0.0] * 17 + [1.0]
    with pytest.raises(CallOrderError, match="a priority above 0 from which a slice of 4 can begin, found none"):
        sliced(only_last).sample(4)


def flagged(first: int) -> TensorDict:
    """Two episodes of ten frames, none of which ends."""
    flags = {name: torch.zeros(20, 1, dtype=torch.bool) for name in ("done", "terminated", "truncated")}
    return TensorDict({"episode": torch.arange(20) // 10 + first, "next": flags}, [20])


@pytest.mark.parametrize("emptied", ["before", "here", "elsewhere"])
def test_the_first_sample_after_empty_is_marked_too(emptied: str) -> None:
    sampler = PrioritizedSliceSampler(100, 0.7, 0.5, slice_len=3)
    buffer = ReplayBuffer(storage=LazyTensorStorage(100), sampler=sampler, batch_size=6)
    other = ReplayBuffer(storage=buffer.storage)
    other.extend(flagged(0))
    if emptied != "before":
        buffer.sample()
    (buffer if emptied == "here" else other).empty()
    buffer.extend(flagged(2))
    for _ in range(2):
        following = buffer.sample()["next"]
        for name in ("done", "truncated"):
            assert following[name].flatten().tolist() == [False, False, True] * 2
        assert not following["terminated"].any()


Piece = tuple[int, int, int]
"""Episode, first step, number of frames."""


def pieces_of(sample: TensorDict) -> list[Piece]:
    """Slices, cut where the mark says that one ends."""
    ends = sample["next", "done"].flatten().nonzero().flatten().add(1).tolist()
    frames = frames_of(sample)
    parts = [frames[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    for part in parts:
        assert part == [(0, part[0][1], part[0][2] + k) for k in range(len(part))]
    return [(part[0][1], part[0][2], len(part)) for part in parts]


def shares(span: tuple[int, int], strict: bool, priorities: list[float]) -> dict[Piece, float]:
    """How likely each slice is: each that reaches over the ends by at most so much, as its first frame's priority says."""
    places = {
        (number, step): place for place, (number, step) in enumerate((n, s) for n, of in enumerate(LENGTHS) for s in range(of))
    }
    likely: Counter[Piece] = Counter()
    for number, frames in enumerate(LENGTHS):
        if strict and frames < LENGTH:
            continue
        for start in range(-span[0], -span[0] + max(frames - LENGTH + 1 + sum(span), 1)):
            first, end = max(start, 0), min(start + LENGTH, frames)
            likely[number, first, end - first] += priorities[places[number, first]]  # type: ignore[assignment]
    total = sum(likely.values())
    return {piece: share / total for piece, share in likely.items() if share}


SPANS = [(False, (0, 0)), (True, (3, 3)), ([2, 0], (2, 0)), ((False, True), (0, 3)), ((9, 1), (3, 1))]


@pytest.mark.parametrize(("span", "strict", "sought"), each_value(pairwise(SPANS, [True, False], [False, True])))
def test_how_often_each_slice_is_drawn(span: Any, strict: bool, sought: bool, monkeypatch: Any) -> None:
    """Also where those that can begin are sought out, which gives the same shares."""
    if sought:
        monkeypatch.setattr(prioritized_slices, "ATTEMPTS", 0)
    priorities = [float(1 + place * 7 % 5) for place in range(18)]
    priorities[9] = 0.0
    given, reach = span
    buffer = sliced(priorities, span=given, strict_length=strict)
    buffer.set_rng(torch.Generator().manual_seed(3))
    expected = shares(reach, strict, priorities)
    sample, info = buffer.sample(LENGTH * 10_000, return_info=True)
    pieces = pieces_of(sample)
    drawn = Counter(pieces)
    assert set(drawn) == set(expected)
    # χ² in units of its spread.
    freedom = len(expected) - 1
    terms = [(drawn[piece] - 10_000 * share) ** 2 / (10_000 * share) for piece, share in expected.items()]
    assert (sum(terms) - freedom) / (2 * freedom) ** 0.5 < 4
    lowest = min(priority for priority in priorities if priority)
    firsts = torch.tensor([0, *[length for *_, length in pieces]]).cumsum(0)[:-1]
    weights = [lowest / priorities[place] for place in info["index"][firsts].tolist()]
    of_all = torch.tensor(weights).repeat_interleave(torch.tensor([length for *_, length in pieces]))
    assert torch.allclose(info["priority_weight"], of_all)


@pytest.mark.parametrize("span", [False, (True, False), 2])
def test_equal_priorities_are_no_choice_among_slices(span: Any) -> None:
    """They give what a `SliceSampler` over frames gives."""
    counts: list[Counter[Piece]] = []
    for sampler in (
        PrioritizedSliceSampler(18, 1.0, 1.0, slice_len=LENGTH, span=span),
        SliceSampler(slice_len=LENGTH, span=span, uniform_over="frames"),
    ):
        buffer = sliced()
        buffer.set_sampler(sampler)
        buffer.set_rng(torch.Generator().manual_seed(5))
        counts.append(Counter(pieces_of(buffer.sample(LENGTH * 10_000))))
    one, other = counts
    assert set(one) == set(other)
    terms = [(one[piece] - other[piece]) ** 2 / (one[piece] + other[piece]) for piece in one]
    freedom = len(one) - 1
    assert (sum(terms) - freedom) / (2 * freedom) ** 0.5 < 4
