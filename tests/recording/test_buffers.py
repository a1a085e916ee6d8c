"""Stage and Slot: every value at its row and column, at an aligned address that stays."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from reap.keys import Key
from reap.recording.buffers import IDS, MASK, REWARD, WINDOW, ColumnViews, Slot, Stage, after
from reap.recording.layout import ALIGNMENT, Field
from tests.pairwise import each_value

FIELDS: dict[Key, Field] = {
    ("pixels",): Field((3, 5), torch.uint8),
    ("empty",): Field((2, 0), torch.float32),
    ("done",): Field((1,), torch.bool),
    ("half",): Field((7,), torch.bfloat16),
    ("terminated",): Field((1,), torch.bool),
    ("truncated",): Field((1,), torch.bool),
    IDS: Field((), torch.int64),
    MASK: Field((), torch.bool),
    after(("pixels",)): Field((3, 5), torch.uint8),
    after(REWARD): Field((1,), torch.float32),
    after(("done",)): Field((1,), torch.bool),
    after(("terminated",)): Field((1,), torch.bool),
    after(("truncated",)): Field((1,), torch.bool),
    ("agent", "done"): Field((2,), torch.bool),
}
FLAG_NAMES = {"done", "terminated", "truncated"}
SHAPES: list[tuple[int, ...]] = [(), (1,), (3,), (2, 3), (2, 0)]
COLUMNS = [1, 5, WINDOW - 1, WINDOW, WINDOW + 1, 3000]


def counting(slot: Slot, key: Key) -> torch.Tensor:
    """Every element of a field says where it is, as far as its dtype can: `[*batch, T, *value]`."""
    field = slot.fields[key]
    shape = (*slot.batch_shape, slot.columns, *field.shape)
    return (torch.arange(math.prod(shape)).view(shape) % 251).to(field.dtype)


def raw(tensor: torch.Tensor) -> np.ndarray:
    """A tensor as numpy sees fields of its dtype."""
    return tensor.view(torch.uint16).numpy() if tensor.dtype is torch.bfloat16 else tensor.numpy()


# Slot


@pytest.mark.parametrize(("shape", "columns"), each_value(itertools.product(SHAPES, COLUMNS)), ids=str)
def test_arrays_tensor_and_views_are_one_memory(shape: tuple[int, ...], columns: int) -> None:
    slot = Slot(FIELDS, shape, columns)
    rows = math.prod(shape)
    assert (slot.rows, slot.columns) == (rows, columns)
    for key, field in FIELDS.items():
        tensor, expected = slot.tensor(key), counting(slot, key)
        assert (tensor.shape, tensor.dtype) == (expected.shape, field.dtype)
        assert not tensor.any()
        tensor.copy_(expected)
    for key, field in FIELDS.items():
        expected = counting(slot, key)
        by_row = raw(expected).reshape(rows, columns, *field.shape)
        assert np.array_equal(slot.by_row(key), by_row)
        by_column = by_row.swapaxes(0, 1) if shape else by_row[0]
        assert np.array_equal(slot.by_column(key), by_column)
        assert slot.by_column(key) is slot.by_column(key)
        views = slot.views(key)
        assert slot.views(key) is views
        assert len(views) == columns
        columnwise = expected.movedim(len(shape), 0)
        assert all(torch.equal(view, column) for view, column in zip(views, columnwise, strict=True))


@pytest.mark.parametrize("columns", [5, WINDOW + 1])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_each_face_writes_what_the_others_read(shape: tuple[int, ...], columns: int) -> None:
    slot, key = Slot(FIELDS, shape, columns), ("pixels",)
    last = columns - 1
    slot.views(key)[last].fill_(1)
    slot.by_column(key)[0] = 2
    slot.by_row(key)[:, 1] = 3
    expected = torch.zeros((*shape, columns, 3, 5), dtype=torch.uint8)
    expected[..., last, :, :], expected[..., 0, :, :], expected[..., 1, :, :] = 1, 2, 3
    assert torch.equal(slot.tensor(key), expected)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_fields_of_a_slot_are_aligned_and_separate(shape: tuple[int, ...]) -> None:
    slot = Slot(FIELDS, shape, 7)
    spans = sorted((slot.by_row(k).ctypes.data, slot.by_row(k).nbytes) for k in FIELDS if slot.by_row(k).nbytes)
    assert all(start % ALIGNMENT == 0 for start, _ in spans)
    assert all(start + size <= following for (start, size), (following, _) in itertools.pairwise(spans))
    for key in FIELDS:
        tensor = slot.tensor(key)
        assert tensor.data_ptr() % ALIGNMENT == 0
        assert tensor.is_contiguous()
        assert not tensor.requires_grad


def test_views_accept_writes_in_place() -> None:
    slot = Slot(FIELDS, (3,), 4)
    view = slot.views(after(REWARD))[2]
    view.add_(1.5)
    assert torch.equal(slot.tensor(after(REWARD))[:, :, 0], torch.tensor([0.0, 0.0, 1.5, 0.0]).expand(3, 4))


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)], ids=str)
def test_clear_flags_clears_flags_only(shape: tuple[int, ...]) -> None:
    slot = Slot(FIELDS, shape, 5)
    for key in FIELDS:
        slot.by_row(key)[...] = 1
    slot.clear_flags()
    for key in FIELDS:
        assert (slot.by_row(key) == (0 if key[-1] in FLAG_NAMES else 1)).all(), key


def test_a_slot_without_flags_has_nothing_to_clear() -> None:
    slot = Slot({("a",): Field((), torch.uint8)}, (2,), 3)
    slot.by_row(("a",))[...] = 1
    slot.clear_flags()
    assert (slot.by_row(("a",)) == 1).all()


@pytest.mark.parametrize("mask", [np.eye(3, 5, dtype=bool), np.ones((3, 5), bool), np.zeros((3, 5), bool)])
def test_blank_marks_these_frames_only(mask: np.ndarray) -> None:
    slot = Slot(FIELDS, (3,), 5)
    for key in FIELDS:
        slot.by_row(key)[...] = 1
    slot.blank(mask)
    for key in FIELDS:
        expected = np.ones_like(slot.by_row(key))
        expected[mask] = -1 if key == IDS else 0
        assert np.array_equal(slot.by_row(key), expected), key


def test_blank_of_a_single_env() -> None:
    slot = Slot(FIELDS, (), 4)
    slot.by_row(IDS)[...] = 9
    slot.blank(np.array([[False, False, True, True]]))
    assert slot.tensor(IDS).tolist() == [9, 9, -1, -1]


PARTS: list[tuple[tuple[int, ...], int, int, tuple[int, ...]]] = [
    ((3,), 1, 2, ()),
    ((3,), 1, 3, (2,)),
    ((2, 3), 3, 6, (3,)),
    ((2, 3), 2, 6, (2, 2)),
    ((3,), 0, 3, (3,)),
]


@pytest.mark.parametrize("columns", [4, WINDOW + 2])
@pytest.mark.parametrize(("shape", "start", "stop", "inner"), PARTS)
def test_part_is_a_slot_over_these_rows(
    shape: tuple[int, ...], start: int, stop: int, inner: tuple[int, ...], columns: int
) -> None:
    slot = Slot(FIELDS, shape, columns)
    for key in FIELDS:
        slot.tensor(key).copy_(counting(slot, key))
    part = slot.part(start, stop, inner)
    assert (part.rows, part.columns, part.batch_shape, part.fields) == (stop - start, columns, inner, FIELDS)
    for key, field in FIELDS.items():
        expected = counting(slot, key).view(slot.rows, columns, *field.shape)[start:stop]
        assert np.array_equal(part.by_row(key), raw(expected))
        assert torch.equal(part.tensor(key), expected.view(*inner, columns, *field.shape))
        assert np.array_equal(part.by_column(key), raw(expected).swapaxes(0, 1) if inner else raw(expected)[0])
        columnwise = part.tensor(key).movedim(len(inner), 0)
        assert all(torch.equal(view, column) for view, column in zip(part.views(key), columnwise, strict=True))


@pytest.mark.parametrize(("shape", "start", "stop", "inner"), PARTS)
def test_writes_to_a_part_reach_its_rows_only(shape: tuple[int, ...], start: int, stop: int, inner: tuple[int, ...]) -> None:
    slot = Slot(FIELDS, shape, 3)
    for key in FIELDS:
        slot.by_row(key)[...] = 1
    part = slot.part(start, stop, inner)
    part.clear_flags()
    part.views(("pixels",))[2].fill_(4)
    invalid = np.zeros((part.rows, 3), bool)
    invalid[0, 1:] = True
    part.blank(invalid)
    for key in FIELDS:
        expected = np.ones_like(slot.by_row(key))
        if key[-1] in FLAG_NAMES:
            expected[start:stop] = 0
        if key == ("pixels",):
            expected[start:stop, 2] = 4
        expected[start, 1:] = -1 if key == IDS else 0
        assert np.array_equal(slot.by_row(key), expected), key


def test_part_of_a_part() -> None:
    slot = Slot(FIELDS, (6,), 2)
    slot.by_row(IDS)[...] = np.arange(12).reshape(6, 2)
    inner = slot.part(1, 5, (4,)).part(2, 3, ())
    assert inner.tensor(IDS).tolist() == inner.by_row(IDS)[0].tolist() == [6, 7]


# Column views


@pytest.mark.parametrize("columns", [1, WINDOW - 1, WINDOW, WINDOW + 1, 3000])
def test_column_views_forwards_backwards_and_at_random(columns: int) -> None:
    tensor = torch.arange(2 * columns).view(columns, 2)
    views = ColumnViews(tensor)
    draws = np.random.default_rng(0).integers(0, columns, 50).tolist()
    for index in (*range(columns), *reversed(range(columns)), *draws):
        assert views[index].tolist() == [2 * index, 2 * index + 1]
    assert len(views) == columns
    assert views[-1].tolist() == tensor[-1].tolist()
    assert torch.equal(torch.stack(list(views)), tensor)
    for outside in (columns, -columns - 1):
        with pytest.raises(IndexError):
            views[outside]


def test_column_views_are_made_once_per_window() -> None:
    views = ColumnViews(torch.zeros(3000, 2))
    backwards = [views[t] for t in reversed(range(WINDOW, 2 * WINDOW))]
    forwards = [views[t] for t in range(WINDOW, 2 * WINDOW)]
    assert all(one is other for one, other in zip(reversed(backwards), forwards, strict=True))


# Stage


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_stage_arrays_and_tensors_are_one_aligned_memory(shape: tuple[int, ...]) -> None:
    stage = Stage(FIELDS, shape)
    assert stage.rows == math.prod(shape)
    for key, field in FIELDS.items():
        array, tensor = stage.arrays[key], stage.tensors[key]
        assert array.shape == ((stage.rows,) if shape else ()) + field.shape
        assert (tuple(tensor.shape), tensor.dtype) == ((*shape, *field.shape), field.dtype)
        assert tensor.data_ptr() % ALIGNMENT == 0
        values = (torch.arange(tensor.numel()).view(tensor.shape) % 251).to(field.dtype)
        tensor.copy_(values)
        assert np.array_equal(array, raw(values).reshape(array.shape))
    assert stage.fields == FIELDS


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)], ids=str)
def test_extend_keeps_addresses_and_values(shape: tuple[int, ...]) -> None:
    stage = Stage(FIELDS, shape)
    stage.tensors["pixels",].fill_(7)
    before = {key: (id(stage.arrays[key]), id(tensor), tensor.data_ptr()) for key, tensor in stage.tensors.items()}
    state: dict[Key, Field] = {("state",): Field((4,), torch.float32), ("is_init",): Field((1,), torch.bool)}
    stage.extend(state, {("state",): np.arange(4), ("is_init",): True})
    after_it = {key: (id(stage.arrays[key]), id(stage.tensors[key]), stage.tensors[key].data_ptr()) for key in before}
    assert after_it == before
    assert (stage.arrays["pixels",] == 7).all()
    assert list(stage.fields) == [*FIELDS, *state]
    assert torch.equal(stage.tensors["state",], torch.arange(4.0).expand(*shape, 4))
    assert stage.tensors["is_init",].all()
    assert all(stage.tensors[key].data_ptr() % ALIGNMENT == 0 for key in state)


STATE: dict[Key, Field] = {("obs",): Field((2,), torch.float32), ("state",): Field((2,), torch.float32)}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [(None, [[1, 2], [1, 2], [1, 2]]), ([1], [[9, 9], [1, 2], [9, 9]]), ([2, 0], [[1, 2], [9, 9], [1, 2]])],
)
def test_begin_sets_initial_values_in_these_rows(rows: list[int] | None, expected: list[list[float]]) -> None:
    stage = Stage({("obs",): STATE["obs",]}, (3,))
    stage.extend({("state",): STATE["state",]}, {("state",): [1, 2]})
    for array in stage.arrays.values():
        array[...] = 9
    stage.begin(rows)
    assert stage.arrays["state",].tolist() == expected
    assert (stage.arrays["obs",] == 9).all()


@pytest.mark.parametrize("rows", [None, [0]])
def test_begin_of_a_single_env(rows: list[int] | None) -> None:
    stage = Stage({}, ())
    stage.extend(STATE, {("state",): [1, 2]})
    stage.arrays["state",][...] = 9
    stage.begin(rows)
    assert stage.arrays["state",].tolist() == [1, 2]


@pytest.mark.parametrize(("shape", "start", "stop", "inner"), PARTS)
def test_part_of_a_stage_is_the_same_memory(shape: tuple[int, ...], start: int, stop: int, inner: tuple[int, ...]) -> None:
    stage = Stage(FIELDS, shape)
    part = stage.part(start, stop, inner)
    assert (part.rows, part.batch_shape, part.fields) == (stop - start, inner, FIELDS)
    for key, field in FIELDS.items():
        part.arrays[key][...] = 1
        expected = np.zeros_like(stage.arrays[key])
        expected[start:stop] = 1
        assert np.array_equal(stage.arrays[key], expected)
        assert tuple(part.tensors[key].shape) == (*inner, *field.shape)
        part.tensors[key].zero_()
        assert not stage.arrays[key].any()


def test_a_part_knows_the_fields_that_it_has() -> None:
    stage = Stage(STATE, (2,))
    part = stage.part(0, 1, (1,))
    stage.extend({("is_init",): Field((1,), torch.bool)}, {})
    assert list(part.fields) == list(part.arrays) == list(part.tensors) == list(STATE)
