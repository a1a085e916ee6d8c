"""Envs that return one wrong value, at a reset or a step that one chooses; right ones otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space
from tensordict import TensorDict, TensorDictBase

from reap.envs import EnvBase
from reap.specs import Categorical, Composite, OneHot, Unbounded
from tests.envs.vector_envs import AutoresetMode

FIELDS = ("box", "image", "place", "parts", "switches", "text", "reward", "terminated", "truncated", "info")
SPACE = spaces.Dict(
    {
        "box": spaces.Box(-100, 100, (3,), np.float32),
        "image": spaces.Box(0, 255, (2, 2), np.uint8),
        "place": spaces.Discrete(4, start=1),
        "parts": spaces.MultiDiscrete([2, 3]),
        "switches": spaces.MultiBinary(3),
        "text": spaces.Text(4),
    }
)
INFO = {"info": Unbounded((2,))}


def right(step: int) -> dict[str, Any]:
    """What an env returns after so many steps."""
    return {
        "box": np.full(3, step, np.float32),
        "image": np.full((2, 2), step, np.uint8),
        "place": 1 + step % 4,
        "parts": np.array([step % 2, step % 3]),
        "switches": np.array([step % 2, 1, 0], np.int8),
        "text": "ab",
        "reward": float(step),
        "terminated": False,
        "truncated": False,
        "info": np.full(2, step, np.float32),
    }


NAN = float("nan")
WRONG: Mapping[str, list[Any]] = {
    "box": [
        np.zeros(1, np.float32),
        np.zeros((1, 3), np.float32),
        np.zeros((), np.float32),
        0.0,
        np.array(["1", "2", "3"]),
        np.array([1, 2, None], object),
        np.zeros(3, np.complex64),
        np.array([NAN, 0, 0], np.float32),
        np.array([1e39, 0, 0]),
        None,
        [1.0, [2.0], 3.0],
        {"a": 1},
        np.ma.array(np.zeros(3, np.float32), mask=[True, False, False]),
    ],
    "image": [
        np.zeros((2, 2), np.float32),
        np.full((2, 2), 256),
        np.full((2, 2), -1),
        np.zeros((1, 2), np.uint8),
        np.zeros((2, 1), np.uint8),
        np.uint8(0),
        0.0,
    ],
    "place": [0, 5, 77, -1, 1.0, np.float64(2), "1", None, np.array([1, 2]), [1], torch.tensor([2])],
    "parts": [
        np.array([2, 0]),
        np.array([0, 3]),
        np.array([-1, 0]),
        np.array([0.0, 1.0]),
        np.array([1]),
        1,
        np.zeros((1, 2), int),
        np.ma.array([1, 2], mask=[False, True]),
    ],
    "switches": [np.array([2, 0, 0], np.int8), np.array([0.0, 1.0, 1.0]), np.array([1], np.int8), np.array([-1, 0, 0]), 1],
    "text": [3, "abcdefgh", None, b"ab", "?"],
    "reward": [
        *("1", None, NAN, 1e39, np.zeros(2), 1j, {}, []),
        *(np.complex64(1j), np.complex128(1), np.longdouble("1e400"), torch.tensor(1j), np.array([1j])),
    ],
    "terminated": [0.0, "", "False", None, 2, -1, np.zeros(2, bool), np.float32(0), [], {}, 1.0, np.ma.array(True, mask=True)],
    "truncated": [0.0, "", "no", None, 2, np.zeros(2, bool), np.float64(1), ()],
    "info": [
        9.0,
        np.zeros(1, np.float32),
        np.zeros((1, 2), np.float32),
        np.array([NAN, 0]),
        "ab",
        np.array([1e39, 0]),
        [1, [2]],
        np.ma.array([1.0, 2.0], mask=[False, True]),
    ],
}
CASES = [(field, place) for field in FIELDS for place in range(len(WRONG[field]))]


class Scripted:
    """Which value is wrong, and when.

    Args:
        field: its field.
        value: the value.
        at: at which question, counted from 0 in each env: the reset is the first.
    """

    def __init__(self, field: str = "", value: Any = None, at: int = -1) -> None:
        self.field, self.value, self.at = field, value, at
        self.asked = -1

    def answer(self) -> dict[str, Any]:
        """What is returned this time."""
        self.asked += 1
        values = right(self.asked)
        if self.asked == self.at:
            values[self.field] = self.value
        return values


class OneWrong(gym.Env[Any, Any]):
    """A gymnasium env."""

    observation_space = SPACE
    action_space = spaces.Discrete(2)

    def __init__(self, *wrong: Any) -> None:
        self.script = Scripted(*wrong)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        values = self.script.answer()
        return {name: values[name] for name in SPACE.spaces}, {"info": values["info"]}

    def step(self, action: Any) -> Any:
        values = self.script.answer()
        observation = {name: values[name] for name in SPACE.spaces}
        return observation, values["reward"], values["terminated"], values["truncated"], {"info": values["info"]}


class OneWrongArray(gym.Env[Any, Any]):
    """A gymnasium env whose observation is the box alone: the loop has a path of its own for it."""

    observation_space = SPACE["box"]
    action_space = spaces.Discrete(2)

    def __init__(self, *wrong: Any) -> None:
        self.script = Scripted(*wrong)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.script.answer()["box"], {}

    def step(self, action: Any) -> Any:
        values = self.script.answer()
        return values["box"], values["reward"], values["terminated"], values["truncated"], {}


VECTOR_WRONG: Mapping[str, list[Callable[[int], Any]]] = {
    "box": [
        lambda n: np.zeros((1, 3), np.float32),
        lambda n: np.zeros(3, np.float32),
        lambda n: np.zeros((n, 1), np.float32),
        lambda n: np.full((n, 3), NAN, np.float32),
        lambda n: np.full((n, 3), 1e39),
        lambda n: np.full((n, 3), "1"),
        lambda n: None,
    ],
    "reward": [
        lambda n: 1.0,
        lambda n: np.ones(1),
        lambda n: np.ones(n + 1),
        lambda n: np.full(n, "1"),
        lambda n: np.full(n, NAN),
        lambda n: np.full(n, 1e39),
        lambda n: None,
    ],
    "terminated": [
        lambda n: False,
        lambda n: np.zeros(1, bool),
        lambda n: np.zeros(n, np.float64),
        lambda n: np.full(n, 2),
        lambda n: np.full(n, ""),
        lambda n: None,
    ],
    "truncated": [lambda n: False, lambda n: np.zeros(n + 1, bool), lambda n: np.zeros(n, np.float32)],
}
VECTOR_CASES = [(field, place) for field, wrong in VECTOR_WRONG.items() for place in range(len(wrong))]


class OneWrongVector(VectorEnv[Any, Any, Any]):
    """A vector env of a class of its own, of boxes."""

    def __init__(self, field: str, value: Any, at: int, num_envs: int = 3) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = SPACE["box"], spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.wrong, self.asked = (field, value, at), -1

    def _answer(self) -> dict[str, Any]:
        self.asked += 1
        n = self.num_envs
        values: dict[str, Any] = {
            "box": np.full((n, 3), self.asked, np.float32),
            "reward": np.ones(n),
            "terminated": np.zeros(n, bool),
            "truncated": np.zeros(n, bool),
        }
        field, value, at = self.wrong
        return {**values, field: value(n)} if self.asked == at else values

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self._answer()["box"], {}

    def step(self, actions: Any) -> Any:
        values = self._answer()
        return values["box"], values["reward"], values["terminated"], values["truncated"], {}


TD_WRONG: Mapping[str, list[Any]] = {
    "box": [
        torch.zeros(1),
        torch.zeros(1, 3),
        torch.zeros(()),
        torch.full((3,), NAN),
        torch.full((3,), 1e39, dtype=torch.float64),
        torch.zeros(3, dtype=torch.complex64),
        None,
        torch.zeros(3, device="meta"),
        torch.zeros(3).to_sparse(),
    ],
    "count": [
        torch.tensor([1.0]),
        torch.zeros(2, dtype=torch.int32),
        torch.tensor([2**40]),
        torch.zeros((), dtype=torch.int32),
        None,
    ],
    "place": [torch.tensor(4), torch.tensor(-1), torch.tensor(1.0), torch.tensor([1])],
    "hot": [
        torch.tensor([1, 1, 0]),
        torch.tensor([0, 0, 0]),
        torch.tensor([0, 2, 0]),
        torch.tensor([0.0, 1.0, 0.0]),
        torch.tensor([1]),
    ],
    "reward": [torch.zeros(()), torch.zeros(2), torch.tensor([NAN]), torch.tensor([1e39], dtype=torch.float64), None],
    "done": [torch.zeros(1), torch.full((1,), 2), torch.zeros(2, dtype=torch.bool)],
}
TD_CASES = [(field, place) for field, wrong in TD_WRONG.items() for place in range(len(wrong))]
FIRST_OF_RESET = ("box", "count", "place", "hot")


class OneWrongTensorDict(EnvBase):
    """An env by TensorDicts."""

    def __init__(self, field: str = "", value: Any = None, at: int = -1) -> None:
        super().__init__()
        self.observation_spec = Composite(
            box=Unbounded((3,)),
            count=Unbounded((1,), dtype=torch.int32),
            place=Categorical(4),
            hot=OneHot(3, dtype=torch.int64),
        )
        self.action_spec = OneHot(2, dtype=torch.int64)
        self.wrong, self.asked = (field, value, at), -1

    def _answer(self) -> TensorDictBase:
        self.asked += 1
        values: dict[str, Any] = {
            "box": torch.full((3,), float(self.asked)),
            "count": torch.full((1,), self.asked, dtype=torch.int32),
            "place": torch.tensor(self.asked % 4),
            "hot": torch.eye(3, dtype=torch.int64)[self.asked % 3],
            "reward": torch.ones(1),
            "done": torch.zeros(1, dtype=torch.bool),
        }
        field, value, at = self.wrong
        if self.asked == at:
            values[field] = value
        return TensorDict({name: value for name, value in values.items() if value is not None})

    def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        return self._answer().exclude("reward", "done")

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._answer()
