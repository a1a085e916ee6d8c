"""SlotPool: which slot is taken, what a delivered batch looks like, what it costs to save and to keep."""

from __future__ import annotations

import copy
import ctypes
import gc
import io
import os
import pickle
import textwrap
import tracemalloc
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict, assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from reap.errors import ClosedError
from reap.keys import Key
from reap.recording.layout import Field
from reap.recording.pool import SlotPool
from tests import warm
from tests.pairwise import by_default

FIELDS: dict[Key, Field] = {
    ("pixels",): Field((20, 20), torch.uint8),
    ("deep", "er", "bits"): Field((300,), torch.bool),
    ("count",): Field((40,), torch.int64),
    ("half",): Field((200,), torch.bfloat16),
    ("double",): Field((8, 5), torch.float64),
    ("nothing",): Field((0, 3), torch.float32),
    ("reward",): Field((1,), torch.float32),
    ("done",): Field((1,), torch.bool),
    ("next", "pixels"): Field((20, 20), torch.uint8),
    ("next", "reward"): Field((1,), torch.float32),
}
LEAVES = pytest.mark.parametrize("key", FIELDS, ids=".".join)
BATCH_SHAPES = pytest.mark.parametrize("shape", [(), (3,), (2, 3)], ids=str)


def counting_batch(pool: SlotPool) -> TensorDict:
    """A batch whose values count on from leaf to leaf, as far as their dtype can."""
    index = pool.take()
    slot = pool.slots[index]
    for place, key in enumerate(slot.fields):
        tensor = slot.tensor(key)
        tensor.copy_((torch.arange(tensor.numel()).view(tensor.shape) + place) % 127)
    return pool.deliver(index)


def file_of(value: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


def load(file: io.BytesIO) -> Any:
    return torch.load(file, weights_only=False)


# Slots


def test_a_new_slot_only_when_all_are_lent() -> None:
    pool = SlotPool(FIELDS, (), 4)
    first, second = pool.take(), pool.take()
    assert (first, second, pool.lent) == (0, 1, 2)
    kept = pool.deliver(first)
    pool.give_back(second)
    assert pool.take() == second
    pool.give_back(second)
    del kept
    assert pool.lent == 0
    # The one that was used last comes first: it is still in the cache.
    assert [pool.take() for _ in range(3)] == [first, second, 2]


class NoClones(TorchDispatchMode):
    """No memory is left for clones."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "clone" in str(func):
            raise MemoryError("no memory to clone into")
        return func(*args, **(kwargs or {}))


def test_a_slot_comes_back_from_a_delivery_that_fails() -> None:
    pool = SlotPool(FIELDS, (), 4)
    index = pool.take()
    with NoClones(), pytest.raises(MemoryError, match="no memory to clone into"):
        pool.deliver(index)
    assert pool.lent == 0


def test_no_memory_for_another_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = SlotPool(FIELDS, (), 4)
    kept = [counting_batch(pool) for _ in range(2)]
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 1, "SC_PAGE_SIZE": 1000}.__getitem__)
    with pytest.raises(MemoryError, match="do not fit into the memory of this machine, which has 1.0 kB") as caught:
        pool.take()
    assert caught.value.__notes__ == ["reap: 2 earlier batches are still kept, each in a block of this size"]
    assert len(pool.slots) == 2
    kept.pop()
    assert pool.take() == 1


# The batch


@BATCH_SHAPES
def test_batch_has_every_field_in_order_with_shape_and_values(shape: tuple[int, ...]) -> None:
    pool = SlotPool(FIELDS, shape, 4, device=torch.device("cpu"))
    batch = counting_batch(pool)
    assert list(batch.keys(True, True)) == [key if len(key) > 1 else key[0] for key in FIELDS]
    for node in (batch, batch["next"], batch["deep"], batch["deep", "er"]):
        assert node.batch_size == torch.Size((*shape, 4))
        assert node.names == [*[None] * len(shape), "time"]
        assert node.device == torch.device("cpu")
    slot = pool.slots[0]
    for key, field in FIELDS.items():
        assert (tuple(batch[key].shape), batch[key].dtype) == ((*shape, 4, *field.shape), field.dtype)
        assert torch.equal(batch[key], slot.tensor(key))
        assert not batch[key].requires_grad
        lent = field.nbytes > 256
        assert (batch[key].data_ptr() == slot.tensor(key).data_ptr()) == (lent or not field.nbytes)


def test_batches_are_ordinary_tensors_under_inference_mode() -> None:
    for same in (False, True):
        pool = SlotPool(FIELDS, (), 4, same=same)
        with torch.inference_mode():
            batch = counting_batch(pool)
        assert not any(leaf.is_inference() for leaf in batch.values(True, True))
        (torch.ones((), dtype=torch.float64, requires_grad=True) * batch["double"]).sum().backward()


def test_methods_in_place_work_on_lent_leaves() -> None:
    batch = counting_batch(SlotPool(FIELDS, (3,), 4))
    assert batch.detach_() is batch
    leaf = batch["double"]
    assert leaf.detach_() is leaf
    assert leaf.is_leaf
    assert leaf.requires_grad_().requires_grad
    assert torch.equal(torch.autograd.grad(leaf.sum(), leaf)[0], torch.ones_like(leaf))


@BATCH_SHAPES
def test_batch_can_be_saved_pickled_copied_and_flattened(shape: tuple[int, ...]) -> None:
    batch = counting_batch(SlotPool(FIELDS, shape, 4))
    for other in (load(file_of(batch)), pickle.loads(pickle.dumps(batch)), copy.deepcopy(batch), batch.clone()):
        assert list(other.keys(True, True)) == list(batch.keys(True, True))
        assert (other.batch_size, other.names) == (batch.batch_size, batch.names)
        assert_close(other, batch, rtol=0, atol=0)
        assert all(other[key].data_ptr() != batch[key].data_ptr() for key, field in FIELDS.items() if field.nbytes)
    for flat in (batch.view(-1), batch.reshape(-1)):
        assert flat.batch_size == torch.Size((batch.numel(),))
        for key, field in FIELDS.items():
            assert flat[key].data_ptr() == batch[key].data_ptr()
            assert torch.equal(flat[key], batch[key].view((batch.numel(), *field.shape)))


@LEAVES
def test_leaf_costs_its_own_bytes_and_is_whole(key: Key) -> None:
    batch = counting_batch(SlotPool(FIELDS, (3,), 50))
    leaf = batch[key]
    file, pickled = file_of(leaf), pickle.dumps(leaf)
    assert leaf.nbytes <= len(file.getbuffer()) < leaf.nbytes + 2048
    assert leaf.nbytes <= len(pickled) < leaf.nbytes + 2048
    for other in (load(file), pickle.loads(pickled), copy.deepcopy(leaf)):
        assert (other.shape, other.dtype) == (leaf.shape, leaf.dtype)
        assert torch.equal(other, leaf)
    assert torch.equal(leaf.view(-1), leaf.reshape(-1))
    assert leaf.view(-1).shape == (leaf.numel(),)
    assert (leaf.storage_offset(), leaf.untyped_storage().nbytes(), leaf._is_view()) == (0, leaf.nbytes, False)


def test_saved_batch_costs_its_leaves() -> None:
    batch = counting_batch(SlotPool(FIELDS, (3,), 50))
    size = sum(leaf.nbytes for leaf in batch.values(True, True))
    assert size <= len(file_of(batch).getbuffer()) < size + 20_000


# The same TensorDict each time


@BATCH_SHAPES
def test_return_same_td_gives_the_same_object_and_memory(shape: tuple[int, ...]) -> None:
    pool = SlotPool(FIELDS, shape, 4, same=True)
    first = counting_batch(pool)
    nodes = [first, first["next"], first["deep", "er"]]
    leaves = {key: (id(first[key]), first[key].data_ptr()) for key in FIELDS}
    pool.slots[0].by_row(("pixels",))[...] = 9
    index = pool.take()
    second = pool.deliver(index)
    assert [id(second), id(second["next"]), id(second["deep", "er"])] == [id(node) for node in nodes]
    assert {key: (id(second[key]), second[key].data_ptr()) for key in FIELDS} == leaves
    assert second["pixels"].eq(9).all()
    assert (len(pool.slots), pool.lent) == (1, 0)


def test_return_same_td_forgets_what_the_user_put_in() -> None:
    pool = SlotPool(FIELDS, (3,), 4, same=True)
    batch = counting_batch(pool)
    expected, following = batch.clone(), batch["next"]
    batch["pixels"] = batch["pixels"] / 255
    batch["advantage"] = torch.ones(3, 4)
    following["reward"] = following["reward"] * 2
    del batch["done"]
    batch["next"] = following.clone()
    batch.lock_()
    again = counting_batch(pool)
    assert again is batch
    assert again["next"] is following
    assert list(again.keys(True, True)) == list(expected.keys(True, True))
    assert_close(again, expected, rtol=0, atol=0)


# Memory


LARGE: dict[Key, Field] = {
    ("pixels",): Field((17, 17), torch.uint8),
    ("reward",): Field((1,), torch.float32),
    ("next", "pixels"): Field((17, 17), torch.uint8),
}


C_LIBRARY: Any = ctypes.CDLL(None)


class HeapStatistics(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ["arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"]
    )


def in_use() -> int:
    """Bytes that Python, numpy and torch have allocated: exact, where resident memory depends on what was freed before."""
    gc.collect()
    heap = C_LIBRARY.mallinfo2()
    return heap.uordblks + heap.hblkhd + tracemalloc.get_traced_memory()[0]


@pytest.fixture
def _traced() -> Iterator[None]:
    C_LIBRARY.mallinfo2.restype = HeapStatistics
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.skipif(not hasattr(C_LIBRARY, "mallinfo2"), reason="the C library does not say how much memory is in use")
@pytest.mark.usefixtures("_traced")
@pytest.mark.parametrize("piece", by_default([None, "batch", "reward", "pixels", "numpy"], None, "batch"), ids=str)
def test_a_thousand_deliveries_do_not_grow(piece: str | None) -> None:
    pieces: dict[str | None, Callable[[TensorDict], Any]] = {
        None: lambda _: None,
        "batch": lambda batch: batch,
        "reward": lambda batch: batch["reward"],
        "pixels": lambda batch: batch["pixels"][:, 3],
        "numpy": lambda batch: batch["next", "pixels"].numpy()[1:],
    }
    pool = SlotPool(LARGE, (8,), 16)
    kept: deque[Any] = deque(maxlen=5)

    def deliver(times: int) -> None:
        for stamp in range(times):
            index = pool.take()
            for key in LARGE:
                pool.slots[index].by_row(key)[...] = stamp % 100
            kept.append(pieces[piece](pool.deliver(index)))

    deliver(100)
    before, slots = in_use(), len(pool.slots)
    deliver(1000)
    assert in_use() - before < 100_000
    assert len(pool.slots) == slots == (1 if piece in {None, "reward"} else 6)


def test_batches_that_live_at_interpreter_exit_are_silent() -> None:
    script = """
        import faulthandler, sys, threading, warnings
        import numpy as np, torch
        from reap.recording.layout import Field
        from reap.recording.pool import SlotPool

        faulthandler.enable()
        warnings.simplefilter("error")
        pool = SlotPool({("a",): Field((100,), torch.float32), ("b",): Field((), torch.float32)}, (2,), 3)
        batch = pool.deliver(pool.take())
        array = pool.deliver(pool.take())["a"].numpy()[1]
        cycle = [pool.deliver(pool.take())]
        cycle.append(cycle)
        sys.kept = pool.deliver(pool.take())["a"]
        loss = (torch.ones(100, requires_grad=True) * pool.deliver(pool.take())["a"]).sum()
        local = threading.local()
        local.kept = pool.deliver(pool.take())
        torch.kept = pool, pool.deliver(pool.take())
        try:
            raise ValueError(pool.deliver(pool.take()))
        except ValueError as error:
            kept = error
        assert pool.lent == len(pool.slots) == 8
    """
    assert warm.run(textwrap.dedent(script), timeout=180) == (0, "", "")


def test_a_slot_is_not_allocated_before_it_is_needed() -> None:
    terabytes = SlotPool({("a",): Field((10**13,), torch.uint8)}, (), 1)
    assert terabytes.slots == []
    with pytest.raises(MemoryError, match=r"a: \(1, 1, 10000000000000\) torch.uint8, 10.0 TB"):
        terabytes.take()
    assert (terabytes.slots, terabytes.lent) == ([], 0)


@pytest.mark.parametrize("same", [False, True])
def test_a_slot_that_was_taken_before_the_pool_was_cleared(same: bool) -> None:
    """As another thread clears it that shuts the collector down."""
    pool = SlotPool(FIELDS, (), 4, same=same)
    numbers = [pool.take() for _ in range(2)]
    pool.clear()
    pool.give_back(numbers[0])
    for call in (pool.slot, pool.deliver):
        with pytest.raises(ClosedError, match="^the memory of these batches is dropped: another thread has shut"):
            call(numbers[1])
    assert (pool.slots, pool.lent) == ([], 0)


@pytest.mark.parametrize("same", [False, True])
def test_a_dropped_pool_frees_its_slots_without_the_collector(same: bool) -> None:
    gc.disable()
    try:
        pool = SlotPool(FIELDS, (), 4, same=same)
        counting_batch(pool)
        slot = weakref.ref(pool.slots[0])
        del pool
        assert slot() is None
    finally:
        gc.enable()


def test_batch_of_random_stamps_is_what_the_slot_held() -> None:
    pool, generator = SlotPool(FIELDS, (2, 3), 7), np.random.default_rng(0)
    for _ in range(20):
        index = pool.take()
        slot = pool.slots[index]
        for key in FIELDS:
            slot.by_column(key)[...] = generator.integers(0, 2, slot.by_column(key).shape)
        expected = {key: slot.tensor(key).clone() for key in FIELDS}
        batch = pool.deliver(index)
        assert all(torch.equal(batch[key], value) for key, value in expected.items())
