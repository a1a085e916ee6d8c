"""Columns of objects: strings, what infos hold, and what becomes of them in batches, policies, rollouts and states."""

from __future__ import annotations

import io
import pickle
import threading
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.spaces import GraphInstance
from tensordict import NonTensorStack
from tensordict.nn import TensorDictModule

from reap.collectors import SyncDataCollector
from reap.collectors.utils import split_trajectories
from reap.data import NonTensor, Unbounded
from reap.envs import GymEnv, SerialEnv, check_env_specs
from reap.errors import OptionError, SpecMismatch
from reap.recording.objects import copied, from_state, stacked, to_state, to_states, unstacked
from reap.testing import Const, Count
from tests.envs.vector_envs import AutoresetMode, make_async, needs_modes


class Says(Count):
    """`Count` that observes its count as a text."""

    observation_space = spaces.Text(8)

    def observe(self) -> Any:
        return f"{self.start + self.steps}"


class Tells(Count):
    """`Count` with an info that is given for each count; an Ellipsis stands for none."""

    def __init__(self, *infos: Any, length: int = 3) -> None:
        super().__init__(length)
        self.infos = infos

    def info(self) -> dict[str, Any]:
        value = self.infos[self.steps % len(self.infos)]
        return {} if value is ... else {"x": value}

    def reset(self, **options: Any) -> Any:
        return super().reset(**options)[0], self.info()

    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], self.info()


def tells(*infos: Any, spec: Any = None, length: int = 3) -> GymEnv:
    return GymEnv(Tells(*infos, length=length), info_keys={"x": NonTensor(()) if spec is None else spec})


def collect(env: Any, frames: int, policy: Any = None, **options: Any) -> Any:
    return SyncDataCollector(env, policy, frames_per_batch=frames, **options).next()


# ---------------------------------------------------------------------- infos


def test_numbers_that_come_and_go() -> None:
    env = GymEnv(Tells(..., 2, np.array([3.0]), None, True, np.float64(0.5), length=6), info_keys=["x"])
    batch = collect(env, 7)
    assert batch["x"].dtype == torch.float32
    assert batch["x"].tolist() == [0, 2, 3, 0, 1, 0.5, 0]
    assert batch["next", "x"].tolist() == [2, 3, 0, 1, 0.5, 0, 2]
    arrays = collect(tells(..., np.ones(2), spec=Unbounded((2,), dtype=torch.float32)), 4)
    assert arrays["x"].tolist() == [[0, 0], [1, 1], [0, 0], [0, 0]]


@pytest.mark.parametrize("rows", [None, 3])
@pytest.mark.parametrize("bad", ["a text", np.ones(2), {"a": 1}])
def test_a_number_that_becomes_something_else(bad: Any, rows: int | None) -> None:
    def make() -> GymEnv:
        return GymEnv(Tells(1.0, 1.0, bad), info_keys=["x"])

    with pytest.raises(
        SpecMismatch, match=r"env.step: 'x': expected shape \(\), .* found .*info_keys={name: NonTensor"
    ) as raised:
        collect(make() if rows is None else SerialEnv(rows, make), 6 * (rows or 1))
    assert "column 1 of" in raised.value.__notes__[-1]


def test_objects_that_come_and_go() -> None:
    graph = GraphInstance(np.ones((2, 1)), None, None)
    batch = collect(tells("a", ..., {"b": [1]}, graph, length=4), 6)
    found = batch["x"]
    assert list(found[:3]) == ["a", None, {"b": [1]}]
    assert isinstance(found[3], GraphInstance)
    assert list(found[4:]) == ["a", None]
    assert batch["next", "x"][3] == "a", "the last info of the episode"


def test_what_an_env_returns_is_copied() -> None:
    info: list[int] = []
    env = tells(info, length=100)
    step = env.wrapped.step

    def counting(action: Any) -> Any:
        info.append(len(info))
        return step(action)

    env.wrapped.step = counting
    assert list(collect(env, 3)["x"]) == [[], [0], [0, 1]]


def test_an_object_that_cannot_be_copied() -> None:
    with pytest.raises(TypeError, match="pickle") as raised:
        collect(tells(threading.Lock()), 2)
    assert any("cannot be copied and recorded" in note for note in raised.value.__notes__)


class TellsAll(Count):
    """`Count` whose info has a dict, the entries of which come and go."""

    def step(self, action: Any) -> Any:
        entries = {"n": self.steps + 1, **({"odd": "yes", "deep": {"n": self.steps}} if self.steps % 2 == 0 else {})}
        return *super().step(action)[:4], {"x": entries}


@needs_modes
@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_dicts_in_the_infos_of_a_vector_env(mode: str) -> None:
    env = make_async([lambda: TellsAll(3), lambda: TellsAll(4)], autoreset_mode=AutoresetMode(mode))
    with SyncDataCollector(GymEnv(env, info_keys={"x": NonTensor(())}), frames_per_batch=8) as collector:
        batch = collector.next()
    assert batch is not None
    entries = [{"n": k + 1, **({"odd": "yes", "deep": {"n": k}} if k % 2 == 0 else {})} for k in range(4)]
    assert batch["next", "x"] == [[*entries[:3], entries[0]], entries]


@needs_modes
@pytest.mark.parametrize("mode", ["SameStep", "Disabled"])
def test_texts_of_a_vector_env(mode: str) -> None:
    def create(**options: Any) -> Any:
        return make_async([lambda: Says(2), lambda: Says(3)], autoreset_mode=AutoresetMode(mode), **options)

    with SyncDataCollector(GymEnv(create(shared_memory=False)), frames_per_batch=8) as collector:
        batch = collector.next()
    assert batch is not None
    assert batch["observation"] == [["0", "1", "0", "1"], ["0", "1", "2", "0"]]
    assert batch["next", "observation"] == [["1", "2", "1", "2"], ["1", "2", "3", "1"]]
    env = create()
    try:
        with pytest.raises(OptionError, match="same text in every step.*shared_memory=False"):
            GymEnv(env)
    finally:
        env.close()


# ---------------------------------------------------------------------- batches


@pytest.mark.parametrize("same", [False, True])
def test_batches_share_no_object_with_the_env_the_policy_or_each_other(same: bool) -> None:
    def policy(x: Any) -> torch.Tensor:
        x.append("policy")
        return torch.zeros(1)

    collector = SyncDataCollector(tells([0], [1], [2]), policy, frames_per_batch=2, return_same_td=same)
    expected = [0, 1, 2, 0, 1, 2, 0, 1]
    for k, batch in zip(range(4), collector, strict=False):
        assert list(batch["x"]) == [[n] for n in expected[2 * k : 2 * k + 2]]
        for value in (*batch["x"], *batch["next", "x"]):
            assert len(value) == 1, "one list is in two places"
            value.append("user")


def test_texts_of_several_rows() -> None:
    env = SerialEnv(2, [lambda: Says(2), lambda: Says(3, start=5)])
    batch = collect(env, 8)
    assert isinstance(batch.get("observation"), NonTensorStack)
    assert batch.get("observation").batch_size == (2, 4)
    assert batch["observation"] == [["0", "1", "0", "1"], ["5", "6", "7", "5"]]
    assert batch["next", "observation"] == [["1", "2", "1", "2"], ["6", "7", "8", "6"]]
    assert list(batch.reshape(-1)["observation"]) == ["0", "1", "0", "1", "5", "6", "7", "5"]
    assert batch[1, 2]["observation"] == "7"


def test_batches_are_saved_and_split() -> None:
    batch = collect(GymEnv(Says(3)), 5)
    file = io.BytesIO()
    torch.save(batch, file)
    file.seek(0)
    for other in (pickle.loads(pickle.dumps(batch)), torch.load(file, weights_only=False), batch.clone()):
        assert list(other["observation"]) == ["0", "1", "2", "0", "1"]
    split = split_trajectories(batch)
    assert split["observation"] == [["0", "1", "2"], ["0", "1", None]]


def test_idle_rows_hold_none() -> None:
    env = SerialEnv(2, [lambda: Says(2), lambda: Says(4)])
    batch = collect(env, 10, reset_when_done=False)
    assert batch["collector", "mask"].tolist() == [[True, True, False, False, False], [True] * 4 + [False]]
    assert batch["observation"] == [["0", "1", None, None, None], ["0", "1", "2", "3", None]]


# ---------------------------------------------------------------------- policies


def numbers(texts: Any) -> torch.Tensor:
    return torch.tensor([[float(text)] for text in texts]) if isinstance(texts, list) else torch.tensor([float(texts)])


def by_name(observation: Any) -> torch.Tensor:
    return numbers(observation)


def with_dict(observation: Any) -> dict[str, torch.Tensor]:
    return {"action": numbers(observation), "twice": 2 * numbers(observation)}


def with_tensordict(td: Any) -> Any:
    value = td["observation"]
    return td.set("action", numbers(value if isinstance(value, str) else list(value)))


MODULE = TensorDictModule(lambda text: numbers(text if isinstance(text, str) else list(text)), ["observation"], ["action"])


@pytest.mark.parametrize("rows", [None, 2])
@pytest.mark.parametrize("policy", [by_name, with_dict, with_tensordict, MODULE])
def test_policies_read_texts(policy: Any, rows: int | None) -> None:
    env = GymEnv(Says(3)) if rows is None else SerialEnv(rows, lambda: Says(3))
    batch = collect(env, 4 * (rows or 1), policy)
    texts = batch["observation"] if rows else [batch["observation"]]
    expected = [[[float(text)] for text in row] for row in texts]
    assert batch["action"].tolist() == (expected if rows else expected[0])
    assert ("twice" in batch) == (policy is with_dict)
    assert torch.equal(batch.get("twice", 2 * batch["action"]), 2 * batch["action"])


def test_which_actor() -> None:
    env = GymEnv(Says(3))
    assert "ragged" in repr(SyncDataCollector(env, by_name, frames_per_batch=2))
    assert "tensordict" in repr(SyncDataCollector(env, MODULE, frames_per_batch=2))
    mixed = GymEnv(Tells("a"), info_keys={"x": NonTensor(())})
    other = TensorDictModule(torch.nn.Linear(1, 1), ["observation"], ["action"])
    assert "unwrapped" in repr(SyncDataCollector(mixed, other, frames_per_batch=2)), "it reads no object"
    assert "plain" in repr(SyncDataCollector(mixed, lambda observation: observation, frames_per_batch=2))


# ---------------------------------------------------------------------- by TensorDicts


@pytest.mark.parametrize("rows", [None, 2])
def test_rollouts_by_tensordicts(rows: int | None) -> None:
    env = GymEnv(Says(2)) if rows is None else SerialEnv(rows, [lambda: Says(2), lambda: Says(3)])
    found = env.rollout(4, break_when_any_done=False)["observation"]
    assert found == (["0", "1", "0", "1"] if rows is None else [["0", "1", "0", "1"], ["0", "1", "2", "0"]])
    check_env_specs(env)


# ---------------------------------------------------------------------- states


class Resumes(Tells):
    """`Tells` with a state of its own."""

    def state_dict(self) -> dict[str, int]:
        return {"steps": self.steps, "resets": self.resets}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.steps, self.resets = state["steps"], state["resets"]


PLAIN = ("a", [1, None], {"b": (2.5, True)}, np.arange(3), np.float32(2), torch.ones(2), GraphInstance(np.ones(2), None, None))


def resumes(infos: tuple[Any, ...]) -> GymEnv:
    return GymEnv(Resumes(*infos, length=10), info_keys={"x": NonTensor(())})


def test_a_state_holds_the_objects() -> None:
    going_on, resumed = (SyncDataCollector(resumes(PLAIN), Const(), frames_per_batch=3) for _ in range(2))
    going_on.next()
    file = io.BytesIO()
    torch.save(going_on.state_dict(), file)
    file.seek(0)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    expected, found = going_on.next(), resumed.next()
    assert found["observation"].tolist() == expected["observation"].tolist() == [[3], [4], [5]]
    assert str(list(found["x"])) == str(list(expected["x"]))
    assert found["collector", "traj_ids"].tolist() == [0, 0, 0]


def test_without_plain_objects_an_env_counts_as_one_without_state() -> None:
    class Opaque:
        pass

    going_on, resumed = (SyncDataCollector(resumes((Opaque(),)), Const(), frames_per_batch=3) for _ in range(2))
    going_on.next()
    resumed.load_state_dict(going_on.state_dict())
    batch = resumed.next()
    assert batch["observation"].tolist() == [[0], [1], [2]]
    assert batch["collector", "traj_ids"].tolist() == [1, 1, 1]


def test_a_state_of_another_layout() -> None:
    state = SyncDataCollector(resumes(PLAIN), Const(), frames_per_batch=3).state_dict()
    other = SyncDataCollector(GymEnv(Resumes(1, length=10)), Const(), frames_per_batch=3)
    with pytest.raises(SpecMismatch, match="'x': 'objects'"):
        other.load_state_dict(state)


# ---------------------------------------------------------------------- the functions


@pytest.mark.parametrize("value", [*PLAIN, None, (), [], {}, {1: {"a": ()}}, np.array(True), np.zeros((0, 2), np.uint8)])
def test_to_state_and_back(value: Any) -> None:
    again = from_state(to_state(value))
    assert type(again) is type(value)
    assert repr(again) == repr(value)


@pytest.mark.parametrize("value", [object(), {1}, np.array(["a"]), np.array([object()]), [object()], b"bytes"])
def test_objects_without_state(value: Any) -> None:
    cells = np.empty(1, object)
    cells[0] = value
    assert to_states(cells) is None


def test_stacked_and_back() -> None:
    objects = np.empty((2, 3), object)
    objects[...] = [["a", "b", "c"], [1, None, (2,)]]
    assert unstacked(stacked(objects), (2, 3)).tolist() == objects.tolist()
    assert unstacked(stacked(objects[1, 2:].reshape(())), ()).item() == (2,)


def test_the_copy_of_a_tensor_is_an_ordinary_tensor() -> None:
    with torch.inference_mode():
        value = torch.ones(2)
        assert not copied(value).is_inference()
