"""Observations whose shape changes: `use_buffers=False`, and what is said without it."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict.nn import TensorDictModule

from reap.collectors import SyncDataCollector
from reap.collectors.utils import split_trajectories
from reap.envs import GymEnv, SerialEnv
from reap.errors import OptionError, SpecMismatch
from reap.recording.objects import from_state, to_state
from reap.specs import NonTensor
from reap.testing import Const, Count, Masked
from tests.envs.vector_envs import make_async


class Points(Count):
    """Observes some points `[k, 2]`, each of them (start, step), with k = 1 + (start + 2 * step) % 4."""

    observation_space = spaces.Box(-1e6, 1e6, (3, 2), np.float64)

    def observe(self) -> Any:
        return np.full((1 + (self.start + 2 * self.steps) % 4, 2), (self.start, self.steps), np.float64)


def points(start: int, step: int) -> list[list[float]]:
    return [[start, step]] * (1 + (start + 2 * step) % 4)


def make(length: int = 3, start: int = 0, **options: Any) -> GymEnv:
    return GymEnv(Points(length, start), **options)


def rows(**options: Any) -> SerialEnv:
    return SerialEnv(2, [lambda: make(3, **options), lambda: make(4, 1, **options)])


def steps(observation: Any) -> torch.Tensor:
    """The policy: the action is the sum of the steps in the points."""
    if isinstance(observation, torch.Tensor):
        return observation[:, 1].sum().reshape(1).float()
    return torch.stack([one[:, 1].sum().reshape(1).float() for one in observation])


def collector(env: Any, policy: Any = steps, columns: int = 5, **options: Any) -> SyncDataCollector:
    return SyncDataCollector(env, policy, frames_per_batch=columns * env.batch_size.numel(), use_buffers=False, **options)


def check(row: Any, length: int, start: int, first: int = 0) -> None:
    for t, frame in enumerate(row.unbind(0)):
        step = (first + t) % length
        assert frame["observation"].tolist() == points(start, step)
        assert frame["next", "observation"].tolist() == points(start, step + 1), "the true last observation"
        assert frame["action"].tolist() == [step * len(points(start, step))]
        assert frame["next", "done"].item() == (step + 1 == length)


def test_a_single_env() -> None:
    each = collector(make())
    for k, batch in zip(range(3), each, strict=False):
        check(batch, 3, 0, first=5 * k)
    assert batch[3]["observation"].dtype == torch.float64
    assert not batch[3]["observation"].is_inference()
    assert "ragged" in repr(each)


def test_rows() -> None:
    batch = collector(rows()).next()
    for row, length, start in zip(batch.unbind(0), (3, 4), (0, 1), strict=True):
        check(row, length, start)


def test_random_actions_and_warm_up() -> None:
    each = collector(rows(), init_random_frames=10, total_frames=20)
    for batch in each:
        assert batch[1, 2]["observation"].tolist() == points(1, int(batch[1, 2]["observation"][0, 1]))
    check(batch[0], 3, 0, first=5)
    collector(make(), None).next()


def with_tensordict(td: Any) -> Any:
    held = td["observation"]
    return td.set("action", steps(held if isinstance(held, torch.Tensor) else list(held)))


MODULE = TensorDictModule(lambda o: steps(o if isinstance(o, torch.Tensor) else list(o)), ["observation"], ["action"])


@pytest.mark.parametrize("policy", [with_tensordict, MODULE])
def test_policies_by_tensordicts(policy: Any) -> None:
    check(collector(make(), policy).next(), 3, 0)
    check(collector(rows(), policy).next()[1], 4, 1)


def test_a_policy_that_changes_and_keeps_its_input() -> None:
    kept: list[torch.Tensor] = []

    def policy(observation: torch.Tensor) -> torch.Tensor:
        action = steps(observation)
        kept.append(observation)
        observation.zero_()
        return action

    check(collector(make(), policy).next(), 3, 0)
    assert all(not tensor.any() for tensor in kept)


def test_what_the_user_does_to_a_batch_stays_there() -> None:
    for k, batch in zip(range(4), collector(make(), columns=2), strict=False):
        check(batch, 3, 0, first=2 * k)
        for value in (*batch["observation"], *batch["next", "observation"]):
            value.zero_()


def test_dtype() -> None:
    assert collector(make(dtype=torch.float32)).next()[0]["observation"].dtype == torch.float32
    batch = collector(make(dtype=torch.bfloat16), None).next()
    assert batch[0]["next", "observation"].dtype == torch.bfloat16


def test_batches_are_used_saved_and_split() -> None:
    batch = collector(make()).next()
    file = io.BytesIO()
    torch.save(batch, file)
    file.seek(0)
    for other in (pickle.loads(pickle.dumps(batch)), torch.load(file, weights_only=False), batch.clone()):
        check(other, 3, 0)
    check(batch.reshape(-1), 3, 0)
    assert [len(one) for one in batch["observation"]] == [1, 3, 1, 1, 3]
    split = split_trajectories(batch)
    assert split[1, 1]["observation"].tolist() == points(0, 1)
    assert split[1, 2]["observation"] is None
    nested = torch.nested.nested_tensor(list(batch["observation"]), layout=torch.jagged)
    assert nested.sum(1).shape == (5, 2)


def test_limits_idle_rows_and_resets() -> None:
    limited = collector(make(10), max_frames_per_traj=2).next()
    assert [int(one[0, 1]) for one in limited["observation"]] == [0, 1, 0, 1, 0]
    assert limited["next", "truncated"].flatten().tolist() == [False, True, False, True, False]
    idle = collector(rows(), reset_when_done=False).next()
    assert [one is None for one in idle["observation"][0]] == [False] * 3 + [True] * 2
    assert idle["collector", "mask"].sum(-1).tolist() == [3, 4]
    anew = collector(make(10), reset_at_each_iter=True)
    for batch in (anew.next(), anew.next()):
        check(batch, 10, 0)


def test_seeds() -> None:
    class Random(Points):
        def observe(self) -> Any:
            return self.np_random.random((int(self.np_random.integers(1, 5)), 2))

    def stream(columns: int) -> list[list[Any]]:
        each = collector(SerialEnv(2, lambda: Random(3)), None, columns)
        each.set_seed(3)
        batches = [each.next() for _ in range(12 // columns)]
        return [[one.tolist() for batch in batches for one in batch["observation"][b]] for b in range(2)]

    assert stream(12) == stream(4)


def test_a_seed_that_was_given_before() -> None:
    seen: list[Any] = []

    class Seeded(Points):
        def reset(self, **options: Any) -> Any:
            seen.append(options.get("seed"))
            return super().reset(**options)

    env = GymEnv(Seeded(3))
    env.set_seed(7)
    collector(env).next()
    assert seen[0] == 7


def test_only_boxes_change_their_shape() -> None:
    class Both(Points):
        observation_space = spaces.Dict(
            points=Points.observation_space, level=spaces.Discrete(9), pair=spaces.Tuple([Points.observation_space])
        )

        def observe(self) -> Any:
            return {"points": super().observe(), "level": self.steps, "pair": (super().observe(),)}

    batch = collector(GymEnv(Both(4), categorical_action_encoding=True), None).next()
    assert batch["level"].tolist() == [0, 1, 2, 3, 0]
    assert batch[1]["points"].tolist() == batch[1]["pair", "0"].tolist() == points(0, 1)


def test_action_masks_keep_their_shape() -> None:
    class BoxMask(Masked):
        def __init__(self, length: int) -> None:
            super().__init__(length)
            count = self.observation_space["count"]
            self.observation_space = spaces.Dict(count=count, action_mask=spaces.Box(0, 1, (4,), np.int8))

    batch = collector(GymEnv(BoxMask(5)), None, 40).next()
    assert batch["action_mask"].shape == (40, 4)
    assert (batch["action"] & batch["action_mask"]).sum(-1).eq(1).all()


def test_by_tensordicts_after_a_collector() -> None:
    env = make()
    collector(env)
    assert [len(one) for one in env.rollout(3)["observation"]] == [1, 3, 1]


@pytest.mark.processes
def test_vector_envs_have_one_shape() -> None:
    env = GymEnv(make_async([lambda: Count(3)] * 2))
    with env, pytest.raises(OptionError, match="use_buffers=False: .* in one array.*use a SerialEnv"):
        SyncDataCollector(env, frames_per_batch=4, use_buffers=False)
    synchronous = GymEnv("CartPole-v1", num_envs=2)
    batch = SyncDataCollector(synchronous, frames_per_batch=4, use_buffers=False).next()
    assert batch[1, 1]["observation"].shape == (4,)


@pytest.mark.parametrize("observation", ["text", np.array(["a"]), [np.zeros(2), np.zeros(3)], np.array([np.nan, 1]), 1j])
def test_observations_that_are_no_numbers(observation: Any) -> None:
    class Bad(Points):
        def observe(self) -> Any:
            return observation if self.steps else np.zeros((1, 2))

    with pytest.raises(SpecMismatch, match="expected numbers of dtype float64 in an array of any shape, found"):
        collector(GymEnv(Bad(3)), None).next()


FITTING: list[tuple[str, Any, bool]] = [
    # the dtype of the Box, a value, whether it fits
    ("int16", np.full(3, 40_000), False),
    ("int8", [-129], False),
    ("uint8", [[0, 255]], True),
    ("uint8", np.full(2, 256), False),
    ("uint8", [-1, 0], False),
    ("int64", np.ones(2), False),
    ("float32", np.full(3, 1e39), False),
    ("float16", [1e6], False),
    ("float32", np.full(2, np.inf), True),
    ("float32", np.ones(2, np.int64), True),
    ("float32", np.full(2, np.nan), False),
    ("float32", np.ma.array([1.0, 2.0], mask=[True, False]), False),
    ("float32", torch.ones(2), True),
    ("float32", torch.ones(2, dtype=torch.bfloat16), True),
    ("float32", torch.ones(2, requires_grad=True), True),
    ("float32", torch.ones(2, device="meta"), False),
    ("float32", [1.0, [2.0]], False),
    ("float32", "ab", False),
    ("float32", None, False),
]


@pytest.mark.parametrize(("dtype", "value", "fits"), FITTING)
@pytest.mark.parametrize("at", [0, 2])
def test_numbers_of_any_shape_fit_by_the_same_rule(dtype: str, value: Any, fits: bool, at: int) -> None:
    is_float = dtype.startswith("float")
    least, most = (-np.inf, np.inf) if is_float else (np.iinfo(dtype).min, np.iinfo(dtype).max)

    class Late(Count):
        observation_space = spaces.Box(least, most, (4,), dtype)  # type: ignore[arg-type]

        def observe(self) -> Any:
            return value if self.steps >= at else np.ones(4, dtype)

    def found() -> Any:
        options: Any = {"frames_per_batch": 4, "use_buffers": False}
        with SyncDataCollector(lambda: GymEnv(Late(9)), lambda observation: torch.zeros(1), **options) as collector:
            return collector.next()["next", "observation"][-1]

    if fits:
        assert found().dtype == getattr(torch, dtype)
        assert found().tolist() == (value if isinstance(value, torch.Tensor) else np.asarray(value)).tolist()
    else:
        with pytest.raises(SpecMismatch, match=f"expected numbers of dtype {dtype} in an array of any shape, found"):
            found()


# ---------------------------------------------------------------------- without use_buffers=False


class Changes(Count):
    """`Count` that observes zeros of the shapes given, one after the other."""

    observation_space = spaces.Box(-1, 1, (4,), np.float32)

    def __init__(self, *shapes: Any, length: int = 100) -> None:
        super().__init__(length)
        self.shapes = shapes
        self.calls = 0

    def observe(self) -> Any:
        self.calls += 1
        return np.zeros(self.shapes[(self.calls - 1) % len(self.shapes)], np.float32)


class ChangesInDict(Changes):
    observation_space = spaces.Dict(a=Changes.observation_space, b=spaces.Discrete(2))

    def observe(self) -> Any:
        return {"a": super().observe(), "b": 0}


FIXED = (4,)


@pytest.mark.parametrize("shape", [(5,), (3,), (2, 4), (2, 2), (4, 1)])
@pytest.mark.parametrize(("cls", "key"), [(Changes, "observation"), (ChangesInDict, "a")])
def test_a_shape_that_changes_in_a_step(cls: Any, key: str, shape: Any) -> None:
    found = ", ".join(map(str, shape))
    text = rf"env.step: '{key}': expected shape \(4,\), dtype float32, found .*shape \({found}.*use_buffers=False"
    envs = [lambda: cls(FIXED), lambda: cls(FIXED, FIXED, FIXED, shape)]
    with pytest.raises(SpecMismatch, match=text) as raised:
        SyncDataCollector(SerialEnv(2, envs), frames_per_batch=12).next()
    assert raised.value.__notes__[0] == "reap: in env 1 of 2"
    assert "column 2 of" in raised.value.__notes__[1]
    with pytest.raises(SpecMismatch, match=text):
        SyncDataCollector(GymEnv(cls(FIXED, FIXED, FIXED, shape)), frames_per_batch=6).next()


@pytest.mark.parametrize("shape", [(1,), (), (1, 4), (5,)])
@pytest.mark.parametrize("cls", [Changes, ChangesInDict])
@pytest.mark.parametrize("count", [None, 2])
def test_a_shape_that_changes_at_a_reset(cls: Any, shape: Any, count: int | None) -> None:
    """There the shape is compared: in a step, a shape that broadcasts would pass."""

    def create() -> GymEnv:
        return GymEnv(cls(FIXED, FIXED, FIXED, shape, length=2))

    with pytest.raises(SpecMismatch, match=r"env.reset: '.*': expected shape \(4,\), dtype float32, found .*use_buffers=False"):
        SyncDataCollector(create() if count is None else SerialEnv(count, create), frames_per_batch=6 * (count or 1)).next()


def test_an_error_of_the_env_stays_what_it_is() -> None:
    class Raises(Count):
        def step(self, action: Any) -> Any:
            raise ValueError("could not broadcast input array from shape (3,) into shape (4,)")

    with pytest.raises(ValueError, match="could not broadcast") as raised:
        SyncDataCollector(GymEnv(Raises(3)), Const(), frames_per_batch=3).next()
    assert type(raised.value) is ValueError


LAYOUTS: dict[str, Any] = {
    "backwards": lambda values: np.array(values[::-1], np.float32)[::-1],
    "upside down": lambda values: np.array([values[::-1]] * 2, np.float32).T[::-1, ::-1],
    "every other": lambda values: np.repeat(np.array(values, np.float32), 2)[::2],
    "big-endian": lambda values: np.array(values, ">f4"),
    "big-endian, backwards": lambda values: np.array(values[::-1], ">f8")[::-1],
    "read-only": lambda values: np.broadcast_to(np.float32(values), (3, len(values))),
    "a number": lambda values: np.array(values[0], ">f4"),
}


class Laid(Count):
    """`Count` that observes its steps in an array of an unusual layout, in its info too."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def __init__(self, layout: str) -> None:
        super().__init__(6)
        self.layout = layout

    def observe(self) -> Any:
        return LAYOUTS[self.layout]([self.steps, 10 + self.steps, 20 + self.steps])

    def reset(self, **options: Any) -> Any:
        return super().reset(**options)[0], {"same": self.observe()}

    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], {"same": self.observe()}


@pytest.mark.parametrize("dtype", [None, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_of_any_strides_and_byte_order(layout: str, dtype: torch.dtype | None) -> None:
    env = GymEnv(Laid(layout), dtype=dtype, info_keys={"same": NonTensor(())})
    with SyncDataCollector(env, frames_per_batch=4, use_buffers=False) as collector:
        batch = collector.next()
        state = pickle.loads(pickle.dumps(collector.state_dict()))
    for t, frame in enumerate(batch.unbind(0)):
        for found, step in ((frame, t), (frame["next"], t + 1)):
            expected = LAYOUTS[layout]([step, 10 + step, 20 + step])
            assert found["observation"].tolist() == expected.tolist()
            assert found["observation"].dtype == (dtype or torch.float32)
            assert np.array_equal(found["same"], expected)
            assert found["same"].dtype == expected.dtype
    assert state is not None


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_state_holds_arrays_of_any_strides_and_byte_order(layout: str) -> None:
    value = LAYOUTS[layout]([1, 2, 3])
    again = from_state(to_state(value))
    assert np.array_equal(again, value)
    assert again.dtype == value.dtype
    assert from_state(to_state(value.flat[0])) == value.flat[0]
