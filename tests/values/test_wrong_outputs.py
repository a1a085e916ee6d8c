"""Outputs of policies keep the form of the first call: keys, shapes, dtypes; choices are ones before the env steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import nn

from reap import MultiSyncDataCollector, SyncDataCollector
from reap.envs import EnvBase, GymEnv, SerialEnv
from reap.errors import SpecMismatch, WorkerRaised
from reap.specs import Categorical, Composite, OneHot, Unbounded

NAN = float("nan")


class Taker(gym.Env[Any, Any]):
    """Notes the actions that it is given."""

    observation_space = spaces.Box(-100, 100, (2,), np.float32)

    def __init__(self, action_space: spaces.Space[Any]) -> None:
        self.action_space = action_space
        self.taken: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.taken.append(action)
        return np.zeros(2, np.float32), 1.0, False, False, {}


class Late:
    """Returns `first`, and from call `at` on `later`; the probe is the first call."""

    def __init__(self, first: Any, later: Any, at: int = 4) -> None:
        self.first, self.later, self.at, self.calls = first, later, at, 0

    def __call__(self, observation: torch.Tensor) -> Any:
        self.calls += 1
        return self.first if self.calls < self.at else self.later


ONE = torch.tensor(1)
INDEX, ONE_HOT, NUMBERS = spaces.Discrete(3), spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)
HOT = torch.tensor([0, 1, 0])
V = torch.tensor(2.0)

CASES: list[tuple[spaces.Space[Any], bool, Any, Any]] = [
    # the action
    (INDEX, True, ONE, torch.tensor(3)),
    (INDEX, True, ONE, torch.tensor(-1)),
    (INDEX, True, ONE, torch.tensor(0.9)),
    (INDEX, True, ONE, torch.tensor([1])),
    (INDEX, True, ONE, 0.5),
    (INDEX, True, ONE, None),
    (INDEX, True, ONE, "left"),
    (INDEX, False, HOT, torch.tensor([1, 1, 0])),
    (INDEX, False, HOT, torch.tensor([0, 0, 0])),
    (INDEX, False, HOT, torch.tensor([0, 2, -1])),
    (INDEX, False, HOT, torch.tensor([0.0, 0.7, 0.3])),
    (INDEX, False, HOT, torch.tensor([0.0, 1.0, 0.5])),
    (INDEX, False, HOT, torch.tensor(1)),
    (INDEX, False, HOT, torch.tensor([1])),
    (spaces.Discrete(100), False, torch.eye(100, dtype=torch.int64)[7], torch.zeros(100, dtype=torch.int64)),
    (spaces.Discrete(100), False, torch.eye(100, dtype=torch.int64)[7], torch.ones(100, dtype=torch.int64)),
    (spaces.MultiDiscrete([2, 3]), True, torch.tensor([1, 2]), torch.tensor([2, 0])),
    (spaces.MultiDiscrete([2, 3]), True, torch.tensor([1, 2]), torch.tensor([0, -1])),
    (spaces.MultiDiscrete([2, 3]), False, torch.tensor([1, 0, 0, 0, 1]), torch.tensor([1, 0, 0, 1, 1])),
    (spaces.MultiBinary(2), False, torch.tensor([1, 0], dtype=torch.int8), torch.tensor([2, 0], dtype=torch.int8)),
    (NUMBERS, False, torch.zeros(2), torch.zeros(1)),
    (NUMBERS, False, torch.zeros(2), torch.zeros(1, 2)),
    (NUMBERS, False, torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
    (NUMBERS, False, torch.zeros(2), torch.zeros(2, dtype=torch.int64)),
    (NUMBERS, False, torch.zeros(2), torch.tensor([NAN, 0.0])),
    (NUMBERS, False, torch.zeros(2), {"action": torch.zeros(2), "more": V}),
    # what comes beside it
    (INDEX, True, {"action": ONE, "v": V}, {"action": ONE, "v": torch.zeros(1)}),
    (INDEX, True, {"action": ONE, "v": V}, {"action": ONE, "v": torch.tensor(2)}),
    (INDEX, True, {"action": ONE, "v": V}, {"action": ONE, "v": torch.tensor(2.0, dtype=torch.float64)}),
    (INDEX, True, {"action": ONE, "v": V}, {"action": ONE}),
    (INDEX, True, {"action": ONE, "v": V}, {"action": ONE, "v": None}),
    (INDEX, True, {"action": ONE, "v": V}, {"action": ONE, "v": V, "w": V}),
    (INDEX, True, {"action": ONE, "v": V}, ONE),
    (INDEX, True, {"action": ONE, "v": 1}, {"action": ONE, "v": 0.75}),
    (INDEX, True, {"action": ONE, "v": {"a": V}}, {"action": ONE, "v": {"b": V}}),
]


def run(space: Any, categorical: bool, policy: Any, rows: int = 0, **options: Any) -> tuple[Any, list[Taker]]:
    made: list[Taker] = []

    def make() -> GymEnv:
        made.append(Taker(space))
        return GymEnv(made[-1], categorical_action_encoding=categorical)

    env: Any = SerialEnv(rows, make) if rows else make
    with SyncDataCollector(env, policy, frames_per_batch=8 * max(1, rows), **options) as collector:
        return collector.next(), made


@pytest.mark.parametrize(("space", "categorical", "first", "later"), CASES)
def test_a_later_output_that_differs(space: Any, categorical: bool, first: Any, later: Any) -> None:
    with pytest.raises(SpecMismatch, match="column 2"):
        run(space, categorical, Late(first, later))


@pytest.mark.parametrize(("space", "categorical", "first", "later"), CASES[:25])
def test_of_several_rows(space: Any, categorical: bool, first: Any, later: Any) -> None:
    def rows(value: Any) -> Any:
        return torch.stack([value, value]) if isinstance(value, torch.Tensor) else value

    with pytest.raises(SpecMismatch):
        run(space, categorical, Late(rows(first), rows(later)), rows=2)


def test_outputs_are_not_spread_over_rows() -> None:
    first = {"action": torch.tensor([0, 1]), "v": torch.tensor([3.0, 4.0])}
    with pytest.raises(SpecMismatch, match=r"output 'v': expected shape \(2,\) .* found shape \(1,\)"):
        run(INDEX, True, Late(first, {**first, "v": torch.tensor([9.0])}), rows=2)


def test_the_wrong_row_is_named() -> None:
    actions = Late(torch.tensor([0, 1]), torch.tensor([0, 7]))
    with pytest.raises(SpecMismatch, match=r"'action': expected an integer from 0 to 2, found .*7.*\(in column 2, row 1\)"):
        run(INDEX, True, actions, rows=2)


def test_the_env_does_not_step_with_what_is_no_choice() -> None:
    made: list[Taker] = []

    def make() -> GymEnv:
        made.append(Taker(INDEX))
        return GymEnv(made[-1], categorical_action_encoding=True)

    with SyncDataCollector(make, Late(ONE, torch.tensor(3)), frames_per_batch=8) as collector, pytest.raises(SpecMismatch):
        collector.next()
    assert made[0].taken == [1, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bool, torch.int32, torch.int64])
@pytest.mark.parametrize("late", [torch.float32, torch.bool, torch.int64])
def test_one_hot_of_any_dtype(dtype: torch.dtype, late: torch.dtype) -> None:
    batch, (env,) = run(INDEX, False, Late(HOT.to(dtype), torch.tensor([0, 0, 1]).to(late)))
    assert batch["action"].dtype == torch.int64
    assert env.taken == [1, 1, *[2] * 6]


@pytest.mark.parametrize(("first", "later"), [(0.5, 1), (0.5, True), (1, True), (0.5, np.float32(0.25))])
def test_numbers_that_fit(first: Any, later: Any) -> None:
    batch, _ = run(INDEX, True, Late({"action": ONE, "v": first}, {"action": ONE, "v": later}))
    assert batch["v"].tolist() == [first] * 2 + [float(later)] * 6


def test_continuous_actions_may_leave_their_bounds() -> None:
    batch, _ = run(NUMBERS, False, Late(torch.full((2,), 7.0), torch.full((2,), -9.0)), check="all")
    assert batch["action"][:, 0].tolist() == [7, 7, *[-9] * 6]


def test_first_is_satisfied_with_the_first_call() -> None:
    first = {"action": ONE, "v": torch.tensor(1)}
    batch, _ = run(INDEX, True, Late(first, {"action": ONE, "v": torch.tensor(0.5)}), check="first")
    assert batch["v"].tolist() == [1, 1, *[0] * 6]
    batch, _ = run(INDEX, True, Late(first, {"action": ONE}), check="first")
    assert batch["v"].tolist() == [1, 1, *[0] * 6]


# ---------------------------------------------------------------------- policies that speak TensorDict


class LateModule(nn.Module):
    """The same as `Late`, as a module."""

    def __init__(self, first: Any, later: Any, at: int = 4) -> None:
        super().__init__()
        self.late = Late(first, later, at)

    def forward(self, observation: torch.Tensor) -> Any:
        return self.late(observation)


@pytest.mark.parametrize("later", [torch.tensor(3), torch.tensor(0.9), torch.tensor([1])])
def test_an_unwrapped_policy(later: torch.Tensor) -> None:
    policy = TensorDictModule(LateModule(ONE, later, at=5), ["observation"], ["action"])
    with pytest.raises(SpecMismatch, match="action"):
        run(INDEX, True, policy)


def test_a_truth_value_is_the_index_that_it_says() -> None:
    policy = TensorDictModule(LateModule(ONE, torch.tensor(True), at=5), ["observation"], ["action"])
    batch, _ = run(INDEX, True, policy)
    assert set(batch["action"].flatten().tolist()) == {1}


def by_tensordict(at: int, change: Callable[[TensorDictBase], Any]) -> Callable[[TensorDictBase], TensorDictBase]:
    calls = [0]

    def policy(tensordict: TensorDictBase) -> TensorDictBase:
        calls[0] += 1
        tensordict["action"] = ONE.clone()
        tensordict["v"] = V.clone()
        if calls[0] >= at:
            change(tensordict)
        return tensordict

    return policy


@pytest.mark.parametrize(
    "change",
    [
        lambda td: td.set("v", torch.zeros(1)),
        lambda td: td.set("v", torch.tensor(1)),
        lambda td: td.pop("v"),
        lambda td: td.set("w", V),
        lambda td: td.set(("next", "w"), V),
        lambda td: td.set("action", torch.tensor(5)),
    ],
)
@pytest.mark.parametrize("trust", [False, True])
def test_a_policy_on_tensordicts(change: Any, trust: bool) -> None:
    with pytest.raises(SpecMismatch, match="column 2"):
        run(INDEX, True, by_tensordict(4, change), trust_policy=trust)


class Own(EnvBase):
    """An env by TensorDicts, which counts its steps."""

    def __init__(self, spec: Any) -> None:
        super().__init__(batch_size=(2,))
        self.observation_spec = Composite(observation=Unbounded((2, 2)), shape=(2,))
        self.action_spec = spec
        self.steps = 0

    def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        return TensorDict({"observation": torch.zeros(2, 2)}, [2])

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.steps += 1
        flags = torch.zeros(2, 1, dtype=torch.bool)
        return TensorDict({"observation": torch.zeros(2, 2), "reward": torch.ones(2, 1), "done": flags}, [2])


@pytest.mark.parametrize(
    ("spec", "first", "later", "text"),
    [
        (Categorical(3, (2,)), torch.tensor([0, 1]), torch.tensor([0, 3]), "from 0 to 2, found 3"),
        (Categorical(3, (2,)), torch.tensor([0, 1]), torch.tensor([0, -1]), "from 0 to 2, found -1"),
        (OneHot(2, (2, 2), dtype=torch.int64), torch.eye(2).long(), torch.tensor([[1, 0], [1, 1]]), r"found \[1, 1\]"),
    ],
)
def test_envs_by_tensordicts_do_not_step_with_what_is_no_choice(spec: Any, first: Any, later: Any, text: str) -> None:
    env = Own(spec)
    with pytest.raises(SpecMismatch, match=text + r" \(in row 1, column 2\)"):
        SyncDataCollector(env, Late(first, later), frames_per_batch=16).next()
    assert env.steps == 2


def test_a_worker_that_fails_so_is_not_started_again() -> None:
    policy = Late(ONE, torch.tensor(0.5), at=9)  # in a worker: the probe, then two rollouts of four frames
    envs = [lambda: GymEnv(Taker(INDEX), categorical_action_encoding=True)] * 2
    with MultiSyncDataCollector(envs, policy, frames_per_batch=8, on_worker_failure="restart") as collector:
        collector.next()
        with pytest.raises(WorkerRaised, match="SpecMismatch: .*output 'action'") as caught:
            collector.next()
        assert isinstance(caught.value.__cause__, SpecMismatch)
        assert collector.stats().restarts == 0
