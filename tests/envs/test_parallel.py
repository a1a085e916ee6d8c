"""`ParallelEnv` has the data of a `SerialEnv`, bit for bit, wherever it runs."""

from __future__ import annotations

import gc
import os
import pickle
import random
import select
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDictBase
from torch import nn

import reap
from reap.collectors import MultiaSyncDataCollector, MultiSyncDataCollector, SyncDataCollector
from reap.envs import EnvCreator, GymEnv, ParallelEnv, SerialEnv, check_env_specs
from reap.envs.parallel import board as parallel_board
from reap.envs.parallel.board import ASKED, DONE, LAST, LEAVE, Link, Waiter
from reap.errors import ClosedError, OptionError, SpecMismatch, WorkerRaised
from reap.seeds import seed_chain
from reap.system.bell import Bell
from reap.testing import Const, Count, DiscreteCount, Id, Noise, check_collector, check_env
from reap.workers.processes import fork_client as launch
from reap.workers.stall import StallWatch
from tests.collectors.kinds import made
from tests.envs.parallel_kinds import KINDS, assert_same, env_processes, factories
from tests.workers.handlers import descriptors, have_ended, watch

pytestmark = pytest.mark.processes

Batches = list[TensorDictBase]


class Greedy(nn.Module):
    """Linear, one-hot."""

    def __init__(self, size: int, actions: int) -> None:
        super().__init__()
        self.layer = nn.Linear(size, actions)
        nn.init.normal_(self.layer.weight, generator=torch.Generator().manual_seed(5))
        nn.init.zeros_(self.layer.bias)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return nn.functional.one_hot(self.layer(observation).argmax(-1), self.layer.out_features)


POLICIES: dict[str, Callable[[], Any]] = {
    "cart poles": lambda: Greedy(4, 2),
    "random": lambda: Greedy(3, 3),
    "vector": lambda: Greedy(3, 3),
    "numbered": Const,
}
"""For the other kinds actions are random."""


def batches(env: Any, kind: str, columns: int = 40, count: int = 3, **options: Any) -> Batches:
    """Batches after a seed, in a collector which is shut down."""
    policy = POLICIES.get(kind, lambda: None)()
    frames = columns * env.batch_size.numel()
    with SyncDataCollector(env, policy, frames_per_batch=frames, total_frames=count * frames, **options) as collector:
        collector.set_seed(3)
        return [batch.clone() for batch in collector]


def check_equal(kind: str, envs: int = 5, processes: int | None = 2, **options: Any) -> None:
    wanted = batches(SerialEnv(envs, factories(kind, envs)), kind, **options)
    found = batches(ParallelEnv(envs, factories(kind, envs), num_processes=processes), kind, **options)
    assert len(found) == len(wanted) > 0
    for one, other in zip(found, wanted, strict=True):
        assert_same(one, other)


# ---------------------------------------------------------------------- the data


@pytest.mark.parametrize("kind", KINDS)
def test_equal_to_serial(kind: str) -> None:
    check_equal(kind, columns=100)


@pytest.mark.parametrize("kind", ["cart poles", "masked", "text", "vector", "custom batched"])
def test_equal_to_serial_with_rows_that_idle(kind: str) -> None:
    check_equal(kind, columns=25, reset_when_done=False)


@pytest.mark.parametrize("kind", ["random", "dict", "vector", "custom"])
def test_equal_to_serial_with_limited_episodes(kind: str) -> None:
    check_equal(kind, max_frames_per_traj=7)


@pytest.mark.parametrize("processes", [1, 3, 5, None])
def test_any_number_of_processes(processes: int | None) -> None:
    check_equal("random", processes=processes)


@pytest.mark.parametrize("kind", ["random", "text"])
def test_resets_of_all_rows_and_random_frames(kind: str) -> None:
    check_equal(kind, reset_at_each_iter=True, init_random_frames=40)


def test_observations_of_any_shape() -> None:
    check_equal("dict", use_buffers=False, columns=10)


def test_one_env() -> None:
    check_equal("random", envs=1)


def test_each_env_has_its_own_rows() -> None:
    with ParallelEnv(5, factories("numbered", 5), num_processes=2) as env:
        batch = SyncDataCollector(env, Const(), frames_per_batch=100).next()
    assert batch["observation"][..., 0].tolist() == [[float(b)] * 20 for b in range(5)]


def test_in_a_serial_env_and_of_serial_envs() -> None:
    def build(outer: type, inner: type) -> Any:
        return outer(2, lambda: inner(2, "CartPole-v1"))

    wanted = batches(build(SerialEnv, SerialEnv), "cart poles")
    for classes in ((SerialEnv, ParallelEnv), (ParallelEnv, SerialEnv), (ParallelEnv, ParallelEnv)):
        for one, other in zip(batches(build(*classes), "cart poles"), wanted, strict=True):
            assert_same(one, other)


def test_batches_that_are_kept() -> None:
    """A batch that is kept stays as it was while later ones are recorded."""
    with SyncDataCollector(ParallelEnv(3, factories("numbered", 3)), Const(), frames_per_batch=30) as collector:
        kept = [collector.next() for _ in range(5)]
        copies = [batch.clone() for batch in kept]
        for _ in range(5):
            collector.next()
        for batch, copy in zip(kept, copies, strict=True):
            assert_same(batch, copy)


@pytest.mark.parametrize("kind", ["random", "dict", "text", "custom batched"])
def test_multi_sync(kind: str) -> None:
    def run(cls: type) -> Batches:
        envs = [cls(2, [partial(KINDS[kind], number) for number in (2 * w, 2 * w + 1)]) for w in range(2)]
        frames = 2 * 2 * 10 * (2 if kind == "custom batched" else 1)
        policy = POLICIES.get(kind, lambda: None)()
        options: dict[str, Any] = {"frames_per_batch": frames, "total_frames": 4 * frames}
        with MultiSyncDataCollector(envs, policy, **options) as collector:
            collector.set_seed(5)
            return [batch.clone() for batch in collector]

    for one, other in zip(run(ParallelEnv), run(SerialEnv), strict=True):
        assert_same(one, other)


def test_multi_async() -> None:
    def run(cls: type) -> Batches:
        envs = [cls(2, factories("random", 2))]
        with MultiaSyncDataCollector(envs, Greedy(3, 3), frames_per_batch=40, total_frames=200) as collector:
            collector.set_seed(5)
            return [batch.clone() for batch in collector]

    for one, other in zip(run(ParallelEnv), run(SerialEnv), strict=True):
        assert_same(one, other)


def test_several_workers_async() -> None:
    envs = [ParallelEnv(2, [partial(KINDS["numbered"], number) for number in (2 * w, 2 * w + 1)]) for w in range(2)]
    seen: set[tuple[float, ...]] = set()
    with MultiaSyncDataCollector(envs, Const(), frames_per_batch=20, total_frames=400) as collector:
        for batch in collector:
            numbers = batch["observation"][..., 0]
            assert (numbers == numbers[:, :1]).all()
            seen.add(tuple(numbers[:, 0].tolist()))
    assert seen == {(0, 1), (2, 3)}


def test_a_state_goes_on_in_either() -> None:
    def collector(cls: type) -> SyncDataCollector:
        def make() -> Any:
            return Stateful(4)

        return SyncDataCollector(cls(3, make), frames_per_batch=15)

    with collector(SerialEnv) as serial, collector(ParallelEnv) as parallel, collector(ParallelEnv) as resumed:
        for one in (serial, parallel):
            one.set_seed(2)
            one.next()
        resumed.load_state_dict(parallel.state_dict())
        third = collector(SerialEnv)
        third.load_state_dict(parallel.state_dict())
        wanted = serial.next()
        for one in (parallel, resumed, third):
            assert_same(one.next(), wanted)
        with pytest.raises(SpecMismatch, match="expected the states of 3 envs, found 1"):
            resumed.env.load_state_dict({"envs": [None]})


class Stateful(Count):
    """`Count` with a state."""

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


class Global(Count):
    """Draws from the global generators, as envs do that have none of their own."""

    observation_space = spaces.Box(0.0, 1.0, (3,), np.float64)

    def observe(self) -> Any:
        return np.array([torch.rand(()).item(), np.random.random(), random.random()])  # noqa: NPY002


def make_global() -> GymEnv:
    return GymEnv(Global(5))


COLLECTORS: dict[str, Callable[[], Any]] = {
    "ParallelEnv": lambda: SyncDataCollector(ParallelEnv(3, make_global, num_processes=2), frames_per_batch=12),
    "MultiSync": lambda: MultiSyncDataCollector([make_global] * 2, frames_per_batch=8),
    "MultiSync of ParallelEnv": lambda: MultiSyncDataCollector([lambda: ParallelEnv(1, make_global)] * 2, frames_per_batch=8),
    "nested": lambda: MultiSyncDataCollector([make_global] * 2, frames_per_batch=8, collector_class=SyncDataCollector),
}


@pytest.mark.parametrize("name", COLLECTORS)
def test_a_seed_is_for_the_global_generators_too(name: str) -> None:
    def seeded(seed: int) -> torch.Tensor:
        collector.set_seed(seed)
        return torch.cat([collector.next()["next", "observation"].flatten() for _ in range(2)])

    with COLLECTORS[name]() as collector:
        first, again, other = seeded(3), seeded(3), seeded(4)
    assert torch.equal(first, again)
    draws = first.numel()
    assert len(set(first.tolist() + other.tolist())) == 2 * draws, "envs of different processes draw different numbers"


def test_collectors_keep_their_promises_with_it() -> None:
    def make_collector(env_factory: Any, policy: Any, **options: Any) -> SyncDataCollector:
        return SyncDataCollector(lambda: ParallelEnv(3, made(env_factory, 3), num_processes=2), policy, **options)

    check_collector(make_collector)


def test_numbers_of_commands_restart_after_the_last() -> None:
    watched = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    link = Link([1], watched, lambda: None, StallWatch(None, lambda process: None), lambda process: ("", ""))
    _, asked, done, end = link.descriptors_for(0)
    [board] = link.boards
    board[ASKED] = board[DONE] = LAST - 1
    poll, numbers = select.poll(), list[int]()
    bells = [Bell(os.dup(bell)) for bell in (asked, done)]
    poll.register(bells[0].fileno(), select.POLLIN), poll.register(end, select.POLLIN)
    waiter = Waiter(board, *bells, poll, 1)

    def answer() -> None:
        while waiter.wait() != LEAVE:
            numbers.append(board[ASKED])
            waiter.answer(None)

    thread = threading.Thread(target=answer)
    thread.start()
    for _ in range(3):
        link.ask(0, LEAVE + 1)
        link.wait(0)
    link.ask(0, LEAVE)
    thread.join()
    assert numbers == [LAST, 1, 2]
    board[DONE] = board[ASKED]
    link.release()
    os.close(watched)


def test_data_are_the_same_where_numbers_of_commands_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    with ParallelEnv(3, factories("random", 3), num_processes=2) as env, SerialEnv(3, factories("random", 3)) as serial:
        for one in (env, serial):
            one.set_seed(1)
            one.reset()
        monkeypatch.setattr(parallel_board, "LAST", 7)
        found, wanted = batches(env, "random", count=1), batches(serial, "random", count=1)
        assert_same(found[0], wanted[0])


def test_a_caller_that_never_spins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_board, "SHORT", 0.0)
    monkeypatch.setattr(parallel_board, "LONG", 0.0)
    check_equal("random", columns=20)


# ---------------------------------------------------------------------- the face by TensorDicts


@pytest.mark.parametrize("kind", ["cart poles", "numbered", "text", "custom batched"])
def test_reset_step_and_rollout(kind: str) -> None:
    def run(cls: type) -> Batches:
        with cls(3, factories(kind, 3)) as env:
            env.set_seed(1)
            torch.manual_seed(0)
            first = env.reset()
            mask = torch.zeros(*env.batch_size, 1, dtype=torch.bool)
            stepped = env.rand_step(first.clone())
            mask[1] = True
            partial_reset = env.reset(stepped["next"].clone().set("_reset", mask))
            return [first, stepped, partial_reset, env.rollout(12, break_when_any_done=False), env.rollout(12)]

    for one, other in zip(run(ParallelEnv), run(SerialEnv), strict=True):
        assert_same(one, other)


def test_the_checks_of_envs_pass() -> None:
    with ParallelEnv(3, lambda: Noise(3)) as env:
        check_env_specs(env)
        check_env(env)


def test_specs_and_attributes() -> None:
    with ParallelEnv(3, [lambda b=b: GymEnv(DiscreteCount(3 + b)) for b in range(3)]) as env:
        serial = SerialEnv(3, lambda: GymEnv(DiscreteCount(3)))
        for name in ("observation_spec", "full_action_spec", "full_reward_spec", "full_done_spec", "batch_size"):
            assert getattr(env, name) == getattr(serial, name)
        assert env.get_attribute("length") == [3, 4, 5]
        env.reset()
        env.rand_step()
        assert env.call("observe") == [1, 1, 1]
        with pytest.raises(WorkerRaised, match="no_such_name"):
            env.call("no_such_name")
        assert env.call("is_terminal") == [False] * 3
        assert (env.resets_itself, env.resets_rows, env.steps_rows) == (False, True, True)


@pytest.mark.parametrize("static", [False, True])
def test_seeds_go_along_the_chain(static: bool) -> None:
    with ParallelEnv(5, lambda: Noise(3), num_processes=2) as env:
        assert env.set_seed(9, static_seed=static) == seed_chain(9, 5, static=static)[-1]


def test_processes_draw_different_numbers_from_global_generators() -> None:
    with ParallelEnv(4, Drawing, num_processes=4) as env, ParallelEnv(1, Drawing) as other:
        drawn = torch.cat([env.reset()["observation"], other.reset()["observation"]])
        assert all(len(column.unique()) == 5 for column in drawn.unbind(1))


class Drawing(Count):
    """Observes numbers of the global generators of torch, numpy and Python."""

    observation_space = gym.spaces.Box(0, 1, (3,))

    def __init__(self) -> None:
        super().__init__(5)

    def observe(self) -> Any:
        import random

        import numpy as np

        return np.array([torch.rand(()).item(), np.random.random(), random.random()], np.float32)  # noqa: NPY002


# ---------------------------------------------------------------------- what it is made of


def test_factories_and_keywords() -> None:
    def first(batch: TensorDictBase) -> Any:
        return batch["observation"][:, :3].squeeze(-1).tolist()

    base = 4
    given: list[Any] = [lambda: Count(2, base), EnvCreator(Count, {"length": 3, "start": 5}), partial(Count, 3)]
    with ParallelEnv(3, given) as env:
        assert first(env.rollout(3, break_when_any_done=False)) == [[4, 5, 4], [5, 6, 7], [0, 1, 2]]
    with ParallelEnv(2, Count, create_env_kwargs=[{"length": 2}, {"length": 3, "start": 5}]) as env:
        assert first(env.rollout(3, break_when_any_done=False)) == [[0, 1, 0], [5, 6, 7]]
    with ParallelEnv(2, Count, create_env_kwargs={"length": 3}) as env:
        assert first(env.rollout(3)) == [[0, 1, 2]] * 2


def test_an_env_of_this_process() -> None:
    with pytest.raises(OptionError, match=r"is an env of this process; processes build their own: give a factory"):
        ParallelEnv(2, gym.make("CartPole-v1"))
    with ParallelEnv(3, GymEnv("CartPole-v1")) as env:
        first = env.reset()["observation"]
        assert len(first[:, 0].unique()) == 3
    with pytest.raises(OptionError, match="it is one env: give a factory of it instead"):
        ParallelEnv(2, GymEnv(Count(3)))


def test_it_starts_nothing_before_its_first_use_and_pickles_as_its_recipe() -> None:
    launch.server()
    before = descriptors()
    env = ParallelEnv(2, lambda: Count(3), num_processes=1, device="cpu")
    assert repr(env) == "ParallelEnv(2, num_processes=1)"
    again = pickle.loads(cloudpickle.dumps(env))
    another = env.another()
    assert repr(again) == repr(another) == repr(env)
    assert descriptors() == before
    assert env.device == torch.device("cpu")
    assert again.batch_size == another.batch_size == (2,)
    assert repr(again) == "ParallelEnv(2, GymEnv(<Count instance>), num_processes=1)"
    again.close()
    another.close()
    env.close()
    with pytest.raises(ClosedError, match="ParallelEnv is closed"):
        env.reset()


@pytest.mark.parametrize("count", [0, -1, True, 2.0, "2", None])
def test_numbers_that_cannot_be(count: Any) -> None:
    with pytest.raises(OptionError, match="num_workers: expected a positive number of envs"):
        ParallelEnv(count, Count)
    if count is not None:
        with pytest.raises(OptionError, match="num_processes: expected a positive number of processes or None"):
            ParallelEnv(2, Count, num_processes=count)


def test_options() -> None:
    with pytest.warns(DeprecationWarning, match=r"options \['mp_start_method', 'shared_memory'\] say how data travels") as info:
        ParallelEnv(2, Count, mp_start_method="fork", shared_memory=False, num_processes=8).close()
    assert len(info) == 1
    assert info[0].filename == __file__
    with pytest.raises(OptionError, match="unknown option 'num_procesess'. Did you mean 'num_processes'?"):
        ParallelEnv(2, Count, num_procesess=2)
    assert reap.ParallelEnv is ParallelEnv


def test_envs_that_differ() -> None:
    for processes in (1, 2):
        with pytest.raises(SpecMismatch, match="env 2 differs from env . in observation_spec"):
            _ = ParallelEnv(3, [lambda: Count(3), lambda: Count(3), lambda: Id(1)], num_processes=processes).batch_size


def test_memory_that_its_processes_cannot_write() -> None:
    from reap.recording.buffers import Slot, Stage

    with ParallelEnv(2, lambda: Count(3)) as env:
        stage, slot = Stage(env.fields_of_stage(), (2,)), Slot(env.slot_fields(), (2,), 1)
        with pytest.raises(OptionError, match="make them with make_block=env.make_block"):
            env.bind(stage, slot)
        assert env.reset()["observation"].tolist() == [[0], [0]]


# ---------------------------------------------------------------------- life


def test_close() -> None:
    launch.server()
    gc.collect()
    before = descriptors()
    env = ParallelEnv(3, lambda: Count(3))
    env.rollout(3)
    processes = watch(env_processes())
    env.close()
    env.close()
    assert have_ended(processes, timeout=0)
    for call in (env.reset, env.rand_step, partial(env.rollout, 2), partial(env.set_seed, 1), env.row_stepper):
        with pytest.raises(ClosedError, match="^ParallelEnv is closed; build a new one$"):
            call()
    del env, call
    gc.collect()
    assert descriptors() == before


@pytest.mark.parametrize("kind", ["random", "text"])
def test_dropped(kind: str) -> None:
    launch.server()
    gc.collect()
    before = descriptors()
    env = ParallelEnv(3, factories(kind, 3))
    env.rollout(3)
    processes = watch(env_processes())
    del env
    gc.collect()
    assert have_ended(processes)
    assert descriptors() == before


def test_memory_that_is_dropped_is_forgotten_by_the_processes() -> None:
    with ParallelEnv(2, lambda: Count(3), num_processes=1) as env:
        env.rollout(2)
        [pid] = env_processes()
        for _ in range(6):
            with SyncDataCollector(env, Const(), frames_per_batch=8) as collector:
                collector.next()
                collector.shutdown(close_env=False)
            del collector
            gc.collect()
        env.rollout(2)
        with open(f"/proc/{pid}/maps") as file:
            assert sum("memfd:reap " in line for line in file) <= 6
