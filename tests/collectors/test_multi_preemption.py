"""Workers that stop early because the others are done."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from reap.collectors import MultiaSyncDataCollector, MultiSyncDataCollector
from reap.errors import OptionError
from reap.testing import Const, Count
from tests.collectors.worker_kinds import (
    IDS,
    MASK,
    Gate,
    Gated,
    leaves,
    pairs,
    steps,
    wait_for_stop,
)


@pytest.fixture
def gates(tmp_path: Path) -> Any:
    """A gate for those that will be first, and one for the one that will be late."""
    folders = [tmp_path / name for name in ("first", "late")]
    for folder in folders:
        folder.mkdir()
    made = [Gate(folder) for folder in folders]
    yield made
    for one in made:
        one.close()


def preempted(collector: Any, gates: list[Gate]) -> Any:
    """A batch in which the last worker is in a step, before its gate, when the others begin; its step ends after they do."""

    def order() -> None:
        gates[1].wait_for_entry()
        for _ in range(collector.num_workers - 1):
            gates[0].wait_for_entry()
            gates[0].open()
        wait_for_stop(collector, collector.num_workers - 1)
        gates[1].open()

    thread = Thread(target=order)
    thread.start()
    batch = collector.next()
    thread.join()
    return batch


@pytest.mark.parametrize("form", ["stack", -1])
def test_the_slow_one_stops_at_its_next_column(gates: list[Gate], form: Any) -> None:
    """B08: it waits in its third step while the others finish; its episode goes on with the next batch."""
    first, late = gates
    factories = [partial(Gated, first.paths, [1]), partial(Gated, first.paths, [1]), partial(Gated, late.paths, [3])]
    options: Any = {"frames_per_batch": 15, "preemptive_threshold": 0.5, "cat_results": form}
    with MultiSyncDataCollector(factories, Const(), **options) as collector:
        batch = preempted(collector, gates)
        if form == "stack":
            assert steps(batch) == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [0, 1, 2, 0, 0]]
            assert batch[MASK].tolist() == [[True] * 5] * 2 + [[True] * 3 + [False] * 2]
            assert batch[IDS][2].tolist() == [2 << 40] * 3 + [-1] * 2
            for key in leaves(batch):
                if key != IDS:
                    assert not batch[key][2, 3:].any(), key
        else:
            assert steps(batch) == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2]
            assert batch[MASK].all()
        assert collector.stats().frames == 13
        following = collector.next()
        own = following[following[IDS] == 2 << 40]
        assert steps(own)[:1] == [3], "the episode goes on"


def test_whole_episodes_outlast_preemption(gates: list[Gate]) -> None:
    factories = [partial(Gated, gates[0].paths, [1], 4), partial(Gated, gates[1].paths, [3], 4)]
    options: Any = {"frames_per_batch": 10, "preemptive_threshold": 0.5, "trajs_per_batch": 4, "traj_format": "cat"}
    with MultiSyncDataCollector(factories, Const(), **options) as collector:
        assert steps(preempted(collector, gates)) == [0, 1, 2, 3] * 4


def test_truncation_of_what_was_stopped(gates: list[Gate]) -> None:
    options: Any = {"frames_per_batch": 8, "preemptive_threshold": 0.5, "set_truncated": True}
    factories = [partial(Gated, gates[0].paths, [1]), partial(Gated, gates[1].paths, [2])]
    with MultiSyncDataCollector(factories, Const(), **options) as collector:
        batch = preempted(collector, gates)
    assert batch["next", "truncated"].squeeze(-1).tolist() == [[False, False, False, True], [False, True, False, False]]


@pytest.mark.parametrize("form", ["stack", -1])
@pytest.mark.parametrize("restart", [False, True])
def test_with_a_threshold_of_zero_each_stops_with_its_first_column(form: Any, restart: bool) -> None:
    options: Any = {"frames_per_batch": 12, "preemptive_threshold": 0.0, "cat_results": form, "total_frames": 12}
    if restart:
        options["on_worker_failure"] = "restart"
    with MultiSyncDataCollector([Count] * 2, Const(), create_env_kwargs={"length": 3}, **options) as collector:
        batches = list(collector)
    assert len(batches) == 6
    for k, batch in enumerate(batches):
        if form == "stack":
            assert steps(batch) == [[k % 3, 0, 0, 0, 0, 0]] * 2
            assert batch[MASK].tolist() == [[True] + [False] * 5] * 2
        else:
            assert steps(batch) == [k % 3] * 2
            assert batch[MASK].all()


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_is_from_zero_to_one(share: float) -> None:
    with pytest.raises(OptionError, match="expected a share of the workers from 0 to 1"):
        MultiSyncDataCollector([partial(pairs, 0)] * 2, frames_per_batch=8, preemptive_threshold=share)


def test_preemption_with_forms_that_cannot_be() -> None:
    with pytest.raises(OptionError, match="workers that stop early record less along the last dimension"):
        MultiSyncDataCollector([partial(pairs, 0)] * 2, frames_per_batch=8, preemptive_threshold=0.5, cat_results=0)
    with pytest.raises(OptionError, match="preemptive_threshold: it belongs to MultiSyncDataCollector"):
        MultiaSyncDataCollector([Count], create_env_kwargs={"length": 2}, frames_per_batch=8, preemptive_threshold=0.5)
