"""Several processes that collect: what they deliver, in which form, and that it is what collectors in this process deliver."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from reap.collectors import MultiaSyncDataCollector, MultiSyncDataCollector, SyncDataCollector, aSyncDataCollector
from reap.envs import GymEnv, SerialEnv
from reap.errors import ClosedError, OptionError, SpecMismatch
from reap.seeds import next_seed, seed_chain
from reap.testing import Const, Count, CountTL, DictCount, Id
from reap.testing.marked import Drawing, Marked, Told
from tests.collectors.crews import (
    CLASSES,
    ENVS,
    Gate,
    Gated,
    Pixels,
    Recall,
    Seeded,
    Text,
    assert_same,
    descriptors,
    from_worker,
    leaves,
    mapped,
    of_torchrl,
    pids_of,
    sampling,
    serial,
    steps,
    take,
    wait_for_stop,
    workers_of,
)

pytestmark = pytest.mark.timeout(30)

SEED = 7
IDS, MASK, VERSION = ("collector", "traj_ids"), ("collector", "mask"), ("collector", "policy_version")
POLICIES = {"plain": Told, "drawing": Drawing, "recurrent": Recall, "TensorDict": sampling}


def counts(lengths: list[int], **options: Any) -> MultiSyncDataCollector:
    """`Count` of these lengths, one for each worker, with the reset observation 100 w."""
    return MultiSyncDataCollector([partial(Count, n, 100 * w) for w, n in enumerate(lengths)], Const(), **options)


# ---------------------------------------------------------------------- the same as in this process


def alone(make: Callable[[int], Any], policy: Any, frames: int, batches: int, **options: Any) -> list[list[Any]]:
    """What two collectors in this process deliver, seeded along the chain."""
    seed, found = SEED, []
    for worker in range(2):
        with SyncDataCollector(partial(make, worker), copy.deepcopy(policy), frames_per_batch=frames, **options) as collector:
            seed = collector.set_seed(seed)
            found.append([from_worker(batch, worker) for batch in take(collector, batches)])
    return [*found, [seed]]


@pytest.mark.parametrize("kind", ENVS)
@pytest.mark.parametrize("policy", POLICIES)
def test_several_workers_are_collectors_seeded_along_the_chain(kind: str, policy: str) -> None:
    torch.manual_seed(1)
    made = POLICIES[policy]()
    *expected, [following] = alone(ENVS[kind], made, 24, 3)
    with MultiSyncDataCollector([partial(ENVS[kind], w) for w in range(2)], made, frames_per_batch=48) as collector:
        assert collector.set_seed(SEED) == following
        for number, batch in enumerate(take(collector, 3)):
            for worker in range(2):
                assert_same(batch[worker], expected[worker][number])


def test_envs_of_torchrl() -> None:
    pytest.importorskip("torchrl")
    *expected, _ = alone(of_torchrl, Told(), 12, 2)
    with MultiSyncDataCollector([partial(of_torchrl, w) for w in range(2)], Told(), frames_per_batch=24) as collector:
        collector.set_seed(SEED)
        for number, batch in enumerate(take(collector, 2)):
            for worker in range(2):
                assert_same(batch[worker], expected[worker][number])


@pytest.mark.parametrize("form", [0, -1, "stack"])
@pytest.mark.parametrize("kind", ENVS)
def test_one_worker_is_a_collector_in_this_process(kind: str, form: Any) -> None:
    options: Any = {"frames_per_batch": 12, "init_random_frames": 12, "max_frames_per_traj": 5, "track_policy_version": True}
    with SyncDataCollector(partial(ENVS[kind], 0), Drawing(), **options) as collector:
        following = collector.set_seed(SEED)
        expected = take(collector, 3)
    with MultiSyncDataCollector([partial(ENVS[kind], 0)], Drawing(), cat_results=form, **options) as collector:
        assert collector.set_seed(SEED) == following
        for found, wanted in zip(take(collector, 3), expected, strict=True):
            assert_same(found[0] if form == "stack" else found, wanted)


@pytest.mark.parametrize("name", CLASSES)
def test_the_stream_does_not_depend_on_frames_per_batch(name: str) -> None:
    def stream(batches: int, frames: int) -> dict[int, Any]:
        with CLASSES[name]([partial(serial, w) for w in range(2)], Drawing(), frames_per_batch=frames) as collector:
            collector.set_seed(SEED)
            if name == "MultiSync":
                return dict(enumerate(torch.cat(take(collector, batches), -1)))
            by_worker: dict[int, list[Any]] = {}
            while any(len(by_worker.get(w, ())) < batches for w in range(collector.num_workers)):
                for worker, more in workers_of([collector.next()]).items():
                    by_worker.setdefault(worker, []).extend(more)
            return {worker: torch.cat(some[:batches], -1) for worker, some in by_worker.items()}

    few, many = stream(2, 48), stream(4, 24)
    assert few.keys() == many.keys()
    for worker, batch in few.items():
        assert_same(many[worker], batch)


@pytest.mark.parametrize("name", ["MultiaSync", "aSync"])
def test_async_workers_are_collectors_too(name: str) -> None:
    *expected, _ = alone(serial, Told(), 12, 3)
    factories = [partial(serial, w) for w in range(2)]
    with CLASSES[name](factories, Told(), frames_per_batch=12) as collector:
        collector.set_seed(SEED)
        found = workers_of(take(collector, 3 * collector.num_workers))
    leaf = {"MultiaSync": [0, 1], "aSync": [0]}[name]
    assert sorted(found) == leaf
    if name == "aSync":  # its worker is the second env, seeded first
        return
    for worker, batches in found.items():
        for batch, wanted in zip(batches, expected[worker], strict=False):
            assert_same(batch, wanted)


def test_ids_are_unique_over_workers_batches_and_seeds() -> None:
    with counts([2, 3], frames_per_batch=12, split_trajs=False) as collector:
        seen: set[int] = set()
        for _ in range(3):
            collector.set_seed(SEED)
            ids = set(collector.next()[IDS].flatten().tolist())
            assert not ids & seen
            seen |= ids
    assert {number >> 40 for number in seen} == {0, 1}


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


def pairs(worker: int, rows: int = 2) -> Any:
    return SerialEnv(rows, [partial(Count, 50, 20 * worker + 10 * b) for b in range(rows)])


@pytest.mark.parametrize("form", JOINED)
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
        keys = {tuple(leaves(batch)) for batch in take(collector, 8)}
    assert len(keys) == (1 if isinstance(other(), Id) else 2)


def test_padded_objects() -> None:
    with MultiSyncDataCollector([partial(Text, 3, w) for w in range(2)], frames_per_batch=[1, 3]) as collector:
        batch = collector.next()
    assert batch["text"][1] == ["1x0", "1x1", "1x2"]
    assert batch["text"][0][0] == "0x0"
    assert batch[MASK].tolist() == [[True, False, False], [True] * 3]


# ---------------------------------------------------------------------- one option for each worker


def test_lists_of_options() -> None:
    with MultiSyncDataCollector(
        [Count, Count],
        policy_factory=[partial(Const, 1.0), partial(Const, 2.0)],
        create_env_kwargs=[{"length": 3}, {"length": 2, "start": 5}],
        frames_per_batch=8,
        policy_device=["cpu", "cpu"],
        env_device=["cpu", None],
        storing_device=["cpu", "cpu"],
    ) as collector:
        batch = collector.next()
        assert collector.policy is None
        assert collector.storing_device == torch.device("cpu")
    assert steps(batch) == [[0, 1, 2, 0], [5, 6, 5, 6]]
    assert batch["action"].squeeze(-1).tolist() == [[1.0] * 4, [2.0] * 4]


LISTS = {
    "create_env_kwargs": [{}],
    "policy_factory": [Const],
    "frames_per_batch": [4],
    "policy_device": ["cpu"] * 3,
    "device": [],
}


@pytest.mark.parametrize("option", LISTS)
def test_lists_of_another_length(option: str) -> None:
    with pytest.raises(OptionError) as caught:
        MultiSyncDataCollector([partial(Count, 3)] * 2, **{"frames_per_batch": 8, option: LISTS[option]})
    found = len(LISTS[option])
    assert str(caught.value) == f"{option}: expected one entry, or a list of 2, one for each worker; got {found}"


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ([], {}, "create_env_fn: expected at least one env factory, got an empty list"),
        (Count, {}, "create_env_fn: expected a list with one entry for each worker, or one entry and num_workers=..."),
        (Count, {"num_workers": 0}, "num_workers: expected a positive number of workers, got 0"),
        ([Count], {"num_workers": 2}, "num_workers=2 and 1 entries in create_env_fn: give one of them"),
        ([Count], {"frame_per_batch": 8}, "unknown option 'frame_per_batch'. Did you mean 'frames_per_batch'?"),
        ([Count], {"cat_result": 0}, "unknown option 'cat_result'. Did you mean 'cat_results'?"),
        ([Count], {"frames_per_batch": 0}, "frames_per_batch: expected a positive integer, or one for each worker, got 0"),
        ([Count], {"frames_per_batch": 1.5}, "frames_per_batch: expected a positive integer, or one for each worker, got 1.5"),
        ([Count], {"preemptive_threshold": 0}, "preemptive_threshold: expected a share of the workers from 0 to 1, got 0"),
        ([Count], {"num_threads": 0}, "num_threads: expected a positive number of threads or None, got 0"),
    ],
)
def test_options_that_cannot_work(given: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        MultiSyncDataCollector(given, **{"frames_per_batch": 8, **options})
    assert str(caught.value) == message


def test_one_factory_for_all_and_instances_of_reap() -> None:
    with MultiSyncDataCollector(lambda: Count(3), Const(), num_workers=3, frames_per_batch=np.int64(9)) as collector:
        assert collector.num_workers == 3
        assert steps(collector.next()) == [[0, 1, 2]] * 3
    env = GymEnv("CartPole-v1")
    with MultiSyncDataCollector([env, env], frames_per_batch=6) as collector:
        assert collector.next().batch_size == (2, 3)
    with pytest.raises(OptionError, match=re.escape("give a factory, lambda: Count(...)")):
        MultiSyncDataCollector([Count(3), Count(3)], frames_per_batch=6)
    with pytest.raises(OptionError, match="aSyncDataCollector has one worker: expected one env"):
        aSyncDataCollector([Count, Count], frames_per_batch=6)


# ---------------------------------------------------------------------- budgets and warnings


def test_budgets_and_their_warnings() -> None:
    with pytest.warns(UserWarning, match="multiple") as warned:
        collector = counts([3, 3], frames_per_batch=7, total_frames=17)
    with collector:
        assert [str(one.message) for one in warned] == [
            "frames_per_batch=7 is not a multiple of the number of envs: each batch has 8 frames",
            "total_frames=17 is not a multiple of the 8 frames of a batch: 24 frames are collected",
        ]
        assert {one.filename for one in warned} == {__file__}
        assert (collector.frames_per_batch, collector.requested_frames_per_batch, collector.total_frames) == (8, 7, 17)
        assert len(collector) == 3
        assert len(list(collector)) == 3
        assert collector.next() is None
        assert not collector.closed
        assert collector.stats().frames == 24
    with counts([3, 3], frames_per_batch=8) as collector, pytest.raises(TypeError, match="has no length"):
        len(collector)
    with pytest.warns(DeprecationWarning, match="exploration_mode") as warned:
        counts([3], frames_per_batch=8, exploration_mode="mode").shutdown()
    assert [one.filename for one in warned] == [__file__]


@pytest.mark.parametrize("name", ["MultiaSync", "aSync"])
def test_async_budgets(name: str) -> None:
    with CLASSES[name]([partial(Count, 3)] * 2, Const(), frames_per_batch=4, total_frames=20) as collector:
        assert len(collector) == 5
        assert [batch.batch_size for batch in collector] == [(4,)] * 5
        assert collector.stats().frames == 20
        assert collector.next() is None
        assert not collector._working, "nothing is recorded that nobody gets"


def test_a15_batched_envs_and_len() -> None:
    factory = partial(SerialEnv, 8, [partial(Count, 5)] * 8)
    with pytest.warns(UserWarning, match="is not a multiple"):
        collector = MultiSyncDataCollector([factory] * 2, Const(), frames_per_batch=173, total_frames=300)
    with collector:
        assert len(collector) == 2
        assert [batch.numel() for batch in collector] == [176, 176]


# ---------------------------------------------------------------------- options of the rollouts


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize(("asked", "batches"), [(0, 0), (None, 0), (5, 1), (8, 1), (9, 2)])
def test_random_frames_first(name: str, asked: Any, batches: int) -> None:
    options: Any = {"frames_per_batch": 8, "init_random_frames": asked}
    with CLASSES[name]([partial(Marked, w) for w in range(2)], Told(), **options) as collector:
        random = [bool((batch["action"] * 2 != batch["observation"][..., 2:3]).any()) for batch in take(collector, 4)]
        keys = {tuple(leaves(batch)) for batch in take(collector, 2)}
    if name != "MultiaSync":
        assert random == [number < batches for number in range(4)]
    assert sum(random) == batches
    assert len(keys) == 1


def test_options_that_each_rollout_obeys() -> None:
    with counts([9, 9], frames_per_batch=14, max_frames_per_traj=3) as collector:
        batch = collector.next()
        assert steps(batch)[0] == [0, 1, 2, 0, 1, 2, 0]
        assert batch["step_count"].squeeze(-1).tolist() == [[0, 1, 2, 0, 1, 2, 0]] * 2
        assert batch["next", "truncated"].squeeze(-1).tolist() == [[False, False, True] * 2 + [False]] * 2
    with counts([9, 9], frames_per_batch=6, reset_at_each_iter=True) as collector:
        assert [steps(batch)[1] for batch in take(collector, 2)] == [[100, 101, 102]] * 2


def test_rows_that_wait_until_all_are_done() -> None:
    factories = [lambda: SerialEnv(2, [partial(Count, 2), partial(Count, 3)]), partial(pairs, 1)]
    with MultiSyncDataCollector(factories, Const(), frames_per_batch=16, reset_when_done=False) as collector:
        batch = collector.next()
        assert batch[MASK].tolist() == [[[True, True, False, False], [True, True, True, False]], [[True] * 4] * 2]
        assert steps(batch)[0] == [[0, 1, 0, 0], [0, 1, 2, 0]]
        assert collector.stats().frames == 13
        assert steps(collector.next())[0] == [[0, 1, 0, 0], [0, 1, 2, 0]]


@pytest.mark.parametrize("form", ["stack", 0, -1])
@pytest.mark.parametrize("rows", [1, 2])
def test_the_last_frames_are_truncated(form: Any, rows: int) -> None:
    def make(worker: int) -> Any:
        return Count(3, 100 * worker) if rows == 1 else SerialEnv(2, [partial(Count, 3), partial(CountTL, 9, 2)])

    factories = [partial(make, w) for w in range(2)]
    with MultiSyncDataCollector(factories, Const(), frames_per_batch=4 * 2 * rows, set_truncated=True, cat_results=form) as c:
        batch = c.next()
    with MultiSyncDataCollector(factories, Const(), frames_per_batch=4 * 2 * rows, cat_results=form) as c:
        plain = c.next()
    terminated, truncated, done = (batch["next", key].reshape(-1).tolist() for key in ("terminated", "truncated", "done"))
    real = [plain["next", key].reshape(-1).tolist() for key in ("terminated", "truncated", "done")]
    assert terminated == real[0]
    last = [number % 4 == 3 for number in range(8 * rows)]  # whatever the form: each rollout has four columns
    assert truncated == [a or b for a, b in zip(real[1], last, strict=True)]
    assert done == [a or b for a, b in zip(terminated, truncated, strict=True)]


def test_the_last_valid_frame_of_unequal_workers_and_idle_rows() -> None:
    with counts([9, 9], frames_per_batch=[2, 3], set_truncated=True) as collector:
        batch = collector.next()
    assert batch["next", "truncated"].squeeze(-1).tolist() == [[False, True, False], [False, False, True]]
    with counts([2, 4], frames_per_batch=6, set_truncated=True, reset_when_done=False) as collector:
        batch = collector.next()
    assert batch["next", "truncated"].squeeze(-1).tolist() == [[False, True, False], [False, False, True]]


def test_split_trajectories_and_postprocs() -> None:
    calls: list[torch.Size] = []

    def postproc(batch: Any) -> Any:
        calls.append(batch.batch_size)
        if len(calls) == 2:
            raise KeyError("on purpose")
        return batch

    with counts([2, 3], frames_per_batch=12, split_trajs=True, postproc=postproc) as collector:
        batch = collector.next()
        assert batch.batch_size == (5, 3)
        assert batch[MASK].sum(-1).tolist() == [2, 2, 2, 3, 3]
        with pytest.raises(KeyError, match="on purpose"):
            collector.next()
        assert collector.next().batch_size == (5, 3)
        assert not collector.closed
    assert calls == [(5, 3)] * 3


def test_b02_splitting_after_a_seed_over_batches() -> None:
    with MultiSyncDataCollector([partial(Marked, w) for w in range(2)], frames_per_batch=20, split_trajs=True) as collector:
        collector.set_seed(0)
        ids = [number for batch in take(collector, 3) for number in batch[IDS][:, 0].tolist()]
    assert len(set(ids)) >= len(ids) - 4, "only what goes on in the next batch has its id again"


def test_the_same_memory_each_time() -> None:
    with counts([9, 9], frames_per_batch=6, return_same_td=True) as collector:
        first = collector.next()
        kept = first["observation"]
        assert steps(first) == [[0, 1, 2], [100, 101, 102]]
        second = collector.next()
        assert second is first
        assert kept.squeeze(-1).tolist() == [[3, 4, 5], [103, 104, 105]]
    with aSyncDataCollector(partial(Count, 9), Const(), frames_per_batch=3, return_same_td=True) as collector:
        assert [steps(collector.next()) for _ in range(2)] == [[0, 1, 2], [3, 4, 5]]
        pointers = {collector.next()["observation"].data_ptr() for _ in range(6)}
    assert len(pointers) <= 2


@pytest.mark.parametrize("name", CLASSES)
def test_columns_of_objects(name: str) -> None:
    with CLASSES[name]([partial(Text, 3, 7)] * 2, frames_per_batch=4) as collector:
        for _ in range(5):
            batch = collector.next()
            first = batch.reshape(-1)
            assert first["text"] == [f"7x{int(count) - 7}" for count in first["count"].flatten()]
    with CLASSES[name]([partial(Count, 3)] * 2, Const(), frames_per_batch=4, use_buffers=False) as collector:
        batch = collector.next().reshape(-1)
        assert [float(value) for value in batch["observation"]] == ([0, 1, 0, 1] if name == "MultiSync" else [0, 1, 2, 0])


# ---------------------------------------------------------------------- versions and whole episodes


def test_the_version_that_acted() -> None:
    policy = Const(0.0)
    with MultiSyncDataCollector([partial(Count, 5)] * 2, policy, frames_per_batch=6, track_policy_version=True) as collector:
        for version in range(3):
            batch = collector.next()
            assert batch[VERSION].tolist() == [[version] * 3] * 2
            assert batch["action"].squeeze(-1).tolist() == [[float(version)] * 3] * 2
            assert collector.policy_version == version
            nn.init.constant_(policy.w, version + 1)
            collector.update_policy_weights_()
        collector.update_policy_weights_(worker_ids=1)
        assert collector.next()[VERSION].tolist() == [[3] * 3, [4] * 3]


def test_the_version_of_async_batches_is_that_of_their_action() -> None:
    policy = Const(0.0)
    with MultiaSyncDataCollector([partial(Count, 5)] * 2, policy, frames_per_batch=6, track_policy_version=True) as collector:
        for version in range(1, 20):
            batch = collector.next()
            assert batch["action"].unique().tolist() == batch[VERSION].unique().float().tolist()
            nn.init.constant_(policy.w, version)
            collector.update_policy_weights_()


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("form", ["padded", "cat"])
def test_whole_episodes_of_each_row_in_turn(name: str, form: str) -> None:
    """B10: envs of length 1 and 7; short episodes are not preferred."""
    options: Any = {"frames_per_batch": 8, "trajs_per_batch": 4, "traj_format": form}
    with CLASSES[name]([partial(Count, 1), partial(Count, 7)], Const(), **options) as collector:
        for _ in range(3):
            batch = collector.next()
            length = [7] * 4 if name == "aSync" else [1, 7, 1, 7]
            if form == "padded":
                assert batch.batch_size == (4, 7)
                assert batch[MASK].sum(-1).tolist() == length
                assert steps(batch)[1] == [0, 1, 2, 3, 4, 5, 6]
            else:
                assert steps(batch) == [step for n in length for step in range(n)]


def test_whole_episodes_of_unequal_workers() -> None:
    factories = [partial(pairs, w, rows) for w, rows in enumerate((1, 2))]
    options: Any = {"trajs_per_batch": 6, "max_frames_per_traj": 5, "traj_format": "cat"}
    with MultiSyncDataCollector(factories, Const(), frames_per_batch=[3, 8], **options) as collector:
        for _ in range(2):
            episodes = [[start + step for step in range(5)] for start in (0, 20, 30)]
            assert steps(collector.next()) == [step for episode in episodes * 2 for step in episode]


def test_whole_episodes_until_the_budget_is_used_up() -> None:
    with counts([2, 3], frames_per_batch=12, total_frames=36, trajs_per_batch=3) as collector:
        batches = list(collector)
        assert [batch.shape[0] for batch in batches] == [3] * len(batches)
        assert collector.next() is None
        stats = collector.stats()
    assert stats.frames == 36
    assert sum(int(batch[MASK].sum()) for batch in batches) + stats.discarded_frames == 36


# ---------------------------------------------------------------------- preemption


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


def test_preemption_with_forms_that_cannot_be() -> None:
    with pytest.raises(OptionError, match="workers that stop early record less along the last dimension"):
        MultiSyncDataCollector([partial(pairs, 0)] * 2, frames_per_batch=8, preemptive_threshold=0.5, cat_results=0)
    with pytest.raises(OptionError, match="preemptive_threshold: it belongs to MultiSyncDataCollector"):
        MultiaSyncDataCollector([Count], create_env_kwargs={"length": 2}, frames_per_batch=8, preemptive_threshold=0.5)


# ---------------------------------------------------------------------- leases


def fingerprint(batch: Any) -> dict[Any, int]:
    return {key: hash(batch[key].numpy().tobytes()) for key in leaves(batch)}


@pytest.mark.parametrize("name", CLASSES)
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


@pytest.mark.parametrize("name", CLASSES)
def test_nothing_grows(name: str) -> None:
    with CLASSES[name]([partial(Pixels, 7)] * 2, frames_per_batch=4) as collector:
        take(collector, 20)
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


# ---------------------------------------------------------------------- control


def test_seeds_go_along_the_chain() -> None:
    factories = [lambda: SerialEnv(2, [partial(Seeded, 5)] * 2)] * 2
    chain = list(seed_chain(SEED, 5))
    with MultiSyncDataCollector(factories, Const(), frames_per_batch=8) as collector:
        assert collector.set_seed(SEED) == chain[4]
        collector.next()
        assert collector.getattr_env("seeds") == [[[chain[0]], [chain[1]]], [[chain[2]], [chain[3]]]]
        assert collector.set_seed(SEED, static_seed=True) == SEED
        collector.next()
        assert [own[-1] for both in collector.getattr_env("seeds") for own in both] == [SEED] * 4
        with pytest.raises(OptionError, match="seed: expected an integer"):
            collector.set_seed("7")
    with MultiaSyncDataCollector(["CartPole-v1"] * 2, frames_per_batch=8) as collector:
        first, second = [], []
        for into in (first, second):
            assert collector.set_seed(SEED) == next_seed(next_seed(SEED))
            found = workers_of(take(collector, 6))
            into.extend(found[w][0] for w in (0, 1))
        for one, other in zip(first, second, strict=True):
            assert torch.equal(one["observation"], other["observation"])
            assert torch.equal(one["action"], other["action"])


def test_resets_of_rows_over_all_workers() -> None:
    with MultiSyncDataCollector([partial(pairs, w) for w in range(2)], Const(), frames_per_batch=8) as collector:
        collector.next()
        collector.reset(3)
        assert steps(collector.next()) == [[[2, 3], [12, 13]], [[22, 23], [30, 31]]]
        collector.reset([0, 2])
        assert steps(collector.next()) == [[[0, 1], [14, 15]], [[20, 21], [32, 33]]]
        collector.reset([False, True, False, False])
        assert steps(collector.next()) == [[[2, 3], [10, 11]], [[22, 23], [34, 35]]]
        collector.reset()
        assert steps(collector.next()) == [[[0, 1], [10, 11]], [[20, 21], [30, 31]]]
        with pytest.raises(OptionError) as caught:
            collector.reset([4, -1])
        assert str(caught.value) == "reset: expected rows from 0 to 3, got [4, -1]"
        assert steps(collector.next()) == [[[2, 3], [12, 13]], [[22, 23], [32, 33]]]


def test_resets_of_async_workers_drop_what_waits() -> None:
    with MultiaSyncDataCollector([partial(Count, 50)] * 2, Const(), frames_per_batch=4) as collector:
        take(collector, 3)
        collector.reset()
        first = {worker: steps(batches[0]) for worker, batches in workers_of(take(collector, 6)).items()}
        assert first == {0: [0, 1, 2, 3], 1: [0, 1, 2, 3]}
        assert collector.stats().discarded_frames % 4 == 0


@pytest.mark.parametrize("name", CLASSES)
def test_calls_and_attributes(name: str) -> None:
    with CLASSES[name]([partial(Seeded, 2), partial(Seeded, 3)], Const(2.5), frames_per_batch=4) as collector:
        lengths = [3] if name == "aSync" else [2, 3]
        collector.next()
        assert collector.getattr_env("length") == lengths
        assert [value.tolist() for value in collector.getattr_policy("w")] == [[2.5]] * len(lengths)
        assert collector.call_env("tell", "a", 1) == [1] * len(lengths)
        last = len(lengths) - 1
        assert collector.call_env("tell", "b", worker_ids=last) == [2]
        assert collector.call_env("tell", "c", worker_ids=[last]) == [3]
        assert collector.getattr_env("told")[-1] == [("a", 1), ("b",), ("c",)]
        with pytest.raises(OptionError, match="worker_ids: expected some of"):
            collector.call_env("tell", worker_ids=[5])
        for call in (collector.getattr_env, collector.getattr_policy, collector.call_env):
            with pytest.raises(Exception, match="nonsense") as caught:
                call("nonsense")
            assert isinstance(caught.value.__cause__, AttributeError)
        assert collector.getattr_env("length") == lengths, "no answer is left of the calls that failed"
        assert collector.next().numel() == 4


@pytest.mark.parametrize("name", CLASSES)
def test_attributes_of_a_collector(name: str) -> None:
    policy = Const()
    collector = CLASSES[name]([partial(Count, 3)] * 2, policy, frames_per_batch=8, total_frames=16)
    with GymEnv(Count(3)) as env:
        assert collector.observation_spec == env.observation_spec
        assert collector.action_spec == env.action_spec
        assert collector.reward_spec == env.reward_spec
        assert collector.done_spec == env.done_spec
    assert collector.policy is policy
    assert collector.env is None
    assert collector.batch_size == ((2, 4) if name == "MultiSync" else (8,))
    assert collector.total_frames == 16
    assert isinstance(collector, torch.utils.data.IterableDataset)
    workers = 1 if name == "aSync" else 2
    assert repr(collector) == (
        f"{name}DataCollector({workers} x GymEnv(<Count instance>), policy=Const (plain), frames_per_batch=8, "
        "total_frames=16, collected=0)"
    )
    stats = collector.stats()
    assert (stats.frames, len(stats.workers)) == (0, {1: 0, 2: 2}[workers])
    assert not collector.closed
    collector.shutdown()
    collector.shutdown()
    assert collector.closed
    for call in (collector.next, collector.state_dict, collector.reset, lambda: collector.set_seed(1), collector.start):
        with pytest.raises(ClosedError):
            call()


def test_stats_of_each_worker() -> None:
    with counts([2, 3], frames_per_batch=12) as collector:
        take(collector, 2)
        stats = collector.stats()
    assert [(worker.frames, worker.finished_episodes) for worker in stats.workers] == [(12, 6), (12, 4)]
    assert (stats.frames, stats.batches, stats.finished_episodes, stats.discarded_frames) == (24, 2, 10, 0)
    assert sorted((episode.length, episode.reward) for episode in stats.episodes) == [(2, 2.0)] * 6 + [(3, 3.0)] * 4
    assert (stats.recent_lengths.min, stats.recent_lengths.max) == (2, 3)


# ---------------------------------------------------------------------- states


def saved(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def resuming(name: str, make: Callable[[int], Any] = Marked, policy: Any = None, **options: Any) -> Any:
    torch.manual_seed(3)
    given = {"frames_per_batch": 12, "track_policy_version": True, **options}
    return CLASSES[name]([partial(make, w) for w in range(2)], policy or Drawing(), **given)


RESUMED: dict[str, dict[str, Any]] = {
    "plain": {},
    "recurrent": {"policy": Recall()},
    "serial": {"make": serial},
    "episodes": {"trajs_per_batch": 3},
    "warm-up": {"init_random_frames": 60},
}


@pytest.mark.parametrize("scenario", RESUMED)
def test_a_resume_is_exact(scenario: str) -> None:
    options = RESUMED[scenario]
    with resuming("MultiSync", **options) as collector:
        collector.set_seed(SEED)
        take(collector, 2)
        collector.update_policy_weights_()
        take(collector, 1)
        state = saved(collector.state_dict())
        expected = take(collector, 2)
        collector.update_policy_weights_()
        expected += take(collector, 2)
    with resuming("MultiSync", **options) as other:
        other.set_seed(99)
        take(other, 3)
        other.load_state_dict(state)
        found = take(other, 2)
        other.update_policy_weights_()
        found += take(other, 2)
        assert other.policy_version == 2
        assert other.stats().staleness == 0
    for one, wanted in zip(found, expected, strict=True):
        assert_same(one, wanted)


@pytest.mark.parametrize("name", ["MultiaSync", "aSync"])
def test_a_resume_with_results_that_wait(name: str) -> None:
    def streams(collector: Any) -> dict[int, list[Any]]:
        return {worker: batches[:3] for worker, batches in workers_of(take(collector, 10)).items()}

    with resuming(name) as collector:
        collector.set_seed(SEED)
        take(collector, 3)
        state = saved(collector.state_dict())
        assert len(state["results"]) >= 1
        frames = collector.stats().frames
        expected = streams(collector)
    with resuming(name) as other:
        take(other, 2)
        other.load_state_dict(state)
        assert other.stats().frames == frames
        found = streams(other)
    assert found.keys() == expected.keys()
    for worker, batches in expected.items():
        for one, wanted in zip(found[worker], batches, strict=False):
            assert_same(one, wanted)


def test_the_weights_of_a_state_are_those_that_act() -> None:
    policy = Const(1.0)
    with MultiSyncDataCollector([partial(Count, 9)] * 2, policy, frames_per_batch=8) as collector:
        nn.init.constant_(policy.w, 5.0)  # trained on, not sent
        state = saved(collector.state_dict())
        collector.update_policy_weights_(Const(7.0), worker_ids=1)
        newer = saved(collector.state_dict())
    other = Const(0.0)
    with MultiSyncDataCollector([partial(Count, 9)] * 2, other, frames_per_batch=8) as collector:
        collector.load_state_dict(state)
        assert collector.next()["action"].unique().tolist() == [1.0]
        assert other.w.item() == 5.0
        collector.load_state_dict(newer)
        assert collector.next()["action"][..., 0, 0].tolist() == [1.0, 7.0]
        collector.update_policy_weights_()
        assert collector.next()["action"].unique().tolist() == [5.0]


def test_the_weights_of_policies_that_factories_made() -> None:
    def make() -> Any:
        factories = [partial(Const, 1.0), partial(Const, 2.0)]
        return MultiSyncDataCollector([partial(Count, 9)] * 2, policy_factory=factories, frames_per_batch=8)

    with make() as collector:
        collector.update_policy_weights_(Const(9.0), worker_ids=0)
        state = saved(collector.state_dict())
    with make() as collector:
        collector.load_state_dict(state)
        assert collector.next()["action"][..., 0, 0].tolist() == [9.0, 2.0]


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    with resuming("MultiSync") as collector:
        collector.set_seed(SEED)
        take(collector, 2)
        state = saved(collector.state_dict())
        expected = take(collector, 2)
    with resuming("MultiSync", make=serial, frames_per_batch=24) as stranger:
        foreign = saved(stranger.state_dict())
    with resuming("MultiSync") as collector:
        collector.load_state_dict(state)
        half = {**state, "workers": [foreign["workers"][0], state["workers"][0]]}
        other_half = {**state, "workers": [state["workers"][1], foreign["workers"][1]]}
        wrong = [({}, OptionError), ({**state, "class": "aSyncDataCollector"}, OptionError), (foreign, SpecMismatch)]
        wrong += [(half, SpecMismatch), (other_half, SpecMismatch), ({**state, "workers": state["workers"][:1]}, OptionError)]
        for one, kind in wrong:
            with pytest.raises(kind):
                collector.load_state_dict(one)
        for found, wanted in zip(take(collector, 2), expected, strict=True):
            assert_same(found, wanted)


def test_envs_without_a_state_begin_new_episodes_with_new_seeds() -> None:
    with MultiSyncDataCollector([partial(Seeded, 5)] * 2, Const(), frames_per_batch=8) as collector:
        following = collector.set_seed(SEED)
        ids = set(collector.next()[IDS].flatten().tolist())
        state = saved(collector.state_dict())
        collector.load_state_dict(state)
        batch = collector.next()
        assert steps(batch) == [[0, 1, 2, 3]] * 2
        assert not set(batch[IDS].flatten().tolist()) & ids
        seeds = collector.getattr_env("seeds")
    assert all(len(set(own)) == 2 for own in seeds)
    assert following
