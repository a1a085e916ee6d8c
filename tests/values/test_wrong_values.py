"""No wrong value passes in silence: each kind of env, field and wrongness; each field at the reset, first step and later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from reap import MultiSyncDataCollector, SyncDataCollector, evaluate
from reap.data import LazyTensorStorage, ReplayBuffer
from reap.envs import GymEnv, ParallelEnv, SerialEnv
from reap.errors import SpecMismatch, WorkerRaised
from tests.pairwise import by_default, each_value, pairwise
from tests.values.wrong_envs import (
    CASES,
    FIRST_OF_RESET,
    INFO,
    SPACE,
    TD_CASES,
    TD_WRONG,
    VECTOR_CASES,
    VECTOR_WRONG,
    WRONG,
    OneWrong,
    OneWrongArray,
    OneWrongTensorDict,
    OneWrongVector,
)

FRAMES = 8


def each(cases: Sequence[tuple[str, int]], *options: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Each wrong value of each field, and each field with each value of the options."""
    fields = list(dict.fromkeys(field for field, _ in cases))
    places = range(max(place for _, place in cases) + 1)
    return pairwise(fields, places, *options, possible=lambda field, place, *_: (field, place) in cases)


def collected(make: Any, frames: int = FRAMES, **options: Any) -> Any:
    with SyncDataCollector(make, frames_per_batch=frames, **options) as collector:
        return collector.next()


def gym_env(*wrong: Any) -> GymEnv:
    return GymEnv(OneWrong(*wrong), info_keys=INFO)


def test_right_values_pass() -> None:
    batch = collected(gym_env)
    assert batch["next", "box"][:, 0].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert batch["next", "info"][:, 1].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(("field", "place", "at"), each(CASES, [0, 1, 4]))
def test_one_env(field: str, place: int, at: int) -> None:
    if at == 0 and field in {"reward", "terminated", "truncated"}:
        at = FRAMES  # a reset returns none of these; this is the last step
    with pytest.raises(SpecMismatch) as caught:
        collected(lambda: gym_env(field, WRONG[field][place], at))
    text = str(caught.value)
    assert field in text
    assert "expected" in text
    assert at <= 1 or f"column {at - 1}" in text


@pytest.mark.parametrize(("field", "place", "at"), each_value(each(CASES, [0, 4])))
def test_envs_that_are_stepped_in_turn(field: str, place: int, at: int) -> None:
    if at == 0 and field in {"reward", "terminated", "truncated"}:
        at = FRAMES

    def make() -> SerialEnv:
        return SerialEnv(3, [gym_env, lambda: gym_env(field, WRONG[field][place], at), gym_env])

    with pytest.raises(SpecMismatch) as caught:
        collected(make, 3 * FRAMES)
    text = str(caught.value)
    assert field in text
    # NaN in what fits the env's own space is found in whole columns.
    assert ("in row 1, " if "found NaN at index" in text else "in env 1 of 3") in text


@pytest.mark.parametrize(
    ("field", "place", "count", "at"),
    each([case for case in CASES if case[0] in {"box", "reward", "terminated", "truncated"}], [1, 3], [0, 1, 4]),
)
def test_envs_of_one_array(field: str, place: int, count: int, at: int) -> None:
    if at == 0 and field != "box":
        at = FRAMES

    def make() -> Any:
        last = GymEnv(OneWrongArray(field, WRONG[field][place], at))
        return last if count == 1 else SerialEnv(3, [lambda: GymEnv(OneWrongArray())] * 2 + [lambda: last])

    with pytest.raises(SpecMismatch, match="observation|reward|terminated|truncated"):
        collected(make, count * FRAMES)


@pytest.mark.parametrize(("field", "place", "at"), each(VECTOR_CASES, [0, 1, 4]))
def test_vector_envs(field: str, place: int, at: int) -> None:
    if at == 0 and field != "box":
        at = FRAMES
    with pytest.raises(SpecMismatch):
        collected(lambda: GymEnv(OneWrongVector(field, VECTOR_WRONG[field][place], at)), 3 * FRAMES)


@pytest.mark.parametrize(("field", "place", "at"), each(TD_CASES, [0, 1, 4]))
def test_envs_by_tensordicts(field: str, place: int, at: int) -> None:
    if at == 0 and field not in FIRST_OF_RESET:
        at = FRAMES
    with pytest.raises(SpecMismatch, match=field):
        collected(lambda: OneWrongTensorDict(field, TD_WRONG[field][place], at))


@pytest.mark.parametrize(
    ("field", "place", "at"), each([case for case in TD_CASES if TD_WRONG[case[0]][case[1]] is not None], [0, 4])
)
def test_envs_by_hand(field: str, place: int, at: int) -> None:
    if at == 0 and field not in FIRST_OF_RESET:
        at = 4
    env = OneWrongTensorDict(field, TD_WRONG[field][place], at)
    with pytest.raises(SpecMismatch, match=field):
        env.rollout(6)


@pytest.mark.parametrize(("field", "place", "at"), each_value(each(CASES, [0, 4])))
def test_gymnasium_envs_by_hand(field: str, place: int, at: int) -> None:
    if at == 0 and field in {"reward", "terminated", "truncated"}:
        at = 4
    with pytest.raises(SpecMismatch, match=field):
        gym_env(field, WRONG[field][place], at).rollout(6)


SOME = [("box", 0), ("image", 1), ("place", 2), ("parts", 0), ("text", 0), ("reward", 2), ("terminated", 0), ("info", 0)]


@pytest.mark.parametrize(("field", "place"), by_default(SOME, SOME[0], SOME[4], SOME[5]))
def test_processes(field: str, place: int) -> None:
    """Nothing of the rollout is stored, and the worker is not started again."""
    wrong = (field, WRONG[field][place], 6)

    def make() -> GymEnv:
        return GymEnv(OneWrong(*wrong), info_keys=INFO)

    buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=4)
    with MultiSyncDataCollector([make] * 2, frames_per_batch=8, replay_buffer=buffer, on_worker_failure="restart") as collector:
        assert collector.next() is None
        assert len(buffer) == 8
        with pytest.raises(WorkerRaised) as caught:
            collector.next()
    assert isinstance(caught.value.__cause__, SpecMismatch)
    assert field in str(caught.value)
    assert len(buffer) == 8


def test_parallel_envs() -> None:
    wrong = ("box", np.zeros(1, np.float32), 4)
    with ParallelEnv(2, [gym_env, lambda: gym_env(*wrong)]) as env, pytest.raises(WorkerRaised, match="box") as caught:
        collected(env, 2 * FRAMES)
    assert isinstance(caught.value.__cause__, SpecMismatch)
    assert "env 1 of 2" in str(caught.value)


@pytest.mark.parametrize("at", [1, 4])
def test_evaluation(at: int) -> None:
    with pytest.raises(SpecMismatch, match="box"):
        evaluate(lambda: gym_env("box", np.zeros(1, np.float32), at), episodes=1, max_frames_per_traj=6)


def test_nothing_of_a_wrong_rollout_is_stored() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=4)
    wrong = np.array([float("nan"), 0, 0], np.float32)
    with SyncDataCollector(lambda: gym_env("box", wrong, 11), frames_per_batch=8, replay_buffer=buffer) as collector:
        collector.next()
        with pytest.raises(SpecMismatch, match="found NaN at index \\(0,\\) \\(in row 0, column 2\\)"):
            collector.next()
        assert len(buffer) == 8
        collector.next()  # new episodes begin
        assert buffer[:]["collector", "traj_ids"].unique().tolist() == [0, 1]


def test_first_looks_at_the_first_values_only() -> None:
    short = np.full(1, 7, np.float32)
    batch = collected(lambda: GymEnv(OneWrongArray("box", short, 4)), check="first")
    assert batch["next", "observation"][3].tolist() == [7, 7, 7]
    with pytest.raises(SpecMismatch):
        collected(lambda: GymEnv(OneWrongArray("box", short, 1)), check="first")
    assert set(SPACE.spaces) <= set(collected(gym_env, check="first").keys())


@pytest.mark.parametrize("device", ["cpu"])
def test_a_custom_env_may_return_wider_floats(device: str) -> None:
    wide = torch.full((3,), 0.25, dtype=torch.float64, device=device)
    batch = collected(lambda: OneWrongTensorDict("box", wide, 4))
    assert batch["next", "box"].dtype == torch.float32
    assert batch["next", "box"][3].tolist() == [0.25] * 3
    by_hand = OneWrongTensorDict("box", wide, 1).rollout(2)
    assert isinstance(by_hand, TensorDict)
    assert by_hand["next", "box"].dtype == torch.float32
