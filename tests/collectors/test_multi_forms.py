"""The forms of a batch of several workers, of equal and unequal ones."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
import torch

from reap.collectors import MultiaSyncDataCollector, MultiSyncDataCollector
from reap.errors import OptionError, SpecMismatch
from reap.testing import Const, Count, DictCount, Id
from tests.collectors.worker_kinds import (
    IDS,
    MASK,
    Text,
    counts,
    leaves,
    pairs,
    steps,
    take_of_each,
)
from tests.pairwise import by_default

# ---------------------------------------------------------------------- forms of a batch

ROWS = [[0, 1, 2, 0, 1, 2], [100, 101, 102, 103, 100, 101]]
FORMS: dict[Any, list[Any]] = {"stack": ROWS, 0: ROWS[0] + ROWS[1], -1: ROWS[0] + ROWS[1]}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_single_envs(form: Any) -> None:
    with counts([3, 4], frames_per_batch=12, cat_results=form) as collector:
        batch = collector.next()
        assert batch.batch_size == collector.batch_size == torch.tensor(FORMS[form]).shape
        assert steps(batch) == FORMS[form]
        following = (batch["next", "observation"] - batch["observation"]).flatten().tolist()
        assert following == [1.0] * 12
        assert batch.names[-1] == "time"
        assert (batch[IDS].reshape(2, 6) >> 40).tolist() == [[0] * 6, [1] * 6]
        assert collector.frames_per_batch == 12


PAIRS = [[[0, 1, 2], [10, 11, 12]], [[20, 21, 22], [30, 31, 32]]]
JOINED: dict[Any, list[Any]] = {
    "stack": PAIRS,
    0: [*PAIRS[0], *PAIRS[1]],
    -2: [*PAIRS[0], *PAIRS[1]],
    1: [PAIRS[0][b] + PAIRS[1][b] for b in range(2)],
    -1: [PAIRS[0][b] + PAIRS[1][b] for b in range(2)],
}


@pytest.mark.parametrize("form", by_default(JOINED, "stack", -1))
def test_forms_of_batched_envs(form: Any) -> None:
    factories = [partial(pairs, w) for w in range(2)]
    with MultiSyncDataCollector(factories, Const(), frames_per_batch=12, cat_results=form) as collector:
        for number in range(2):
            batch = collector.next()
            assert batch.batch_size == collector.batch_size
            assert (batch["observation"].squeeze(-1) - 3 * number).tolist() == JOINED[form]
            assert (batch["next", "observation"] - batch["observation"] == 1).all()


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (2, "cat_results=2: expected a dimension of the workers' results, from -2 to 1, for their shape is (2, 3)"),
        (-3, "cat_results=-3: expected a dimension of the workers' results, from -2 to 1, for their shape is (2, 3)"),
        ("cat", "cat_results: expected \"stack\" or a dimension of the batch, got 'cat'"),
        (True, 'cat_results: expected "stack" or a dimension of the batch, got True'),
    ],
)
def test_forms_that_there_are_not(form: Any, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        MultiSyncDataCollector([partial(pairs, w) for w in range(2)], Const(), frames_per_batch=12, cat_results=form)
    assert str(caught.value) == message


# ---------------------------------------------------------------------- unequal workers


def test_rollouts_of_unequal_lengths_are_padded() -> None:
    with counts([3, 4], frames_per_batch=[2, 4]) as collector:
        assert (collector.frames_per_batch, collector.requested_frames_per_batch) == (6, 6)
        batch = collector.next()
        assert collector.batch_size == batch.batch_size == (2, 4)
        assert steps(batch) == [[0, 1, 0, 0], [100, 101, 102, 103]]
        assert batch["next", "observation"].squeeze(-1).tolist() == [[1, 2, 0, 0], [101, 102, 103, 104]]
        assert batch[MASK].tolist() == [[True, True, False, False], [True] * 4]
        assert batch[IDS].tolist() == [[0, 0, -1, -1], [1 << 40] * 4]
        assert batch["next", "done"].squeeze(-1).tolist() == [[False] * 4, [False, False, False, True]]
        assert steps(collector.next()) == [[2, 0, 0, 0], [100, 101, 102, 103]]
        assert collector.stats().frames == 12


@pytest.mark.processes
def test_unequal_numbers_of_rows() -> None:
    factories = [partial(pairs, w, rows) for w, rows in enumerate((1, 2))]
    with MultiSyncDataCollector(factories, Const(), frames_per_batch=[3, 6]) as collector:
        batch = collector.next()
        assert steps(batch) == [[[0, 1, 2], [0, 0, 0]], [[20, 21, 22], [30, 31, 32]]]
        assert batch[MASK].tolist() == [[[True] * 3, [False] * 3], [[True] * 3] * 2]
        assert batch[IDS].tolist()[0] == [[0] * 3, [-1] * 3]
    with MultiSyncDataCollector(factories, Const(), frames_per_batch=[3, 6], cat_results=0) as collector:
        batch = collector.next()
        assert steps(batch) == [[0, 1, 2], [20, 21, 22], [30, 31, 32]]
        assert MASK not in batch
    with pytest.raises(OptionError) as caught:
        MultiSyncDataCollector(factories, Const(), frames_per_batch=[3, 6], cat_results=1)
    assert str(caught.value) == (
        "cat_results=1: results of shapes [(1, 3), (2, 3)] do not fit together along it; 0 would; "
        '"stack" pads them and sets a mask'
    )
    with pytest.raises(OptionError) as caught:
        MultiSyncDataCollector([partial(Count, 3), partial(pairs, 1)], Const(), frames_per_batch=12)
    assert str(caught.value) == "the workers' results have shapes [(6,), (2, 3)]: give all of them batched envs, or none"


def test_unequal_lengths_joined_along_time() -> None:
    with counts([3, 4], frames_per_batch=[2, 4], cat_results=-1) as collector:
        assert steps(collector.next()) == [0, 1, 100, 101, 102, 103]


@pytest.mark.parametrize(("other", "key"), [(partial(Id, 1), "observation"), (partial(DictCount, 3), "observation")])
def test_workers_of_different_layouts(other: Any, key: str) -> None:
    with pytest.raises(SpecMismatch, match=re.escape("worker 1 (GymEnv(<")) as caught:
        MultiSyncDataCollector([partial(Count, 3), other], frames_per_batch=12)
    assert f"differs from worker 0 (GymEnv(<Count instance>)) in {key!r}: expected " in str(caught.value)
    assert str(caught.value).endswith("those of a MultiaSyncDataCollector need not")
    with MultiaSyncDataCollector([partial(Count, 3), other], frames_per_batch=6) as collector:
        keys = {tuple(leaves(batch)) for batches in take_of_each(collector, 2).values() for batch in batches}
    assert len(keys) == (1 if isinstance(other(), Id) else 2)


def test_padded_objects() -> None:
    with MultiSyncDataCollector([partial(Text, 3, w) for w in range(2)], frames_per_batch=[1, 3]) as collector:
        batch = collector.next()
    assert batch["text"][1] == ["1x0", "1x1", "1x2"]
    assert batch["text"][0][0] == "0x0"
    assert batch[MASK].tolist() == [[True, False, False], [True] * 3]
