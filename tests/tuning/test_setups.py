"""Set-ups: what they build, the lines of Python that build the same, and what their parts would allow."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from reap import GymEnv
from reap.collectors import SyncDataCollector
from reap.testing import Count
from reap.tuning.parts import SIZES, Parts
from reap.tuning.setups import WITH_WORKERS, Kind, Setup, candidates
from tests.pairwise import by_default

PARTS = Parts(step=1e-3, step_cpu=1e-3, reset=0.0, policy=(1e-3, 2e-3, 4e-3, 16e-3), transfer=0.0, cores=2)


def count_env() -> GymEnv:
    return GymEnv(Count(5))


SETUPS = [
    Setup(Kind.SYNC, 1),
    Setup(Kind.SYNC, 4),
    Setup(Kind.PARALLEL, 4, 2),
    Setup(Kind.OVERLAP, 4, 2),
    Setup(Kind.MULTI_SYNC, 2, 2),
    Setup(Kind.MULTI_ASYNC, 2, 2),
]


@pytest.mark.parametrize("setup", by_default(SETUPS, SETUPS[1], SETUPS[4]), ids=str)
def test_the_code_makes_what_the_setup_builds(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.set_num_threads", lambda _number: None)
    names: dict[str, Any] = {"make_env": count_env, "policy": None}
    exec(setup.code("make_env", "policy", 10), names)
    written = names["collector"]
    built = setup.build(count_env, lambda: None, 10)
    try:
        assert type(built) is type(written) is WITH_WORKERS.get(setup.kind, SyncDataCollector)
        assert built.frames_per_batch == written.frames_per_batch == -(-10 // setup.columns_of) * setup.columns_of
        assert built.next().shape == written.next().shape
    finally:
        built.shutdown()
        written.shutdown()


@pytest.mark.parametrize(
    ("setup", "bound"),
    [
        (Setup(Kind.SYNC, 1), 1 / 2e-3),
        (Setup(Kind.SYNC, 4), 4 / 6e-3),
        (Setup(Kind.SYNC, 64), 64 / 80e-3),
        (Setup(Kind.PARALLEL, 4, 2), 4 / (2e-3 + 2e-3)),
        (Setup(Kind.OVERLAP, 8, 2), 8 / max(4e-3, 2 * 2e-3)),
        (Setup(Kind.MULTI_SYNC, 4, 2), 2 * 4 / 6e-3),
        (Setup(Kind.MULTI_ASYNC, 4, 4), 2 / 1.5e-3),
    ],
    ids=str,
)
def test_what_the_parts_allow(setup: Setup, bound: float) -> None:
    assert PARTS.bound(setup) == pytest.approx(bound)


@pytest.mark.parametrize(("rows", "seconds"), [*zip(SIZES, PARTS.policy, strict=True), (10, 3e-3), (128, 32e-3)])
def test_the_policy_between_the_sizes_that_were_measured(rows: int, seconds: float) -> None:
    assert PARTS.policy_of(rows) == pytest.approx(seconds)


def test_candidates() -> None:
    assert [setup for setup in candidates(1, waits=False) if setup.kind is not Kind.SYNC] == [
        setup for setup in candidates(2, waits=False) if setup.kind is not Kind.SYNC
    ], "one core: two workers may still pay, where one waits"
    busy, waiting = (set(candidates(2, waits=waits, threads=2)) for waits in (False, True))
    assert busy < waiting
    assert max(setup.workers for setup in busy) == 2
    assert max(setup.workers for setup in waiting) == 8
    assert Setup(Kind.SYNC, 1, threads=2) in busy
    assert Setup(Kind.MULTI_SYNC, 64, 2) in busy
    assert all(setup.envs >= setup.workers for setup in waiting if setup.kind is Kind.PARALLEL)


@pytest.mark.parametrize(
    ("setup", "text"),
    [
        (Setup(Kind.SYNC, 1), "SyncDataCollector 1 env"),
        (Setup(Kind.OVERLAP, 8, 2), "ParallelEnv, overlap 2 processes 8 envs"),
        (Setup(Kind.MULTI_ASYNC, 8, 1), "MultiaSyncDataCollector 1 worker 8 envs each"),
    ],
)
def test_words(setup: Setup, text: str) -> None:
    assert str(setup) == text


def test_an_env_that_fails_is_closed() -> None:
    with pytest.raises(ZeroDivisionError):
        Setup(Kind.SYNC, 2).build(count_env, partial(divmod, 1, 0), 10)
