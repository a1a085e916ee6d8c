"""Batches stay as they were while they are kept, and nothing grows."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDictBase
from torch import nn

from reap.collectors import SyncDataCollector
from reap.envs import SerialEnv
from reap.testing import Count, DictPolicy, Id
from tests.collectors.seams import pool_of

PAGE = 4096
PASSES = 3
MEGABYTE = 1 << 20


class Wide(Count):
    """`Count` with 1,024 bytes to a frame, which are lent and not copied."""

    observation_space = spaces.Box(-np.inf, np.inf, (256,), np.float32)

    def observe(self) -> np.ndarray:
        return np.full(256, self.steps, np.float32)


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def kept_leaves(batches: Iterator[TensorDictBase], key: Any, number: int, kept: deque[torch.Tensor]) -> int:
    """Go through batches with a leaf of each of the last ones in hand; return the resident bytes at the end."""
    for _ in range(number):
        kept.append(next(batches)[key])
    gc.collect()
    return resident()


@pytest.mark.processes
@pytest.mark.parametrize("key", [None, ("next", "observation"), ("next", "reward")])
def test_memory_grows_by_less_than_a_megabyte_in_a_thousand_batches(key: Any) -> None:
    """The least growth of three stretches counts: a leak is in all of them, an allocator's whim is not.

    The stretches are of 500 batches, so half a megabyte is the limit. A leaked batch would be 8 kB, 4 MB in a stretch.
    """
    env = SerialEnv(2, lambda: Wide(3))
    policy = nn.Linear(256, 1)
    with SyncDataCollector(env, policy, frames_per_batch=8) as collector:
        batches = iter(collector)
        kept: deque[torch.Tensor] = deque(maxlen=5 if key else 0)
        sizes = [kept_leaves(batches, key or "observation", 500, kept) for _ in range(PASSES + 1)]
        assert len(pool_of(collector).slots) <= 8
    growth = [after - before for before, after in pairwise(sizes)]
    assert min(growth) < MEGABYTE // 2, growth


@pytest.mark.parametrize("env", [lambda: SerialEnv(3, [lambda i=i: Id(i) for i in range(3)]), lambda: Wide(5)])
@pytest.mark.parametrize("policy", [None, DictPolicy()])
def test_batches_that_are_kept_stay_as_they_were(env: Any, policy: Any) -> None:
    with SyncDataCollector(env(), policy, frames_per_batch=12) as collector:
        kept: list[TensorDictBase] = []
        copies: list[TensorDictBase] = []
        for _, batch in zip(range(30), collector, strict=False):
            kept.append(batch)
            copies.append(batch.clone())
    for batch, copy in zip(kept, copies, strict=True):
        for key in copy.keys(True, True):
            assert torch.equal(batch[key], copy[key]), key


@pytest.mark.parametrize("keep", [lambda td: td["observation"][0, 0], lambda td: td["next", "observation"].numpy()[1:, 1]])
def test_a_piece_that_is_kept_stays_as_it_was(keep: Any) -> None:
    with SyncDataCollector(SerialEnv(2, lambda: Wide(100)), None, frames_per_batch=8) as collector:
        pieces = [keep(batch) for _, batch in zip(range(12), collector, strict=False)]
        copies = [np.copy(np.asarray(piece)) for piece in pieces]
        for _, _ in zip(range(12), collector, strict=False):
            pass
    assert len({copy.tobytes() for copy in copies}) == 12
    for piece, copy in zip(pieces, copies, strict=True):
        assert np.array_equal(piece, copy)


def test_nothing_of_the_autograd_graph_is_kept() -> None:
    """A policy with gradients on, trained between batches: no batch is part of a graph."""
    policy = nn.Linear(256, 1)
    optimizer = torch.optim.SGD(policy.parameters(), lr=1e-6)
    with SyncDataCollector(SerialEnv(2, lambda: Wide(4)), policy, frames_per_batch=8) as collector:
        for _, batch in zip(range(5), collector, strict=False):
            assert torch.is_grad_enabled()
            for key in batch.keys(True, True):
                value = batch[key]
                assert not value.requires_grad, key
                assert value.grad_fn is None, key
                assert not value.is_inference(), key
            optimizer.zero_grad()
            policy(batch["observation"]).pow(2).mean().backward()
            optimizer.step()
    assert all(parameter.requires_grad for parameter in policy.parameters())
