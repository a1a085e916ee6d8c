"""`ParallelEnv(overlap=True)` has the data of one without, to the last bit; the policy serves a half while the other steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from torch import nn

from reap.collectors import Interruptor, MultiaSyncDataCollector, MultiSyncDataCollector, SyncDataCollector
from reap.envs import ParallelEnv, SerialEnv
from reap.errors import OptionError, WorkerDied, WorkerRaised
from reap.testing import Const, Count, Id, check_collector
from reap.testing.marked import Marked, Told
from tests.collectors.kinds import made
from tests.collectors.seams import wait_for_end
from tests.envs.parallel_kinds import KINDS, Deadly, assert_same, factories

pytestmark = pytest.mark.processes

Batches = list[TensorDictBase]

Overlapping = partial(ParallelEnv, overlap=True)


def choice(scores: torch.Tensor) -> torch.Tensor:
    return nn.functional.one_hot(scores.argmax(-1), scores.shape[-1])


def of_texts(count: list[str], told: list[str]) -> torch.Tensor:
    return torch.tensor([[int(number) + len(text) / 4] for number, text in zip(count, told, strict=True)])


def of_pairs(first: torch.Tensor, second: torch.Tensor) -> dict[Any, torch.Tensor]:
    return {("action", "0"): choice(first), ("action", "1"): torch.cat([first[..., :1].sin(), second[..., :1] / 4], -1)}


POLICIES: dict[str, Callable[..., Any]] = {
    "random": choice,
    "numbered": lambda observation: observation[..., 2:] / 2 + observation[..., :1],
    "masked": lambda count, action_mask: choice(action_mask.to(torch.int64)),
    "dict": lambda place: place[..., :1].float() / 2,
    "text": of_texts,
    "vector": choice,
    "resets itself": lambda observation: choice(observation[..., 1:3]),
    "custom": lambda observation: observation[..., :1].sin(),
    "custom batched": lambda observation: observation[..., :1].sin(),
}
"""Policies that compute each row by itself, with the same bits however many there are."""


def batches(env: Any, policy: Any, columns: int = 20, count: int = 4, **options: Any) -> Batches:
    """Batches after a seed, in a collector which is shut down."""
    frames = columns * env.batch_size.numel()
    with SyncDataCollector(env, policy, frames_per_batch=frames, total_frames=count * frames, **options) as collector:
        collector.set_seed(3)
        return [batch.clone() for batch in collector]


def assert_equal(found: Batches, wanted: Batches) -> None:
    assert len(found) == len(wanted) > 0
    for one, other in zip(found, wanted, strict=True):
        assert_same(one, other)


def check_equal(kind: str, envs: int = 4, processes: int = 2, **options: Any) -> None:
    wanted = batches(SerialEnv(envs, factories(kind, envs)), POLICIES[kind], **options)
    found = batches(Overlapping(envs, factories(kind, envs), num_processes=processes), POLICIES[kind], **options)
    assert_equal(found, wanted)


# ---------------------------------------------------------------------- the data


@pytest.mark.parametrize("kind", POLICIES)
def test_equal_to_an_env_without(kind: str) -> None:
    check_equal(kind)


@pytest.mark.parametrize(("envs", "processes"), [(2, 2), (5, 2), (5, 3), (6, 5)])
def test_halves_of_unequal_size(envs: int, processes: int) -> None:
    check_equal("numbered", envs, processes)


@pytest.mark.parametrize("kind", ["numbered", "masked", "text", "custom batched"])
@pytest.mark.parametrize(
    "options",
    [
        {"reset_when_done": False},
        {"max_frames_per_traj": 4},
        {"reset_when_done": False, "max_frames_per_traj": 3},
        {"init_random_frames": 100, "reset_at_each_iter": True},
    ],
    ids="-".join,
)
def test_options_of_the_loop(kind: str, options: dict[str, Any]) -> None:
    check_equal(kind, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"split_trajs": True},
        {"trajs_per_batch": 5},
        {"set_truncated": True, "track_policy_version": True},
        {"return_same_td": True, "trust_policy": False},
        {"use_buffers": False},
    ],
    ids="-".join,
)
def test_options_of_what_is_delivered(options: dict[str, Any]) -> None:
    policy = POLICIES["numbered"]
    if "use_buffers" in options:
        policy = lambda observation: torch.stack([row[2:] / 2 + row[:1] for row in observation])  # noqa: E731
    wanted, found = (batches(cls(4, factories("numbered", 4)), policy, **options) for cls in (SerialEnv, Overlapping))
    assert_equal(found, wanted)


class Remembering(nn.Module):
    """A recurrent policy: its state is a sum of what it saw since the episode began, and it reads `is_init` and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.initial_state = {"total": torch.full((2,), 0.5)}

    def forward(
        self, observation: torch.Tensor, total: torch.Tensor, is_init: torch.Tensor, step_count: torch.Tensor
    ) -> dict[Any, torch.Tensor]:
        following = total + observation[..., 1:]
        return {"action": following[..., :1] + is_init + step_count / 8, ("next", "total"): following}


@pytest.mark.parametrize("options", [{}, {"max_frames_per_traj": 3}, {"reset_when_done": False}, {"init_random_frames": 100}])
def test_a_recurrent_policy(options: dict[str, Any]) -> None:
    wanted, found = (batches(cls(5, factories("numbered", 5)), Remembering(), **options) for cls in (SerialEnv, Overlapping))
    assert_equal(found, wanted)
    began = found[-1]["is_init"].squeeze(-1)
    assert (found[-1]["total"][began] == 0.5).all()


@pytest.mark.parametrize("form", ["TensorDictModule", "trusted"])
def test_a_policy_of_tensordicts(form: str) -> None:
    module = TensorDictModule(POLICIES["numbered"], ["observation"], ["action"])
    policy = module if form == "TensorDictModule" else module.forward
    options = {"trust_policy": form == "trusted"}
    wanted, found = (batches(cls(4, factories("numbered", 4)), policy, **options) for cls in (SerialEnv, Overlapping))
    assert_equal(found, wanted)


def test_a_policy_that_draws_is_reproducible() -> None:
    def draw(observation: torch.Tensor) -> torch.Tensor:
        return torch.rand_like(observation[..., :1])

    first, second = (batches(Overlapping(5, factories("numbered", 5)), draw) for _ in range(2))
    assert_equal(first, second)


def test_an_interruptor_ends_both_halves_with_the_same_column() -> None:
    class After(Interruptor):
        """Open for some columns at a time."""

        def __init__(self) -> None:
            super().__init__()
            self.asked = 0

        def collection_stopped(self) -> bool:
            self.asked += 1
            return self.asked % 7 == 0

    wanted, found = (
        batches(cls(4, factories("numbered", 4)), POLICIES["numbered"], interruptor=After()) for cls in (SerialEnv, Overlapping)
    )
    assert_equal(found, wanted)
    assert found[0]["collector", "mask"].sum(-1).tolist() == [7] * 4


class Keeping(nn.Module):
    """Keeps what it sees from some call on."""

    def __init__(self, since: int) -> None:
        super().__init__()
        self.kept: list[torch.Tensor] = []
        self.calls, self.since = 0, since

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls >= self.since:
            self.kept.append(observation)
        return observation[..., 2:]


@pytest.mark.parametrize("since", [0, 10, 11])
def test_a_policy_that_keeps_its_inputs_is_given_copies(since: int) -> None:
    policy = Keeping(since)
    with SyncDataCollector(Overlapping(4, factories("numbered", 4)), policy, frames_per_batch=80) as collector:
        collector.next()  # after it a policy is given copies which did not keep anything at the probe
        policy.kept.clear()
        batch = collector.next()
    seen = torch.stack([torch.cat(policy.kept[i : i + 2]) for i in range(0, 40, 2)], 1)
    assert torch.equal(seen, batch["observation"])


def test_a_policy_that_keeps_nothing_is_given_the_stage_itself() -> None:
    places: set[tuple[int, bool]] = set()

    def policy(observation: torch.Tensor) -> torch.Tensor:
        memory = observation.untyped_storage()
        places.add((memory.data_ptr(), memory.nbytes() == 2 * observation.nbytes))
        return observation[..., 2:]

    with SyncDataCollector(Overlapping(4, factories("numbered", 4)), policy, frames_per_batch=80) as collector:
        places.clear()  # the probe is given all rows
        for _ in range(3):
            collector.next()
    assert [is_half for _, is_half in places] == [True], "both halves are parts of one memory"


def test_a_policy_that_wants_all_rows_at_once_is_refused() -> None:
    def shift(observation: torch.Tensor) -> torch.Tensor:
        return observation[..., 2:] + torch.arange(4.0).unsqueeze(-1)

    with (
        Overlapping(4, factories("numbered", 4)) as env,
        pytest.raises(RuntimeError, match=r"must match the size") as info,
    ):
        SyncDataCollector(env, shift, frames_per_batch=80)
    assert any("(2, 3)" in note for note in info.value.__notes__)


def test_a_state_goes_on_in_an_env_without_and_the_other_way_round() -> None:
    def collector(cls: Callable[..., Any]) -> SyncDataCollector:
        return SyncDataCollector(cls(5, made(Marked, 5)), Told(), frames_per_batch=35)

    for one, other in ((Overlapping, SerialEnv), (SerialEnv, Overlapping)):
        with collector(one) as first, collector(other) as second:
            first.set_seed(2)
            first.next()
            second.load_state_dict(first.state_dict())
            for _ in range(3):
                assert_same(second.next(), first.next())


def test_rows_that_are_reset_by_hand() -> None:
    def run(cls: Callable[..., Any]) -> Batches:
        with SyncDataCollector(cls(4, factories("numbered", 4)), POLICIES["numbered"], frames_per_batch=24) as collector:
            first = collector.next()
            collector.reset([1, 2])
            second = collector.next()
            collector.env.rollout(3)
            return [first, second, collector.next()]

    assert_equal(run(Overlapping), run(SerialEnv))


@pytest.mark.parametrize("kind", [MultiSyncDataCollector, MultiaSyncDataCollector])
def test_in_workers(kind: Any) -> None:
    def run(cls: Callable[..., Any], workers: int) -> Batches:
        envs = [cls(2, [partial(KINDS["numbered"], number) for number in (2 * w, 2 * w + 1)]) for w in range(workers)]
        with kind(envs, POLICIES["numbered"], frames_per_batch=80, total_frames=240) as collector:
            collector.set_seed(5)
            return [batch.clone() for batch in collector]

    workers = 2 if kind is MultiSyncDataCollector else 1
    assert_equal(run(partial(Overlapping, num_processes=2), workers), run(SerialEnv, workers))


def test_in_the_background() -> None:
    written: Batches = []

    class Buffer:
        def extend(self, data: Any) -> None:
            written.append(data)

    env = Overlapping(4, factories("numbered", 4))
    with SyncDataCollector(env, Told4(), frames_per_batch=40, total_frames=120, replay_buffer=Buffer()) as collector:
        collector.set_seed(3)
        collector.start()
        wait_for_end(collector)
    wanted = batches(SerialEnv(4, factories("numbered", 4)), Told4(), columns=10, count=3)
    assert_equal(written, wanted)


class Told4(nn.Module):
    """Acts with the step that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return observation[..., 2:] * self.scale


def test_collectors_keep_their_promises_with_it() -> None:
    def make_collector(env_factory: Any, policy: Any, **options: Any) -> SyncDataCollector:
        return SyncDataCollector(lambda: Overlapping(3, made(env_factory, 3), num_processes=2), policy, **options)

    check_collector(make_collector)


# ---------------------------------------------------------------------- the overlap


class Gated(Id):
    """`Id` whose every step waits until it is let through."""

    def __init__(self, number: int, gate: Path, lets_go_after: int) -> None:
        super().__init__(number)
        self._gate, self._waits = os.open(gate, os.O_RDWR), lets_go_after

    def step(self, action: Any) -> Any:
        if self._waits:
            self._waits -= 1
            assert os.read(self._gate, 1) == b"x"
        return super().step(action)

    def close(self) -> None:
        os.close(self._gate)


@contextmanager
def gates(folder: Path, count: int) -> Iterator[tuple[list[Path], list[int]]]:
    paths = [folder / f"gate{number}" for number in range(count)]
    for path in paths:
        os.mkfifo(path)
    descriptors = [os.open(path, os.O_RDWR) for path in paths]
    yield paths, descriptors
    for descriptor in descriptors:
        os.close(descriptor)


def test_each_half_steps_while_the_policy_serves_the_other(tmp_path: Path) -> None:
    """A step of the first half ends only once the policy has served the second in that column, and one of the second only
    once the first is served in the next."""
    columns = 12
    with gates(tmp_path, 2) as (paths, descriptors):
        served = {0: 0, 1: 0}

        def policy(observation: torch.Tensor) -> torch.Tensor:
            if len(observation) == 1 and is_collecting:
                half = int(observation[0, 0])
                served[half] += 1
                if half or served[0] > 1:
                    os.write(descriptors[1 - half], b"x")
            return observation[..., 2:]

        is_collecting = False
        env = Overlapping(2, [partial(Gated, 0, paths[0], columns), partial(Gated, 1, paths[1], columns - 1)], num_processes=2)
        with SyncDataCollector(env, policy, frames_per_batch=2 * columns) as collector:
            is_collecting = True
            batch = collector.next()
        assert served == {0: columns, 1: columns}
        assert torch.equal(batch["action"], batch["observation"][..., 2:])


def test_random_actions_are_drawn_for_all_rows_at_once() -> None:
    wanted, found = (batches(cls(4, factories("numbered", 4)), None) for cls in (SerialEnv, Overlapping))
    assert_equal(found, wanted)


# ---------------------------------------------------------------------- failures


@pytest.mark.parametrize("place", [0, 3])
@pytest.mark.parametrize("how", ["raise", "kill"])
def test_an_env_that_fails(how: str, place: int) -> None:
    env = Overlapping(4, [partial(Deadly, "step", how, 12 if b == place else 10**9) for b in range(4)], num_processes=2)
    collector = SyncDataCollector(env, Const(), frames_per_batch=80)
    with pytest.raises((WorkerRaised, WorkerDied)) as info:
        collector.next()
    assert (info.value.worker, info.value.phase) == (place // 2, "step")
    collector.shutdown()


@pytest.mark.parametrize("call", [9, 10, 14])
def test_a_policy_that_raises_leaves_no_half_running(call: int) -> None:
    class Failing(nn.Module):
        calls = 0

        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            if self.calls == call:
                raise ValueError("on purpose")
            return observation[..., 2:]

    policy = Failing()
    with SyncDataCollector(Overlapping(4, factories("numbered", 4)), policy, frames_per_batch=40) as collector:
        probes = policy.calls
        policy.calls = 4
        with pytest.raises(ValueError, match="on purpose") as info:
            collector.next()
        assert probes == 3
        assert "reap: raised in policy of ParallelEnv" in info.value.__notes__[0]
        places = collector.next()["observation"]
        assert places[..., 0].tolist() == [[float(b)] * 10 for b in range(4)]
        assert (places[:, 0, 2] == 0).all()


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("where", [{"step": 18}, {"reset": 4}], ids=["step", "reset"])
def test_a_worker_that_is_restarted_keeps_whole_columns(tmp_path: Path, where: dict[str, int], place: int) -> None:
    deadly = partial(Once, tmp_path / "failed", where)
    env = Overlapping(2, [deadly if b == place else partial(Once, None, {}) for b in range(2)], num_processes=2)
    policy = POLICIES["numbered"]
    with MultiSyncDataCollector([env], policy, frames_per_batch=60, on_worker_failure="restart") as collector:
        batch = collector.next()[0]
        assert collector.stats().restarts == 1
    ids, steps = batch["collector", "traj_ids"], batch["observation"][..., 2]
    assert torch.equal(batch["next", "observation"][..., 2], steps + 1)
    assert torch.equal(batch["action"].squeeze(-1), steps / 2 + batch["observation"][..., 0])
    goes_on = ids[:, 1:] == ids[:, :-1]
    assert torch.equal(steps[:, 1:], torch.where(goes_on, steps[:, :-1] + 1, 0))
    assert torch.equal(batch["next", "done"][:, :-1, 0], ~goes_on)
    kept = (ids < 1 << 40).sum(-1).tolist()
    assert kept[0] == kept[1] in ({16, 17} if "step" in where else {14, 15})


class Once(Count):
    """Episodes of 5 steps, whose observation is (0, episode, step); raises once, as long as the file is not there."""

    observation_space = spaces.Box(0, 1e6, (3,), np.float32)

    def __init__(self, file: Path | None, where: dict[str, int]) -> None:
        super().__init__(5)
        self._file, self._left = file, where

    def _passed(self, where: str) -> None:
        if self._file is not None and where in self._left and not self._file.exists():
            self._left[where] -= 1
            if not self._left[where]:
                self._file.touch()
                raise ZeroDivisionError("on purpose")

    def reset(self, **options: Any) -> Any:
        self._passed("reset")
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        self._passed("step")
        return super().step(action)

    def observe(self) -> Any:
        return np.array([0, self.resets, self.steps], np.float32)


# ---------------------------------------------------------------------- what it is made of


def test_what_cannot_be() -> None:
    with pytest.raises(OptionError, match="overlap: expected a bool, got 1"):
        ParallelEnv(2, Count, overlap=1)  # pyright: ignore[reportArgumentType]
    for envs, processes in ((1, None), (1, 2), (4, 1)):
        with pytest.raises(OptionError, match="overlap=True: expected at least two envs and two processes"):
            Overlapping(envs, lambda: Count(3), num_processes=processes)
    with (
        Overlapping(2, lambda: Count(3)) as env,
        pytest.raises(OptionError, match="cudagraph_policy: a CUDA graph is captured"),
    ):
        SyncDataCollector(env, Const(), frames_per_batch=4, cudagraph_policy=True)


@pytest.fixture
def one_core() -> Iterator[None]:
    """All that this process may use is one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.usefixtures("one_core")
def test_it_is_part_of_what_the_env_is_built_of() -> None:
    env = Overlapping(3, lambda: Count(3))
    assert repr(env) == repr(env.another()) == "ParallelEnv(3, num_processes=2, overlap=True)"
    with env:
        assert [(half.rows, half.batch_shape) for half in env.stepper_halves()] == [(range(2), (2,)), (range(2, 3), (1,))]
        assert [half.actions.batch_size for half in env.stepper_halves()] == [(2,), (1,)]
        assert env.rollout(2)["observation"].squeeze(-1).tolist() == [[0, 1]] * 3
    assert ParallelEnv(2, lambda: Count(3)).stepper_halves() == ()
