"""Claim: sampling by priority and setting new priorities, at a million frames, is no slower than cpprb's, whose tree is C++.

A turn is `sample(256)` with weights, then `update_priority` of what was sampled with the priorities a loss would give. Both
buffers are full, hold the same six small keys, and have the same priorities; ours delivers a TensorDict, cpprb a dictionary of
arrays. Frames are sampled ones.

torchrl is left out: its tree is an extension in C++, which loads only with the release of torch that its wheel was built for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import Any

import numpy as np
import torch
from pairs import Loop, Pair
from tensordict import TensorDict

from reap.data.buffers.replay import ReplayBuffer
from reap.data.samplers.prioritized import PrioritizedSampler
from reap.data.storages.lazy import LazyTensorStorage

FRAMES, CHUNK, BATCH = 1_000_000, 10_000, 256
ALPHA, BETA = 0.6, 0.4
TARGET = 1.0
TURNS = 20
"""Samples that a loop takes before it says how many frames that were."""

KEYS: dict[str, tuple[tuple[int, ...], Any]] = {
    "observation": ((4,), np.float32),
    "next_observation": ((4,), np.float32),
    "action": ((2,), np.int64),
    "reward": ((1,), np.float32),
    "done": ((1,), np.bool_),
    "truncated": ((1,), np.bool_),
}


def chunks() -> Iterator[tuple[dict[str, Any], Any]]:
    """Frames and their priorities, the same each time."""
    numbers = np.random.default_rng(0)
    for _ in range(FRAMES // CHUNK):
        data = {key: numbers.random((CHUNK, *shape)).astype(dtype) for key, (shape, dtype) in KEYS.items()}
        yield data, numbers.random(CHUNK)


def errors() -> Iterator[Any]:
    """What a loss gives as the next priorities `[BATCH]`."""
    numbers = np.random.default_rng(1)
    return cycle([numbers.random(BATCH).astype(np.float32) for _ in range(50)])


@contextmanager
def reap_loop() -> Iterator[Loop]:
    buffer = ReplayBuffer(storage=LazyTensorStorage(FRAMES), sampler=PrioritizedSampler(FRAMES, ALPHA, BETA))
    for data, priority in chunks():
        index = buffer.extend(TensorDict({key: torch.from_numpy(value) for key, value in data.items()}, [CHUNK]))
        buffer.update_priority(index, torch.from_numpy(priority))
    given = errors()

    def loop() -> int:
        for _ in range(TURNS):
            _, info = buffer.sample(BATCH, return_info=True)
            buffer.update_priority(info["index"], torch.from_numpy(next(given)))
        return TURNS * BATCH

    yield loop


@contextmanager
def cpprb_loop() -> Iterator[Loop]:
    import cpprb

    layout = {key: {"shape": shape, "dtype": dtype} for key, (shape, dtype) in KEYS.items()}
    buffer = cpprb.PrioritizedReplayBuffer(FRAMES, layout, alpha=ALPHA)
    for number, (data, priority) in enumerate(chunks()):
        buffer.add(**data)
        buffer.update_priorities(np.arange(number * CHUNK, (number + 1) * CHUNK), priority)
    given = errors()

    def loop() -> int:
        for _ in range(TURNS):
            sample = buffer.sample(BATCH, BETA)
            buffer.update_priorities(sample["indexes"], next(given))
        return TURNS * BATCH

    yield loop


def pairs() -> Iterator[Pair]:
    claim = "sample(256) by priority and update, of 1 M frames, against cpprb"
    yield Pair(claim, "reap", 1, reap_loop, cpprb_loop, TARGET, needs="cpprb")
