"""Slices against a plain model of which frames follow each other: every slice that there is, and no other."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict, tensorclass

from reap.data.buffers.replay import ReplayBuffer
from reap.data.samplers.slices import SliceSampler
from reap.data.storages import LazyTensorStorage
from reap.errors import CallOrderError, OptionError
from tests.data.claims import claimed
from tests.data.slices_model import Env, check, frames_of, kept, slices_indexed, slices_within, stacked
from tests.pairwise import each_value, pairwise

MARKS = ["ids", "ends", "both"]
"""What says which trajectory a frame is of."""


def slices_drawn(buffer: ReplayBuffer, length: int, count: int) -> Counter[tuple[tuple[int, ...], ...]]:
    drawn: Counter[tuple[tuple[int, ...], ...]] = Counter()
    data = buffer.sample(length * count)
    observed = data["observation"].view(count, length, 3).tolist()
    drawn.update(tuple(tuple(frame) for frame in piece) for piece in observed)
    return drawn


def sliced(capacity: int, ndim: int = 1, **options: Any) -> ReplayBuffer:
    return ReplayBuffer(storage=LazyTensorStorage(capacity, ndim=ndim), sampler=SliceSampler(**options))


# ---------------------------------------------------------------------- which slices there are


@pytest.mark.parametrize(("marks", "seed"), each_value(pairwise(MARKS, range(6))))
def test_one_env_in_writes_of_any_length(marks: str, seed: int) -> None:
    chance, env = random.Random(seed), Env(0, seed)
    buffer = sliced(40, num_slices=1)
    for _ in range(40):
        buffer.extend(kept(env.frames(chance.randint(1, 13)), marks))
        if chance.random() < 0.6:
            check(buffer, chance.choice([1, 2, 3, 5]))
    check(buffer, 3)


@pytest.mark.parametrize(("marks", "shape", "seed"), each_value(pairwise(MARKS, [(3,), (2, 2)], range(3))))
def test_rows_apart(marks: str, shape: tuple[int, ...], seed: int) -> None:
    chance = random.Random(seed)
    envs = [Env(number, seed) for number in range(int(np.prod(shape)))]
    buffer = sliced(len(envs) * 25, ndim=len(shape) + 1, num_slices=1)
    for _ in range(25):
        data = kept(stacked(envs, chance.randint(1, 11)), marks)
        buffer.extend(data.reshape(*shape, -1))
        if chance.random() < 0.6:
            check(buffer, chance.choice([1, 2, 3, 5]))
    check(buffer, 3)


@pytest.mark.parametrize(("marks", "by_transform", "columns"), each_value(pairwise(MARKS, [True, False], [1, 4, 7])))
def test_rows_written_one_after_the_other(marks: str, by_transform: bool, columns: int) -> None:
    envs = [Env(number, columns) for number in range(3)]
    flatten = (lambda data: data.reshape(-1)) if by_transform else None
    buffer = ReplayBuffer(storage=LazyTensorStorage(60), sampler=SliceSampler(num_slices=1), transform=flatten)
    for _ in range(25):
        data = kept(stacked(envs, columns), marks)
        buffer.extend(data if by_transform else data.reshape(-1))
        if by_transform or marks != "ends":
            check(buffer, 3)
        else:  # without ids nothing tells which row a frame belongs to: fewer slices, none wrong
            assert set(slices_indexed(buffer, 2)) <= slices_within(frames_of(buffer[:]), 2)


@pytest.mark.parametrize(("marks", "ids_are_equal", "seed"), each_value(pairwise(MARKS, [True, False], range(4))))
def test_several_writers_in_any_order(marks: str, ids_are_equal: bool, seed: int) -> None:
    chance = random.Random(seed)
    counts = [iter(range(10_000)) for _ in range(3)]
    envs = [Env(number, seed, counts[number] if ids_are_equal else None) for number in range(3)]
    storage, sampler = LazyTensorStorage(70), SliceSampler(num_slices=1)
    buffers = [ReplayBuffer(storage=storage, sampler=sampler) for _ in envs]
    for _ in range(50):
        writer = chance.randrange(3)
        buffers[writer].extend(kept(envs[writer].frames(chance.randint(1, 8)), marks))
        if chance.random() < 0.5:
            check(buffers[0], chance.choice([2, 3, 5]))


@pytest.mark.parametrize("marks", ["ids", "ends"])
@pytest.mark.parametrize("ndim", [1, 2])
def test_observations_that_are_stored_once(marks: str, ndim: int) -> None:
    chance, envs = random.Random(1), [Env(number, 1, longest=20) for number in range(2)]
    storage, sampler = LazyTensorStorage(60, ndim=ndim, observations_once=True), SliceSampler(slice_len=4)
    buffers = [ReplayBuffer(storage=storage, sampler=sampler) for _ in envs]
    for batch in range(30):
        number, count = chance.randrange(2), chance.randint(1, 8)
        data = stacked(envs, count) if ndim == 2 else envs[number].frames(count)
        if batch % 4:
            buffers[number * (ndim == 1)].extend(kept(data, marks))
            check(buffers[0], 4)


@pytest.mark.parametrize(("ids_are_equal", "seed"), each_value(pairwise([True, False], range(4))))
def test_batches_of_several_workers_in_order_of_arrival(ids_are_equal: bool, seed: int) -> None:
    chance = random.Random(seed)
    counts = [iter(range(10_000)) for _ in range(3)]
    envs = [Env(number, seed, counts[number] if ids_are_equal else None) for number in range(3)]
    buffer = sliced(70, num_slices=1)
    for _ in range(50):
        buffer.extend(chance.choice(envs).frames(chance.randint(1, 8)))
        if chance.random() < 0.5:
            check(buffer, chance.choice([2, 3, 5]))


@pytest.mark.parametrize("marks", ["ids", "ends", "both"])
@pytest.mark.parametrize("ndim", [1, 2])
def test_a_batch_left_out_is_a_gap(marks: str, ndim: int) -> None:
    envs = [Env(number, 3, longest=30) for number in range(ndim)]
    buffer = sliced(200 * ndim, ndim=ndim, num_slices=1)
    for batch in range(40):
        data = kept(stacked(envs, 5), marks)
        if batch % 3:
            buffer.extend(data if ndim == 2 else data[0])
    check(buffer, 8)


def test_a_write_longer_than_the_buffer() -> None:
    env = Env(0, 1)
    buffer = sliced(20, num_slices=1)
    for count in (50, 3, 41, 20, 21):
        buffer.extend(env.frames(count))
        check(buffer, 2)


def test_frames_that_are_no_steps_are_in_no_slice() -> None:
    envs = [Env(number, 5) for number in range(2)]
    buffer = sliced(80, ndim=2, num_slices=1)
    gone: list[tuple[int, ...]] = []
    for batch in range(6):
        data = stacked(envs, 6)
        mask = torch.ones(2, 6, dtype=torch.bool)
        mask[batch % 2, 4:] = False
        gone += frames_of(data[~mask])
        buffer.extend(data.set(("collector", "mask"), mask))
    expected = slices_within([frame for frame in frames_of(buffer[:]) if frame not in gone], 3)
    assert slices_indexed(buffer, 3) == Counter(expected)


def test_ids_that_come_round_the_ring_again() -> None:
    """CASES G03: ids [3, 3, 0, 1, 1, 1, 2, 2, 2, 3], where the last 3 is older than the first."""
    ids, steps = [2, 2, 2, 3, 3, 3, 0, 1, 1, 1, 2, 2, 2, 3], [9, 9, 9, 9, 0, 1, 0, 0, 1, 2, 0, 1, 2, 0]
    buffer = sliced(10, slice_len=2)
    observed = torch.tensor([(0, number, step) for number, step in zip(ids, steps, strict=True)])
    order = torch.tensor([*range(10), *range(10, 14)])
    buffer.extend(TensorDict({"observation": observed[order], "episode": observed[order, 1]}, [14]))
    expected = Counter({((0, 1, 0), (0, 1, 1)): 1, ((0, 1, 1), (0, 1, 2)): 1, ((0, 2, 0), (0, 2, 1)): 1})
    expected |= Counter({((0, 2, 1), (0, 2, 2)): 1, ((0, 3, 0), (0, 3, 1)): 0})
    found = slices_indexed(buffer, 2)
    assert all(len({frame[1] for frame in piece}) == 1 for piece in found)
    assert set(found) >= {piece for piece, count in expected.items() if count}


def test_short_trajectories_to_their_last_frame() -> None:
    """CASES G01: a trajectory of two frames, slices of one: both."""
    buffer = sliced(10, slice_len=1)
    frames = torch.tensor([(0, 0, 0), (0, 0, 1)])
    buffer.extend(TensorDict({"observation": frames, "episode": frames[:, 1]}, [2]))
    assert set(slices_drawn(buffer, 1, 200)) == {((0, 0, 0),), ((0, 0, 1),)}


def test_edits_in_place_change_what_belongs_together() -> None:
    buffer = sliced(10, slice_len=2)
    frames = torch.tensor([(0, 0, step) for step in range(4)])
    data = TensorDict({"observation": frames, "episode": frames[:, 1]}, [4])
    buffer.extend(data)
    assert len(slices_indexed(buffer, 2)) == 3
    data["episode"] = torch.tensor([0, 0, 1, 1])
    buffer[:4] = data
    assert set(slices_indexed(buffer, 2)) == {((0, 0, 0), (0, 0, 1)), ((0, 0, 2), (0, 0, 3))}


def test_after_empty_nothing_old_comes_back() -> None:
    env = Env(0, 2, longest=20)
    buffer = sliced(30, num_slices=1)
    for count in (17, 25, 9):
        buffer.extend(env.frames(count))
        check(buffer, 2)
        buffer.empty()
        with pytest.raises(CallOrderError):
            buffer.sample(2)


# ---------------------------------------------------------------------- how likely each is


def chi_square(counts: list[int], shares: list[float]) -> float:
    """In units of its spread above what is expected by chance."""
    total = sum(counts)
    terms = [(count - total * share) ** 2 / (total * share) for count, share in zip(counts, shares, strict=True)]
    freedom = len(counts) - 1
    return (sum(terms) - freedom) / (2 * freedom) ** 0.5


@pytest.mark.parametrize("over", ["episodes", "frames"])
def test_how_often_each_slice_is_drawn(over: str) -> None:
    lengths = [5, 3, 10, 4, 30]
    frames = torch.tensor([(0, number, step) for number, length in enumerate(lengths) for step in range(length)])
    buffer = sliced(100, slice_len=4, uniform_over=over)
    buffer.extend(TensorDict({"observation": frames, "episode": frames[:, 1]}, [len(frames)]))
    drawn = slices_drawn(buffer, 4, 40_000)
    fits = [number for number, length in enumerate(lengths) if length >= 4]
    slices = [(number, start) for number in fits for start in range(lengths[number] - 3)]
    share = {
        "episodes": lambda number: 1 / len(fits) / (lengths[number] - 3),
        "frames": lambda _: 1 / len(slices),
    }[over]
    keys = [tuple((0, number, start + k) for k in range(4)) for number, start in slices]
    assert set(drawn) == set(keys)
    assert chi_square([drawn[key] for key in keys], [share(number) for number, _ in slices]) < 4


@pytest.mark.parametrize("over", ["episodes", "frames"])
@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_a_buffer_that_was_loaded_gives_the_same_slices(over: str, kind: str, tmp_path: Path) -> None:
    def new() -> ReplayBuffer:
        sampler = SliceSampler(num_slices=3, uniform_over=over)  # pyright: ignore[reportArgumentType]
        generator = torch.Generator().manual_seed(7)
        return ReplayBuffer(storage=LazyTensorStorage(100), sampler=sampler, batch_size=12, generator=generator)

    buffer, env = new(), Env(0, 0, longest=20)
    for count in (40, 30, 50, 9):
        buffer.extend(env.frames(count))
        buffer.sample()
    buffer.extend(env.frames(11))
    loaded = new()
    if kind == "memory":
        loaded.load_state_dict(buffer.state_dict())
    else:
        buffer.dumps(tmp_path / "buffer")
        loaded.loads(tmp_path / "buffer")
    for round_ in range(100):
        if round_ % 9 == 8:  # both begin an episode, for the loaded one does not know who writes
            env = Env(round_, 0, longest=20)
            data = env.frames(30)
            buffer.extend(data)
            loaded.extend(data)
        assert torch.equal(buffer.sample()["observation"], loaded.sample()["observation"]), round_


def test_one_generator_gives_the_same_slices() -> None:
    samples = []
    for _ in range(2):
        buffer = ReplayBuffer(
            storage=LazyTensorStorage(100),
            sampler=SliceSampler(num_slices=3),
            batch_size=12,
            generator=torch.Generator().manual_seed(7),
        )
        buffer.extend(Env(0, 0, longest=20).frames(100))
        samples.append(torch.stack([buffer.sample()["observation"] for _ in range(20)]))
    assert torch.equal(*samples)


# ---------------------------------------------------------------------- options


def lengths_drawn(buffer: ReplayBuffer, draws: int) -> set[tuple[int, int, int]]:
    """Episode, first step and length of slices drawn one by one."""
    found = set()
    for _ in range(draws):
        observed = buffer.sample()["observation"].tolist()
        assert [frame[2] for frame in observed] == list(range(observed[0][2], observed[0][2] + len(observed)))
        found.add((observed[0][1], observed[0][2], len(observed)))
    return found


def of_lengths(lengths: list[int], **options: Any) -> ReplayBuffer:
    frames = torch.tensor([(0, number, step) for number, length in enumerate(lengths) for step in range(length)])
    buffer = ReplayBuffer(storage=LazyTensorStorage(100), sampler=SliceSampler(slice_len=4, **options), batch_size=4)
    buffer.extend(TensorDict({"observation": frames, "episode": frames[:, 1]}, [len(frames)]))
    return buffer


WHOLE = {(0, 0, 4), (0, 1, 4)}


@pytest.mark.parametrize(
    ("span", "cut"),
    [
        (False, set()),
        ((False, True), {(0, 2, 3), (0, 3, 2), (0, 4, 1)}),
        ((True, False), {(0, 0, 3), (0, 0, 2), (0, 0, 1)}),
        (2, {(0, 0, 3), (0, 0, 2), (0, 2, 3), (0, 3, 2)}),
        ((0, 1), {(0, 2, 3)}),
        ((9, 0), {(0, 0, 3), (0, 0, 2), (0, 0, 1)}),
        ([False, 1], {(0, 2, 3)}),
        ([np.int64(0), np.True_], {(0, 2, 3), (0, 3, 2), (0, 4, 1)}),
        (torch.tensor(2), {(0, 0, 3), (0, 0, 2), (0, 2, 3), (0, 3, 2)}),
    ],
)
def test_span_lets_slices_reach_over_the_ends(span: Any, cut: set[tuple[int, int, int]]) -> None:
    assert lengths_drawn(of_lengths([5, 3], span=span), 300) == WHOLE | cut


def test_without_strict_length_short_trajectories_come_whole() -> None:
    assert lengths_drawn(of_lengths([5, 3], strict_length=False), 200) == {*WHOLE, (1, 0, 3)}


def test_trajectories_or_ends_given_from_outside() -> None:
    frames = torch.tensor([(0, 0, step) for step in range(8)])
    ends = torch.tensor([False, False, True, False, False, False, False, True])
    choices: list[dict[str, Any]] = [{"ends": ends}, {"trajectories": torch.tensor([4, 4, 4, 7, 7, 7, 7, 7])}]
    for given in choices:
        buffer = sliced(8, slice_len=3, cache_values=True, **given)
        buffer.extend(TensorDict({"observation": frames}, [8]))
        first_steps = {piece[0][2] for piece in slices_indexed(buffer, 3)}
        assert first_steps == {0, 3, 4, 5}
    buffer = sliced(8, slice_len=3, ends=ends[:3])
    buffer.extend(TensorDict({"observation": frames}, [8]))
    with pytest.raises(CallOrderError, match=r"one for each of the 8 frames of the buffer, got 3"):
        buffer.sample(3)


def test_a_full_buffer_is_not_written_on_once_ends_were_given() -> None:
    buffer = sliced(8, slice_len=3, ends=torch.arange(8) == 7)
    frames = TensorDict({"observation": torch.zeros(8, 3)}, [8])
    buffer.extend(frames)
    assert len(buffer.sample(3)) == 3
    buffer.extend(frames[:2])
    with pytest.raises(CallOrderError, match="expected no more writes to a buffer for which these were given"):
        buffer.sample(3)


def test_ends_of_slices_are_marked() -> None:
    """CASES G04: truncated at the end of a slice unless that is a real end; terminated as it was stored."""
    buffer = sliced(500, slice_len=3)
    buffer.extend(Env(0, 1).frames(500))
    stored = {tuple(frame): flags for frame, *flags in zip(*_columns_of(buffer[:]), strict=True)}
    sample = buffer.sample(600)
    for place, (frame, done, terminated, truncated) in enumerate(zip(*_columns_of(sample), strict=True)):
        was_done, was_terminated, was_truncated = stored[tuple(frame)]
        is_last = place % 3 == 2
        assert terminated == was_terminated
        assert done == (was_done or is_last)
        assert truncated == (was_truncated or (is_last and not was_terminated))
    assert torch.equal(buffer[:]["next", "done"], Env(0, 1).frames(500)["next", "done"])


def test_marks_are_in_samples_and_not_in_their_info() -> None:
    """torchrl has them in `info`, and adds `terminated`: docs/dropin.md."""
    buffer = sliced(20, slice_len=3)
    buffer.extend(Env(0, 1).frames(20).exclude(("next", "terminated")))
    sample, info = buffer.sample(6, return_info=True)
    assert sample["next", "truncated"].flatten().tolist()[2::3] == [True, True]
    assert list(info) == ["index"]
    assert ("next", "terminated") not in sample.keys(include_nested=True)


def _columns_of(data: Any) -> list[list[Any]]:
    flags = [data["next", name].flatten().tolist() for name in ("done", "terminated", "truncated")]
    return [data["observation"].tolist(), *flags]


def test_marks_under_a_key_of_ones_own_and_none() -> None:
    buffer = of_lengths([5], truncated_key="cut")
    assert buffer.sample()["cut"].flatten().tolist() == [False, False, False, True]
    buffer = of_lengths([5], truncated_key=None)
    assert set(buffer.sample().keys()) == {"observation", "episode"}


@tensorclass
class Frames:
    """Data that have no keys but their own."""

    observation: torch.Tensor
    episode: torch.Tensor


def test_a_tensorclass_gets_no_marks() -> None:
    buffer = sliced(10, slice_len=3)
    frames = torch.tensor([(0, 0, step) for step in range(3)])
    buffer.extend(Frames(observation=frames, episode=frames[:, 1], batch_size=[3]))  # pyright: ignore[reportCallIssue]
    sample = buffer.sample(3)
    assert isinstance(sample, Frames)
    assert torch.equal(sample.observation, frames)


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "expected num_slices or slice_len, got num_slices=None, slice_len=None"),
        ({"num_slices": 2, "slice_len": 2}, "expected num_slices or slice_len, got num_slices=2, slice_len=2"),
        ({"num_slices": 0}, "num_slices: expected a positive integer, got 0"),
        ({"slice_len": 2, "traj_key": "a", "trajectory_key": "b"}, "are one option"),
        ({"slice_len": 2, "ends": torch.zeros(3), "end_key": "done"}, "got both"),
        ({"slice_len": 2, "uniform_over": "rows"}, "expected 'episodes' or 'frames', got 'rows'"),
        *[
            ({"slice_len": 2, "span": wrong}, "span: expected True, False")
            for wrong in (-1, [0, -1], [1], (1, 2, 3), 0.5, "ab", None)
        ],
    ],
)
def test_arguments_that_cannot_work(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        SliceSampler(**options)


def test_what_cannot_be_sampled() -> None:
    with pytest.raises(CallOrderError, match="found it empty"):
        sliced(10, slice_len=4).sample(4)
    with pytest.raises(OptionError, match=r"a multiple of slice_len=4, got 6"):
        of_lengths([5]).sample(6)
    with pytest.raises(CallOrderError, match=r"at least 4 frames, the longest in the buffer has 3 frames"):
        of_lengths([3, 2]).sample()
    with pytest.raises(
        OptionError, match=r"traj_key='nowhere': the buffer has no such key; it holds \['observation', 'episode'\]"
    ):
        of_lengths([5], traj_key="nowhere").sample()
    with pytest.raises(OptionError, match=r"end_key='nowhere'"):
        of_lengths([5], end_key="nowhere").sample()
    buffer = sliced(10, slice_len=2)
    buffer.extend(TensorDict({"observation": torch.zeros(5)}, [5]))
    with pytest.raises(OptionError, match="which tell trajectories apart"):
        buffer.sample(2)


@pytest.mark.parametrize(("ids", "ends"), [("episode", "nowhere"), ("nowhere", "over")])
def test_one_of_two_keys_is_enough(ids: str, ends: str) -> None:
    buffer = sliced(10, slice_len=2, traj_key=ids, end_key=ends)
    over = torch.tensor([False, False, True, False, False, True])
    data = {"episode": torch.tensor([0, 0, 0, 1, 1, 1]), "over": over, "n": torch.arange(6)}
    buffer.extend(TensorDict({key: value for key, value in data.items() if key in (ids, ends, "n")}, [6]))
    assert {tuple(piece) for piece in buffer.sample(200)["n"].view(100, 2).tolist()} == {(0, 1), (1, 2), (3, 4), (4, 5)}
    other = sliced(10, slice_len=2, traj_key="neither", end_key="nor")
    other.extend(TensorDict(data, [6]))
    with pytest.raises(OptionError, match="traj_key='neither': the buffer has no such key"):
        other.sample(2)


def test_a_call_that_failed_does_no_harm() -> None:
    buffer = of_lengths([3])
    with pytest.raises(CallOrderError):
        buffer.sample()
    frames = torch.tensor([(0, 1, step) for step in range(4)])
    buffer.extend(TensorDict({"observation": frames, "episode": frames[:, 1]}, [4]))
    assert buffer.sample()["observation"][:, 2].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.uint8, torch.int32, torch.int64])
@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("ndim", [1, 2])
def test_ids_of_any_dtype(ndim: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    ids = torch.tensor([1, 1, 2, 2, 2, 3, 3, 3], dtype=dtype)
    data = TensorDict({"episode": ids.view(8, *shape), "place": torch.arange(8)}, [8])
    buffer = sliced(8, ndim, slice_len=3)
    buffer.extend(data if ndim == 1 else data.unsqueeze(0))
    found = {tuple(places) for places in buffer.sample(300)["place"].view(-1, 3).tolist()}
    assert found == {(2, 3, 4), (5, 6, 7)}


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_flags_of_any_dtype_are_marked(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    def flags(*rows: int) -> torch.Tensor:
        return torch.zeros(6).index_fill(0, torch.tensor(rows, dtype=torch.int64), 1).to(dtype).view(6, *shape)

    after = {"done": flags(2, 5), "terminated": flags(2).view(6, 1), "truncated": flags(5)}
    data = TensorDict({"episode": torch.tensor([0, 0, 0, 1, 1, 1]), "place": torch.arange(6), "next": after}, [6])
    buffer = sliced(6, slice_len=2)
    buffer.extend(data)
    sample = buffer.sample(200)
    last = sample[1::2]
    assert sample["next", "truncated"].dtype is dtype
    assert (sample[::2]["next", "truncated"] == 0).all()
    cut = last["next", "truncated"].flatten()
    assert cut.tolist() == (last["place"] != 2).to(dtype).tolist()
    assert (last["next", "done"] == 1).all()


def test_ends_that_only_this_sampler_knows_are_real_ones() -> None:
    is_last = torch.tensor([False, False, True, False, False, False, True])
    data = TensorDict({"place": torch.arange(7), "is_last": is_last}, [7])
    for options in ({"end_key": "is_last"}, {"ends": is_last}):
        buffer = sliced(7, slice_len=2, **options)
        buffer.extend(data if "end_key" in options else data.exclude("is_last"))
        last = buffer.sample(200)[1::2]
        assert set(last["place"].tolist()) == {1, 2, 4, 5, 6}
        assert last["next", "truncated"].flatten().tolist() == [place not in (2, 6) for place in last["place"].tolist()]


@pytest.mark.parametrize(
    ("span", "found"),
    [
        (True, {(1, 0, 1), (1, 0, 2), (1, 0, 3), (1, 1, 2), (1, 2, 1)}),
        ((2, False), {(1, 0, 2), (1, 0, 3)}),
        ((False, 1), {(1, 0, 3)}),
        (False, {(1, 0, 3)}),
    ],
)
def test_span_over_trajectories_that_are_shorter_than_a_slice(span: Any, found: set[tuple[int, int, int]]) -> None:
    buffer = of_lengths([5, 3], span=span, strict_length=False)
    assert {piece for piece in lengths_drawn(buffer, 400) if piece[0] == 1} == found


def test_a_sampler_of_other_keys_makes_an_index_of_its_own() -> None:
    data = TensorDict({"episode": torch.arange(8) // 4, "pair": torch.arange(8) // 2, "place": torch.arange(8)}, [8])
    saved = sliced(8, slice_len=2, traj_key="episode")
    saved.extend(data)
    saved.sample(2)
    for options, starts in (({"traj_key": "pair"}, {0, 2, 4, 6}), ({"traj_key": "episode"}, {0, 1, 2, 4, 5, 6})):
        loaded = sliced(8, slice_len=2, **options)
        loaded.load_state_dict(saved.state_dict())
        assert set(loaded.sample(400)["place"][::2].tolist()) == starts
    short = sliced(8, slice_len=3, traj_key="pair")
    short.extend(data[:4])
    with pytest.raises(CallOrderError, match="at least 3 frames"):
        short.sample(3)
    loaded = sliced(8, slice_len=3, traj_key="pair", strict_length=False)
    loaded.load_state_dict(short.state_dict())
    assert len(loaded.sample(3)) == 2


def test_an_edit_right_after_a_load_is_seen() -> None:
    data = TensorDict({"episode": torch.arange(8) // 4, "place": torch.arange(8)}, [8])
    saved = sliced(8, slice_len=2)
    saved.extend(data)
    saved.sample(2)
    loaded = sliced(8, slice_len=2)
    loaded.load_state_dict(saved.state_dict())
    loaded[2] = TensorDict({"episode": torch.tensor(9), "place": torch.tensor(2)}, [])
    # Frame 3 is of the episode of 0 and 1 still, and did not go on from there.
    assert {tuple(places) for places in loaded.sample(400)["place"].view(-1, 2).tolist()} == {
        (0, 1),
        (4, 5),
        (5, 6),
        (6, 7),
    }


def test_a_storage_of_another_buffer_is_written_in_streams_of_ones_own() -> None:
    def frames(writer: int) -> TensorDict:
        return TensorDict({"episode": torch.zeros(4, dtype=torch.int64), "writer": torch.full((4,), writer)}, [4])

    storage = LazyTensorStorage(20)
    other, own = ReplayBuffer(storage=storage), sliced(20, slice_len=4)
    own.extend(frames(9))
    own.set_storage(storage)
    for _ in range(2):
        other.extend(frames(1))
        own.extend(frames(2))
    pairs = own.sample(400)["writer"].view(-1, 4)
    assert (pairs == pairs[:, :1]).all()


def test_given_trajectories_with_frames_that_were_never_written() -> None:
    buffer = sliced(8, slice_len=4, trajectories=torch.tensor([0] * 5 + [1] * 3))
    buffer.extend(TensorDict({"place": torch.arange(4)}, [4]))
    buffer.storage.ring.give_up(claimed(buffer.storage.ring, 1))
    buffer.extend(TensorDict({"place": torch.arange(5, 8)}, [3]))
    assert buffer.sample(4)["place"].tolist() == [0, 1, 2, 3]


def test_ends_that_no_flag_of_the_data_says_are_marked_as_done_too() -> None:
    data = TensorDict({"place": torch.arange(3), "end": torch.tensor([False, False, True])}, [3])
    buffer = sliced(3, slice_len=3, end_key="end")
    buffer.extend(data)
    sample = buffer.sample(3)
    assert sample["next", "done"].flatten().tolist() == [False, False, True]
    assert sample["next", "truncated"].flatten().tolist() == [False, False, False]


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.float8_e5m2])
def test_flags_of_dtypes_that_torch_cannot_write_at_an_index(dtype: torch.dtype) -> None:
    flags = {name: torch.zeros(4, 1).to(dtype) for name in ("done", "terminated", "truncated")}
    buffer = sliced(4, slice_len=2, traj_key="episode")
    buffer.extend(TensorDict({"episode": torch.zeros(4, dtype=torch.int64), "next": flags}, [4]))
    sample = buffer.sample(20)
    for name in ("done", "truncated"):
        assert (sample["next", name].float().flatten() != 0).tolist() == [False, True] * 10


class Interrupting(SliceSampler):
    """Breaks off in the middle of taking a write in, as Ctrl-C does."""

    at = 0

    def updated(self, storage: Any) -> Any:
        self.at -= 1
        if not self.at:
            index: Any = self._index
            index.table.add = self._broken
        return super().updated(storage)

    @staticmethod
    def _broken(*_: int) -> int:
        raise KeyboardInterrupt


def test_a_draw_that_was_broken_off_leaves_slices_right() -> None:
    sampler = Interrupting(slice_len=3, traj_key="episode")
    buffer = ReplayBuffer(storage=LazyTensorStorage(60), sampler=sampler, batch_size=30)
    for number in range(40):
        places = torch.arange(7) + 7 * number
        buffer.extend(TensorDict({"place": places, "episode": torch.full((7,), number)}, [7]))
        sampler.at = 1 if number and number % 3 == 0 else 0
        if sampler.at:
            with pytest.raises(KeyboardInterrupt):
                buffer.sample()
        assert (buffer.sample()["place"].view(-1, 3).diff() == 1).all()


def test_loads_without_end() -> None:
    buffer = sliced(20, slice_len=2, traj_key="episode")
    for number in range(3):
        buffer.extend(TensorDict({"episode": torch.full((4,), number), "place": torch.arange(4)}, [4]))
    for _ in range(100):
        buffer.load_state_dict(buffer.state_dict())
    assert (buffer.sample(40)["place"].view(-1, 2).diff() == 1).all()
