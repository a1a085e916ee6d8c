"""`ReplayBuffer`: what is written, in which order it lies, what is sampled, and what is refused."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from reap.data.buffers.replay import ReplayBuffer
from reap.data.samplers.uniform import RandomSampler
from reap.data.storages import LazyMemmapStorage, LazyTensorStorage, ListStorage
from reap.data.storages.leaf import Leaf
from reap.data.writers import ImmutableDatasetWriter, RoundRobinWriter
from reap.errors import CallOrderError, OptionError, ReapError, SpecMismatch
from tests.data.claims import claimed


def frames(start: int, *shape: int) -> TensorDict:
    """Frames numbered from `start`, row by row; every key says the number."""
    numbers = torch.arange(start, start + torch.Size(shape).numel()).view(shape)
    following = TensorDict({"a": numbers.float().unsqueeze(-1) + 1, "done": (numbers % 5 == 0).unsqueeze(-1)}, shape)
    return TensorDict({"a": numbers.float().unsqueeze(-1), "n": numbers, "next": following}, shape)


def buffer(size: int, ndim: int = 1, **options: Any) -> ReplayBuffer:
    return ReplayBuffer(storage=LazyTensorStorage(size, ndim=ndim), **options)


def held(of: ReplayBuffer) -> Any:
    return of[:]["n"].tolist()


# ---------------------------------------------------------------------- writing


def test_frames_lie_in_the_order_in_which_they_were_written() -> None:
    made = buffer(10)
    assert made.extend(frames(0, 4)).tolist() == [0, 1, 2, 3]
    assert made.extend(frames(4, 3)).tolist() == [4, 5, 6]
    assert (held(made), len(made), made.write_count) == ([0, 1, 2, 3, 4, 5, 6], 7, 7)
    assert made.extend(frames(7, 5)).tolist() == [7, 8, 9, 0, 1]
    assert (held(made), len(made), made.write_count) == ([10, 11, 2, 3, 4, 5, 6, 7, 8, 9], 10, 12)


def test_every_key_is_written() -> None:
    made = buffer(5)
    made.extend(frames(0, 4))
    made.extend(frames(4, 3))
    expected = torch.cat([frames(5, 2), frames(2, 3)])
    assert (made[:] == expected).all()
    assert made[:]["next", "done"].dtype == torch.bool


@pytest.mark.parametrize("count", [4, 5, 9, 10, 21])
@pytest.mark.parametrize("before", [0, 3])
def test_more_than_it_can_hold_keeps_the_last(count: int, before: int) -> None:
    made = buffer(4)
    if before:
        made.extend(frames(0, before))
    index = made.extend(frames(100, count))
    assert sorted(held(made)) == list(range(100 + count - 4, 100 + count))
    assert [held(made)[place] for place in index[-4:].tolist()] == list(range(100 + count - 4, 100 + count))
    assert (len(made), made.write_count, len(index)) == (4, before + count, count)


def test_add_is_extend_by_one() -> None:
    made = buffer(3)
    assert [made.add(frame).tolist() for frame in frames(0, 4)] == [[0], [1], [2], [0]]
    assert held(made) == [3, 1, 2]


def test_two_dimensions_grow_along_time() -> None:
    made = buffer(10, ndim=2)
    index = made.extend(frames(0, 2, 3))
    assert index.tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    assert (made[:].shape, len(made)) == ((2, 3), 6)
    made.extend(frames(10, 2, 3))
    assert held(made) == [[12, 1, 2, 10, 11], [15, 4, 5, 13, 14]]
    assert (len(made), made.write_count) == (10, 12)
    assert made.add(frames(20, 2)).tolist() == [[0, 1], [1, 1]]
    assert held(made) == [[12, 20, 2, 10, 11], [15, 21, 5, 13, 14]]


def test_three_dimensions() -> None:
    made = buffer(24, ndim=3)
    assert made.extend(frames(0, 2, 3, 3)).shape == (18, 3)
    made.extend(frames(100, 2, 3, 2))
    assert made[:].shape == (2, 3, 4)
    assert made[1, 2]["n"].tolist() == [111, 16, 17, 110]
    sample, info = made.sample(50, return_info=True)
    assert (made[:]["n"][info["index"]] == sample["n"]).all()


def test_room_for_whole_columns_and_no_fewer_frames_than_asked() -> None:
    made = buffer(11, ndim=2)
    made.extend(frames(0, 3, 5))
    assert (len(made), made[:].shape) == (12, (3, 4))


def test_dim_extend_names_the_dimension_of_time() -> None:
    made = buffer(12, ndim=2, dim_extend=0)
    made.extend(frames(0, 3, 2))
    assert held(made) == [[0, 2, 4], [1, 3, 5]]


def test_without_more_dimensions_a_batch_is_items_of_time() -> None:
    made = buffer(10)
    assert made.extend(frames(0, 2, 3)).tolist() == [0, 1]
    assert made[:]["n"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert made.sample(4)["n"].shape == (4, 3)


def test_frames_that_are_not_valid_are_left_out() -> None:
    data = frames(0, 6)
    data["collector", "mask"] = torch.tensor([True, True, False, True, False, False])
    made = buffer(10, transform=lambda data: data.reshape(-1))
    made.extend(data)
    assert held(made) == [0, 1, 3]
    made.extend(data.view(2, 3))
    assert held(made) == [0, 1, 3, 0, 1, 3]


def test_lists_of_items_are_stacked() -> None:
    made = buffer(10)
    made.extend([frames(i, 1)[0] for i in range(3)])
    assert held(made) == [0, 1, 2]


def test_tensors_and_dictionaries() -> None:
    tensors = ReplayBuffer(storage=LazyTensorStorage(4), batch_size=3)
    tensors.extend(torch.arange(6.0).view(3, 2))
    tensors.add(torch.tensor([6.0, 7.0]))
    assert tensors[:].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert tensors.sample().shape == (3, 2)
    dictionaries = buffer(4)
    dictionaries.add({"a": torch.zeros(2), "n": torch.tensor(3)})
    assert held(dictionaries) == [3]


def test_what_was_written_may_change_afterwards() -> None:
    made, data = buffer(4), frames(0, 3)
    made.extend(data)
    data["n"].zero_()
    assert held(made) == [0, 1, 2]
    sample = made.sample(100)
    made.extend(frames(50, 4))
    assert set(sample["n"].tolist()) == {0, 1, 2}


# ---------------------------------------------------------------------- sampling


def test_each_frame_is_as_likely_as_any_other() -> None:
    made = buffer(10, ndim=2, generator=torch.Generator().manual_seed(0))
    made.extend(frames(0, 2, 3))
    for expected in (range(6), [12, 20, 10, 11, 2, 15, 21, 13, 14, 5]):
        counts = Counter(made.sample(20_000)["n"].tolist())
        share = 20_000 / len(expected)
        assert set(counts) == set(expected)
        # χ² with at most 9 degrees of freedom: above 27.9 once in a thousand.
        assert sum((count - share) ** 2 / share for count in counts.values()) < 27.9
        made.extend(frames(10, 2, 3))
        made.add(frames(20, 2))


def test_samples_hold_whole_frames() -> None:
    made = buffer(7)
    made.extend(frames(0, 11))
    sample, info = made.sample(64, return_info=True)
    assert sample.batch_size == (64,)
    assert (sample == frames(0, 11)[sample["n"]]).all()
    assert [held(made)[place] for place in info["index"].tolist()] == sample["n"].tolist()


def test_one_generator_decides() -> None:
    def samples(seed: int) -> list[int]:
        made = buffer(100, generator=torch.Generator().manual_seed(seed))
        made.extend(frames(0, 100))
        return [int(number) for _ in range(3) for number in made.sample(5)["n"]]

    torch.manual_seed(0)
    before = torch.get_rng_state()
    assert samples(1) == samples(1) != samples(2)
    assert torch.equal(before, torch.get_rng_state())
    made = buffer(100)
    made.extend(frames(0, 100))
    torch.manual_seed(3)
    first = made.sample(5)["n"]
    torch.manual_seed(3)
    assert torch.equal(first, made.sample(5)["n"])


def test_the_size_of_a_sample() -> None:
    made = buffer(10, batch_size=4)
    made.extend(frames(0, 3))
    assert (len(made.sample()), len(made.sample(7))) == (4, 7)
    with pytest.raises(OptionError, match="^sample: expected a batch_size, here or where the buffer is made, got none"):
        buffer(3).sample()


def test_iteration_goes_on() -> None:
    made = buffer(10, batch_size=4)
    made.extend(frames(0, 3))
    assert [len(batch) for batch, _ in zip(made, range(5), strict=False)] == [4] * 5


def test_collate_fn_comes_before_transforms() -> None:
    made = buffer(5, collate_fn=lambda data: data.exclude("a"), transform=lambda data: data.set("b", data["n"] + 1))
    made.extend(frames(0, 3))
    assert set(made.sample(2).keys()) == {"n", "next", "b"}


def test_pin_memory_needs_a_device_to_have_an_effect() -> None:
    made = buffer(5, pin_memory=True)
    made.extend(frames(0, 3))
    assert made.sample(2)["n"].is_pinned() == torch.cuda.is_available()


# ---------------------------------------------------------------------- contents


@pytest.mark.parametrize(
    "index",
    [
        0,
        -1,
        slice(None),
        slice(1, 5, 2),
        slice(3, None),
        ...,
        None,
        [0, 2, 2],
        range(3),
        torch.tensor([3, 1]),
        np.array([3, 1]),
        torch.tensor([[3, 1], [0, 0]]),
        torch.arange(6) % 2 == 0,
        (slice(2, 4),),
    ],
)
def test_an_index_of_any_kind(index: Any) -> None:
    made = buffer(10)
    made.extend(frames(0, 6))
    expected = frames(0, 6)[index]
    found = made[index]
    assert found.shape == expected.shape
    assert (found == expected).all()


def test_what_was_not_written_is_not_there() -> None:
    made = buffer(1000)
    made.extend(frames(0, 500))
    assert len(made[10:]) == 490
    with pytest.raises(IndexError):
        made[500]


@pytest.mark.parametrize("index", [2, slice(1, 4), [0, 5], torch.tensor([4, 4]), torch.arange(6) < 2])
def test_writing_over_frames(index: Any) -> None:
    made, expected = buffer(10), frames(0, 6)
    made.extend(expected)
    new = frames(100, *expected[index].shape)
    made[index] = new
    expected[index] = new
    assert (made[:] == expected).all()
    assert (len(made), made.write_count) == (6, 6)


def test_writing_over_frames_of_several_rows() -> None:
    made = buffer(10, ndim=2)
    made.extend(frames(0, 2, 4))
    made[1, 2:4] = frames(50, 2)
    assert held(made) == [[0, 1, 2, 3], [4, 5, 50, 51]]
    with pytest.raises(SpecMismatch, match=r"expected data \[2, 4\] for this index, got \[3\]"):
        made[:] = frames(0, 3)


@pytest.mark.parametrize("keep", [True, False])
def test_empty(keep: bool) -> None:
    made = buffer(5, batch_size=2)
    made.extend(frames(0, 8))
    made.empty(empty_write_count=not keep)
    assert (len(made), made.write_count) == (0, 8 if keep else 0)
    with pytest.raises(CallOrderError, match="found it empty"):
        made.sample()
    assert made.extend(frames(50, 3)).tolist() == [0, 1, 2]
    assert held(made) == [50, 51, 52]
    assert set(made.sample(50)["n"].tolist()) == {50, 51, 52}


# ---------------------------------------------------------------------- parts


def test_parts_may_be_made_by_functions() -> None:
    made = ReplayBuffer(storage=lambda: LazyTensorStorage(5), sampler=RandomSampler, writer=RoundRobinWriter)
    assert isinstance(made.storage, LazyTensorStorage)
    assert isinstance(made.sampler, RandomSampler)
    assert isinstance(made.writer, RoundRobinWriter)
    assert ReplayBuffer().storage.max_size == 1_000


def test_parts_may_be_changed() -> None:
    made = buffer(5)
    made.extend(frames(0, 3))
    made.set_writer(ImmutableDatasetWriter())
    with pytest.raises(OptionError, match="ImmutableDatasetWriter, which writes nothing"):
        made.extend(frames(0, 1))
    made.set_writer(RoundRobinWriter())
    made.set_sampler(sampler := RandomSampler())
    assert made.sampler is sampler
    made.extend(frames(3, 1))
    assert held(made) == [0, 1, 2, 3]
    made.set_storage(LazyTensorStorage(7))
    made.extend(frames(9, 1))
    assert (held(made), made.storage.max_size) == ([9], 7)


def test_repr_says_what_is_where() -> None:
    made = buffer(10, batch_size=3)
    assert repr(made).startswith(
        "ReplayBuffer(0 frames, storage=LazyTensorStorage(max_size=10, ndim=1, device='cpu', nothing yet)"
    )
    made.extend(frames(0, 3))
    assert "3 frames" in repr(made)
    assert "170 B in RAM of this process" in repr(made)


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size: expected a positive integer, got 0"),
        ({"batch_size": 2.0}, "batch_size: expected a positive integer, got 2.0"),
        ({"prefetch": -1}, "prefetch: expected a positive integer, got -1"),
        ({"dim_extend": 1}, "dim_extend: expected 0 to 0, below the storage's ndim, got 1"),
        ({"collate_fn": 3}, "collate_fn: expected a function, got 3"),
        ({"storage": 3}, "storage: expected a Storage of reap.data, got int: 3"),
        ({"storage": dict}, "storage: expected a Storage of reap.data, got dict"),
        ({"sampler": "random"}, "sampler: expected a Sampler of reap.data, got str: 'random'"),
        ({"writer": 1}, "writer: expected a Writer of reap.data, got int: 1"),
    ],
)
def test_options_that_cannot_work(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        ReplayBuffer(**options)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(("size", "ndim"), [(0, 1), (-1, 1), (2.5, 1), (True, 1), (10, 0), (10, 1.0)])
def test_storages_that_cannot_be(size: Any, ndim: Any) -> None:
    with pytest.raises(OptionError, match="expected a positive integer"):
        LazyTensorStorage(size, ndim=ndim)


def test_more_rows_than_room() -> None:
    with pytest.raises(OptionError, match="max_size=3: expected room for one frame of each of the 4 rows"):
        buffer(3, ndim=2).extend(frames(0, 4, 2))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (frames(0, 3).exclude("a"), r"missing \['a'\], new \[\]; nothing was written"),
        (frames(0, 3).set("b", torch.zeros(3)), r"missing \[\], new \['b'\]"),
        (
            frames(0, 3).set("a", torch.zeros(3, 2)),
            r"'a': expected \(1,\) torch.float32 for each item, .* got \(2,\) torch.float32",
        ),
        (frames(0, 3).set("a", torch.zeros(3, 1).double()), r"'a': expected .* got \(1,\) torch.float64"),
        (frames(0, 3).to("meta"), r"expected data on cpu, where the storage is, got meta; write data.to\('cpu'\)"),
        (frames(0, 1)[0], r"expected at least 1 batch dimensions, as the storage's ndim says, got \[\]"),
        (torch.zeros(3), "expected a TensorDict, as it holds, got a Tensor"),
        ("text", "expected a TensorDict, a tensorclass or a tensor, got str"),
        ([], "expected at least one item, got an empty list"),
    ],
)
def test_writes_that_do_not_fit_change_nothing(data: Any, message: str) -> None:
    made = buffer(10)
    made.extend(frames(0, 8))
    with pytest.raises(SpecMismatch, match=message):
        made.extend(data)
    assert (held(made), len(made), made.write_count) == (list(range(8)), 8, 8)
    made.extend(frames(8, 4))
    assert held(made) == [10, 11, 2, 3, 4, 5, 6, 7, 8, 9]


def test_other_rows_change_nothing() -> None:
    made = buffer(12, ndim=2)
    made.extend(frames(0, 2, 3))
    with pytest.raises(SpecMismatch, match=r"expected rows \[2\], as in the first write, got \[3\]"):
        made.extend(frames(0, 3, 2))
    assert made[:].shape == (2, 3)


def test_nothing_to_sample() -> None:
    with pytest.raises(CallOrderError, match="Cannot sample from an empty storage: expected frames, found it empty"):
        buffer(5).sample(3)
    with pytest.raises(CallOrderError, match="expected something to be written to it first"):
        buffer(5)[:]


def test_nothing_is_written_by_an_empty_write() -> None:
    made = buffer(5)
    with pytest.raises(SpecMismatch, match="expected at least one item"):
        made.extend(frames(0, 0))
    made.extend(frames(0, 2))
    assert made.extend(frames(0, 0)).tolist() == []
    assert held(made) == [0, 1]


@pytest.mark.parametrize("bad", [float("nan"), -1.0, float("inf")])
def test_errors_are_of_reap(bad: float) -> None:
    assert issubclass(OptionError, ReapError)
    with pytest.raises(ReapError):
        buffer(3, batch_size=bad)


# ---------------------------------------------------------------------- reading while somebody writes


@pytest.mark.parametrize("kind", ["private", "shared", "memmap"])
@pytest.mark.parametrize("ndim", [1, 2])
def test_no_sample_holds_a_frame_that_was_being_written(kind: str, ndim: int) -> None:
    storage = LazyMemmapStorage(3_000, ndim=ndim) if kind == "memmap" else LazyTensorStorage(3_000, ndim=ndim)
    made = ReplayBuffer(storage=storage, shared=kind == "shared")
    rows = (3,) * (ndim - 1)

    def block(number: int) -> TensorDict:
        # Frames wide enough for a copy that takes its time; each says the same number in all places.
        return TensorDict({"a": torch.full((*rows, 301, 50), number), "b": torch.full((*rows, 301, 50), number)}, [*rows, 301])

    made.extend(block(0))
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            made.extend(block(number := number + 1))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(300):
            sample = made.sample(256)
            both = torch.cat([sample["a"], sample["b"]], 1)
            assert (both == both[:, :1]).all()
    finally:
        stop.set()
        writer.join()


def test_no_sample_holds_a_frame_that_was_half_edited() -> None:
    made = buffer(100)
    made.extend(TensorDict({"a": torch.zeros(100, 500)}, [100]))
    stop = threading.Event()

    def edit() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            made[:] = TensorDict({"a": torch.full((100, 500), float(number))}, [100])

    editor = threading.Thread(target=edit)
    editor.start()
    try:
        for _ in range(300):
            sample = made.sample(64)["a"]
            assert (sample == sample[:1, :1]).all()
    finally:
        stop.set()
        editor.join()


def test_a_write_that_fails_leaves_the_buffer_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    made = buffer(10)
    made.extend(frames(0, 4))

    def fail(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Leaf, "write", fail)
    with pytest.raises(KeyboardInterrupt):
        made.extend(frames(4, 3))
    monkeypatch.undo()
    assert (len(made), made.write_count, len(made.storage.leaf(("a",)))) == (4, 4, 10)
    made.extend(frames(50, 2))
    assert len(made) == 6
    assert set(made.sample(200)["n"].tolist()) == {0, 1, 2, 3, 50, 51}
    made.extend(frames(60, 8))
    assert len(made) == 10


def test_add_writes_one_column_whatever_dimension_of_data_is_time() -> None:
    of = buffer(20, ndim=2, dim_extend=0)
    assert of.add(TensorDict({"a": torch.arange(3)}, [3])).tolist() == [[0, 0], [1, 0], [2, 0]]
    of.extend(TensorDict({"a": torch.arange(6).view(2, 3)}, [2, 3]))
    assert of[:]["a"].tolist() == [[0, 0, 3], [1, 1, 4], [2, 2, 5]]


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
def test_an_empty_write_changes_nothing(storage: Any) -> None:
    of = ReplayBuffer(storage=storage(6), batch_size=2)
    of.extend(torch.arange(2))
    claim = claimed(of.storage.ring, 2)
    assert of.extend(torch.arange(0)).tolist() == []
    assert len(of) == 2
    of.storage.ring.publish(claim, 2)
    assert len(of) == 4
    assert not of.storage.ring.is_being_written


def test_a_load_goes_on_with_the_generator_that_was_given() -> None:
    generator = torch.Generator().manual_seed(1)
    of = buffer(10, generator=generator, batch_size=5)
    of.extend(frames(0, 10))
    of.load_state_dict(of.state_dict())
    samples = []
    for _ in range(2):
        generator.manual_seed(0)
        samples.append(of.sample())
    assert (samples[0] == samples[1]).all()


@pytest.mark.parametrize("three", [np.int64(3), np.uint8(3), np.array(3), torch.tensor(3), torch.tensor([3])])
def test_sizes_are_integers_of_any_kind(three: Any) -> None:
    made = ReplayBuffer(storage=LazyTensorStorage(three), batch_size=three)
    made.extend(torch.arange(3))
    assert len(made.sample()) == len(made.sample(three)) == len(made) == 3


@pytest.mark.parametrize("wrong", [True, np.True_, torch.tensor(True), 3.0, np.float64(3), torch.tensor(3.0), "3", np.int64(0)])
def test_sizes_that_are_no_integers(wrong: Any) -> None:
    made = buffer(3)
    made.extend(frames(0, 3))
    with pytest.raises(OptionError, match="batch_size: expected a positive integer, got"):
        made.sample(wrong)
