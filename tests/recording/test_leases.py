"""Leases: a slot is lent for exactly as long as any piece of its batch lives, in whatever form the user keeps it."""

from __future__ import annotations

import copy
import gc
import io
import itertools
import operator
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase, lazy_stack
from tensordict.nn import TensorDictParams
from torch import nn
from torch.utils.data import DataLoader

from reap.keys import Key
from reap.recording.layout import Field
from reap.recording.pool import SlotPool
from tests.pairwise import by_default

PIXELS: Key = ("pixels",)
WIDE: Key = ("next", "wide")
FIELDS: dict[Key, Field] = {
    PIXELS: Field((20, 20), torch.uint8),
    ("reward",): Field((1,), torch.float32),
    ("limit",): Field((64,), torch.float32),  # 256 bytes: just small
    WIDE: Field((65,), torch.float32),
}
SMALL_FIELDS = {key: field for key, field in FIELDS.items() if key in {("reward",), ("limit",)}}
ROWS, COLUMNS = 3, 8

Keep = Callable[[TensorDict], Any]


def make_pool(**options: Any) -> SlotPool:
    return SlotPool(FIELDS, (ROWS,), COLUMNS, **options)


def record(pool: SlotPool, stamp: int) -> TensorDict:
    """A batch in which every value is `stamp` plus its column."""
    index = pool.take()
    slot = pool.slots[index]
    for key in slot.fields:
        slot.by_column(key)[...] = np.arange(stamp, stamp + COLUMNS).reshape(-1, *[1] * (slot.by_column(key).ndim - 1))
    return pool.deliver(index)


def identity(value: Any) -> Any:
    return value


def raised_with(batch: TensorDict) -> BaseException:
    """An exception in whose traceback a frame still has a leaf."""

    def fail(leaf: torch.Tensor) -> None:
        raise ValueError(leaf.shape)

    try:
        fail(batch[WIDE])
    except ValueError as error:
        return error
    raise AssertionError


def graph(batch: TensorDict) -> torch.Tensor:
    """A result whose backward pass needs a leaf."""
    weight = torch.ones(65, requires_grad=True)
    return (weight * batch[WIDE]).sum()


def wrapped_by_vmap(batch: TensorDict) -> list[torch.Tensor]:
    """What a function that keeps its input keeps under vmap."""
    seen: list[torch.Tensor] = []

    def keep(row: torch.Tensor) -> torch.Tensor:
        seen.append(row)
        return row.sum()

    torch.vmap(keep)(batch[WIDE])
    return seen


def with_buffer(batch: TensorDict) -> nn.Module:
    module = nn.Module()
    module.register_buffer("pixels", batch[PIXELS])
    return module


def closed_over(batch: TensorDict) -> Callable[[], torch.Tensor]:
    leaf = batch[PIXELS]
    return lambda: leaf


def next_of(iterator: Iterator[Any]) -> tuple[Iterator[Any], Any]:
    return iterator, next(iterator)


HOLDING: dict[str, Keep] = {
    # the batch and parts of it
    "batch": identity,
    "sub-tensordict": operator.itemgetter("next"),
    "time slice": lambda b: b[..., 3],
    "row": operator.itemgetter(1),
    "batch.view(-1)": lambda b: b.view(-1),
    "batch.reshape(-1)": lambda b: b.reshape(-1),
    "batch.unbind": lambda b: b.unbind(-1)[2],
    "batch.split": lambda b: b.split(4, -1)[1],
    "batch.select": lambda b: b.select("pixels"),
    "batch.flatten_keys": lambda b: b.flatten_keys("."),
    "batch.to_dict": lambda b: b.to_dict(),
    "shallow clone": lambda b: b.clone(recurse=False),
    "copy.copy": copy.copy,
    "batch.detach": lambda b: b.detach(),
    "batch.data": lambda b: b.data,
    "locked batch": lambda b: b.lock_(),
    "TensorDictParams": lambda b: TensorDictParams(TensorDict({"wide": b[WIDE]}), no_convert=True),
    "lazy stack": lambda b: lazy_stack([b, b.clone()]),
    "items of the batch": lambda b: next_of(iter(b.items())),
    "items of a DataLoader": lambda b: next(iter(DataLoader(b, batch_size=None, collate_fn=identity))),
    "the iterator of a DataLoader": lambda b: next_of(iter(DataLoader(b, batch_size=None, collate_fn=identity))),
    # a leaf and tensors over it
    "leaf": operator.itemgetter(PIXELS),
    "nested leaf": operator.itemgetter(WIDE),
    "leaf[1:2]": lambda b: b[PIXELS][1:2],
    "leaf[..., 0]": lambda b: b[PIXELS][..., 0],
    "leaf.T": lambda b: b[PIXELS].mT,
    "leaf.detach()": lambda b: b[PIXELS].detach(),
    "leaf.data": lambda b: b[PIXELS].data,
    "leaf.view(-1)": lambda b: b[PIXELS].view(-1),
    "leaf.view(dtype)": lambda b: b[PIXELS].view(torch.int32),
    "leaf.contiguous()": lambda b: b[PIXELS].contiguous(),
    "leaf.to(its dtype)": lambda b: b[PIXELS].to(torch.uint8),
    "leaf.unbind()": lambda b: b[PIXELS].unbind(1)[0],
    "leaf.split()": lambda b: b[PIXELS].split(3, 1)[2],
    "leaf.chunk()": lambda b: b[PIXELS].chunk(2, 1)[1],
    "leaf.expand()": lambda b: b[PIXELS][:1].expand(5, -1, -1, -1),
    "leaf.unfold()": lambda b: b[PIXELS].unfold(1, 2, 1),
    "as_strided": lambda b: b[PIXELS].as_strided((2, 2), (1, 2)),
    "Parameter": lambda b: nn.Parameter(b[WIDE]),
    "buffer of a module": with_buffer,
    "requires_grad_": lambda b: b[WIDE].requires_grad_(),
    "storage": lambda b: b[PIXELS].untyped_storage(),
    "tensor over the storage": lambda b: torch.empty(0, dtype=torch.uint8).set_(b[PIXELS].untyped_storage()),
    "graph": graph,
    "saved tensor": lambda b: graph(b).grad_fn.next_functions[0][0]._saved_other,
    "vmap": wrapped_by_vmap,
    "rows of a DataLoader": lambda b: next(iter(DataLoader(b[PIXELS], batch_size=None))),
    "closure": closed_over,
    "traceback": raised_with,
    # numpy and other libraries
    "numpy": lambda b: b[PIXELS].numpy(),
    "numpy slice": lambda b: b[PIXELS].numpy()[1, 2:4],
    "numpy transpose": lambda b: b[PIXELS].numpy().T,
    "numpy slice of a slice": lambda b: b[PIXELS].numpy()[1][2][3:5],
    "numpy view": lambda b: b[PIXELS].numpy().view(np.int32).reshape(-1),
    "numpy asarray": lambda b: np.asarray(b[PIXELS]),
    "numpy frombuffer": lambda b: np.frombuffer(b[PIXELS].numpy(), np.uint8),
    "memoryview": lambda b: memoryview(b[PIXELS].numpy()),
    "memoryview slice": lambda b: memoryview(b[PIXELS].numpy().reshape(-1))[5:9],
    "memoryview cast": lambda b: memoryview(b[PIXELS].numpy()).cast("B"),
    "from_numpy": lambda b: torch.from_numpy(b[PIXELS].numpy()[..., :3]),
    "torch dlpack": lambda b: torch.from_dlpack(b[PIXELS]),
    "numpy dlpack": lambda b: np.from_dlpack(b[PIXELS]),
    "dlpack there and back": lambda b: torch.from_dlpack(np.from_dlpack(b[PIXELS])),
    "dlpack capsule": lambda b: b[PIXELS].__dlpack__(),
}


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def saved(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


FREE: dict[str, Keep] = {
    "small leaf": operator.itemgetter("reward"),
    "leaf of 256 bytes": operator.itemgetter("limit"),
    "numpy of a small leaf": lambda b: b["limit"].numpy()[1],
    "clone": lambda b: b.clone(),
    "leaf.clone()": lambda b: b[PIXELS].clone(),
    "other dtype": lambda b: b[WIDE].to(torch.float64),
    "contiguous copy of a strided view": lambda b: b[PIXELS][..., 0].contiguous(),
    "reshape of a strided view": lambda b: b[PIXELS][:, 1:3].reshape(-1),
    "indexed by a list": lambda b: b[PIXELS][[0, 2]],
    "batch indexed by a mask": lambda b: b[torch.ones(ROWS, COLUMNS, dtype=torch.bool)],
    "arithmetic": lambda b: b[WIDE] + 1,
    "backward done": lambda b: graph(b).backward(),
    "stack": lambda b: torch.stack([b, b]),
    "cat": lambda b: torch.cat([b, b]),
    "bytes": lambda b: b[PIXELS].numpy().tobytes(),
    "numpy copy": lambda b: b[PIXELS].numpy().copy(),
    "deepcopy": copy.deepcopy,
    "deepcopy of a leaf": lambda b: copy.deepcopy(b[PIXELS]),
    "pickle": pickled,
    "pickle of a leaf": lambda b: pickled(b[PIXELS]),
    "torch.save": saved,
    "torch.save of a leaf": lambda b: saved(b[WIDE]),
    "consolidated": lambda b: b.consolidate(),
    "batch without its large leaves": lambda b: b.exclude("pixels", WIDE),
    "batch whose large leaves were replaced": lambda b: b.set("pixels", b[PIXELS] / 255).set(WIDE, b["limit"]),
    "shapes and names": lambda b: (b.shape, b.names, list(b.keys(True)), b[PIXELS].shape, b[PIXELS].dtype),
    "text": lambda b: (repr(b), str(b[PIXELS])),
    "items of a DataLoader, collated": lambda b: next(iter(DataLoader(b[PIXELS], batch_size=2))),
    "leaf in shared memory": lambda b: b[WIDE].share_memory_(),
}


@pytest.fixture
def _no_collector() -> Iterator[None]:
    """Reference counts alone must do it."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_collector")
@pytest.mark.parametrize("keep", HOLDING.values(), ids=HOLDING)
def test_a_kept_piece_holds_the_slot_until_it_dies(keep: Keep) -> None:
    pool = make_pool()
    batch = record(pool, 0)
    kept = keep(batch)
    del batch
    assert pool.lent == 1
    record(pool, 100)
    assert len(pool.slots) == 2
    assert pool.lent == 1
    del kept
    assert pool.lent == 0


@pytest.mark.usefixtures("_no_collector")
@pytest.mark.parametrize("keep", FREE.values(), ids=FREE)
def test_what_is_no_piece_of_a_slot_does_not_hold_it(keep: Keep) -> None:
    pool = make_pool()
    batch = record(pool, 5)
    expected, kept = keep(batch.clone()), keep(batch)
    assert pool.lent == 1 or batch["pixels"].dtype is not torch.uint8
    del batch
    assert pool.lent == 0
    record(pool, 100)
    assert len(pool.slots) == 1
    assert same(kept, expected)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, TensorDictBase):
        return bool((one == other).all())
    if isinstance(one, torch.Tensor | np.ndarray):
        return np.array_equal(np.asarray(one), np.asarray(other))
    return one == other


@pytest.mark.usefixtures("_no_collector")
def test_a_lazy_stack_holds_each_of_its_batches() -> None:
    pool = make_pool()
    stack: LazyStackedTensorDict = lazy_stack([record(pool, 0), record(pool, 10)])
    assert (len(pool.slots), pool.lent) == (2, 2)
    first = stack[0]
    del stack
    assert pool.lent == 1
    assert first[PIXELS][0, :, 0, 0].tolist() == list(range(8))
    del first
    assert pool.lent == 0


@pytest.mark.usefixtures("_no_collector")
def test_each_piece_alone_is_enough() -> None:
    pool = make_pool()
    batch = record(pool, 0)
    pieces = [batch[PIXELS][0], batch[WIDE].numpy(), batch["next"], batch]
    del batch
    while pieces:
        assert pool.lent == 1
        pieces.pop()
    assert pool.lent == 0


def test_a_cycle_is_found_by_the_collector() -> None:
    pool = make_pool()
    cycle: list[Any] = [record(pool, 0)]
    cycle.append(cycle)
    gc.collect()
    assert pool.lent == 1
    del cycle
    gc.collect()
    assert pool.lent == 0


def test_the_last_piece_may_die_in_another_thread() -> None:
    pool = make_pool()
    kept = [record(pool, 0)]
    thread = threading.Thread(target=kept.clear)
    thread.start()
    thread.join()
    assert pool.lent == 0


def test_a_batch_outlives_its_pool() -> None:
    pool = make_pool()
    leaf = record(pool, 3)[PIXELS]
    del pool
    gc.collect()
    assert torch.equal(leaf, torch.arange(3, 11, dtype=torch.uint8).view(-1, 1, 1).expand(ROWS, COLUMNS, 20, 20))


def test_without_large_fields_the_slot_is_free_at_once() -> None:
    pool = SlotPool(SMALL_FIELDS, (ROWS,), COLUMNS)
    batches = [record(pool, stamp) for stamp in range(0, 50, 10)]
    assert (len(pool.slots), pool.lent) == (1, 0)
    assert [batch["reward"][0, 0].item() for batch in batches] == [0, 10, 20, 30, 40]


# Content


PIECES: tuple[Keep, ...] = (
    identity,
    operator.itemgetter(PIXELS),
    operator.itemgetter(WIDE),
    operator.itemgetter("next"),
    operator.itemgetter("reward"),
    lambda b: b[..., 2:4],
    lambda b: b[PIXELS][..., 0],
    lambda b: b[PIXELS].numpy().T,
    lambda b: b.reshape(-1),
    lambda b: np.from_dlpack(b[WIDE])[1],
)


@pytest.mark.parametrize("seed", by_default(range(5), 0, 1))
def test_kept_pieces_stay_as_they_were_in_any_order_of_keeping_and_dropping(seed: int) -> None:
    generator = np.random.default_rng(seed)
    pool = make_pool()
    kept: list[tuple[int, Any, Any]] = []
    needed = 0
    for stamp in range(150):
        needed = max(needed, pool.lent + 1)
        batch = record(pool, stamp)
        chosen = [PIECES[i] for i in generator.choice(len(PIECES), generator.integers(0, 3))]
        kept += [(stamp, piece(batch), piece(batch.clone())) for piece in chosen]
        del batch
        for place in sorted(generator.choice(len(kept), generator.integers(0, 1 + len(kept) // 2), replace=False))[::-1]:
            del kept[place]
        held = {number for number, piece, _ in kept if not (torch.is_tensor(piece) and piece.shape[-1] == 1)}
        assert pool.lent == len(held)
        assert all(same(piece, expected) for _, piece, expected in kept)
    assert len(pool.slots) == needed
    kept.clear()
    gc.collect()
    assert pool.lent == 0


def test_live_batches_never_share_memory() -> None:
    pool = make_pool()
    kept = [record(pool, stamp) for stamp in range(6)]
    del kept[1], kept[3]
    kept += [record(pool, stamp) for stamp in range(3)]
    leaves = [leaf for batch in kept for leaf in batch.values(True, True)]
    spans = sorted((leaf.data_ptr(), leaf.nbytes) for leaf in leaves)
    assert len(spans) == 7 * len(FIELDS)
    assert all(start + size <= following for (start, size), (following, _) in itertools.pairwise(spans))


def test_writes_stay_private_to_a_batch() -> None:
    pool = make_pool()
    first, second = record(pool, 0), record(pool, 10)
    expected = second.clone()
    first.zero_()
    first[PIXELS].numpy()[...] = 77
    nn.Parameter(first[WIDE]).data.fill_(3)
    assert same(second, expected)
    assert first[PIXELS].eq(77).all()
    assert first[WIDE].eq(3).all()
    del first
    assert same(record(pool, 20), record(pool, 20))
    assert same(second, expected)


def test_a_deep_copy_is_independent_of_what_it_was_taken_from() -> None:
    pool = make_pool()
    batch = record(pool, 1)
    copies = [copy.deepcopy(batch), pickled(batch), saved(batch)]
    for other in copies:
        other[PIXELS].zero_()
    assert same(batch, record(pool, 1))
    batch[WIDE].fill_(9)
    assert all(other[WIDE].max() == 8 for other in copies)
