"""`evaluate(..., start=True)`: a process beside training, whose results belong to the versions that were submitted."""

from __future__ import annotations

import os
import signal
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import reap
from reap.collectors import SyncDataCollector
from reap.errors import ClosedError, OptionError, SpecMismatch, WorkerDied, WorkerRaised
from reap.evaluation import Evaluation, Evaluator
from reap.testing import Count

LENGTH = 4


class Echo(Count):
    """Each reward is the action."""

    def step(self, action: Any) -> Any:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float(np.asarray(action).sum()), terminated, truncated, info


class Waiting(Echo):
    """A reset waits until somebody reads from a fifo."""

    def __init__(self, fifo: str) -> None:
        super().__init__(LENGTH)
        self._fifo = fifo

    def reset(self, **options: Any) -> Any:
        with open(self._fifo, "w") as told:
            told.write(str(os.getpid()))
        with open(f"{self._fifo}.go") as go:  # only one reset at a time is told: else the pids of two would be read together
            go.read()
        return super().reset(**options)


class Broken(Count):
    """Cannot be stepped."""

    def step(self, action: Any) -> Any:
        raise ZeroDivisionError("broken on purpose")


class Scale(nn.Module):
    """Acts with its one weight."""

    def __init__(self, value: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([value]))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.weight.expand(*observation.shape[:-1], 1)


def echo() -> reap.GymEnv:
    return reap.GymEnv(Echo(LENGTH))


def pendulums() -> reap.SerialEnv:
    return reap.SerialEnv(2, "Pendulum-v1")


@pytest.fixture
def fifo(tmp_path: Path) -> str:
    path = str(tmp_path / "fifo")
    os.mkfifo(path)
    os.mkfifo(f"{path}.go")
    return path


def waiting(fifo: str, policy: Any) -> Evaluator:
    return reap.evaluate(lambda: reap.GymEnv(Waiting(fifo)), policy, episodes=1, start=True)


def let_one_begin(fifo: str) -> int:
    """Let a reset go on; the pid of who resets."""
    pid = int(Path(fifo).read_text())
    Path(f"{fifo}.go").write_text("")
    return pid


def let_one_run(fifo: str) -> None:
    """Let an evaluation of one episode run: its last frame is followed by a reset."""
    let_one_begin(fifo)
    let_one_begin(fifo)


def test_results_belong_to_versions() -> None:
    policy = Scale()
    with reap.evaluate(echo, policy, episodes=3, start=True) as evaluator:
        for version, weight in [(7, 0.25), (9, 0.5)]:
            policy.weight.data.fill_(weight)
            assert evaluator.submit(version=version) == version
            policy.weight.data.fill_(-1)  # training goes on: the copy has been taken
            result = evaluator.wait()
            assert (result.version, result.mean, result.lengths.tolist()) == (version, weight * LENGTH, [LENGTH] * 3)
        assert evaluator.results() == []


def test_the_same_result_as_here() -> None:
    policy = nn.Sequential(nn.Linear(3, 1), nn.Tanh())
    here = reap.evaluate("Pendulum-v1", policy, episodes=2, seed=3, max_frames_per_traj=30)
    with reap.evaluate("Pendulum-v1", policy, episodes=2, seed=3, max_frames_per_traj=30, start=True) as evaluator:
        assert evaluator.submit() == 1
        assert evaluator.submit(policy.state_dict()) == 2
        results = [evaluator.wait()]
        while results[-1].version != 2:
            results.append(evaluator.wait())
    assert all(one.returns.tolist() == here.returns.tolist() for one in results)
    assert str(results[-1]) == f"version 2: {here}"


def test_submitting_never_waits_and_the_latest_wins(fifo: str) -> None:
    policy = Scale()
    with waiting(fifo, policy) as evaluator:
        for version in range(1, 6):
            policy.weight.data.fill_(version / 8)
            evaluator.submit()
        assert evaluator.is_busy
        assert evaluator.results() == []
        with pytest.raises(TimeoutError, match="no evaluation has ended in 0.01 s"):
            evaluator.wait(0.01)
        let_one_run(fifo)
        assert (evaluator.wait().version, evaluator.is_busy) == (1, True)
        let_one_run(fifo)
        last = evaluator.wait()
        assert (last.version, last.mean) == (5, 5 / 8 * LENGTH)
        with pytest.raises(OptionError, match="expected weights under way, found none; call submit"):
            evaluator.wait()


def test_collection_goes_on_meanwhile(fifo: str) -> None:
    policy = Scale(0.5)
    collector = SyncDataCollector(echo, policy, frames_per_batch=8, total_frames=24)
    with waiting(fifo, policy) as evaluator:
        evaluator.submit(version=0)
        assert sum(batch.numel() for batch in collector) == 24
        let_one_run(fifo)
        assert evaluator.wait().mean == 0.5 * LENGTH


def test_all_of_the_state_travels() -> None:
    policy = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1), nn.Tanh())
    with reap.evaluate(pendulums, policy, episodes=2, seed=0, max_frames_per_traj=5, start=True) as evaluator:
        policy(torch.randn(5, 3))  # changes the statistics, which are buffers
        here = reap.evaluate(pendulums, policy, episodes=2, seed=0, max_frames_per_traj=5)
        evaluator.submit()
        assert evaluator.wait().returns.tolist() == here.returns.tolist()


class Shifted(nn.Module):
    """Acts with the sum of its attributes, and has no weights."""

    def __init__(self) -> None:
        super().__init__()
        self.eps, self.shift = 0.0, torch.zeros(1)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return (self.eps + self.shift).expand(*observation.shape[:-1], 1)


@pytest.mark.parametrize("make", [Shifted, lambda: nn.Sequential(Scale(1.0), Shifted())])
def test_plain_attributes_travel(make: Callable[[], Any]) -> None:
    policy = make()
    own = policy if isinstance(policy, Shifted) else policy[1]
    with reap.evaluate(echo, policy, episodes=1, start=True) as evaluator:
        own.eps, own.shift = 0.25, torch.full((1,), 0.5)
        evaluator.submit()
        own.eps = 1.0
        assert evaluator.wait().mean == pytest.approx(0.75 * LENGTH)
        evaluator.submit(policy)
        assert evaluator.wait().mean == pytest.approx(1.5 * LENGTH)
        own.eps = 2.0
        evaluator.submit(policy.state_dict())  # has no attributes
        assert evaluator.wait().mean == pytest.approx(1.5 * LENGTH)


@pytest.mark.parametrize("make", [lambda policy: policy.forward, lambda policy: lambda observation: 1 * policy(observation)])
def test_functions_that_hold_weights(make: Callable[[Scale], Any]) -> None:
    policy = Scale()
    with reap.evaluate(echo, make(policy), episodes=1, start=True) as evaluator:
        policy.weight.data.fill_(0.75)
        evaluator.submit()
        assert evaluator.wait().mean == 0.75 * LENGTH


def test_a_policy_without_weights() -> None:
    with reap.evaluate(echo, lambda observation: torch.ones(1), episodes=2, start=True) as evaluator:
        evaluator.submit(version=3)
        assert evaluator.wait().returns.tolist() == [LENGTH] * 2
        with pytest.raises(OptionError, match="the policy has no weights"):
            evaluator.submit({"weight": torch.ones(1)})


def test_weights_that_do_not_fit_are_refused_and_change_nothing() -> None:
    with reap.evaluate(echo, Scale(0.5), episodes=1, start=True) as evaluator:
        with pytest.raises(SpecMismatch, match="weight: expected shape"):
            evaluator.submit({"weight": torch.ones(2)})
        assert not evaluator.is_busy
        evaluator.submit()
        assert evaluator.wait().mean == 0.5 * LENGTH


def test_an_error_of_the_worker_is_raised_here() -> None:
    with reap.evaluate(lambda: reap.GymEnv(Broken(3)), episodes=1, start=True) as evaluator:
        evaluator.submit()
        with pytest.raises(WorkerRaised, match="broken on purpose"):
            evaluator.wait()


def test_the_death_of_the_worker_is_raised_here(fifo: str) -> None:
    with waiting(fifo, None) as evaluator:
        evaluator.submit()
        os.kill(let_one_begin(fifo), signal.SIGKILL)
        with pytest.raises(WorkerDied, match="SIGKILL"):
            evaluator.wait()


def test_shutting_down_does_not_wait(fifo: str) -> None:
    evaluator = waiting(fifo, Scale())
    evaluator.submit()
    evaluator.shutdown()
    evaluator.shutdown()
    for call in (evaluator.submit, evaluator.results, evaluator.wait):
        with pytest.raises(ClosedError):
            call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: reap.evaluate(Echo(3), Scale(), start=True), "give a factory"),
        (lambda: reap.evaluate(echo, Scale(), 0, start=True), "episodes: expected a positive number"),
    ],
)
def test_mistakes(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        call()


def test_words() -> None:
    assert (
        str(Evaluation(np.array([1.0]), np.array([2]), 5)) == "version 5: return 1.0 ± 0.0 (1.0 to 1.0), length 2.0, 1 episode"
    )


def test_an_evaluator_that_is_dropped_is_gone_at_once() -> None:
    evaluator = reap.evaluate(echo, Scale(), episodes=1, start=True)
    evaluator.submit()
    evaluator.wait()
    dropped = weakref.ref(evaluator)
    del evaluator
    assert dropped() is None
