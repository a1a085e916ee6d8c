"""Schedulers of a sampler's parameters: reap's, and torchrl's on reap's buffers."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch

from reap.data import (
    LazyTensorStorage,
    PrioritizedReplayBuffer,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    ReplayBuffer,
    SliceSampler,
    TensorDictPrioritizedReplayBuffer,
)
from reap.data.replay_buffers import scheduler as ours
from reap.errors import OptionError
from tests.neighbours import since_torchrl_013


@pytest.fixture(params=["reap", "torchrl"])
def schedulers(request: pytest.FixtureRequest) -> ModuleType:
    return ours if request.param == "reap" else pytest.importorskip("torchrl.data.replay_buffers.scheduler")


@pytest.fixture(params=["reap", pytest.param("torchrl", marks=since_torchrl_013)])
def of_buffers(request: pytest.FixtureRequest) -> ModuleType:
    """Schedulers that take a buffer in place of its sampler; torchrl's took its own buffers only."""
    return ours if request.param == "reap" else pytest.importorskip("torchrl.data.replay_buffers.scheduler")


def sampler() -> PrioritizedSampler:
    return PrioritizedSampler(10, alpha=0.5, beta=0.4)


def values(scheduler: Any, of: Any, name: str, steps: int) -> list[float]:
    found = []
    for _ in range(steps):
        scheduler.step()
        found.append(round(float(getattr(of, name)), 6))
    return found


def test_linear(schedulers: ModuleType) -> None:
    of = sampler()
    made = schedulers.LinearScheduler(of, param_name="beta", final_value=1.0, num_steps=4)
    assert values(made, of, "beta", 6) == [0.55, 0.7, 0.85, 1.0, 1.0, 1.0]


def test_steps(schedulers: ModuleType) -> None:
    of = sampler()
    made = schedulers.StepScheduler(of, "beta", gamma=0.2, n_steps=2, mode="additive", max_value=0.9)
    assert values(made, of, "beta", 7) == [0.4, 0.6, 0.6, 0.8, 0.8, 0.9, 0.9]
    halved = schedulers.StepScheduler(of, "alpha", gamma=0.5, min_value=0.2)
    assert values(halved, of, "alpha", 3) == [0.25, 0.2, 0.2]


def test_functions(schedulers: ModuleType) -> None:
    of = sampler()
    made = schedulers.LambdaScheduler(of, "beta", lambda_fn=lambda step: 1 + step, max_value=1.5)
    assert values(made, of, "beta", 3) == [0.8, 1.2, 1.5]


def test_several(schedulers: ModuleType) -> None:
    of = sampler()
    made = schedulers.SchedulerList([schedulers.LinearScheduler(of, "beta", 1.0, 2)])
    made.append(schedulers.LinearScheduler(of, "alpha", 0.7, 2))
    made.step()
    assert (round(of.beta, 6), round(of.alpha, 6)) == (0.7, 0.6)
    assert len(schedulers.SchedulerList(schedulers.LinearScheduler(of, "beta", 1.0, 2)).schedulers) == 1


@pytest.mark.parametrize("cls", [PrioritizedReplayBuffer, TensorDictPrioritizedReplayBuffer])
def test_buffers(of_buffers: ModuleType, cls: Any) -> None:
    buffer = cls(alpha=0.5, beta=0.4, batch_size=2)
    made = of_buffers.LinearScheduler(buffer, "beta", final_value=1.0, num_steps=2)
    assert values(made, buffer.sampler, "beta", 2) == [0.7, 1.0]


def test_slices_by_priority(of_buffers: ModuleType) -> None:
    of = PrioritizedSliceSampler(10, 0.5, 0.4, slice_len=2)
    buffer = ReplayBuffer(sampler=of)
    made = of_buffers.LinearScheduler(buffer, "beta", final_value=1.0, num_steps=1)
    assert values(made, of, "beta", 1) == [1.0]
    assert isinstance(of, SliceSampler)


def test_weights_follow(of_buffers: ModuleType) -> None:
    buffer = PrioritizedReplayBuffer(alpha=1.0, beta=0.0, eps=0.0, storage=LazyTensorStorage(4), batch_size=100)
    index = buffer.extend(torch.arange(2))
    buffer.update_priority(index, torch.tensor([1.0, 4.0]))
    made = of_buffers.LinearScheduler(buffer, "beta", final_value=1.0, num_steps=2)
    found = []
    for _ in range(3):
        weights = buffer.sample(return_info=True)[1]["priority_weight"]
        found.append(sorted(set(weights.tolist())))
        made.step()
    assert found == [[1.0], [0.5, 1.0], [0.25, 1.0]]


def test_states(schedulers: ModuleType) -> None:
    of, other = sampler(), sampler()
    made = schedulers.LinearScheduler(of, "beta", final_value=1.0, num_steps=4)
    values(made, of, "beta", 2)
    resumed = schedulers.LinearScheduler(other, "beta", final_value=1.0, num_steps=4)
    resumed.load_state_dict(made.state_dict())
    assert values(resumed, other, "beta", 1) == values(made, of, "beta", 1) == [0.85]


def test_wrong_arguments(schedulers: ModuleType) -> None:
    for call in (
        lambda: schedulers.LinearScheduler(3, "beta", 1.0, 2),
        lambda: schedulers.LinearScheduler(sampler(), "gamma", 1.0, 2),
        lambda: schedulers.StepScheduler(sampler(), "beta", mode="sideways"),
    ):
        with pytest.raises((ValueError, TypeError)):
            call()


def test_errors_say_what_was_expected() -> None:
    with pytest.raises(OptionError, match="expected a buffer or a sampler of reap.data, got int: 3"):
        ours.LinearScheduler(3, "beta", 1.0, 2)
    with pytest.raises(OptionError, match="param_name: expected an attribute of PrioritizedSampler.*, got 'gamma'"):
        ours.LinearScheduler(sampler(), "gamma", 1.0, 2)
    with pytest.raises(OptionError, match="mode: expected 'multiplicative' or 'additive', got 'sideways'"):
        ours.StepScheduler(sampler(), "beta", mode="sideways")  # pyright: ignore[reportArgumentType]
    with pytest.raises(OptionError, match="num_steps: expected a positive integer, got 0"):
        ours.LinearScheduler(sampler(), "beta", 1.0, 0)
    with pytest.raises(OptionError, match="beta: expected a finite number from 0 on, got -"):
        ours.StepScheduler(sampler(), "beta", gamma=-1.0, mode="additive").step()


def test_a_sampler_of_torchrl_is_refused() -> None:
    theirs = pytest.importorskip("torchrl.data").RandomSampler()
    with pytest.raises(OptionError, match="that is torchrl's: use the class of this name from reap.data"):
        ours.LinearScheduler(theirs, "default_priority", 1.0, 2)
