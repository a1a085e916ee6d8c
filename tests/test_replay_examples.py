"""The examples that train from a replay buffer, with small budgets, and the targets that they compute, by hand."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from tensordict import TensorDict

EXAMPLES = Path(__file__).parent.parent / "examples"
Load = Callable[[str], ModuleType]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    monkeypatch.syspath_prepend(EXAMPLES)  # workers import it too
    return importlib.import_module


def run(module: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What it prints last."""
    monkeypatch.setattr(sys, "argv", [module.__name__, *arguments])
    threads = torch.get_num_threads()
    module.main()
    torch.set_num_threads(threads)
    return capfd.readouterr().out.splitlines()[-1]


def test_dqn(load: Load, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ("--total-frames", "1024", "--random-frames", "256", "--updates-per-batch", "2", "--target-every", "5")
    assert run(load("dqn"), monkeypatch, capfd, *arguments).startswith("seed 1: solved at frame None; last 100 returns ")


def test_dqn_target(load: Load) -> None:
    dqn = load("dqn")
    agent = SimpleNamespace(values=lambda observation: torch.stack([observation, 2 - observation], -1))
    batch = TensorDict(
        {
            "observation": torch.tensor([0.0, 0.0]),
            "action": torch.tensor([0, 1]),
            "next": {
                "observation": torch.tensor([3.0, 3.0]),
                "reward": torch.ones(2, 1),
                "terminated": torch.tensor([[False], [True]]),
            },
        },
        [2],
    )
    # The first action is better by the agent (3 to -1), worth 10 by the target; the values were 0 and 2.
    target = lambda observation: torch.tensor([[10.0, 20.0]] * 2)  # noqa: E731
    expected = ((0 - (1 + 0.5 * 10)) ** 2 + (2 - 1) ** 2) / 2
    assert dqn.loss(agent, target, batch, 0.5).item() == expected


def test_recurrent_dqn(load: Load, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ("--total-frames", "1024", "--random-frames", "256", "--updates-per-batch", "2", "--target-every", "5")
    found = run(load("recurrent_dqn"), monkeypatch, capfd, *arguments)
    assert found.startswith("seed 1: solved at frame None; last 100 returns ")


def test_recurrent_dqn_trains_on_slices_with_the_memory_of_their_first_frame(load: Load) -> None:
    module = load("recurrent_dqn")
    torch.manual_seed(0)
    agent, args = module.Agent(), module.Args(num_slices=3, buffer_size=1_000)
    buffer = module.make_buffer(args)
    env = module.SerialEnv(2, lambda: module.GymEnv(module.Positions(), categorical_action_encoding=True))
    with module.SyncDataCollector(env, agent, frames_per_batch=200, total_frames=400, replay_buffer=buffer) as collector:
        assert list(collector) == [None, None]
    slices = buffer.sample()
    assert slices.shape == (3, args.slice_len)
    assert (slices["collector", "traj_ids"] == slices["collector", "traj_ids"][:, :1]).all()
    values = agent.values.unroll(slices["observation"], slices["hidden"][:, 0])
    memory = slices["hidden"][:, 0]
    for t in range(args.slice_len):
        torch.testing.assert_close(memory, slices["hidden"][:, t])
        memory = agent.values.memory(slices["observation"][:, t], memory)
        torch.testing.assert_close(memory, slices["next", "hidden"][:, t])
        torch.testing.assert_close(values[:, t], agent.values.head(memory))


@pytest.mark.processes
def test_sac(load: Load, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ("--total-frames", "600", "--random-frames", "400", "--batch-size", "32")
    assert run(load("sac"), monkeypatch, capfd, *arguments).startswith("seed 1: 600 frames, evaluation return -")


def test_sac_densities(load: Load) -> None:
    sac = load("sac")
    torch.manual_seed(0)
    actor = sac.Actor()
    observation = torch.randn(1, 3).expand(1_000, 3)
    with torch.no_grad():
        mean, log_std = actor.parameters_of(observation)
        action, log_density = actor.sample(observation)
    squashed = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(mean, log_std.exp()),
        [torch.distributions.TanhTransform(), torch.distributions.AffineTransform(0, sac.LARGEST)],
    )
    assert action.abs().max() < sac.LARGEST
    torch.testing.assert_close(log_density, squashed.log_prob(action), atol=1e-3, rtol=1e-3)
