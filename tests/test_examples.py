"""The examples run as a reader runs them, with a smaller budget."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from tensordict import TensorDict

EXAMPLES = Path(__file__).parent.parent / "examples"
PNG = b"\x89PNG\r\n\x1a\n"
RANDOM_POLICY = 22.0
"""Mean return of random actions on CartPole-v1."""


@pytest.fixture
def ppo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(EXAMPLES)  # workers import it too
    return importlib.import_module("ppo")


def train(ppo: ModuleType, seed: int, frames: int) -> tuple[list[tuple[int, float]], int | None]:
    torch.manual_seed(seed)
    return ppo.train(ppo.Agent(), ppo.Args(seed=seed, total_frames=frames))


def test_examples_are_short() -> None:
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in EXAMPLES.glob("*.py")}
    assert lengths
    assert not {name: lines for name, lines in lengths.items() if lines > 200}


@pytest.mark.processes
def test_ppo_repeats_itself_for_a_seed(ppo: ModuleType) -> None:
    curve, _ = train(ppo, seed=7, frames=2048)
    assert max(frames for frames, _ in curve) > 1024, "with weights that were trained on what was collected before"
    assert train(ppo, seed=7, frames=2048)[0] == curve
    assert train(ppo, seed=8, frames=2048)[0] != curve


def test_ppo_advantages_stop_at_the_end_of_an_episode(ppo: ModuleType) -> None:
    """Rewards of 1 and values of 10 * observation: delta = 1 + γ * V(next) * (not terminated) - V, by hand."""
    agent = SimpleNamespace(critic=lambda observation: 10.0 * observation[..., :1])
    following = {
        "observation": torch.full((1, 3, 4), 2.0),
        "reward": torch.ones(1, 3, 1),
        "terminated": torch.tensor([[[True], [False], [False]]]),
        "done": torch.tensor([[[True], [True], [False]]]),
    }
    batch = TensorDict({"observation": torch.ones(1, 3, 4), "next": following}, [1, 3])
    advantage, target = ppo.advantages(agent, batch, gamma=0.5, lambda_=0.5)
    # terminated: 1 - 10; truncated: 1 + 0.5 * 20 - 10; cut off by the batch: the same
    assert advantage.tolist() == [[-9.0, 1.0, 1.0]]
    assert target.tolist() == [[1.0, 11.0, 11.0]]


@pytest.mark.processes
def test_ppo_learns_and_draws_its_curve(tmp_path: Path) -> None:
    out = tmp_path / "curve.png"
    options = ["--total-frames", "12288", "--seed", "1", "--out", str(out), "--no-require-solved", "--timed-batches", "1"]
    run = subprocess.run(
        [sys.executable, str(EXAMPLES / "ppo.py"), *options], capture_output=True, text=True, timeout=180, check=False
    )
    assert run.returncode == 0, run.stderr
    row = next(line for line in run.stdout.splitlines() if line.startswith("│ 1 "))
    seed, solved, mean, *rates = (cell.strip() for cell in row.strip("│").split("│"))
    assert (seed, solved) == ("1", "–")
    assert float(mean) > 3 * RANDOM_POLICY
    assert all(float(rate.replace(",", "")) > 0 for rate in rates)
    assert "12,288/12,288 frames (100%)" in run.stdout
    assert out.read_bytes().startswith(PNG)


@pytest.mark.processes
def test_ppo_fails_when_the_budget_is_too_small(ppo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["--total-frames", "1024", "--timed-batches", "1", "--out", str(tmp_path / "curve.png")]
    monkeypatch.setattr(sys, "argv", ["ppo.py", *arguments])
    with pytest.raises(SystemExit, match="not solved within 1,024 frames"):
        ppo.main()
