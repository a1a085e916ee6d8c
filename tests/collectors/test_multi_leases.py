"""Batches of several processes stay as they were, and nothing grows."""

from __future__ import annotations

import copy
import gc
import io
import pickle
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch

from reap.collectors import MultiSyncDataCollector, SyncDataCollector
from reap.collectors.exchange.slots import SLOTS
from tests.collectors.seams import pids_of, pool_of, pools_of
from tests.collectors.worker_kinds import CLASSES, Pixels, assert_same, descriptors, leaves, mapped
from tests.pairwise import by_default


def fingerprint(batch: Any) -> dict[Any, int]:
    return {key: hash(batch[key].numpy().tobytes()) for key in leaves(batch)}


@pytest.mark.parametrize("name", by_default(CLASSES, "MultiSync"))
def test_batches_that_are_kept_stay_as_they_were(name: str) -> None:
    with CLASSES[name]([partial(Pixels, 30, 50 * w) for w in range(2)], frames_per_batch=4) as collector:
        kept = []
        for number in range(50):
            batch = collector.next()
            whole = batch if number % 3 else {"observation": batch["observation"][..., 1:, 3:]}
            kept.append((whole, fingerprint(batch) if number % 3 else hash(whole["observation"].numpy().tobytes())))
        for number, (whole, expected) in enumerate(kept):
            found = fingerprint(whole) if number % 3 else hash(whole["observation"].numpy().tobytes())
            assert found == expected
    for number, (whole, expected) in enumerate(kept):
        assert (fingerprint(whole) if number % 3 else hash(whole["observation"].numpy().tobytes())) == expected


@pytest.mark.parametrize("form", ["stack", -1])
def test_every_leaf_is_a_tensor_of_its_own(form: Any, tmp_path: Path) -> None:
    with MultiSyncDataCollector([partial(Pixels, 5)] * 2, frames_per_batch=8, cat_results=form) as collector:
        batch = collector.next()
        file = io.BytesIO()
        torch.save(batch, file)
        file.seek(0)
        copies = [torch.load(file, weights_only=False), pickle.loads(pickle.dumps(batch)), copy.deepcopy(batch), batch.clone()]
        for one in copies:
            assert_same(one, batch)
        for key in leaves(batch):
            leaf = batch[key]
            assert leaf.view(-1).numel() == leaf.numel()
            assert leaf.untyped_storage().nbytes() == leaf.numel() * leaf.element_size(), key
            assert not leaf.requires_grad
            assert not leaf.is_inference()
        leaf = torch.zeros(1, requires_grad=True) * batch["action"]
        leaf.sum().backward()
        assert batch.reshape(-1)["observation"].shape == (8, 20, 20)


@pytest.mark.processes
@pytest.mark.parametrize("name", CLASSES)
def test_nothing_grows(name: str) -> None:
    with CLASSES[name]([partial(Pixels, 7)] * 2, frames_per_batch=4) as collector:
        held: list[Any] = []
        while len(held) < 20 or any(len(pool.slots) < SLOTS for pool in pools_of(collector)):
            held.append(collector.next())  # until all slots are made that there may be, those of a slow worker too
        del held
        gc.collect()
        before, maps, worker = descriptors(), mapped(), pids_of(collector)[0]
        memory, handles = _resident(worker), _handles(worker)
        for _ in range(300):
            collector.next()
        assert descriptors() == before
        assert mapped() == maps
        assert _handles(worker) == handles
        assert _resident(worker) - memory < 1 << 20


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def _handles(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.mark.parametrize("name", by_default(CLASSES, "aSync"))
def test_states_make_no_further_slots(name: str) -> None:
    with CLASSES[name]([partial(Pixels, 7)] * 2, frames_per_batch=4) as collector:
        kept: deque[Any] = deque(maxlen=2)
        for number in range(100):
            batch = collector.next()
            if number % 3 == 0:
                kept.append(batch)
            if number % 5 == 0:
                collector.state_dict()
        assert max(len(pool.slots) for pool in pools_of(collector)) <= 3


@pytest.mark.parametrize("name", by_default(CLASSES, "MultiSync"))
def test_the_memory_of_a_collector_that_is_shut_down_does_not_wait_for_the_garbage_collector(name: str) -> None:
    gc.collect()
    before = mapped()
    collector = CLASSES[name]([partial(Pixels, 30, 50 * w) for w in range(2)], frames_per_batch=4)
    kept = [collector.next() for _ in range(2)]
    prints = [fingerprint(batch) for batch in kept]
    gc.disable()
    try:
        collector.shutdown()
        assert [fingerprint(batch) for batch in kept] == prints
        kept.clear()
        assert mapped() <= before + 1, "a few bytes that tell what a worker does"
    finally:
        gc.enable()


def test_of_one_in_this_process_it_is_one_batch_at_the_most() -> None:
    gc.collect()
    collector = SyncDataCollector(partial(Pixels, 30), frames_per_batch=4)
    kept = [collector.next() for _ in range(4)]
    slots = [ref(slot) for slot in pool_of(collector).slots]
    assert len(slots) == 4
    gc.disable()
    try:
        collector.shutdown()
        kept.clear()
        assert sum(slot() is not None for slot in slots) <= 1
    finally:
        gc.enable()
