"""Storages of tensors: kinds of data and dtypes, places, and what is refused before anything is taken."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import NonTensorStack, TensorDict, lazy_stack, tensorclass

from reap.data.buffers.replay import ReplayBuffer
from reap.data.storages import LazyMemmapStorage, LazyTensorStorage
from reap.data.storages.base import Storage
from reap.errors import CallOrderError, OptionError, SpecMismatch
from tests import warm
from tests.machine import in_container

KINDS: dict[str, Callable[..., Any]] = {"ram": LazyTensorStorage, "files": LazyMemmapStorage}

anywhere = pytest.mark.parametrize("kind", KINDS)


@tensorclass
class Step:
    x: torch.Tensor
    inner: Any


def buffer_in(kind: str, max_size: int = 4, **options: Any) -> ReplayBuffer:
    return ReplayBuffer(storage=KINDS[kind](max_size, **options))


def round_trip(kind: str, data: Any) -> tuple[Any, Any]:
    """All that a buffer holds after a write, and a sample with its index."""
    buffer = buffer_in(kind)
    buffer.extend(data)
    sample, info = buffer.sample(6, return_info=True)
    return buffer[:], (sample, info["index"])


# What can be written


DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]


@anywhere
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_and_shape(kind: str, dtype: torch.dtype) -> None:
    for shape in ((), (1,), (2, 3), (0,), (2, 0)):
        values = torch.arange(3).view(3, *[1] * len(shape)).expand(3, *shape).to(dtype)
        held, (sample, index) = round_trip(kind, values)
        assert held.dtype == sample.dtype == dtype, shape
        assert torch.equal(held, values), shape
        assert torch.equal(sample, values[index]), shape


@anywhere
def test_nan_and_infinity_keep_their_bits(kind: str) -> None:
    values = torch.tensor([float("nan"), float("inf"), -0.0])
    held, _ = round_trip(kind, values)
    assert held.view(torch.int32).tolist() == values.view(torch.int32).tolist()


@anywhere
def test_nested_keys_and_names_that_files_do_not_like(kind: str) -> None:
    data = TensorDict(
        {"a": {"b": {"c": torch.arange(3)}, "x/y": torch.ones(3)}, "..": torch.zeros(3), " ": torch.zeros(3)}, [3]
    )
    held, (sample, index) = round_trip(kind, data)
    assert bool((held == data).all())
    assert bool((sample == data[index]).all())


@anywhere
def test_tensorclasses_stay_what_they_are(kind: str) -> None:
    data = Step(x=torch.arange(3), inner=TensorDict({"y": torch.arange(3) * 2}, [3]), batch_size=[3])
    held, (sample, index) = round_trip(kind, data)
    assert isinstance(held, Step)
    assert isinstance(sample, Step)
    assert sample.x.tolist() == index.tolist()
    assert sample.inner["y"].tolist() == (2 * index).tolist()
    buffer = buffer_in(kind)
    buffer.extend(data)
    with pytest.raises(SpecMismatch, match="expected a Step, as it holds, got a TensorDict"):
        buffer.extend(TensorDict({"x": torch.arange(3)}, [3]))
    assert len(buffer) == 3


@anywhere
def test_data_of_other_strides_lazy_stacks_and_devices_given(kind: str) -> None:
    strided = TensorDict({"a": torch.arange(12).view(4, 3).T}, [3])
    assert round_trip(kind, strided)[0]["a"].tolist() == strided["a"].tolist()
    lazy = lazy_stack([TensorDict({"a": torch.tensor(number)}) for number in range(3)])
    assert round_trip(kind, lazy)[0]["a"].tolist() == [0, 1, 2]
    given = TensorDict({"a": torch.arange(3)}, [3], device="cpu")
    held, (sample, _) = round_trip(kind, given)
    assert held.device == sample.device == torch.device("cpu")


@anywhere
def test_no_graph_comes_with_the_data(kind: str) -> None:
    weight = torch.ones(3, requires_grad=True)
    buffer = buffer_in(kind)
    buffer.extend(TensorDict({"a": weight * 2}, [3]))
    buffer[0] = TensorDict({"a": weight[0] * 3})
    assert not buffer[:]["a"].requires_grad
    assert not buffer.sample(2)["a"].requires_grad
    assert buffer[:]["a"].tolist() == [3, 2, 2]


def test_strings_beside_tensors() -> None:
    buffer = buffer_in("ram")
    buffer.extend(TensorDict({"word": NonTensorStack("a", "b", "c"), "number": torch.arange(3)}, [3]))
    buffer.add(TensorDict({"word": "d", "number": torch.tensor(3)}))
    buffer.extend(TensorDict({"word": NonTensorStack("e"), "number": torch.tensor([4])}, [1]))
    assert buffer[:]["word"] == ["e", "b", "c", "d"]
    sample = buffer.sample(20)
    assert sample["word"] == ["abcde"[number] for number in sample["number"].tolist()]
    buffer[1] = TensorDict({"word": "z", "number": torch.tensor(25)})
    assert buffer[1]["word"] == "z"
    with pytest.raises(OptionError, match="Python objects cannot be shared between processes: \\['word'\\]"):
        buffer.share()
    assert buffer[1]["word"] == "z"


def test_strings_of_several_rows() -> None:
    buffer = buffer_in("ram", 6, ndim=2)
    words = NonTensorStack(NonTensorStack("a", "b"), NonTensorStack("c", "d"))
    buffer.extend(TensorDict({"word": words, "number": torch.arange(4).view(2, 2)}, [2, 2]))
    sample = buffer.sample(20)
    assert sample["word"] == ["abcd"[number] for number in sample["number"].tolist()]


def test_objects_that_no_storage_of_tensors_can_hold() -> None:
    words = TensorDict({"word": NonTensorStack("a", "b"), "number": torch.arange(2)}, [2])
    for buffer in (buffer_in("files"), ReplayBuffer(storage=LazyTensorStorage(4), shared=True)):
        with pytest.raises(SpecMismatch, match="cannot hold the Python objects of \\['word'\\]; leave them out"):
            buffer.extend(words)
        buffer.extend(words.exclude("word"))
        assert len(buffer) == 2
    rows = NonTensorStack(NonTensorStack("a", "b"), NonTensorStack("c", "d"))
    with pytest.raises(SpecMismatch, match="expected items without batch dimensions.*or ndim=2"):
        buffer_in("ram").extend(TensorDict({"word": rows}, [2, 2]))


def test_items_of_different_shapes_are_refused_and_change_nothing() -> None:
    buffer = buffer_in("ram")
    ragged = [TensorDict({"a": torch.zeros(length)}) for length in (2, 3)]
    with pytest.raises(SpecMismatch, match="expected values of one shape in every item"):
        buffer.extend(ragged)
    assert len(buffer) == 0
    buffer.extend(ragged[:1])
    for wrong in (torch.zeros(3), torch.zeros(2, dtype=torch.float64), torch.zeros(())):
        with pytest.raises(SpecMismatch, match="'a': expected \\(2,\\) torch.float32 for each item"):
            buffer.add(TensorDict({"a": wrong}))
    assert (len(buffer), buffer.write_count) == (1, 1)


# Where it lies


@anywhere
def test_a_storage_says_what_it_takes_and_where(kind: str) -> None:
    storage = KINDS[kind](1_000)
    assert "nothing yet" in repr(storage)
    assert not storage.is_initialised
    buffer: ReplayBuffer = ReplayBuffer(storage=storage)
    with pytest.raises(CallOrderError, match="found it empty"):
        buffer[:]
    buffer.extend(torch.zeros(1, 100, dtype=torch.uint8))
    assert "100.0 kB in " in repr(storage)
    assert storage.place in repr(storage)


def test_files_are_read_by_tensordict_and_seen_at_once(tmp_path: Path) -> None:
    storage = LazyMemmapStorage(5, scratch_dir=tmp_path / "a" / "b")
    buffer: ReplayBuffer = ReplayBuffer(storage=storage)
    buffer.extend(TensorDict({"x": torch.arange(3), "next": {"x": torch.ones(3, 2)}}, [3]))
    read = TensorDict.load_memmap(tmp_path / "a" / "b")
    assert read.batch_size == (5,)
    assert read["x"].tolist() == [0, 1, 2, 0, 0]
    assert read["next", "x"][:3].tolist() == [[1, 1]] * 3
    buffer.extend(TensorDict({"x": torch.tensor([7]), "next": {"x": torch.zeros(1, 2)}}, [1]))
    assert read["x"][3] == 7
    assert (tmp_path / "a" / "b" / "x.memmap").stat().st_size == 5 * 8


def test_a_temporary_folder_goes_with_its_storage() -> None:
    storage = LazyMemmapStorage(5)
    folder = storage.folder
    storage.append(torch.arange(3), torch.zeros(3, dtype=torch.int32).numpy())
    assert os.listdir(folder)
    del storage
    gc.collect()
    assert not folder.exists()


@pytest.mark.processes
def test_a_temporary_folder_goes_with_its_process_and_not_with_a_fork(tmp_path: Path) -> None:
    program = """
import os, sys, tempfile, warnings
tempfile.tempdir = sys.argv[1]
import torch
from reap.data.buffers.replay import ReplayBuffer
from reap.data.storages import LazyMemmapStorage
storage = LazyMemmapStorage(4)
buffer = ReplayBuffer(storage=storage)
buffer.extend(torch.arange(3))
warnings.simplefilter("ignore")
if not (child := os.fork()):
    sys.exit(0)
os.waitpid(child, 0)
assert os.listdir(storage.folder), "a fork removed the files"
"""
    assert warm.run(program, str(tmp_path), timeout=180) == (0, "", "")
    assert os.listdir(tmp_path) == []


def test_a_folder_in_which_something_lies_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    for place in (tmp_path, tmp_path / "mine"):
        with pytest.raises(OptionError, match="scratch_dir: expected an empty folder, found something in"):
            LazyMemmapStorage(5, scratch_dir=place)
    assert (tmp_path / "mine").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    LazyMemmapStorage(5, scratch_dir=str(tmp_path / "empty"))


@pytest.mark.processes
def test_no_descriptor_and_no_mapping_is_left_by_writes_and_samples() -> None:
    def open_now() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(Path("/proc/self/maps").read_text().splitlines())

    storage = LazyMemmapStorage(64)
    origins = torch.zeros(1, dtype=torch.int32).numpy()
    item, places = TensorDict({"a": torch.zeros(1, 8), "b": torch.zeros(1)}, [1]), torch.tensor([0])
    for _ in range(100):
        storage.append(item, origins)
        storage.copies(places)
    gc.collect()
    before = open_now()
    for _ in range(20_000):
        storage.append(item, origins)
        storage.copies(places)
    gc.collect()
    after = open_now()
    assert after[0] == before[0]
    assert after[1] <= before[1] + 20  # the allocator's own


# What is refused


def test_too_little_memory_is_refused_before_any_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_container(monkeypatch, tmp_path, left=1_000_000)
    buffer = buffer_in("ram", 1_000)
    big = TensorDict({"pixels": torch.zeros(1, 2_000, dtype=torch.uint8), "small": torch.zeros(1)}, [1])
    expected = (
        r"1000 frames need 2.0 MB, the container \(cgroup\) has 1.0 MB left; the largest key is 'pixels' with 2.0 MB. Expected "
        r"max_size of at most 4\d\d, or less in each frame"
    )
    with pytest.raises(MemoryError, match=expected):
        buffer.extend(big)
    assert not buffer.storage.is_initialised
    buffer.extend(big.exclude("pixels"))
    assert len(buffer) == 1


def test_a_size_for_which_even_the_table_of_writes_is_too_large_is_refused() -> None:
    expected = r"max_size=1000000000000: the table of origins needs 4.0 TB, .* left; expected fewer frames"
    with pytest.raises(MemoryError, match=expected):
        LazyTensorStorage(10**12)


def test_floats_of_8_bits_are_for_memory_and_refused_for_files(tmp_path: Path) -> None:
    data = TensorDict({"a": torch.arange(4.0).to(torch.float8_e4m3fn)}, [4])
    in_memory = ReplayBuffer(storage=LazyTensorStorage(4))
    in_files = ReplayBuffer(storage=LazyMemmapStorage(4, scratch_dir=tmp_path))
    in_memory.extend(data)
    assert in_memory.sample(3)["a"].dtype == torch.float8_e4m3fn
    with pytest.raises(SpecMismatch, match=r"\['a'\]: tensordict's files hold no floats of 8 bits; use a LazyTensorStorage"):
        in_files.extend(data)
    assert not list(tmp_path.iterdir())
    in_files.extend(TensorDict({"a": data["a"].view(torch.uint8)}, [4]))
    assert len(in_files) == 4


def test_too_little_shared_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer: ReplayBuffer = ReplayBuffer(storage=LazyTensorStorage(1_000), shared=True)
    in_container(monkeypatch, tmp_path, left=1_000)
    with pytest.raises(MemoryError, match=r"the container \(cgroup\) has 1.0 kB left"):
        buffer.extend(torch.zeros(1, 100))
    assert not buffer.storage.is_initialised


@anywhere
@pytest.mark.parametrize("max_size", [0, -1, 2.5, None, True, "4"])
def test_sizes_that_cannot_be(kind: str, max_size: Any) -> None:
    with pytest.raises(OptionError, match="max_size: expected a positive integer"):
        KINDS[kind](max_size)
    with pytest.raises(OptionError, match="ndim: expected a positive integer"):
        KINDS[kind](4, ndim=max_size)


@anywhere
@pytest.mark.parametrize("device", ["meta", "disk", 3.5])
def test_devices_that_hold_nothing(kind: str, device: Any) -> None:
    with pytest.raises(OptionError, match="device: expected 'cpu' or 'cuda', got"):
        KINDS[kind](4, device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="what happens without a CUDA device")
def test_cuda_where_there_is_none() -> None:
    with pytest.raises(OptionError, match="torch finds no CUDA device here"):
        LazyTensorStorage(4, device="cuda")


def test_files_are_on_the_cpu() -> None:
    with pytest.raises(OptionError, match="expected device='cpu', got 'cuda'"):
        LazyMemmapStorage(4, device="cuda")


@anywhere
def test_data_on_another_device_are_refused(kind: str) -> None:
    buffer = buffer_in(kind)
    with pytest.raises(SpecMismatch, match=r"expected data on cpu, where the storage is, got meta; write data.to\('cpu'\)"):
        buffer.extend(TensorDict({"a": torch.zeros(2, device="meta")}, [2]))
    assert not buffer.storage.is_initialised


@anywhere
def test_more_rows_than_frames_are_refused(kind: str) -> None:
    buffer = buffer_in(kind, 4, ndim=2)
    with pytest.raises(OptionError, match="max_size=4: expected room for one frame of each of the 5 rows"):
        buffer.extend(TensorDict({"a": torch.zeros(5, 1)}, [5, 1]))
    buffer.extend(TensorDict({"a": torch.zeros(2, 1)}, [2, 1]))
    with pytest.raises(SpecMismatch, match=r"expected rows \[2\], as in the first write, got \[3\]"):
        buffer.extend(TensorDict({"a": torch.zeros(3, 1)}, [3, 1]))
    with pytest.raises(SpecMismatch, match=r"expected at least 2 batch dimensions, as the storage's ndim says, got \[3\]"):
        buffer.extend(TensorDict({"a": torch.zeros(3)}, [3]))
    with pytest.raises(SpecMismatch, match=r"expected at least 1 batch dimensions, as the storage's ndim says, got \[\]"):
        buffer.add(TensorDict({"a": torch.zeros(())}))
    first: ReplayBuffer = ReplayBuffer(storage=KINDS[kind](4, ndim=2), dim_extend=0)
    with pytest.raises(SpecMismatch, match="expected at least 2 batch dimensions"):
        first.extend(TensorDict({"a": torch.zeros(3)}, [3]))
    assert (len(buffer), len(first)) == (2, 0)


def test_only_some_storages_can_be_shared() -> None:
    class Own(Storage):
        pass

    with pytest.raises(OptionError, match="a Own cannot be shared between processes; use a LazyTensorStorage"):
        Own(3).share()
    with pytest.raises(OptionError, match="storage: expected a Storage of reap.data, got dict"):
        ReplayBuffer(storage={})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.float8_e5m2])
@pytest.mark.parametrize("once", [False, True])
def test_dtypes_that_torch_cannot_write_at_an_index(once: bool, dtype: torch.dtype) -> None:
    def frame(numbers: torch.Tensor) -> TensorDict:
        depth = numbers.view(-1, 1).expand(-1, 64)
        return TensorDict({"depth": depth.to(dtype), "next": {"depth": (depth + 1).to(dtype)}}, [len(numbers)])

    buffer = buffer_in("ram", 6, observations_once=once)
    buffer.extend(frame(torch.arange(6)))
    buffer[torch.tensor([1, 4])] = frame(torch.tensor([20, 24]))
    wanted = frame(torch.tensor([0, 20, 2, 3, 24, 5]))
    found = buffer.sample(300)
    index = found["depth"][:, 0].float()
    assert set(index.tolist()) == set(wanted["depth"][:, 0].float().tolist())
    assert (found["next", "depth"].float() == (index + 1).to(dtype).float().view(-1, 1)).all()
