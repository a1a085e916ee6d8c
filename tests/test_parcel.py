"""Rollouts on their way: the slot they land in has the same bits, and large values that are in it twice travel once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from reap.recording.buffers import FLAGS, REWARD, Slot, after
from reap.recording.layout import Field
from reap.recording.parcel import ParcelLayout

ROWS, COLUMNS = 3, 7
PIXELS, SMALL_ONE, ODD = ("pixels",), ("small",), ("nested", "odd")
FIELDS = {
    PIXELS: Field((84, 84), torch.uint8),
    SMALL_ONE: Field((2,), torch.float32),
    ODD: Field((301,), torch.uint8),
    **{key: Field((1,), torch.bool) for key in FLAGS},
    after(PIXELS): Field((84, 84), torch.uint8),
    after(REWARD): Field((1,), torch.float32),
    after(ODD): Field((301,), torch.uint8),
    after(SMALL_ONE): Field((2,), torch.float32),
}


def recorded(ends: list[tuple[int, int]], fields: dict = FIELDS) -> Slot:
    """A slot of random bytes where the next value is that of the next column, but where an episode ends."""
    slot, random = Slot(fields, (ROWS,), COLUMNS), np.random.default_rng(0)
    slot.block.memory[:] = random.integers(0, 256, slot.block.memory.size, np.uint8)
    for key in (PIXELS, ODD):
        following, other = slot.by_row(after(key)), slot.by_row(after(key)).copy()
        following[:, :-1] = slot.by_row(key)[:, 1:]
        for row, column in ends:
            following[row, column] = other[row, column]
    return slot


def bits(slot: Slot) -> dict:
    return {key: slot.by_row(key).tobytes() for key in slot.fields}


def landed(slot: Slot, fields: dict = FIELDS) -> tuple[dict, int]:
    there, parcels = Slot(fields, (ROWS,), COLUMNS), ParcelLayout(slot.block.layout)
    there.block.memory[:] = 77
    parcel = parcels.pack(slot)
    parcels.unpack(parcel, {key: there.by_row(key) for key in fields})
    return bits(there), parcel.nbytes


@pytest.mark.parametrize(
    "ends", [[], [(0, 0)], [(1, 3), (1, 4), (2, 6)], [(r, c) for r in range(ROWS) for c in range(COLUMNS)]]
)
def test_a_rollout_lands_as_it_was(ends: list[tuple[int, int]]) -> None:
    slot = recorded(ends)
    found, _ = landed(slot)
    assert found == bits(slot)


def test_the_bits_of_nan_and_zero_land_too() -> None:
    fields = {PIXELS: Field((64,), torch.float32), after(PIXELS): Field((64,), torch.float32)}
    slot = Slot(fields, (ROWS,), COLUMNS)
    slot.by_row(PIXELS)[...], slot.by_row(after(PIXELS))[...] = np.nan, np.nan
    slot.by_row(PIXELS)[1], slot.by_row(after(PIXELS))[1] = 0.0, -0.0
    slot.by_row(after(PIXELS)).view(np.uint32)[2, 3] |= 1  # another NaN
    found, _ = landed(slot, fields)
    assert found == bits(slot)


def test_what_follows_from_the_next_column_does_not_travel() -> None:
    frame = 84 * 84 + 301
    _, without_ends = landed(recorded([]))
    assert 2 * ROWS * COLUMNS * frame - without_ends > (COLUMNS - 1) * ROWS * frame - ROWS * COLUMNS * 64
    _, with_one = landed(recorded([(1, 3)]))
    assert with_one - without_ends == frame + 2 * 8  # its values and their places


def test_a_parcel_refers_to_the_memory_of_its_slot() -> None:
    slot = recorded([])
    parcel = ParcelLayout(slot.block.layout).pack(slot)
    assert all(np.shares_memory(run, slot.block.memory) for run in parcel.runs)


@pytest.mark.parametrize("columns", [1, 2])
def test_rollouts_of_few_columns(columns: int) -> None:
    fields = {PIXELS: FIELDS[PIXELS], after(PIXELS): FIELDS[after(PIXELS)]}
    slot, there = Slot(fields, (2,), columns), Slot(fields, (2,), columns)
    slot.block.memory[:] = np.arange(slot.block.memory.size) % 251
    parcels = ParcelLayout(slot.block.layout)
    parcels.unpack(parcels.pack(slot), {key: there.by_row(key) for key in fields})
    assert bits(there) == bits(slot)
