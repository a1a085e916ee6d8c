"""Every kind of space, through a collector, against a loop that applies the recorded actions by hand."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDictBase
from torch.nn.functional import one_hot

from reap.collectors import SyncDataCollector
from reap.data import Binary
from reap.envs import GymEnv, SerialEnv
from reap.errors import OptionError, SpecMismatch
from reap.seeds import seed_chain
from reap.testing import Count, Masked
from tests.pairwise import pairwise

Key = tuple[str, ...]
SEED, COLUMNS = 5, 9
BOX = spaces.Box(-1, 1, (2,), np.float32)
GRAPH = spaces.Graph(BOX, spaces.Discrete(3))


class Drawn(gym.Env[Any, Any]):
    """Observations drawn from a space; the reward says how many actions came, all of which must be in the action space."""

    def __init__(self, space: spaces.Space[Any] = BOX, actions: spaces.Space[Any] = BOX) -> None:
        self.observation_space, self.action_space = space, actions
        self.actions: list[Any] = []
        self.resets = self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.observation_space.seed(seed)
            self.resets = 0
        self.resets, self.steps = self.resets + 1, 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.actions.append(action)
        self.steps += 1
        ended = self.steps == 2 + self.resets % 3
        return self.observation_space.sample(), float(len(self.actions)), ended and self.resets % 2 == 0, ended, {}


def copy_of(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """A space with a generator of its own."""
    return deepcopy(space)


def encoded(space: spaces.Space[Any], value: Any, key: Key, categorical: bool) -> dict[Key, Any]:
    """An observation as it is delivered, by key."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        root = () if key == ("observation",) and isinstance(space, spaces.Dict) else key
        found = [encoded(sub, value[name], (*root, str(name)), categorical) for name, sub in parts]
        return {name: leaf for one in found for name, leaf in one.items()}
    if isinstance(space, spaces.Discrete):
        index = torch.tensor(int(value - space.start))
        return {key: index if categorical else one_hot(index, int(space.n))}
    if isinstance(space, spaces.MultiDiscrete):
        indices = torch.tensor(np.asarray(value - space.start), dtype=torch.int64)
        if categorical:
            return {key: indices}
        counts = space.nvec.reshape(-1).tolist()
        return {key: torch.cat([one_hot(i, n) for i, n in zip(indices.reshape(-1), counts, strict=True)])}
    is_array = isinstance(space, spaces.Box | spaces.MultiBinary)
    return {key: torch.tensor(value) if is_array else value}


def decoded(space: spaces.Space[Any], row: Any, categorical: bool) -> Any:
    """An action as the env is given it, from one row of a batch."""
    if isinstance(space, spaces.Dict):
        return {name: decoded(sub, row[name], categorical) for name, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(decoded(sub, row[str(i)], categorical) for i, sub in enumerate(space.spaces))
    if isinstance(space, spaces.Discrete):
        return int(row if categorical else row.nonzero()) + int(space.start)
    if isinstance(space, spaces.MultiDiscrete):
        parts = row if categorical else torch.stack([p.argmax() for p in row.split(space.nvec.reshape(-1).tolist())])
        return (parts.numpy().reshape(space.nvec.shape) + space.start).astype(space.dtype)
    return row.numpy()


def same(found: Any, expected: Any) -> bool:
    """Whether two values are of one type and equal in every bit."""
    if isinstance(expected, torch.Tensor):
        return found.dtype == expected.dtype and torch.equal(found, expected)
    if type(found) is not type(expected):
        return False
    if isinstance(expected, np.ndarray):
        return found.dtype == expected.dtype and np.array_equal(found, expected)
    if isinstance(expected, tuple):
        return len(found) == len(expected) and all(map(same, found, expected))
    return found == expected


def check_row(batch: TensorDictBase, env: Drawn, seed: int, categorical: bool) -> None:
    """Replay the actions of one row `[T]` in an env, and compare all that the row holds."""
    observation, _ = env.reset(seed=seed)
    for t in range(COLUMNS):
        frame = batch[t]
        expected = encoded(env.observation_space, observation, ("observation",), categorical)
        observation, reward, terminated, truncated, _ = env.step(decoded(env.action_space, frame["action"], categorical))
        after = encoded(env.observation_space, observation, ("observation",), categorical)
        expected.update({("next", *key): value for key, value in after.items()})
        expected[("next", "reward")] = torch.tensor([reward])
        for name, flag in (("terminated", terminated), ("truncated", truncated), ("done", terminated or truncated)):
            expected[("next", name)] = torch.tensor([flag])
        for key, value in expected.items():
            assert same(frame[key], value), (t, key, frame[key], value)
        if terminated or truncated:
            observation, _ = env.reset()


NESTED = spaces.Dict(
    parts=spaces.Tuple([BOX, spaces.Dict(text=spaces.Text(4), level=spaces.Discrete(3, start=-1)), spaces.Tuple([GRAPH])]),
    image=spaces.Box(0, 255, (9, 9, 3), np.uint8),
)
OBSERVATIONS: Mapping[str, spaces.Space[Any]] = {
    "box": BOX,
    "float64": spaces.Box(-1, 1, (2, 3), np.float64),
    "number": spaces.Box(-1, 1, (), np.float32),
    "bools": spaces.Box(0, 1, (3,), np.bool_),
    "discrete": spaces.Discrete(4, start=2),
    "multi-discrete": spaces.MultiDiscrete([2, 5, 3], start=[0, 1, -1]),
    "multi-discrete-2d": spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    "multi-binary": spaces.MultiBinary((2, 3)),
    "tuple": spaces.Tuple([spaces.Discrete(3), BOX]),
    "nested": NESTED,
    "text": spaces.Text(6),
    "graph": GRAPH,
    "sequence": spaces.Sequence(BOX),
    "stacked-sequence": spaces.Sequence(BOX, stack=True),
    "one-of": spaces.OneOf([BOX, spaces.Discrete(3)]),
}
ACTIONS: Mapping[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(4, start=2),
    "multi-discrete": spaces.MultiDiscrete([2, 5, 3], start=[0, 1, -1]),
    "multi-discrete-2d": spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    "multi-binary": spaces.MultiBinary((2, 3)),
    "number": spaces.Box(-1, 1, (), np.float32),
    "tuple": spaces.Tuple([spaces.Discrete(3, start=1), BOX]),
    "nested": spaces.Dict(move=spaces.Tuple([BOX, spaces.Dict(a=spaces.MultiBinary(2))]), speed=spaces.MultiDiscrete([2, 3])),
}


def check(space: spaces.Space[Any], actions: spaces.Space[Any], rows: int | None, categorical: bool, **options: Any) -> None:
    def make() -> GymEnv:
        return GymEnv(Drawn(copy_of(space), copy_of(actions)), categorical_action_encoding=categorical)

    env = make() if rows is None else SerialEnv(rows, make)
    with SyncDataCollector(env, frames_per_batch=COLUMNS * (rows or 1), **options) as collector:
        collector.set_seed(SEED)
        batch = collector.next()
    assert batch is not None
    each = [batch] if rows is None else batch.unbind(0)
    for row, seed in zip(each, seed_chain(SEED, len(each)), strict=False):
        check_row(row, Drawn(copy_of(space), copy_of(actions)), seed, categorical)


@pytest.mark.parametrize(("name", "rows", "categorical"), pairwise(list(OBSERVATIONS), [None, 3], [False, True]))
def test_observations(name: str, rows: int | None, categorical: bool) -> None:
    check(OBSERVATIONS[name], BOX, rows, categorical)


@pytest.mark.parametrize("categorical", [False, True])
@pytest.mark.parametrize("rows", [None, 3])
@pytest.mark.parametrize("name", ACTIONS)
def test_random_actions(name: str, rows: int | None, categorical: bool) -> None:
    check(BOX, ACTIONS[name], rows, categorical)


@pytest.mark.parametrize("rows", [None, 3])
def test_a_policy_that_returns_a_dict_of_actions(rows: int | None) -> None:
    space = ACTIONS["nested"]

    def policy(observation: torch.Tensor) -> dict[str, Any]:
        lead = observation.shape[:-1]
        bits = (observation > 0).to(torch.int8)
        speed = torch.cat([one_hot((observation[..., 0] > 0).long(), 2), one_hot(torch.full(lead, 2), 3)], -1)
        return {"action": {"move": {"0": observation / 2, "1": {"a": bits}}, "speed": speed}, "half": observation / 2}

    made: list[Drawn] = []

    def make() -> GymEnv:
        made.append(Drawn(copy_of(BOX), copy_of(space)))
        return GymEnv(made[-1])

    env = make() if rows is None else SerialEnv(rows, make)
    batch = SyncDataCollector(env, policy, frames_per_batch=6 * (rows or 1)).next()
    assert batch is not None
    assert torch.equal(batch["half"], batch["observation"] / 2)
    for row, one in zip([batch] if rows is None else batch.unbind(0), made, strict=True):
        seen = row["observation"].numpy()
        assert len(one.actions) == 6
        for observation, action in zip(seen, one.actions, strict=True):
            assert np.array_equal(action["move"][0], observation / 2)
            assert np.array_equal(action["move"][1]["a"], observation > 0)
            assert action["speed"].tolist() == [int(observation[0] > 0), 2]


@pytest.mark.parametrize("rows", [None, 3])
def test_blackjack(rows: int | None) -> None:
    env = GymEnv("Blackjack-v1") if rows is None else SerialEnv(rows, "Blackjack-v1")
    with SyncDataCollector(env, frames_per_batch=40 * (rows or 1)) as collector:
        collector.set_seed(SEED)
        batch = collector.next()
    assert batch is not None
    each = [batch] if rows is None else batch.unbind(0)
    for row, seed in zip(each, seed_chain(SEED, len(each)), strict=False):
        plain = gym.make("Blackjack-v1")
        observation, _ = plain.reset(seed=seed)
        for frame in row.unbind(0):
            for part, count in enumerate((32, 11, 2)):
                assert torch.equal(frame["observation", str(part)], one_hot(torch.tensor(int(observation[part])), count))
            observation, reward, terminated, truncated, _ = plain.step(int(frame["action"].argmax()))
            assert frame["next", "reward"].tolist() == [reward]
            assert frame["next", "done"].tolist() == [terminated or truncated]
            assert frame["next", "observation", "0"].argmax() == observation[0]
            if terminated or truncated:
                observation, _ = plain.reset()


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.float16])
def test_float64_is_kept_or_cast(dtype: torch.dtype | None) -> None:
    space = spaces.Dict(far=spaces.Box(-1, 1, (2,), np.float64), level=spaces.Discrete(3))
    batch = SyncDataCollector(GymEnv(Drawn(space), dtype=dtype), frames_per_batch=4).next()
    assert batch is not None
    assert batch["far"].dtype == batch["next", "far"].dtype == (dtype or torch.float64)
    assert batch["level"].dtype == torch.int64


# ---------------------------------------------------------------------- masks


class MaskInInfo(Count):
    """`Masked` whose mask comes with the info, for any action space; it raises at an action that is not allowed."""

    def __init__(self, actions: spaces.Space[Any], masks: list[list[int]]) -> None:
        super().__init__(4)
        self.action_space, self.masks = actions, masks

    def mask(self) -> Any:
        return np.array(self.masks[self.steps % len(self.masks)], np.int8)

    def reset(self, **options: Any) -> Any:
        return super().reset(**options)[0], {"action_mask": self.mask()}

    def step(self, action: Any) -> Any:
        chosen = np.atleast_1d(action)
        starts = [0] if isinstance(self.action_space, spaces.Discrete) else [0, int(self.action_space.nvec[0])]
        assert all(self.mask()[start + one] for start, one in zip(starts, chosen, strict=True))
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"action_mask": self.mask()}


MASKED = [
    (spaces.Discrete(3), [[0, 1, 0], [1, 0, 1], [0, 0, 1]]),
    (spaces.MultiDiscrete([2, 3]), [[0, 1, 1, 1, 0], [1, 0, 0, 0, 1]]),
]


def masked(actions: spaces.Space[Any], masks: list[list[int]], categorical: bool = False) -> GymEnv:
    info = {"action_mask": Binary(len(masks[0]))}
    return GymEnv(MaskInInfo(actions, masks), info_keys=info, categorical_action_encoding=categorical)


@pytest.mark.parametrize("categorical", [False, True])
@pytest.mark.parametrize(("actions", "masks"), MASKED)
def test_masks_are_obeyed(actions: spaces.Space[Any], masks: list[list[int]], categorical: bool) -> None:
    single = SyncDataCollector(masked(actions, masks, categorical), frames_per_batch=40).next()
    assert single is not None
    assert single["action_mask"][:3].tolist() == [masks[t % len(masks)] for t in range(3)]
    SyncDataCollector(SerialEnv(3, lambda: masked(actions, masks, categorical)), frames_per_batch=90).next()
    masked(actions, masks, categorical).rollout(40, break_when_any_done=False)


def test_warm_up_and_rollouts_obey_a_mask_in_a_dict() -> None:
    def policy(count: torch.Tensor, action_mask: torch.Tensor) -> torch.Tensor:
        return one_hot(action_mask.argmax(-1), 4)

    env = SerialEnv(2, lambda: GymEnv(Masked(5)))
    with SyncDataCollector(env, policy, frames_per_batch=20, init_random_frames=20, total_frames=60) as collector:
        for batch in collector:
            allowed = (batch["action"] & batch["action_mask"]).sum(-1)
            assert allowed.eq(1).all()
    GymEnv(Masked(5)).rollout(9, break_when_any_done=False)


def test_masks_named_as_composite_actions_are() -> None:
    parts = spaces.Dict(a=spaces.Discrete(2), b=spaces.Discrete(3))
    masks = spaces.Dict(a=spaces.MultiBinary(2), b=spaces.MultiBinary(3))

    class Both(Count):
        observation_space = spaces.Dict(action_mask=masks)
        action_space = parts

        def observe(self) -> Any:
            return {"action_mask": {"a": np.array([0, 1], np.int8), "b": np.array([0, 0, 1], np.int8)}}

    batch = SyncDataCollector(GymEnv(Both(3)), frames_per_batch=6).next()
    assert batch is not None
    assert batch["action", "a"].tolist() == [[0, 1]] * 6
    assert batch["action", "b"].tolist() == [[0, 0, 1]] * 6


@pytest.mark.parametrize(("actions", "masks"), [(spaces.Discrete(2), [[1, 1], [0, 0]]), (MASKED[1][0], [[1, 1, 0, 0, 0]])])
def test_a_mask_that_forbids_everything_names_the_row(actions: spaces.Space[Any], masks: list[list[int]]) -> None:
    free = [[1] * len(masks[0])]
    envs = [lambda m=m: masked(actions, m) for m in (free, masks, free)]
    with pytest.raises(SpecMismatch, match=r"expected at least one allowed action, found none at index \(1,\)") as raised:
        SyncDataCollector(SerialEnv(3, envs), frames_per_batch=9).next()
    assert "raised in policy" in raised.value.__notes__[-1]


# ---------------------------------------------------------------------- rewards


class Pays(Count):
    """`Count` whose rewards are given."""

    def __init__(self, *rewards: Any) -> None:
        super().__init__(100)
        self.rewards = rewards

    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return observation, self.rewards[(self.steps - 1) % len(self.rewards)], *rest


@pytest.mark.parametrize("rows", [None, 1, 3])
@pytest.mark.parametrize(
    "rewards",
    [
        (np.array(1.5), np.array(2.0)),
        (np.array([1.5]), np.array([2.0])),
        (np.float64(1.5), np.float32(2)),
        (np.float16(1.5), 2),
        (1.5, np.array([2.0])),
        (np.array([1.5]), 2, np.array(3)),
        (True, False),
        (torch.tensor(1.5), torch.tensor([2])),
    ],
)
def test_rewards_of_every_form(rewards: tuple[Any, ...], rows: int | None) -> None:
    env = GymEnv(Pays(*rewards)) if rows is None else SerialEnv(rows, lambda: Pays(*rewards))
    batch = SyncDataCollector(env, frames_per_batch=6 * (rows or 1)).next()
    assert batch is not None
    expected = [[np.asarray(rewards[t % len(rewards)]).item()] for t in range(6)]
    assert batch["next", "reward"].dtype == torch.float32
    assert batch["next", "reward"].tolist() == (expected if rows is None else [expected] * rows)


@pytest.mark.parametrize("rows", [None, 3])
@pytest.mark.parametrize("bad", [np.array([1.0, 2.0]), np.ones(3), "high", [1.0, 2.0]])
@pytest.mark.parametrize("before", [(), (1.0, 1.0), (np.array([1.0]),)])
def test_rewards_that_are_no_number(bad: Any, before: tuple[Any, ...], rows: int | None) -> None:
    env = GymEnv(Pays(*before, bad)) if rows is None else SerialEnv(rows, lambda: Pays(*before, bad))
    with pytest.raises(SpecMismatch, match=r"env.step: reward: expected one number, found") as raised:
        SyncDataCollector(env, frames_per_batch=6 * (rows or 1)).next()
    assert f"column {len(before)} of" in raised.value.__notes__[-1]
    assert rows is None or "in env 0 of 3" in raised.value.__notes__[0]


# ---------------------------------------------------------------------- what cannot be used


@pytest.mark.parametrize("actions", [spaces.Text(3), GRAPH, spaces.Sequence(BOX), spaces.OneOf([BOX]), spaces.Dict(a=GRAPH)])
def test_actions_that_cannot_be_stored(actions: spaces.Space[Any]) -> None:
    with pytest.raises(OptionError, match=r"action space .*: expected Box, Discrete.*wrap the env"):
        GymEnv(Drawn(BOX, actions))


def test_observations_that_cannot_be_stored() -> None:
    class Silent(spaces.Space[Any]):
        def sample(self, mask: Any = None, probability: Any = None) -> Any:
            return 1

    with pytest.raises(OptionError, match=r"expected a Box of a dtype that torch has, found (float128|float96)"):
        GymEnv(Drawn(spaces.Box(0, 1, (2,), np.longdouble)))
    with pytest.raises(OptionError, match=r"Silent.*says which values are in it; define its contains"):
        SyncDataCollector(GymEnv(Drawn(Silent())), frames_per_batch=2)
    with pytest.raises(OptionError, match="an observation space that holds something"):
        GymEnv(Drawn(spaces.Dict()))
