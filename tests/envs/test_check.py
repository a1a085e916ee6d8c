"""What an env's first reset and first step return, held against its own space."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from reap.collectors import SyncDataCollector
from reap.envs import GymEnv, SerialEnv
from reap.envs.gymnasium.first_check import check_observation, check_reset, check_step
from reap.errors import SpecMismatch
from reap.specs import NonTensor
from reap.specs.fits import OTHER_REWARDS
from reap.testing import Count

BOX = spaces.Box(-1, 1, (2,), np.float32)
PIXELS = spaces.Box(0, 255, (2, 2), np.uint8)
DICT = spaces.Dict({"a": spaces.Discrete(2), "b": BOX})
TUPLE = spaces.Tuple((spaces.Discrete(2), spaces.Dict({"c": BOX})))
ZERO = np.zeros(2, np.float32)
LARGE = np.full((2, 2), 300, np.uint16)


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (BOX, ZERO),
        (BOX, np.zeros(2)),
        (BOX, np.zeros(2, np.int64)),
        (BOX, [0.0, 0.0]),
        (BOX, np.array([1 + 5e-7, -1 - 5e-7])),
        (spaces.Box(-np.inf, np.inf, (2,)), np.array([np.inf, -np.inf])),
        (spaces.Box(-1, 1, ()), 0.5),
        (PIXELS, np.full((2, 2), 255, np.uint8)),
        (spaces.Box(0, 9, (2,), np.int32), np.array([0, 9], np.int64)),
        (spaces.Discrete(3), 2),
        (spaces.Discrete(3, start=5), np.int32(7)),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 2])),
        (spaces.MultiBinary(2), np.array([1, 0], np.int8)),
        (DICT, {"a": 1, "b": ZERO}),
        (TUPLE, (1, {"c": ZERO})),
        (TUPLE, [1, {"c": ZERO}]),
    ],
)
def test_values_that_fit(space: Any, value: Any) -> None:
    check_observation(value, space, "env.reset")


SPACE = "the env's own observation_space"
FLOATS = "observation does not fit {}: expected shape (2,), dtype float32, found"


@pytest.mark.parametrize(
    ("space", "value", "text"),
    [
        (BOX, np.zeros(3, np.float32), f"{FLOATS} an array of shape (3,), dtype float32"),
        (BOX, np.zeros((1, 2), np.float32), f"{FLOATS} an array of shape (1, 2), dtype float32"),
        (BOX, np.zeros(2, complex), f"{FLOATS} an array of shape (2,), dtype complex128"),
        (BOX, np.array(["a", "b"]), f"{FLOATS} an array of shape (2,), dtype <U1"),
        (BOX, None, f"{FLOATS} None (NoneType)"),
        (BOX, ([0.0], [0.0, 1.0]), f"{FLOATS} ([0.0], [0.0, 1.0]) (tuple)"),
        (BOX, np.array([0, np.nan]), "observation does not fit {}: expected numbers, found NaN at (1,)"),
        (BOX, np.array([0, 2.0]), "observation does not fit {}: expected values in [-1.0, 1.0], found 2.0 at index (1,)"),
        (BOX, np.array([-np.inf, 0]), "observation does not fit {}: expected values in [-1.0, 1.0], found -inf at index (0,)"),
        (
            PIXELS,
            np.zeros((2, 2), np.float32),
            "observation does not fit {}: expected shape (2, 2), dtype uint8, found an array of shape (2, 2), dtype float32",
        ),
        (
            PIXELS,
            np.full((2, 2), 300, np.uint16),
            "observation does not fit {}: expected values in [0, 255], found 300 at index (0, 0)",
        ),
        (spaces.Discrete(2), 5, "observation does not fit {}: expected Discrete(2), found 5 (int)"),
        (spaces.Discrete(2), 1.0, "observation does not fit {}: expected Discrete(2), found 1.0 (float)"),
        (DICT, {"a": 1}, "observation does not fit {}: expected a dict with keys ['a', 'b'], found ['a']"),
        (
            DICT,
            {"a": 1, "b": ZERO, "c": 0},
            "observation does not fit {}: expected a dict with keys ['a', 'b'], found ['a', 'b', 'c']",
        ),
        (
            DICT,
            ZERO,
            "observation does not fit {}: expected a dict with keys ['a', 'b'], found an array of shape (2,), dtype float32",
        ),
        (DICT, {"a": 7, "b": ZERO}, "observation['a'] does not fit {}: expected Discrete(2), found 7 (int)"),
        (TUPLE, (1,), "observation does not fit {}: expected a tuple of 2, found (1,) (tuple)"),
        (
            TUPLE,
            (1, {"c": ZERO + 2}),
            "observation[1]['c'] does not fit {}: expected values in [-1.0, 1.0], found 2.0 at index (0,)",
        ),
    ],
)
def test_values_that_do_not_fit(space: Any, value: Any, text: str) -> None:
    with pytest.raises(SpecMismatch) as caught:
        check_observation(value, space, "env.reset")
    advice = "correct the space or the value (gymnasium.wrappers.TransformObservation changes either)"
    assert str(caught.value) == f"env.reset: {text.format(SPACE)}; {advice}"


OLD = "an env of the old gym interface is wrapped by the shimmy package"


@pytest.mark.parametrize(
    ("result", "found"),
    [
        (ZERO, "an array of shape (2,), dtype float32"),
        ((ZERO, {}, {}), "3 values"),
        (None, "None (NoneType)"),
    ],
)
def test_a_reset_returns_two_values(result: Any, found: str) -> None:
    with pytest.raises(SpecMismatch) as caught:
        check_reset(result, BOX)
    assert str(caught.value) == f"env.reset: expected (observation, info), found {found}; {OLD}"


def test_a_step_returns_five_values() -> None:
    with pytest.raises(SpecMismatch) as caught:
        check_step((ZERO, 1.0, False, {}), BOX)
    assert str(caught.value) == f"env.step: expected (observation, reward, terminated, truncated, info), found 4 values; {OLD}"


@pytest.mark.parametrize(
    ("reward", "terminated", "plain"),
    [
        (1.0, False, True),
        (1, np.bool_(True), True),
        (np.float64(1), 0, True),
        (np.array(1.0), np.array(True), True),
        (float("nan"), False, True),
        (np.array([1.0]), False, False),
        (1.0, np.array([True]), False),
        ([[1.0]], False, False),
    ],
)
def test_rewards_and_flags(reward: Any, terminated: Any, plain: bool) -> None:
    assert check_step((ZERO, reward, terminated, False, {}), BOX) is plain


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((None, False, False), "reward: expected one number, found None (NoneType)"),
        (("1", False, False), "reward: expected one number, found '1' (str)"),
        ((np.zeros(2), False, False), "reward: expected one number, found an array of shape (2,), dtype float64"),
        ((1.0, None, False), "terminated: expected one bool, found None (NoneType)"),
        ((1.0, False, {}), "truncated: expected one bool, found {} (dict)"),
    ],
)
def test_rewards_and_flags_that_are_none(values: Any, text: str) -> None:
    with pytest.raises(SpecMismatch) as caught:
        check_step((ZERO, *values, {}), BOX)
    assert str(caught.value).removesuffix(f"; {OTHER_REWARDS}") == f"env.step: {text}"


class Wrong(Count):
    """Returns a wrong observation at the k-th question, counted from 0."""

    def __init__(self, k: int) -> None:
        super().__init__(9)
        self.k, self.asked = k, -1

    def observe(self) -> Any:
        self.asked += 1
        return np.zeros(2, np.float32) if self.asked == self.k else super().observe()


@pytest.mark.parametrize("rows", [0, 3])
def test_a_collector_looks_at_the_first_reset_and_the_first_step(rows: int) -> None:
    def env(k: int) -> Any:
        return SerialEnv(rows, [lambda: Count(9), lambda: Wrong(k), lambda: Count(9)]) if rows else Wrong(k)

    note = ["reap: in env 1 of 3"] if rows else []
    with pytest.raises(SpecMismatch, match=r"^env.reset: .* expected shape \(1,\)") as caught:
        SyncDataCollector(env(0), frames_per_batch=3)
    assert getattr(caught.value, "__notes__", []) == note
    collector = SyncDataCollector(env(1), frames_per_batch=3)
    with pytest.raises(SpecMismatch, match=r"^env.step: .* expected shape \(1,\)") as caught:
        collector.next()
    assert caught.value.__notes__ == [*note, f"reap: raised in step of {collector.env!r}, column 0 of a rollout"]


def test_a_wrong_shape_later_is_an_error_too() -> None:
    with pytest.raises(
        SpecMismatch, match=r"^env.step: 'observation': expected shape \(1,\), .* an array of shape \(2,\)"
    ) as caught:
        SyncDataCollector(GymEnv(Wrong(3)), frames_per_batch=4).next()
    assert caught.value.__notes__ == ["reap: raised in step of GymEnv(<Wrong instance>), column 2 of a rollout"]


class Forgetful(gym.Env[Any, Any]):
    """Its fourth step returns None in the place of a value.

    Args:
        what: `"observation"` or `"reward"`.
        space: of the observation; of a Dict the last part is None.
    """

    action_space = spaces.Discrete(2)

    def __init__(self, what: str, space: gym.Space[Any]) -> None:
        self._what, self.observation_space, self._steps = what, space, 0

    def _observation(self, *, is_none: bool = False) -> Any:
        zero = np.zeros(2, np.float32)
        if isinstance(self.observation_space, spaces.Dict):
            return {"a": 1, "b": None if is_none else zero}
        return None if is_none else zero[: self.observation_space.shape[0]]  # pyright: ignore[reportOptionalSubscript]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self._observation(), {"note": None}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._steps += 1
        what = self._what if self._steps == 4 else ""
        observation = self._observation(is_none=what == "observation")
        return observation, None if what == "reward" else 1.0, False, False, {"note": None}


@pytest.mark.parametrize("envs", [1, 2])
@pytest.mark.parametrize("space", [BOX, spaces.Box(-1, 1, (1,), np.float32), DICT])
@pytest.mark.parametrize("what", ["observation", "reward"])
def test_none_in_a_later_step_is_no_number(what: str, space: gym.Space[Any], envs: int) -> None:
    def make() -> GymEnv:
        return GymEnv(Forgetful(what, space))

    with (
        SyncDataCollector(make() if envs == 1 else SerialEnv(envs, make), frames_per_batch=5 * envs) as collector,
        pytest.raises(SpecMismatch, match=r"found None \(NoneType\)") as caught,
    ):
        collector.next()
    assert "column 3 of a rollout" in "".join(caught.value.__notes__)


def test_none_is_an_object_where_any_is_due() -> None:
    env = GymEnv(Forgetful("", BOX), info_keys={"note": NonTensor(())})
    with SyncDataCollector(env, frames_per_batch=5) as collector:
        assert collector.next()["next", "note"] == [None] * 5
