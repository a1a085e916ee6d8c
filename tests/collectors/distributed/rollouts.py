"""Rollouts of workers on any engine: how many there are, in how many pieces they travel, and where they land."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from reap.collectors import distributed
from reap.testing import Count
from reap.testing.marked import Marked
from reap.workers.messages import Encoded
from reap.workers.remote.lines import LineCarrier
from tests.collectors.distributed.updates import Shows
from tests.collectors.seams import group_of, pool_of

COLUMNS, WORKERS = 8, 4
IMAGE = 84 * 84 * 4


class Images(Count):
    """`Count` in pictures of 28 kB, each of which shows its count; further keys are small."""

    observation_space = spaces.Dict(
        {"pixels": spaces.Box(0, 255, (84, 84, 4), np.uint8)}
        | {f"key {number}": Count.observation_space for number in range(10)}
    )

    def observe(self) -> Any:
        count = super().observe()
        image = np.full((84, 84, 4), self.start + self.steps, np.uint8)
        return {"pixels": image, **{f"key {number}": count + number for number in range(10)}}


def act(pixels: torch.Tensor) -> torch.Tensor:
    """An action without a use."""
    return torch.zeros(*pixels.shape[:-3], 1)


def steps_of(collector: Any) -> int:
    """The steps of all envs since they were made; a worker answers when its rollouts are recorded."""
    return sum(collector.getattr_env("all_steps"))


def check_waiting(make: Callable[..., Any], is_sync: bool) -> None:
    """A worker records one rollout, and the next one when that has been taken."""
    frames = COLUMNS * (WORKERS if is_sync else 1)
    with make([Marked] * WORKERS, Shows(), sync=is_sync, frames_per_batch=frames) as collector:
        before = steps_of(collector)
        for taken in range(1, 6):
            collector.next()
            rollouts = WORKERS * taken if is_sync else WORKERS + taken
            for _ in range(2):
                assert steps_of(collector) - before == COLUMNS * rollouts


def check_slots(make: Callable[..., Any]) -> None:
    """The trainer has the memory of the batch that it makes, and of those that are kept, not that of each worker."""
    with make([partial(Images, 50)] * WORKERS, act, frames_per_batch=COLUMNS) as collector:
        for _ in range(5 * WORKERS):
            collector.next()
        assert len(pool_of(collector).slots) == 1
        kept = [collector.next() for _ in range(3)]
        assert len(pool_of(collector).slots) == 3
        del kept[:2]
        for _ in range(5 * WORKERS):
            collector.next()
        assert len(pool_of(collector).slots) == 3


class Messages:
    """What arrives from workers, while the block lasts."""

    def __init__(self, collector: Any) -> None:
        self._carrier: LineCarrier[Any] = group_of(collector).carrier
        self.found: list[Encoded] = []

    def __enter__(self) -> list[Encoded]:
        accept = self._carrier.accept

        def note(worker: int) -> None:
            message = self._carrier.receive(worker)
            assert message is not None
            self.found.append(Encoded(bytes(message.encoded.body), [len(one) for one in message.encoded.buffers]))
            accept(worker)

        self._carrier.accept = note
        return self.found

    def __exit__(self, *_: object) -> None:
        del self._carrier.accept


def check_travel(make: Callable[..., Any]) -> None:
    """Few pieces whatever the number of keys, a small pickle whatever the length, and each image once."""
    bodies = []
    for columns in (40, 80):
        with make([partial(Images, 1000)] * 2, act, sync=True, frames_per_batch=2 * columns) as collector:
            collector.next()
            before = sum(one.place.bytes for one in collector.stats().workers)
            with Messages(collector) as found:
                batches = [collector.next() for _ in range(2)]
            sent = sum(one.place.bytes for one in collector.stats().workers) - before
        taken = sum(value.nbytes for batch in batches for value in batch.values(True, True))
        assert 0.5 * taken < sent <= 0.55 * taken
        assert len(found) == 4
        for body, sizes in found:
            first, second, places, values = sizes  # of the slot, before and after the next images; the last of these
            assert columns * IMAGE < first + second < columns * (IMAGE + 200)
            assert (places, values) == (8, IMAGE)
            bodies.append(len(body))
        for batch in batches:
            assert torch.equal(batch["next", "pixels"][:, :-1], batch["pixels"][:, 1:])
            assert (batch["pixels"] == batch["key 0"][..., None, None].to(torch.uint8)).all()
    assert max(bodies) - min(bodies) < 64
    assert max(bodies) < 2_000


def check_landing(make: Callable[..., Any]) -> None:
    """The bytes are copied into the slot of the batch; they are ordinary tensors there."""
    with make([partial(Images, 200)], act, frames_per_batch=200) as collector:
        for _ in range(6):
            collector.next()
        batch = collector.next()
        pixels = batch["pixels"]
        (slot,) = pool_of(collector).slots
        start = slot.block.memory.ctypes.data
        for key in ("pixels", ("next", "pixels")):
            assert start <= batch[key].data_ptr() < start + slot.block.memory.nbytes
            assert batch[key].is_contiguous()
            assert batch[key].numpy().flags.writeable
        pixels += 1
        assert (pixels == batch["key 1"][..., None, None]).all()


def print_memory_of_landing(kind: str) -> None:
    """Print the bytes of a batch's pixels, and the most memory that Python and NumPy took while it landed.

    For a process of its own, which keeps tracing until it exits: CPython 3.11 may crash when that stops beside threads of C++.
    """
    tracemalloc.start()
    with getattr(distributed, kind)([partial(Images, 200)], act, frames_per_batch=200) as collector:
        for _ in range(6):
            collector.next()
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        batch = collector.next()
        print(batch["pixels"].nbytes, tracemalloc.get_traced_memory()[1] - before, flush=True)
    os._exit(0)
