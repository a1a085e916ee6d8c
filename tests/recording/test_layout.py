"""Layout and Block: where fields lie, and arrays and tensors over the same bytes."""

from __future__ import annotations

import copy
import io
import pickle

import numpy as np
import pytest
import torch

from reap.keys import Key
from reap.recording import layout as layouts
from reap.recording.layout import ALIGNMENT, Block, Field, Layout, numpy_dtype, physical_memory, private_memory

FIELDS: dict[Key, Field] = {
    ("pixels",): Field((2, 3, 11), torch.uint8),
    ("empty",): Field((2, 0), torch.float32),
    ("flag",): Field((), torch.bool),
    ("next", "half"): Field((33,), torch.bfloat16),
    ("next", "count"): Field((2, 4), torch.int64),
    ("wide",): Field((5,), torch.float64),
}

DTYPES = (
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
)


def test_offsets_are_multiples_of_64_in_the_order_given() -> None:
    layout = Layout(FIELDS)
    assert list(layout) == list(FIELDS)
    # 66 bytes take two lines of 64, nothing takes none.
    assert [layout.offset(key) for key in layout] == [0, 128, 128, 192, 320, 384]
    assert layout.nbytes == 448
    assert [field.nbytes for field in layout.values()] == [66, 0, 1, 66, 64, 40]


def test_span_goes_from_the_first_field_to_the_end_of_the_last() -> None:
    layout = Layout(FIELDS)
    assert layout.span([("flag",)]) == slice(128, 129)
    assert layout.span([("next", "count"), ("flag",)]) == slice(128, 384)


def test_layouts_are_equal_if_the_same_fields_lie_at_the_same_places() -> None:
    same, moved = Layout(dict(FIELDS)), Layout(dict(reversed(FIELDS.items())))
    assert same == Layout(FIELDS)
    assert hash(same) == hash(Layout(FIELDS))
    assert moved != same
    assert Layout({}) != {}
    assert pickle.loads(pickle.dumps(same)) == same


def test_repr_shows_offset_key_shape_and_dtype() -> None:
    lines = [line.split() for line in repr(Layout({("next", "a"): Field((3,), torch.float32)})).splitlines()]
    assert lines == [["Layout"], ["0", "next.a", "(3,)", "torch.float32"], ["64", "end"]]


def test_lead_puts_dimensions_before_those_of_the_value() -> None:
    assert Field((3,), torch.int8).lead(2, 5) == Field((2, 5, 3), torch.int8)


def test_empty_layout_has_an_empty_block() -> None:
    assert Layout({}).nbytes == 0
    assert Block.private(Layout({})).memory.shape == (0,)


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 65, 4097])
def test_private_memory_is_zeroed_aligned_and_writable(nbytes: int) -> None:
    memory = private_memory(nbytes)
    assert memory.shape == (nbytes,)
    assert not nbytes or memory.ctypes.data % ALIGNMENT == 0
    assert memory.flags.writeable
    assert not memory.any()


def test_every_field_is_aligned_and_zero() -> None:
    block = Block.private(Layout(FIELDS))
    for key, field in FIELDS.items():
        tensor, array = block.tensor(key), block.array(key)
        assert (tuple(tensor.shape), tensor.dtype, array.shape) == (field.shape, field.dtype, field.shape)
        assert not tensor.any()
        if field.nbytes:
            assert tensor.data_ptr() == array.ctypes.data == block.memory.ctypes.data + block.layout.offset(key)
            assert tensor.data_ptr() % ALIGNMENT == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_array_and_tensor_are_the_same_bytes(dtype: torch.dtype) -> None:
    block = Block.private(Layout({("before",): Field((3,), torch.uint8), ("a",): Field((2, 3), dtype)}))
    values = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(dtype)
    block.tensor(("a",)).copy_(values)
    assert torch.equal(torch.from_numpy(block.array(("a",)).copy()).view(dtype), values)
    block.array(("a",))[0] = 0
    assert torch.equal(block.tensor(("a",)), torch.cat([torch.zeros_like(values[:1]), values[1:]]))
    assert not block.array(("before",)).any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numpy_dtype_has_the_same_size(dtype: torch.dtype) -> None:
    assert numpy_dtype(dtype).itemsize == dtype.itemsize


def test_numpy_sees_unsigned_integers_where_it_lacks_the_dtype() -> None:
    assert numpy_dtype(torch.bfloat16) == np.dtype(np.uint16)
    assert numpy_dtype(torch.float8_e4m3fn) == np.dtype(np.uint8)


@pytest.mark.parametrize("key", FIELDS, ids=".".join)
def test_a_tensor_has_a_storage_of_its_own(key: Key) -> None:
    tensor = Block.private(Layout(FIELDS)).tensor(key)
    assert tensor.untyped_storage().nbytes() == FIELDS[key].nbytes
    assert (tensor.storage_offset(), tensor.is_contiguous(), tensor._is_view()) == (0, True, False)
    file = io.BytesIO()
    torch.save(tensor, file)
    assert file.tell() < FIELDS[key].nbytes + 2048
    file.seek(0)
    for other in (torch.load(file), pickle.loads(pickle.dumps(tensor)), copy.deepcopy(tensor)):
        assert (other.shape, other.dtype) == (tensor.shape, tensor.dtype)
        assert torch.equal(other, tensor)


# A layout that does not fit


TEN_TB = Layout(
    {
        ("action",): Field((8, 100_000), torch.int64),
        ("pixels",): Field((8, 100_000, 1250, 1250, 4), torch.uint8),
        ("next", "pixels"): Field((8, 100_000, 1250, 1250, 4), torch.uint8),
    }
)


def test_more_than_the_machine_has_is_an_error_that_names_sizes() -> None:
    with pytest.raises(MemoryError) as caught:
        Block.private(TEN_TB)
    first, *rows, advice = str(caught.value).splitlines()
    machine = f"of this machine, which has {layouts.readable(physical_memory())}. Largest:"
    assert first == f"10.0 TB in one block, of 3 fields, do not fit into the memory {machine}"
    assert rows == [
        "  pixels: (8, 100000, 1250, 1250, 4) torch.uint8, 5.0 TB",
        "  next.pixels: (8, 100000, 1250, 1250, 4) torch.uint8, 5.0 TB",
        "  action: (8, 100000) torch.int64, 6.4 MB",
    ]
    assert advice.startswith("Use fewer frames per batch")


@pytest.mark.parametrize("pages", [2**70, None], ids=["overcommitted", "unknown"])
def test_what_the_system_refuses_is_the_same_error(monkeypatch: pytest.MonkeyPatch, pages: int | None) -> None:
    def sysconf(name: str) -> int:
        if pages is None:
            raise ValueError(name)
        return pages

    monkeypatch.setattr(layouts.os, "sysconf", sysconf)
    beyond_all_addresses = Layout({("pixels",): Field((1 << 60,), torch.uint8)})
    with pytest.raises(MemoryError, match=r"^1\.2 EB in one block, of 1 field, do not fit into the memory") as caught:
        Block.private(beyond_all_addresses)
    assert ("of this machine" in str(caught.value)) == (pages is not None)
    assert isinstance(caught.value.__cause__, MemoryError)


def test_only_the_largest_fields_are_named() -> None:
    fields: dict[Key, Field] = {(f"f{i}",): Field((i, 10**13), torch.uint8) for i in range(1, 10)}
    with pytest.raises(MemoryError) as caught:
        Block.private(Layout(fields))
    named = [line.split(":")[0].strip() for line in str(caught.value).splitlines()[1:-1]]
    assert named == ["f9", "f8", "f7", "f6", "f5"]
