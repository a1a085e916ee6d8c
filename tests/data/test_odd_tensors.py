"""Tensors whose numbers a storage cannot keep, and numbers that its dtypes cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from reap.data import LazyMemmapStorage, LazyTensorStorage, ListStorage, ReplayBuffer, TensorStorage
from reap.errors import SpecMismatch

SIZE = 5


pytestmark = pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")

ODD: dict[str, Callable[[], torch.Tensor]] = {
    "a quantized one; write value.dequantize": lambda: torch.quantize_per_tensor(torch.arange(5.0), 1.0, 0, torch.qint8),
    "one of layout torch.sparse_coo; write value.to_dense": lambda: torch.eye(SIZE).to_sparse(),
}

KINDS: dict[str, Callable[[], Any]] = {
    "memory": lambda: LazyTensorStorage(8),
    "files": lambda: LazyMemmapStorage(8),
    "given": lambda: TensorStorage(TensorDict({"x": torch.zeros(SIZE)}, [SIZE])),
}

WRITES: dict[str, Callable[[ReplayBuffer, torch.Tensor], Any]] = {
    "tensordict": lambda buffer, value: buffer.extend(TensorDict({"x": value}, [SIZE])),
    "nested": lambda buffer, value: buffer.extend(TensorDict({"a": {"x": value}}, [SIZE])),
    "tensor": lambda buffer, value: buffer.extend(value),
    "dict": lambda buffer, value: buffer.extend({"x": value}),
    "items": lambda buffer, value: buffer.extend([TensorDict({"x": value}, []), TensorDict({"x": value}, [])]),
}


@pytest.mark.parametrize("words", ODD)
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_tensor_that_cannot_be_kept(kind: str, write: str, words: str) -> None:
    buffer = ReplayBuffer(storage=KINDS[kind](), batch_size=2)
    before = len(buffer)
    with pytest.raises(SpecMismatch, match=f"expected a dense tensor with values, found {words}"):
        WRITES[write](buffer, ODD[words]())
    assert len(buffer) == before


@pytest.mark.parametrize("words", ODD)
@pytest.mark.parametrize("kind", KINDS)
def test_frames_that_are_written_over_with_one(kind: str, words: str) -> None:
    buffer = ReplayBuffer(storage=KINDS[kind](), batch_size=2)
    buffer.extend(TensorDict({"x": torch.arange(5.0)}, [SIZE]))
    with pytest.raises(SpecMismatch, match=f"expected a dense tensor with values, found {words}"):
        buffer[0:SIZE] = TensorDict({"x": ODD[words]()}, [SIZE])
    assert buffer[:]["x"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_frames_that_are_written_over_with_nothing() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(8), batch_size=2)
    buffer.extend(TensorDict({"x": torch.ones(SIZE)}, [SIZE]))
    with pytest.raises(SpecMismatch, match="'x': expected a dense tensor with values, found one on device meta"):
        buffer[0:SIZE] = TensorDict({"x": torch.zeros(SIZE, device="meta")}, [SIZE])
    assert buffer[:]["x"].tolist() == [1.0] * SIZE


@pytest.mark.parametrize("words", ODD)
def test_tensors_that_are_given(words: str) -> None:
    with pytest.raises(SpecMismatch, match=f"expected a dense tensor with values, found {words}"):
        TensorStorage(TensorDict({"x": ODD[words]()}, [SIZE]))


def test_a_list_holds_anything() -> None:
    buffer = ReplayBuffer(storage=ListStorage(8), batch_size=2, collate_fn=list)
    for make in ODD.values():
        buffer.add(make())
    assert len(buffer) == len(ODD)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("byte", torch.tensor(300)),
        ("byte", torch.tensor(-1)),
        ("half", torch.tensor(1e6)),
        ("float", torch.tensor(1e300, dtype=torch.float64)),
    ],
)
def test_a_number_that_would_overflow_where_frames_are_written_over(key: str, value: torch.Tensor) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(8), batch_size=2)
    frames = {
        "byte": torch.tensor([1, 2], dtype=torch.uint8),
        "half": torch.tensor([1.0, 2.0]).half(),
        "float": torch.tensor([1.0, 2.0]),
    }
    buffer.extend(TensorDict(frames, [2]))
    for write in (
        lambda: buffer.__setitem__(0, TensorDict({key: value}, [])),
        lambda: buffer.__setitem__(key, value.expand(2)),
    ):
        with pytest.raises(SpecMismatch, match=f"'{key}': expected .* with values that it does not hold; nothing was changed"):
            write()
    assert all(torch.equal(buffer[:][name], kept) for name, kept in frames.items())
    buffer[0] = TensorDict({"byte": torch.tensor(255), "half": torch.tensor(3), "float": torch.tensor(True)}, [])
    assert [buffer[0][name].item() for name in ("byte", "half", "float")] == [255, 3.0, 1.0]


def test_a_transform_that_samples_the_buffer_too() -> None:
    held: list[ReplayBuffer] = []

    def add_others(sample: Any) -> Any:
        return held[0].sample(2) if len(sample) == 3 else sample

    buffer = ReplayBuffer(storage=LazyTensorStorage(10), batch_size=3, prefetch=2, transform=add_others)
    held.append(buffer)
    buffer.extend(TensorDict({"x": torch.arange(5)}, [SIZE]))
    assert [len(buffer.sample()) for _ in range(5)] == [2] * 5
    buffer.empty()  # and ends the thread
    held.clear()
