"""Ctrl-C at each moment of what a `ParallelEnv` is asked, caught: its processes stay in step, and the env goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from reap.collectors import SyncDataCollector
from reap.envs import ParallelEnv
from reap.testing import Const, Count
from tests.interruptions import each_moment

pytestmark = pytest.mark.processes

LENGTH = 5
EVERY = pytest.mark.parametrize("every", [17, pytest.param(1, marks=pytest.mark.soak)])


@pytest.fixture
def env() -> Iterator[ParallelEnv]:
    with ParallelEnv(3, [partial(Count, LENGTH, 100 * row) for row in range(3)], num_processes=2) as made:
        yield made


ACTS: dict[str, Callable[[Any], Any]] = {
    "next": lambda collector: collector.next(),
    "set_seed": lambda collector: collector.set_seed(1),
    "reset": lambda collector: collector.reset(),
    "call_env": lambda collector: collector.call_env("observe"),
    "state_dict": lambda collector: collector.state_dict(),
}


@EVERY
@pytest.mark.parametrize("name", ACTS)
def test_in_a_collector(env: ParallelEnv, name: str, every: int) -> None:
    collector = SyncDataCollector(env, Const(), frames_per_batch=12)

    def next_two(_: Any = None) -> None:
        for _ in range(2):
            check(collector.next())

    next_two()
    assert each_moment(partial(ACTS[name], collector), every, next_two) > 1


def check(batch: Any) -> None:
    """Each row counts its own steps, and an episode that does not end goes on."""
    for row, steps in enumerate(batch["observation"].squeeze(-1).int().tolist()):
        assert all(100 * row <= step < 100 * row + LENGTH for step in steps)
        ids = batch["collector", "traj_ids"][row].tolist()
        for (step, following), (number, next_number) in zip(pairwise(steps), pairwise(ids), strict=True):
            assert following == (step + 1 if number == next_number else 100 * row)


@EVERY
def test_by_tensordicts(env: ParallelEnv, every: int) -> None:
    def rollout(_: Any = None) -> Any:
        data = env.rollout(4)
        assert data["observation"].squeeze(-1).int().tolist() == [[100 * row + t for t in range(4)] for row in range(3)]

    rollout()
    assert each_moment(rollout, every, rollout) > 1


@EVERY
def test_a_second_collector_maps_its_memory(env: ParallelEnv, every: int) -> None:
    def collect(_: Any = None) -> None:
        check(SyncDataCollector(env, Const(), frames_per_batch=12).next())

    collect()
    assert each_moment(collect, 11 * every, collect) > 1
