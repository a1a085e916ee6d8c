"""Arguments of methods: a bool that is none, a seed that is none, a number of steps that is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from reap import SyncDataCollector, evaluate, step_mdp
from reap.data import (
    LazyTensorStorage,
    ReplayBuffer,
    ReplayBufferEnsemble,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
    from_minari,
    load_run,
    to_minari,
)
from reap.envs import EnvBase, GymEnv, ParallelEnv, SerialEnv, check_env_specs, default_info_dict_reader
from reap.errors import OptionError
from reap.testing import Const, Count

SIZE = 4


def frames() -> TensorDict:
    return TensorDict({"number": torch.arange(SIZE), "td_error": torch.arange(1.0, SIZE + 1)}, [SIZE])


def buffer(kind: Any = ReplayBuffer) -> Any:
    made = kind(storage=LazyTensorStorage(SIZE), batch_size=2)
    made.extend(frames())
    return made


def ensemble() -> ReplayBufferEnsemble:
    return ReplayBufferEnsemble(buffer(TensorDictReplayBuffer), batch_size=2)


def env() -> EnvBase:
    return GymEnv(Count(5))


NOWHERE = "nowhere"

SWITCHES: dict[str, Callable[[Any], Any]] = {
    "auto_reset": lambda value: env().rollout(2, auto_reset=value),
    "auto_cast_to_device": lambda value: env().rollout(2, auto_cast_to_device=value),
    "break_when_any_done": lambda value: env().rollout(2, break_when_any_done=value),
    "return_contiguous": lambda value: env().rollout(2, return_contiguous=value),
    "set_truncated": lambda value: env().rollout(2, set_truncated=value),
    "keep_other": lambda value: step_mdp(env().rollout(2), keep_other=value),
    "exclude_reward": lambda value: step_mdp(env().rollout(2), exclude_reward=value),
    "exclude_done": lambda value: step_mdp(env().rollout(2), exclude_done=value),
    "exclude_action": lambda value: step_mdp(env().rollout(2), exclude_action=value),
    "static_seed": lambda value: env().set_seed(1, value),
    "check_dtype": lambda value: check_env_specs(env(), check_dtype=value),
    "ignore_private": lambda value: default_info_dict_reader(ignore_private=value),
    "start": lambda value: evaluate(env, Const(), episodes=1, start=value),
    "return_info": lambda value: buffer().sample(return_info=value),
    "return_info ": lambda value: buffer(TensorDictReplayBuffer).sample(return_info=value),
    "return_info  ": lambda value: ensemble().sample(return_info=value),
    "include_info": lambda value: buffer(TensorDictReplayBuffer).sample(include_info=value),
    "update_priority": lambda value: buffer(TensorDictReplayBuffer).extend(frames(), update_priority=value),
    "empty_write_count": lambda value: buffer().empty(value),
    "empty_write_count ": lambda value: ensemble().empty(value),
    "invert": lambda value: buffer().append_transform(lambda data: data, invert=value),
    "verify": lambda value: buffer().loads(NOWHERE, verify=value),
    "verify ": lambda value: ensemble().loads(NOWHERE, verify=value),
    "verify  ": lambda value: load_run(NOWHERE, verify=value),
    "complete_only": lambda value: to_minari(frames(), "a/b-v0", complete_only=value),
    "categorical_action_encoding": lambda value: from_minari("a/b-v0", categorical_action_encoding=value),
}


@pytest.mark.parametrize("wrong", ["no", 1, 0.0])
@pytest.mark.parametrize("name", SWITCHES)
def test_a_bool_that_is_none(name: str, wrong: Any) -> None:
    with pytest.raises(OptionError, match=f"{name.strip()}: expected a bool, got {wrong!r}"):
        SWITCHES[name](wrong)


def test_a_bool_that_is_none_of_a_collector() -> None:
    with (
        SyncDataCollector(env, Const(), frames_per_batch=4, total_frames=4) as collector,
        pytest.raises(OptionError, match="static_seed: expected a bool, got 'no'"),
    ):
        collector.set_seed(1, "no")  # pyright: ignore[reportArgumentType]


def test_bools_of_numpy_count() -> None:
    made = TensorDictPrioritizedReplayBuffer(alpha=1.0, beta=1.0, eps=0.0, storage=LazyTensorStorage(SIZE), batch_size=2)
    made.extend(frames(), update_priority=np.False_)
    sample, info = made.sample(64, return_info=np.True_, include_info=np.False_)
    assert set(sample.keys()) == {"number", "td_error"}
    assert torch.equal(info["_weight"], torch.ones(64))
    assert env().rollout(7, break_when_any_done=np.False_).shape == (7,)
    assert env().set_seed(np.int64(3), np.True_) == 3


ENVS: dict[str, Callable[[], EnvBase]] = {
    "gym": env,
    "serial": lambda: SerialEnv(2, env),
    "parallel": lambda: ParallelEnv(2, env),
}


@pytest.mark.parametrize("seed", ["a", 1.0, True, -1, 2**63, None])
@pytest.mark.parametrize("kind", ["gym", "serial", pytest.param("parallel", marks=pytest.mark.processes)])
def test_a_seed_that_is_none(kind: str, seed: Any) -> None:
    made = ENVS[kind]()
    with pytest.raises(OptionError, match=r"seed: expected an integer from 0 to 2\*\*63 - 1, got "):
        made.set_seed(seed)
    made.close()


@pytest.mark.parametrize("steps", [0, 2.5, True, "3", None])
def test_a_number_of_steps_that_is_none(steps: Any) -> None:
    with pytest.raises(OptionError, match="max_steps: expected a positive integer, got "):
        env().rollout(steps)
    with pytest.raises(OptionError, match="steps: expected a positive integer, got "):
        check_env_specs(env(), steps=steps)
