"""Values in the wrong form at a later step: results, dicts and tuples, infos of choices and of vector envs, odd tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict, TensorDictBase

from reap import SyncDataCollector
from reap.envs import GymEnv, SerialEnv
from reap.errors import OptionError, SpecMismatch
from reap.specs import Binary, Categorical, Composite, MultiCategorical, MultiOneHot, NonTensor, OneHot, Spec, Unbounded
from tests.values.test_wrong_outputs import HOT, INDEX, NUMBERS, ONE, Late, by_tensordict, run
from tests.values.wrong_envs import OneWrongTensorDict, OneWrongVector

LATE = 5
"""The call that is answered wrongly; the reset is the first."""


class Answers(gym.Env[Any, Any]):
    """An env whose answers a function changes from one call on."""

    action_space = spaces.Discrete(2)

    def __init__(
        self, space: spaces.Space[Any], observation: Any, info: Any = None, change: Any = None, at: int = LATE
    ) -> None:
        self.observation_space, self.observation, self.info = space, observation, info or {}
        self.change, self.at, self.calls = change, at, 0

    def _answer(self, *rest: Any) -> Any:
        self.calls += 1
        answer = (self.observation, *rest, self.info)
        return self.change(answer) if self.change and self.calls > self.at else answer

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self._answer()

    def step(self, action: Any) -> Any:
        return self._answer(1.0, self.calls % 3 == 0, False)


def collected(make: Callable[[], Any], rows: int = 1, **options: Any) -> Any:
    env: Any = SerialEnv(rows, make) if rows > 1 else make
    with SyncDataCollector(env, frames_per_batch=8 * rows, **options) as collector:
        return collector.next()


def of_three_rows(make: Callable[[], Any]) -> Any:
    with SyncDataCollector(make, frames_per_batch=24) as collector:
        return collector.next()


BOX = spaces.Box(-9, 9, (2,), np.float32)
VALUE = np.zeros(2, np.float32)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("in_dict", [False, True])
@pytest.mark.parametrize(
    "change", [lambda answer: answer[:-1], lambda answer: (*answer, 0), lambda answer: None, lambda answer: 3]
)
def test_results_of_calls(change: Any, in_dict: bool, rows: int) -> None:
    space: Any = spaces.Dict({"a": BOX}) if in_dict else BOX
    value: Any = {"a": VALUE} if in_dict else VALUE
    for at in (LATE, LATE + 2):  # a reset, a step
        with pytest.raises(SpecMismatch, match=r"env\.(reset|step): expected \(observation, .*info\), found"):
            collected(lambda at=at: GymEnv(Answers(space, value, change=change, at=at)), rows)


def test_results_of_vector_envs() -> None:
    class Short(OneWrongVector):
        def step(self, actions: Any) -> Any:
            return super().step(actions)[: 5 if self.asked < LATE else 4]

    with pytest.raises(SpecMismatch, match=r"env.step: expected \(observation, .*found 4 values"):
        of_three_rows(lambda: GymEnv(Short("", None, -1)))


PARTS = spaces.Dict({"a": BOX, "b": spaces.Tuple([spaces.Discrete(2), BOX])})
RIGHT = {"a": VALUE, "b": (1, VALUE)}


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("at", [0, LATE, LATE + 2])
@pytest.mark.parametrize(
    "wrong",
    [
        None,
        3,
        "ab",
        (VALUE, (1, VALUE)),
        {"a": VALUE},
        {**RIGHT, "c": 1},
        {"a": VALUE, "c": (1, VALUE)},
        {"a": VALUE, "b": (1,)},
        {"a": VALUE, "b": (1, VALUE, 2)},
        {"a": VALUE, "b": None},
        {"a": VALUE, "b": {"0": 1, "1": VALUE}},
    ],
)
def test_parts_of_observations(wrong: Any, at: int, rows: int) -> None:
    def change(answer: Any) -> Any:
        return (wrong, *answer[1:])

    with pytest.raises(
        SpecMismatch, match=r"observation(\['b'\])? does not fit the env's own observation_space: expected a (dict|tuple)"
    ):
        collected(lambda: GymEnv(Answers(PARTS, RIGHT, change=change, at=at)), rows)


CHOICES: Mapping[str, tuple[Spec, Any, list[Any]]] = {
    "index": (Categorical(3), 2, [3, -1]),
    "one-hot": (OneHot(3), [0, 1, 0], [[1, 1, 0], [0, 0, 0]]),
    "indices": (MultiCategorical([2, 3]), [1, 2], [[2, 0], [0, -1]]),
    "one-hots": (MultiOneHot([2, 2]), [1, 0, 0, 1], [[1, 1, 0, 0], [1, 0, 0, 0]]),
    "switches": (Binary(2), [0, 1], [[0, 2], [-1, 0]]),
}


@pytest.mark.parametrize("kind", CHOICES)
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("at", [0, LATE])
def test_infos_that_are_no_choices(kind: str, rows: int, at: int) -> None:
    spec, right, wrongs = CHOICES[kind]
    batch = collected(lambda: GymEnv(Answers(BOX, VALUE, {"x": right}), info_keys={"x": spec}), rows)
    assert batch["next", "x"].reshape(rows * 8, -1)[5].tolist() == np.ravel(right).tolist()
    for wrong in wrongs:

        def make(wrong: Any = wrong) -> GymEnv:
            changed = Answers(BOX, VALUE, change=lambda answer: (*answer[:-1], {"x": wrong}), at=at)
            return GymEnv(changed, info_keys={"x": spec})

        with pytest.raises(SpecMismatch, match="info: 'x': expected"):
            collected(make, rows)


@pytest.mark.parametrize(
    ("spec", "text"),
    [(Composite(a=Unbounded(())), "got a Composite"), (Unbounded((), dtype=torch.bfloat16), "a dtype that numpy has")],
)
def test_infos_that_no_array_holds(spec: Spec, text: str) -> None:
    with pytest.raises(OptionError, match=f"info_keys: 'x': expected .*{text}"):
        GymEnv(Answers(BOX, VALUE), info_keys={"x": spec})


class Told(OneWrongVector):
    """A vector env of three rows with an info."""

    def __init__(self, info: Any, at: int) -> None:
        super().__init__("", None, -1)
        self.told, self.at = info, at

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return super().reset()[0], self._info()

    def step(self, actions: Any) -> Any:
        return *super().step(actions)[:-1], self._info()

    def _info(self) -> Any:
        return self.told if self.asked >= self.at else {"x": np.zeros((3, 2))}


SOME = np.array([True, False, True])
PAIRS = np.arange(6.0).reshape(3, 2)


@pytest.mark.parametrize("at", [0, LATE])
@pytest.mark.parametrize(
    "info",
    [
        None,
        [{}, {}, {}],
        {"x": 5.0},
        {"x": "abc"},
        {"x": {"a": 1}},
        {"x": PAIRS[:2]},
        {"x": PAIRS[:, 0]},
        {"x": np.array([np.ones(2), np.ones(1), np.ones(2)], object)},
        {"x": np.array([None, None, None])},
        {"x": np.ma.array(PAIRS, mask=[[False, True]] * 3)},
        {"x": PAIRS, "_x": np.array([True])},
        {"x": PAIRS, "_x": True},
        {"x": PAIRS[:2], "_x": SOME},
        {"x": 5.0, "_x": SOME},
    ],
)
def test_infos_of_vector_envs(info: Any, at: int) -> None:
    with pytest.raises(SpecMismatch, match="x|info_keys"):
        of_three_rows(lambda: GymEnv(Told(info, at), info_keys={"x": Unbounded((2,))}))


@pytest.mark.parametrize("values", [PAIRS, PAIRS.tolist(), torch.from_numpy(PAIRS), np.array([*PAIRS, None], object)[:3]])
@pytest.mark.parametrize("mask", [None, SOME, SOME.tolist()])
def test_forms_of_the_infos_of_vector_envs(values: Any, mask: Any) -> None:
    info = {"x": values} if mask is None else {"x": values, "_x": mask}
    with SyncDataCollector(GymEnv(Told(info, 0), info_keys={"x": Unbounded((2,))}), frames_per_batch=6) as collector:
        found = collector.next()["next", "x"][:, 0].tolist()
    assert found == (PAIRS if mask is None else PAIRS * SOME[:, None]).tolist()


@pytest.mark.parametrize("told", ["abc", 5, [1, 2]])
def test_objects_of_vector_envs_come_one_for_each_row(told: Any) -> None:
    kept = {"x": Unbounded((2,)), "y": NonTensor(())}
    with pytest.raises(SpecMismatch, match="info: 'y': expected one value for each of 3 rows"):
        of_three_rows(lambda: GymEnv(Told({"x": PAIRS, "y": told}, 0), info_keys=kept))


# ---------------------------------------------------------------------- tensors without values, numbers that do not fit

ODD: Mapping[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "meta": (lambda value: value.to("meta"), "one on device meta"),
    "sparse": (torch.Tensor.to_sparse, "one of layout torch.sparse_coo"),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("at", [1, 4])
@pytest.mark.parametrize("beside", [False, True])
def test_outputs_without_values(kind: str, at: int, beside: bool) -> None:
    make, text = ODD[kind]
    right = torch.zeros(2)
    wrong = make(right)
    first, later = ({"action": right, "v": right}, {"action": right, "v": wrong}) if beside else (right, wrong)
    with pytest.raises(SpecMismatch, match=f"expected a dense tensor with values, found {text}"):
        run(NUMBERS, False, Late(first, later, at))


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("at", [0, 1, LATE])
def test_observations_without_values(kind: str, at: int) -> None:
    make, text = ODD[kind]
    with pytest.raises(SpecMismatch, match=f"box.*: expected a dense tensor with values, found .*{text}"):
        collected(lambda: OneWrongTensorDict("box", make(torch.zeros(3)), at))
    if at:
        with pytest.raises(SpecMismatch, match="box.*: expected a dense tensor with values"):
            OneWrongTensorDict("box", make(torch.zeros(3)), at).rollout(8)


def test_a_policy_on_tensordicts_without_values() -> None:
    with pytest.raises(SpecMismatch, match="'v': expected a dense tensor with values, found one on device meta.*column 2"):
        run(INDEX, True, by_tensordict(4, lambda td: td.set("v", torch.zeros((), device="meta"))))


def test_numbers_of_python_keep_their_digits_and_do_not_become_infinite() -> None:
    wide = torch.tensor(0.5, dtype=torch.float64)
    batch, _ = run(INDEX, True, Late({"action": ONE, "v": wide}, {"action": ONE, "v": 0.1}))
    assert batch["v"].tolist() == [0.5] * 2 + [0.1] * 6
    for first in (0.5, torch.tensor(0.5), torch.tensor(0.5, dtype=torch.float16)):
        with pytest.raises(SpecMismatch, match="output 'v': expected .*column 2"):
            run(INDEX, True, Late({"action": ONE, "v": first}, {"action": ONE, "v": 1e300}))
    with pytest.raises(SpecMismatch, match="output 'v': expected a number that torch.float32 holds, found 1e"):
        run(INDEX, True, Late({"action": ONE, "v": 1e300}, HOT))


class NoFlags(OneWrongTensorDict):
    """Leaves its done flag out from one call on."""

    def _answer(self) -> TensorDictBase:
        answer = super()._answer()
        return answer.exclude("done") if self.asked >= LATE else answer


def test_flags_that_stop_coming() -> None:
    with pytest.raises(SpecMismatch, match=r"NoFlags\._step: expected one of the done flags \['done', .*found \['box'"):
        collected(NoFlags)


class MoreFlags(OneWrongTensorDict):
    """Returns a flag that its specs do not have."""

    flags: Any = None

    def _answer(self) -> TensorDictBase:
        return super()._answer().update(TensorDict({"truncated": self.flags} if self.asked >= LATE else {}))


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (torch.ones(2, dtype=torch.bool), r"shape \(1,\), found \(2,\)"),
        (torch.zeros(1, dtype=torch.bool, device="meta"), "device meta"),
    ],
)
def test_flags_that_the_specs_do_not_have(flags: Any, text: str) -> None:
    env = MoreFlags()
    env.flags = flags
    with pytest.raises(SpecMismatch, match=f"truncated.*{text}"):
        collected(lambda: env)


# ---------------------------------------------------------------------- rewards


@pytest.mark.parametrize("reward", [2**70, np.array(1.5, object), torch.tensor(1.5, dtype=torch.bfloat16)])
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("at", [1, LATE])
def test_rewards_that_are_numbers_fit_at_the_first_step_and_at_each_later_one(reward: Any, rows: int, at: int) -> None:
    def change(answer: Any) -> Any:
        return answer if len(answer) == 2 else (answer[0], reward, *answer[2:])

    batch = collected(lambda: GymEnv(Answers(BOX, VALUE, change=change, at=at)), rows)
    assert batch["next", "reward"].reshape(-1)[-1].item() == np.float32(float(reward))


class Shy:
    """A value that cannot be shown."""

    def __repr__(self) -> str:
        raise AttributeError("name")


@pytest.mark.parametrize(
    "reward", [2**2000, -(2**2000), pytest.param(10**5000, id="of many digits"), 1e39, Shy(), torch.ones((), device="meta")]
)
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("at", [1, LATE])
def test_rewards_that_are_no_numbers_for_float32(reward: Any, rows: int, at: int) -> None:
    def change(answer: Any) -> Any:
        return answer if len(answer) == 2 else (answer[0], reward, *answer[2:])

    with pytest.raises(SpecMismatch, match="reward: expected (a number that float32 holds|one number), found"):
        collected(lambda: GymEnv(Answers(BOX, VALUE, change=change, at=at)), rows)


# ---------------------------------------------------------------------- choices of other types


class One:
    def __index__(self) -> int:
        return 1


OTHER_TYPES: list[Any] = [
    # a space, a value that it contains, another, what is recorded of that; None: it does not fit
    (spaces.Discrete(3), 0, torch.tensor(1), 1),
    (spaces.Discrete(3), 0, torch.tensor(True), 1),
    (spaces.Discrete(3), 0, One(), 1),
    (spaces.Discrete(3), 0, np.array(1, np.uint64), 1),
    (spaces.Discrete(3), 0, torch.tensor(1.0), None),
    (spaces.Discrete(3), 0, torch.tensor(3), None),
    (spaces.Discrete(3), 0, torch.tensor(1, device="meta"), None),
    pytest.param(spaces.Discrete(3), 0, 10**5000, None, id="of many digits"),
    (spaces.Discrete(3), 0, Shy(), None),
    (spaces.MultiDiscrete([3, 3]), np.array([0, 0]), np.array([1, 2], np.uint64), [1, 2]),
    (spaces.MultiDiscrete([3, 3]), np.array([0, 0]), np.array([1, 3], np.uint64), None),
    (spaces.MultiDiscrete([3, 3]), np.array([0, 0]), [True, False], [1, 0]),
    (spaces.MultiBinary(2), np.array([0, 0], np.int8), np.array([1, 0], np.uint64), [1, 0]),
    (spaces.MultiBinary(2), np.array([0, 0], np.int8), np.array([1, 2], np.uint64), None),
]


@pytest.mark.parametrize(("space", "usual", "other", "recorded"), OTHER_TYPES)
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("at", [0, LATE])
def test_choices_of_other_types_fit_at_the_first_reset_and_later(
    space: Any, usual: Any, other: Any, recorded: Any, rows: int, at: int
) -> None:
    def make() -> GymEnv:
        def change(answer: Any) -> Any:
            return (other, *answer[1:])

        return GymEnv(Answers(space, usual, change=change, at=at), categorical_action_encoding=True)

    if recorded is None:
        with pytest.raises(SpecMismatch, match="observation"):
            collected(make, rows)
    else:
        assert collected(make, rows)["next", "observation"].flatten(0, rows - 1)[-1].tolist() == recorded
