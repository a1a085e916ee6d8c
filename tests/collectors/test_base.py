"""Iteration, reset, seeds, weights, attributes and the end of a collector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from reap.collectors import SyncDataCollector
from reap.envs import EnvBase, GymEnv, SerialEnv
from reap.errors import ClosedError, OptionError, SpecMismatch
from reap.seeds import next_seed, seed_chain
from reap.testing import Const, Count, Crash, Id, IdRows, MLPPolicy, Noise


def count(**options: Any) -> SyncDataCollector:
    return SyncDataCollector(Count(5), Const(), **{"frames_per_batch": 4, **options})


def observed(batch: Any) -> list[float]:
    return batch["observation"].flatten().tolist()


def ids(batch: Any) -> list[int]:
    return batch["collector", "traj_ids"].flatten().tolist()


# ---------------------------------------------------------------------- iteration


def test_iteration_ends_with_the_budget() -> None:
    collector = count(total_frames=12)
    assert [observed(batch) for batch in collector] == [[0, 1, 2, 3], [4, 0, 1, 2], [3, 4, 0, 1]]
    assert list(collector) == []
    assert collector.next() is None
    assert not collector.closed


def test_a_second_loop_goes_on_where_the_first_stopped() -> None:
    collector = count(total_frames=12)
    for batch in collector:
        assert observed(batch) == [0, 1, 2, 3]
        break
    assert [observed(batch) for batch in collector] == [[4, 0, 1, 2], [3, 4, 0, 1]]


def test_two_iterators_share_the_budget() -> None:
    collector = count(total_frames=12)
    first, second = iter(collector), collector.iterator()
    assert observed(next(first)) == [0, 1, 2, 3]
    assert observed(next(second)) == [4, 0, 1, 2]
    assert observed(collector.next()) == [3, 4, 0, 1]
    for iterator in (first, second):
        with pytest.raises(StopIteration):
            next(iterator)


def test_rollout_counts_and_does_not_end() -> None:
    collector = count(total_frames=4)
    assert observed(collector.rollout()) == [0, 1, 2, 3]
    assert collector.next() is None
    assert observed(collector.rollout()) == [4, 0, 1, 2]
    assert collector.stats().frames == 8


def test_length() -> None:
    assert len(count(total_frames=12)) == 3
    assert [len(count(total_frames=n)) for n in (4, 8)] == [1, 2]
    for endless in (-1, None):
        with pytest.raises(TypeError, match="^a collector without total_frames has no length: it runs until you stop$"):
            len(count(total_frames=endless))


def test_endless() -> None:
    collector = count()
    batches = [batch for batch, _ in zip(collector, range(100), strict=False)]
    assert len(batches) == 100
    assert collector.total_frames == -1


# ---------------------------------------------------------------------- reset


def test_reset_of_all_begins_with_the_next_batch() -> None:
    collector = count()
    assert observed(collector.next()) == [0, 1, 2, 3]
    collector.reset()
    batch = collector.next()
    assert observed(batch) == [0, 1, 2, 3]
    assert ids(batch) == [1, 1, 1, 1]
    assert collector.env.wrapped.resets == 2


@pytest.mark.parametrize("rows", [1, [1], (1,), torch.tensor(1), [1, 1]])
def test_reset_of_a_row(rows: Any) -> None:
    env = SerialEnv(3, lambda: Count(100))
    collector = SyncDataCollector(env, Const(), frames_per_batch=6)
    collector.next()
    collector.reset(rows)
    batch = collector.next()
    assert batch["observation"].squeeze(-1).tolist() == [[2, 3], [0, 1], [2, 3]]
    assert batch["collector", "traj_ids"].tolist() == [[0, 0], [3, 3], [2, 2]]
    assert collector.getattr_env("resets") == [1, 2, 1]


def test_reset_of_rows_of_a_batched_env() -> None:
    collector = SyncDataCollector(IdRows((2, 2)), Const(), frames_per_batch=4)
    collector.next()
    collector.reset([0, 3])
    assert collector.next()["observation"][..., 0, 1].tolist() == [[1, 0], [0, 1]], "these episodes"


@pytest.mark.parametrize(("rows", "unknown"), [(3, [3]), (-1, [-1]), ([0, 5, 7], [5, 7])])
def test_reset_of_a_row_that_is_not_there(rows: Any, unknown: list[int]) -> None:
    collector = SyncDataCollector(SerialEnv(3, lambda: Count(100)), Const(), frames_per_batch=6)
    collector.next()
    with pytest.raises(OptionError) as caught:
        collector.reset(rows)
    assert str(caught.value) == f"reset: expected rows from 0 to 2, got {unknown}"
    assert collector.next()["observation"][:, 0, 0].tolist() == [2, 2, 2], "nothing was reset"


# ---------------------------------------------------------------------- seeds


class Seeds(Count):
    """Keeps the seeds that its resets are given."""

    def __init__(self) -> None:
        super().__init__(3)
        self.seeds: list[int | None] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seeds.append(seed)
        return super().reset(seed=seed)


@pytest.mark.parametrize("rows", [1, 3])
def test_set_seed_goes_along_the_chain_and_to_each_env_once(rows: int) -> None:
    collector = SyncDataCollector(SerialEnv(rows, Seeds), Const(), frames_per_batch=4 * rows)
    assert collector.set_seed(7) == seed_chain(7, rows)[-1]
    collector.next()
    collector.next()
    assert collector.getattr_env("seeds") == [[None, seed, None, None] for seed in seed_chain(7, rows)[:-1]]


def test_static_seed() -> None:
    collector = SyncDataCollector(SerialEnv(3, Seeds), Const(), frames_per_batch=3)
    assert collector.set_seed(7, static_seed=True) == 7
    collector.next()
    assert collector.getattr_env("seeds") == [[None, 7]] * 3


def test_set_seed_of_a_single_env_returns_the_next() -> None:
    assert count().set_seed(7) == next_seed(7) == int(np.random.SeedSequence(7).generate_state(1)[0] >> 1)


def test_set_seed_begins_new_episodes() -> None:
    collector = count()
    collector.next()
    collector.set_seed(0)
    batch = collector.next()
    assert (observed(batch), ids(batch)) == ([0, 1, 2, 3], [1, 1, 1, 1])


@pytest.mark.parametrize("seed", [-1, True, 1.5, "7", None, 2**63])
def test_no_seed(seed: Any) -> None:
    collector = count()
    collector.next()
    with pytest.raises(OptionError) as caught:
        collector.set_seed(seed)
    assert str(caught.value) == f"seed: expected an integer from 0 to 2**63 - 1, got {seed!r}"
    assert observed(collector.next()) == [4, 0, 1, 2], "nothing has begun anew"


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("warm_up", [0, 12])
def test_the_same_seed_gives_the_same_batches(rows: int, warm_up: int) -> None:
    def batches(seed: int) -> list[TensorDict]:
        policy = MLPPolicy(4).eval()
        policy.load_state_dict(weights)
        env = SerialEnv(rows, lambda: GymEnv(Noise(4), categorical_action_encoding=True))
        collector = SyncDataCollector(env, policy, frames_per_batch=12, init_random_frames=warm_up)
        collector.next()
        collector.set_seed(seed)
        return [collector.next() for _ in range(4)]

    weights = MLPPolicy(4).state_dict()
    first = batches(3)
    torch.manual_seed(99)
    for one, other in zip(first, batches(3), strict=True):
        drop = ("collector", "traj_ids")
        assert (one.exclude(drop) == other.exclude(drop)).all()
    assert not torch.equal(first[0]["observation"], batches(4)[0]["observation"])


def noisy() -> SyncDataCollector:
    env = SerialEnv(2, lambda: GymEnv(Noise(4), categorical_action_encoding=True))
    torch.manual_seed(5)
    collector = SyncDataCollector(env, MLPPolicy(4), frames_per_batch=8)
    collector.set_seed(3)
    return collector


def test_after_a_seed_the_training_loop_and_the_collector_draw_apart() -> None:
    quiet, loud = noisy(), noisy()
    torch.manual_seed(8)
    expected = torch.rand(3, generator=torch.Generator().manual_seed(8))
    for i in range(3):
        assert (quiet.next() == loud.next()).all()
        assert torch.equal(torch.rand(1), expected[i : i + 1]), "the collector drew from the caller's generator"


def test_without_a_seed_the_global_generator_is_used() -> None:
    env = GymEnv(Count(5))
    collector = SyncDataCollector(env, lambda observation: torch.rand(1), frames_per_batch=4)
    torch.manual_seed(8)
    expected = torch.rand(5)
    torch.manual_seed(8)
    assert torch.equal(collector.next()["action"].flatten(), expected[:4])
    assert torch.equal(torch.rand(1), expected[4:])


def test_the_callers_generator_comes_back_after_an_error() -> None:
    collector = SyncDataCollector(GymEnv(Crash(2)), lambda observation: torch.rand(1), frames_per_batch=4)
    collector.set_seed(0)
    state = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="crashed in step 2"):
        collector.next()
    assert torch.equal(torch.get_rng_state(), state)


# ---------------------------------------------------------------------- weights, attributes


def test_weights_of_this_process_are_always_current() -> None:
    policy = Const(0.0)
    collector = SyncDataCollector(Count(5), policy, frames_per_batch=2)
    assert collector.next()["action"].flatten().tolist() == [0, 0]
    with torch.no_grad():
        policy.w.fill_(3)
    assert collector.next()["action"].flatten().tolist() == [3, 3]
    assert collector.policy_version == 0


def test_each_update_is_a_version() -> None:
    collector = count(track_policy_version=True)
    versions = [collector.next()["collector", "policy_version"].tolist()]
    for _ in range(2):
        collector.update_policy_weights_()
        versions.append(collector.next()["collector", "policy_version"].tolist())
    assert versions == [[0] * 4, [1] * 4, [2] * 4]
    with pytest.raises(SpecMismatch):
        collector.update_policy_weights_({"v": torch.zeros(1)})
    assert collector.policy_version == 2, "a failed update is none"


def test_weights_without_a_policy_that_has_any() -> None:
    for policy in (None, torch.neg):
        collector = SyncDataCollector(Count(5), policy, frames_per_batch=2)
        collector.update_policy_weights_()
        with pytest.raises(OptionError) as caught:
            collector.update_policy_weights_({"w": torch.zeros(1)})
        assert str(caught.value) == "weights: this SyncDataCollector has no policy with weights to update"


class Leveled(Count):
    """Has a level, and a method to change it."""

    level = 1

    def set_level(self, level: int, bonus: int = 0) -> int:
        before, self.level = self.level, level + bonus
        return before


def test_attributes_and_methods_of_the_env() -> None:
    env = Leveled(5)
    collector = SyncDataCollector(env, Const(2.0), frames_per_batch=2)
    assert collector.getattr_env("level") == 1
    assert collector.call_env("set_level", 3, 4) == 1
    assert env.level == collector.getattr_env("level") == 7
    with pytest.raises(AttributeError, match="colour"):
        collector.getattr_env("colour")
    assert collector.getattr_policy("w") is collector.policy.w
    with pytest.raises(AttributeError, match="colour"):
        collector.getattr_policy("colour")


def test_attributes_and_methods_of_several_envs() -> None:
    collector = SyncDataCollector(SerialEnv(3, lambda: Leveled(5)), Const(), frames_per_batch=3)
    assert collector.call_env("set_level", 3) == [1, 1, 1]
    assert collector.getattr_env("level") == [3, 3, 3]
    assert SyncDataCollector(IdRows((2,)), Const(), frames_per_batch=2).getattr_env("resets") == [1, 1]


# ---------------------------------------------------------------------- the end


CALLS: dict[str, Callable[[SyncDataCollector], Any]] = {
    "iter": lambda collector: next(iter(collector)),
    "iterator": lambda collector: next(collector.iterator()),
    "next": lambda collector: collector.next(),
    "rollout": lambda collector: collector.rollout(),
    "reset": lambda collector: collector.reset(),
    "set_seed": lambda collector: collector.set_seed(1),
    "update_policy_weights_": lambda collector: collector.update_policy_weights_(),
    "getattr_env": lambda collector: collector.getattr_env("resets"),
    "getattr_policy": lambda collector: collector.getattr_policy("w"),
    "call_env": lambda collector: collector.call_env("observe"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_closed_collector_refuses(call: str) -> None:
    collector = count(total_frames=8)
    collector.shutdown()
    with pytest.raises(ClosedError, match="^this SyncDataCollector is shut down; build a new one$"):
        CALLS[call](collector)


def test_what_a_closed_collector_still_tells() -> None:
    collector = count(total_frames=8)
    collector.next()
    collector.shutdown()
    assert (collector.closed, len(collector), collector.frames_per_batch, collector.stats().frames) == (True, 2, 4, 4)
    assert "collected=4" in repr(collector)


def test_a_loop_ends_with_an_error_when_it_is_closed_inside() -> None:
    collector = count(total_frames=8)
    batches = iter(collector)
    next(batches)
    collector.shutdown()
    with pytest.raises(ClosedError):
        next(batches)


def closing(env: EnvBase) -> EnvBase:
    """The env, which counts how often it is closed in `closings`."""
    close = env.close
    env.closings = 0

    def counted() -> None:
        env.closings += 1
        close()

    env.close = counted
    return env


def test_shutdown_twice_closes_the_env_once() -> None:
    env = closing(GymEnv(Count(5)))
    collector = SyncDataCollector(env, frames_per_batch=4)
    collector.shutdown()
    collector.shutdown(timeout=1.0)
    assert (env.closings, env.closed, collector.closed) == (1, True, True)


def test_shutdown_that_leaves_the_env_open() -> None:
    env = closing(GymEnv(Count(5)))
    collector = SyncDataCollector(env, frames_per_batch=4)
    collector.shutdown(close_env=False)
    collector.shutdown()
    assert (env.closings, env.closed, collector.closed) == (0, False, True)
    assert observed(env.rollout(2)) == [0, 1]


def test_k01_context_manager() -> None:
    env = closing(GymEnv(Count(5)))
    with SyncDataCollector(env, frames_per_batch=4) as collector:
        assert isinstance(collector, SyncDataCollector)
        assert not collector.closed
    assert collector.closed
    assert env.closings == 1
    with pytest.raises(ZeroDivisionError), count() as collector:
        _ = collector.frames_per_batch / 0
    assert collector.closed


def test_a19_reaching_total_frames_closes_nothing() -> None:
    env = closing(GymEnv(Id(0)))
    collector = SyncDataCollector(env, Const(), frames_per_batch=4, total_frames=8)
    list(collector)
    assert (env.closings, env.closed, collector.closed) == (0, False, False)
    assert env.rollout(3).batch_size[-1] <= 3
    assert collector.rollout().batch_size == (4,)
