"""Memory that processes share, and the limits that are looked at before it is taken."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from reap.keys import Key
from reap.recording.buffers import Slot
from reap.recording.layout import Block, Field, Layout
from reap.recording.pool import SlotPool
from reap.system import memory
from reap.system.memory import available_memory, shared_memory
from tests.machine import in_container

FIELDS: dict[Key, Field] = {("a",): Field((3,), torch.float32), ("b",): Field((), torch.int64)}


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_two_maps_of_one_memory_hold_the_same_bytes() -> None:
    first = Block.shared(Layout(FIELDS))
    assert first.fd is not None
    second = Block.shared(Layout(FIELDS), os.dup(first.fd))
    first.array(("a",))[:] = [1, 2, 3]
    assert second.tensor(("a",)).tolist() == [1, 2, 3]
    assert not second.array(("b",)).any()
    assert first.memory.ctypes.data % 64 == 0


@pytest.mark.processes
def test_a_descriptor_lives_as_long_as_its_block_and_the_memory_as_long_as_an_array() -> None:
    gc.collect()
    before = descriptors()
    block = Block.shared(Layout(FIELDS))
    kept = block.tensor(("a",))
    # mmap keeps a descriptor of its own.
    assert descriptors() == before + 2
    kept[:] = 7
    del block
    gc.collect()
    assert kept.tolist() == [7, 7, 7]
    del kept
    gc.collect()
    assert descriptors() == before


def test_empty_memory_can_be_shared() -> None:
    found, fd = shared_memory(0)
    os.close(fd)
    assert found.shape == (0,)


@pytest.mark.parametrize("version", [1, 2])
def test_the_container_s_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    limit, used, stat = memory.LIMITS[2 - version]
    (tmp_path / limit).parent.mkdir(exist_ok=True)
    (tmp_path / limit).write_text("1000000\n")
    (tmp_path / used).write_text("900000\n")
    name = "total_inactive_file" if version == 1 else "inactive_file"
    (tmp_path / stat).write_text(f"anon 5\n{name} 200000\nslab 3\n")
    in_container(monkeypatch, tmp_path)
    assert available_memory() == (300_000.0, "the container (cgroup)")
    with pytest.raises(
        MemoryError, match=r"400.0 kB of shared memory are needed, and the container \(cgroup\) has 300.0 kB left"
    ):
        shared_memory(400_000)


@pytest.mark.parametrize("text", ["max\n", "9223372036854771712\n"])
def test_no_limit_is_no_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "memory.max").write_text(text)
    (tmp_path / "memory.current").write_text("900000\n")
    in_container(monkeypatch, tmp_path)
    available, bound = available_memory()
    assert bound == "the machine"
    assert available > 1 << 20


def test_the_largest_fields_are_named() -> None:
    huge = {("pixels",): Field((1 << 50,), torch.uint8), **FIELDS}
    with pytest.raises(
        MemoryError, match=r"1\.1 PB of shared memory are needed(?s:.*)Largest:\n  pixels: (?s:.*)fewer frames per batch"
    ):
        Block.shared(Layout(huge))


def test_a_slot_in_shared_memory_is_recorded_by_parts() -> None:
    whole = Slot({("x",): Field((), torch.float32)}, (4,), 3, Block.shared)
    assert whole.block.fd is not None
    fields = {("x",): Field((), torch.float32)}
    other = Slot(fields, (4,), 3, lambda layout: Block.shared(layout, os.dup(whole.block.fd or 0)))
    other.part(2, 4, (2,)).by_column(("x",))[1] = [5, 6]
    assert whole.tensor(("x",)).tolist() == [[0, 0, 0], [0, 0, 0], [0, 5, 0], [0, 6, 0]]


def test_a_bounded_pool_copies_what_would_take_the_last_slot() -> None:
    pool = SlotPool({("pixels",): Field((1000,), torch.uint8)}, (), 2, limit=2, make_block=Block.shared)
    kept = []
    for value in range(4):
        slot = pool.take()
        pool.slots[slot].by_row(("pixels",))[:] = value
        kept.append(pool.deliver(slot))
    assert [int(batch["pixels"].max()) for batch in kept] == [0, 1, 2, 3]
    assert [int(batch["pixels"].min()) for batch in kept] == [0, 1, 2, 3]
    assert len(pool.slots) == 2
    addresses = {np.asarray(slot.block.memory).ctypes.data for slot in pool.slots}
    assert [batch["pixels"].data_ptr() in addresses for batch in kept] == [True, False, False, False]
    del kept[0]
    slot = pool.take()
    assert pool.deliver(slot)["pixels"].data_ptr() in addresses
