"""One-hot values of choices: exact, read-only, and of a size that grows with the number of choices, not with its square."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from gymnasium import spaces

from reap.collectors import SyncDataCollector
from reap.envs import GymEnv
from reap.envs.gymnasium.one_hot import one_hot_rows
from reap.envs.gymnasium.values import observation_leaves
from reap.envs.gymnasium.vector_values import _encoder as vector_encoder  # pyright: ignore[reportPrivateUsage]
from tests.envs.test_values import Fixed

PLACES = 5_000


@pytest.mark.parametrize("count", [1, 2, 3, 17])
def test_rows_are_those_of_the_identity_matrix(count: int) -> None:
    rows = one_hot_rows(count)
    assert np.array_equal(np.stack(rows), np.eye(count, dtype=np.int64))
    assert all(row.dtype == np.int64 and row.shape == (count,) and not row.flags.writeable for row in rows)


def peak_of(make: object) -> int:
    assert callable(make)
    tracemalloc.start()
    try:
        make()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "make",
    [
        lambda: observation_leaves(spaces.Discrete(PLACES - 1), ("o",), categorical=False)[0].read(7),
        lambda: observation_leaves(spaces.MultiDiscrete([PLACES, 2]), ("o",), categorical=False)[0].read([7, 1]),
        lambda: vector_encoder(spaces.Discrete(PLACES), False, ("o",))(np.array([7])),
        lambda: vector_encoder(spaces.MultiDiscrete([PLACES, 2]), False, ("o",))(np.array([[7, 1]])),
    ],
)
def test_encoders_need_memory_for_a_few_rows(make: object) -> None:
    one_hot_rows.cache_clear()
    assert peak_of(make) < 250 * PLACES  # the identity matrix: 8 * PLACES**2


def test_a_map_of_fifty_thousand_places_is_collected() -> None:
    env = GymEnv(Fixed(spaces.Discrete(50_000), 49_999))
    with SyncDataCollector(env, frames_per_batch=2) as collector:
        batch = collector.next()
    assert batch["observation"].argmax(-1).tolist() == [49_999, 49_999]
    assert batch["observation"].sum().item() == 2
