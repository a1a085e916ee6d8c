"""SyncDataCollector: what it can be built from, what is left when it cannot, and what it tells of itself."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any, ClassVar

import gymnasium as gym
import pytest
import torch
from torch import nn

from reap.collectors import RandomPolicy, SyncDataCollector, WeightUpdaterBase
from reap.collectors.options.collector import CollectorOptions
from reap.data import Bounded, Unbounded
from reap.envs import EnvBase, EnvCreator, GymEnv, ParallelEnv, SerialEnv
from reap.errors import ClosedError, OptionError, ReapError, SpecMismatch
from reap.testing import Const, Count, IdRows


class Closing(Count):
    """Counts how often it is closed; every one that is made is in `made`."""

    made: ClassVar[list[Closing]] = []

    def __init__(self, length: int = 5) -> None:
        super().__init__(length)
        self.closings = 0
        self.made.append(self)

    def close(self) -> None:
        self.closings += 1


@pytest.fixture(autouse=True)
def _forget() -> None:
    Closing.made.clear()


def observed(collector: SyncDataCollector) -> list[list[float]]:
    return collector.rollout()["observation"].reshape(-1, 4).tolist()


# ---------------------------------------------------------------------- what an env may be


def serial() -> SerialEnv:
    return SerialEnv(1, lambda: Count(3))


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        (Count(3), (4,)),
        (lambda: Count(3), (4,)),
        (GymEnv(Count(3)), (4,)),
        (lambda: GymEnv(Count(3)), (4,)),
        (EnvCreator(lambda: Count(3)), (4,)),
        (serial(), (1, 4)),
        (serial, (1, 4)),
    ],
)
def test_an_env_or_what_makes_one(given: Any, shape: tuple[int, ...]) -> None:
    batch = SyncDataCollector(given, Const(), frames_per_batch=4).rollout()
    assert tuple(batch.batch_size) == shape
    assert batch["observation"].flatten().tolist() == [0, 1, 2, 0]


def test_an_id() -> None:
    with SyncDataCollector("CartPole-v1", frames_per_batch=4) as collector:
        assert collector.rollout()["observation"].shape == (4, 4)
        assert repr(collector.env) == "GymEnv(CartPole-v1)"


def test_create_env_kwargs_go_to_the_factory() -> None:
    collector = SyncDataCollector(Count, Const(), frames_per_batch=4, create_env_kwargs={"length": 2, "start": 7})
    assert collector.rollout()["observation"].flatten().tolist() == [7, 8, 7, 8]
    with SyncDataCollector("CartPole-v1", frames_per_batch=2, create_env_kwargs={"frame_skip": 2}) as skipping:
        assert skipping.rollout()["next", "reward"].flatten().tolist() == [2, 2]


def test_create_env_kwargs_need_a_factory() -> None:
    with pytest.raises(OptionError, match=r"^create_env_kwargs \['length'\] need a factory, but an env was given$"):
        SyncDataCollector(Count(3), frames_per_batch=4, create_env_kwargs={"length": 2})


FACTORY = "create_env_fn {}: expected it to return an env, got "


def returns_nothing() -> None:
    Count(3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, "create_env_fn: expected an env, a factory or a gymnasium id, got int: 3"),
        (None, "create_env_fn: expected an env, a factory or a gymnasium id, got NoneType: None"),
        (returns_nothing, f"{FACTORY.format('returns_nothing')}NoneType: None; does it lack a return?"),
        (EnvCreator(returns_nothing), f"{FACTORY.format('returns_nothing')}NoneType: None; does it lack a return?"),
        (lambda: Count, f"{FACTORY.format('<lambda>')}type: {Count!r}; does it lack a call?"),
        (lambda: "CartPole-v1", f"{FACTORY.format('<lambda>')}str: 'CartPole-v1'"),
    ],
)
def test_no_env(given: Any, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        SyncDataCollector(given, frames_per_batch=4)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("CartPol-v1", " Did you mean 'CartPole-v1'?"),
        ("ALE/Pog-v5", " Did you mean 'ALE/Pong-v5'?"),
        ("CartPole-v77", " Did you mean 'CartPole-v1'?"),
        ("cart pole", " Did you mean 'CartPole-v1'?"),
        ("", ""),
    ],
)
def test_an_unknown_id_names_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(OptionError) as caught:
        SyncDataCollector(name, frames_per_batch=4)
    assert str(caught.value) == (
        f"unknown env id {name!r}: gymnasium has no env of that name.{hint} "
        "Ids of other packages are known after importing the package."
    )


def test_a_factory_that_raises() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'length'") as caught:
        SyncDataCollector(Count, frames_per_batch=4)
    assert caught.value.__notes__ == ["reap: raised by create_env_fn Count"]
    with pytest.raises(TypeError) as caught:
        SyncDataCollector(Count, frames_per_batch=4, create_env_kwargs={"size": 3})
    assert caught.value.__notes__ == ["reap: raised by create_env_fn Count with {'size': 3}"]


def test_a_closed_env() -> None:
    env = GymEnv(Count(3))
    env.close()
    with pytest.raises(ClosedError, match="^GymEnv is closed; build a new one$"):
        SyncDataCollector(env, frames_per_batch=4)


# ---------------------------------------------------------------------- what a policy may be


def test_policy_and_policy_factory() -> None:
    with pytest.raises(OptionError, match="^policy and policy_factory: expected one of them, got both$"):
        SyncDataCollector(Count(3), Const(), frames_per_batch=4, policy_factory=Const)


def test_a_policy_factory_is_called_once() -> None:
    made: list[Const] = []

    def factory() -> Const:
        made.append(Const(2.0))
        return made[-1]

    collector = SyncDataCollector(Count(3), frames_per_batch=4, policy_factory=factory)
    assert collector.rollout()["action"].flatten().tolist() == [2.0] * 4
    assert len(made) == 1
    assert collector.policy is made[0]


def test_a_policy_factory_that_returns_nothing() -> None:
    with pytest.raises(OptionError) as caught:
        SyncDataCollector(Count(3), frames_per_batch=4, policy_factory=lambda: None)
    assert str(caught.value) == "policy_factory: expected it to return a policy, got None; does it lack a return?"


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (3, "policy: expected a module or a function, got int: 3"),
        (Const, "policy: expected a module or a function, got the class Const; create one of it"),
    ],
)
def test_no_policy(policy: Any, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        SyncDataCollector(Count(3), policy, frames_per_batch=4)
    assert str(caught.value) == message
    with pytest.raises(OptionError) as caught:
        SyncDataCollector(Count(3), policy_factory=lambda: policy, frames_per_batch=4)
    assert str(caught.value) == message


def test_outputs_that_collide_with_keys_of_a_batch() -> None:
    for output in ("observation", "done", "truncated", "step_count", ("collector", "traj_ids"), ("next", "reward")):

        def policy(observation: torch.Tensor, output: Any = output) -> dict[Any, torch.Tensor]:
            return {"action": observation, output: observation}

        with pytest.raises(SpecMismatch) as caught:
            SyncDataCollector(Count(3), policy, frames_per_batch=4)
        assert str(caught.value) == (f"policy: outputs {[output]} collide with keys of every batch; give them other names")


# ---------------------------------------------------------------------- nothing half done


class NoUpdater(WeightUpdaterBase):
    """Refuses to be made."""

    def __init__(self) -> None:
        raise RuntimeError("no updater")

    def _get_server_weights(self) -> Any: ...

    def _sync_weights_with_worker(self, *, worker_id: Any, server_weights: Any) -> None: ...


FAILURES: dict[str, dict[str, Any]] = {
    "policy": {"policy": 3},
    "probe": {"policy": lambda observation: observation.double()},
    "raising policy": {"policy": lambda observation: 1 // 0},
    "policy_factory": {"policy_factory": lambda: 1 // 0},
    "weight_updater": {"weight_updater": 3},
    "raising weight_updater": {"weight_updater": NoUpdater},
    "replay_buffer": {"replay_buffer": object()},
    "interruptor": {"interruptor": object()},
    "collision": {"policy": lambda observation: {"action": observation, "done": observation}},
    "random policy": {"policy": RandomPolicy(Bounded(0, 1, (7,)))},
    "warning": {"total_frames": 7},
}


@pytest.mark.parametrize("failure", FAILURES)
def test_an_env_built_by_the_collector_is_closed_when_construction_fails(failure: str) -> None:
    with pytest.raises((ReapError, ZeroDivisionError, RuntimeError, UserWarning)):
        SyncDataCollector(lambda: GymEnv(Closing()), frames_per_batch=4, **FAILURES[failure])
    assert [env.closings for env in Closing.made] == [1]


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("wrap", [Closing, lambda: GymEnv(Closing()), lambda: SerialEnv(2, Closing)])
def test_an_env_that_was_passed_is_not(failure: str, wrap: Any) -> None:
    env = wrap()
    with pytest.raises((ReapError, ZeroDivisionError, RuntimeError, UserWarning)):
        SyncDataCollector(env, frames_per_batch=4, **FAILURES[failure])
    assert {env.closings for env in Closing.made} == {0}
    if isinstance(env, EnvBase):
        assert env.rollout(2, break_when_any_done=False).batch_size[-1] == 2


def test_options_are_looked_at_before_any_env_is_built() -> None:
    for wrong in ({"frames_per_batch": 0}, {"frames_per_batch": 4, "nonsense": 1}, {"frames_per_batch": 4, "device": "x"}):
        with pytest.raises(OptionError):
            SyncDataCollector(Closing, **wrong)  # pyright: ignore[reportArgumentType]
    assert Closing.made == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"weight_updater": 3}, "weight_updater: expected a WeightUpdaterBase or a constructor of one, got 3"),
        ({"weight_updater": dict}, "weight_updater: expected a WeightUpdaterBase or a constructor of one, got {}"),
        ({"replay_buffer": 3}, "replay_buffer: expected an object with extend, got int"),
        ({"replay_buffer": {1}, "extend_buffer": False}, "replay_buffer: expected an object with extend and add, got set"),
        ({"interruptor": 3}, "interruptor: expected an object with collection_stopped(), which returns a bool"),
    ],
)
def test_objects_of_a_wrong_type(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        SyncDataCollector(Count(3), frames_per_batch=4, **given)
    assert str(caught.value) == message


# ---------------------------------------------------------------------- rounding


def warnings_of(env: Any, **given: Any) -> tuple[list[str], SyncDataCollector]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        collector = SyncDataCollector(env, **given)
    assert {warning.filename for warning in caught} <= {__file__}, "they point at the line that builds the collector"
    return [str(warning.message) for warning in caught], collector


def test_a12_frames_per_batch_is_rounded_up_with_one_warning() -> None:
    texts, collector = warnings_of(IdRows((10,)), frames_per_batch=145)
    assert texts == ["frames_per_batch=145 is not a multiple of the number of envs: each batch has 150 frames"]
    assert (collector.requested_frames_per_batch, collector.frames_per_batch) == (145, 150)
    assert collector.rollout().batch_size == collector.batch_size == (10, 15)


def test_total_frames_is_rounded_up_with_one_warning() -> None:
    texts, collector = warnings_of(Count(3), frames_per_batch=4, total_frames=10)
    assert texts == ["total_frames=10 is not a multiple of the 4 frames of a batch: 12 frames are collected"]
    assert (collector.total_frames, len(collector), len(list(collector))) == (10, 3, 3)
    assert collector.stats().frames == 12


def test_a15_length_with_a_batched_env() -> None:
    texts, collector = warnings_of(IdRows((16,)), frames_per_batch=173, total_frames=300)
    assert len(texts) == 2
    assert collector.frames_per_batch == 176
    assert (len(collector), len(list(collector))) == (2, 2)


def test_whole_numbers_do_not_warn() -> None:
    texts, collector = warnings_of(IdRows((2, 3)), frames_per_batch=12, total_frames=24)
    assert texts == []
    assert (collector.frames_per_batch, collector.requested_frames_per_batch, len(collector)) == (12, 12, 2)


# ---------------------------------------------------------------------- what it tells


def test_attributes() -> None:
    env, policy = IdRows((2,)), Const()
    collector = SyncDataCollector(env, policy, frames_per_batch=6, storing_device="cpu")
    assert collector.env is env
    assert collector.policy is policy
    assert (collector.num_workers, collector.total_frames, collector.closed) == (1, -1, False)
    assert collector.batch_size == torch.Size([2, 3])
    assert collector.storing_device == torch.device("cpu")
    assert collector.observation_spec == env.observation_spec
    assert collector.action_spec == Unbounded((2, 1))
    assert collector.reward_spec == env.reward_spec
    assert collector.done_spec == env.done_spec
    assert isinstance(collector, torch.utils.data.IterableDataset)
    assert SyncDataCollector(env, policy, frames_per_batch=6).storing_device is None


@pytest.mark.parametrize(
    "name",
    ["frames_per_batch", "requested_frames_per_batch", "total_frames", "num_workers", "batch_size", "closed", "policy"],
)
def test_attributes_are_read_only(name: str) -> None:
    collector = SyncDataCollector(Count(3), frames_per_batch=4)
    with pytest.raises(AttributeError):
        setattr(collector, name, 3)


def test_repr_says_how_the_policy_is_called() -> None:
    collector = SyncDataCollector(Count(3), nn.Linear(1, 1), frames_per_batch=4, total_frames=8)
    collector.next()
    assert repr(collector) == (
        "SyncDataCollector(GymEnv(<Count instance>), policy=Linear (plain), frames_per_batch=4, total_frames=8, collected=4)"
    )
    assert "policy=RandomPolicy (random)" in repr(SyncDataCollector(Count(3), frames_per_batch=4))


def test_options_of_one_process_only() -> None:
    known = set(CollectorOptions.__dataclass_fields__)
    assert not known & {"num_workers", "cat_results", "update_at_each_batch", "preemptive_threshold", "num_sub_threads"}
    with pytest.raises(OptionError, match="unknown option 'cat_results'"):
        SyncDataCollector(Count(3), frames_per_batch=4, cat_results="stack")  # pyright: ignore[reportCallIssue]


def test_a_gymnasium_env_is_the_one_that_runs() -> None:
    env = Count(3)
    collector = SyncDataCollector(env, Const(), frames_per_batch=4)
    collector.rollout()
    assert isinstance(env, gym.Env)
    assert env.resets == 2


def test_a_batch_that_does_not_fit_is_refused_at_construction() -> None:
    with pytest.raises(MemoryError, match="do not fit into the memory of this machine(?s:.*)Use fewer frames per batch"):
        SyncDataCollector(partial(Count, 5), Const(), frames_per_batch=3_000_000_000_000)


def test_a_batch_that_other_processes_write_does_not_fit() -> None:
    with (
        ParallelEnv(2, partial(Count, 5)) as env,
        pytest.raises(MemoryError, match=r"shared memory are needed(?s:.*)Use fewer frames per batch"),
    ):
        SyncDataCollector(env, Const(), frames_per_batch=3_000_000_000_000)
