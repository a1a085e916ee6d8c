"""Options of collectors with several workers: one for each, budgets, and what each rollout obeys."""

from __future__ import annotations

import re
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from reap.collectors import MultiaSyncDataCollector, MultiSyncDataCollector, SyncDataCollector, aSyncDataCollector
from reap.envs import GymEnv, SerialEnv
from reap.errors import OptionError
from reap.testing import Const, Count, CountTL
from reap.testing.marked import Marked, Told
from tests.collectors.seams import under_way
from tests.collectors.worker_kinds import CLASSES, IDS, MASK, Text, counts, leaves, pairs, steps, take
from tests.pairwise import by_default

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
        (
            Count,
            {},
            f"create_env_fn: expected a list with one entry for each worker, or num_workers=... with one entry; got {Count}",
        ),
        (Count, {"num_workers": 0}, "num_workers: expected a positive number of workers, got 0"),
        ([Count], {"num_workers": 2}, "num_workers=2 and 1 entries in create_env_fn: give one of them"),
        ([Count], {"frame_per_batch": 8}, "unknown option 'frame_per_batch'. Did you mean 'frames_per_batch'?"),
        ([Count], {"cat_result": 0}, "unknown option 'cat_result'. Did you mean 'cat_results'?"),
        ([Count], {"frames_per_batch": 0}, "frames_per_batch: expected a positive integer, or one for each worker, got 0"),
        ([Count], {"frames_per_batch": 1.5}, "frames_per_batch: expected a positive integer, or one for each worker, got 1.5"),
        ([Count], {"preemptive_threshold": -1}, "preemptive_threshold: expected a share of the workers from 0 to 1, got -1"),
        ([Count], {"preemptive_threshold": "1"}, "preemptive_threshold: expected a share of the workers from 0 to 1, got '1'"),
        ([Count], {"stall_after": -1}, "stall_after: expected a positive number of seconds or None, got -1"),
        ([Count], {"stall_after": "x"}, "stall_after: expected a positive number of seconds or None, got 'x'"),
        ([Count], {"update_at_each_batch": 1}, "update_at_each_batch: expected a bool, got 1"),
        ([Count], {"trajs_per_batch": "x"}, "trajs_per_batch: expected an integer or None, got 'x'"),
        ([Count], {"weight_recv_schemes": [1]}, 'weight_recv_schemes: expected a dict {"policy": scheme}, got [1]'),
        (Count, {"num_workers": torch.ones(2)}, "num_workers: expected a positive number of workers, got tensor([1., 1.])"),
        ([Count], {"num_threads": 0}, "num_threads: expected a positive number of threads or None, got 0"),
    ],
)
def test_options_that_cannot_work(given: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        MultiSyncDataCollector(given, **{"frames_per_batch": 8, **options})
    assert str(caught.value) == message


@pytest.mark.processes
def test_one_factory_for_all_and_instances_of_reap() -> None:
    with MultiSyncDataCollector(lambda: Count(3), Const(), num_workers=np.int64(3), frames_per_batch=np.int64(9)) as collector:
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


@pytest.mark.processes
def test_budgets_and_their_warnings() -> None:
    factories = [partial(Count, 3)] * 2
    with pytest.warns(UserWarning, match="multiple") as warned:
        collector = MultiSyncDataCollector(factories, Const(), frames_per_batch=7, total_frames=17)
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
        MultiSyncDataCollector(factories, Const(), frames_per_batch=8, exploration_mode="mode").shutdown()
    assert [one.filename for one in warned] == [__file__]


@pytest.mark.parametrize("name", ["MultiaSync", "aSync"])
def test_async_budgets(name: str) -> None:
    with CLASSES[name]([partial(Count, 3)] * 2, Const(), frames_per_batch=4, total_frames=20) as collector:
        assert len(collector) == 5
        assert [batch.batch_size for batch in collector] == [(4,)] * 5
        assert collector.stats().frames == 20
        assert collector.next() is None
        assert not under_way(collector), "nothing is recorded that nobody gets"


def test_a15_batched_envs_and_len() -> None:
    factory = partial(SerialEnv, 8, [partial(Count, 5)] * 8)
    with pytest.warns(UserWarning, match="is not a multiple"):
        collector = MultiSyncDataCollector([factory] * 2, Const(), frames_per_batch=173, total_frames=300)
    with collector:
        assert len(collector) == 2
        assert [batch.numel() for batch in collector] == [176, 176]


# ---------------------------------------------------------------------- options of the rollouts


@pytest.mark.parametrize(
    ("name", "asked", "batches"),
    by_default(
        [(name, *case) for name in CLASSES for case in [(0, 0), (None, 0), (5, 1), (8, 1), (9, 2)]],
        *((name, 9, 2) for name in CLASSES),
        ("MultiSync", 5, 1),
    ),
)
def test_random_frames_first(name: str, asked: Any, batches: int) -> None:
    options: Any = {"frames_per_batch": 8, "init_random_frames": asked}
    with CLASSES[name]([partial(Marked, w) for w in range(2)], Told(), **options) as collector:
        random = [bool((batch["action"] * 2 != batch["observation"][..., 2:3]).any()) for batch in take(collector, 4)]
        keys = {tuple(leaves(batch)) for batch in take(collector, 2)}
    if name != "MultiaSync":
        assert random == [number < batches for number in range(4)]
    assert sum(random) == batches
    assert len(keys) == 1


@pytest.mark.processes
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


@pytest.mark.processes
@pytest.mark.parametrize(("form", "rows"), list(product(["stack", 0, -1], [1, 2])))
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


@pytest.mark.parametrize("set_truncated", [False, True])
def test_rollout_marks_as_batches_do(set_truncated: bool) -> None:
    options: Any = {"frames_per_batch": 4, "set_truncated": set_truncated}
    expected = [False, False, False, set_truncated]
    for kind, given in (
        (SyncDataCollector, partial(Count, 50)),
        (MultiSyncDataCollector, [partial(Count, 50)]),
        (MultiaSyncDataCollector, [partial(Count, 50)]),
    ):
        with kind(given, Const(), **options) as collector:
            for batch in (collector.rollout(), collector.next(), collector.rollout()):
                for key in ("truncated", "done"):
                    assert batch["next", key].flatten().tolist() == expected, kind


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


@pytest.mark.parametrize("name", by_default(CLASSES, "MultiaSync"))
def test_columns_of_objects(name: str) -> None:
    with CLASSES[name]([partial(Text, 3, 7)] * 2, frames_per_batch=4) as collector:
        for _ in range(5):
            batch = collector.next()
            first = batch.reshape(-1)
            assert first["text"] == [f"7x{int(count) - 7}" for count in first["count"].flatten()]
    with CLASSES[name]([partial(Count, 3)] * 2, Const(), frames_per_batch=4, use_buffers=False) as collector:
        batch = collector.next().reshape(-1)
        assert [float(value) for value in batch["observation"]] == ([0, 1, 0, 1] if name == "MultiSync" else [0, 1, 2, 0])
