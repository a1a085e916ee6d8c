"""The picture: made of what is there, for every kind of data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from reap.cli.main import main
from reap.cli.plot import Plot
from reap.cli.report import Episodes
from reap.errors import OptionError
from tests.pairwise import by_default

OBSERVATIONS = {
    "numbers": torch.randn(2, 50, 3),
    "one number": torch.full((2, 50, 1), 7.0),
    "choices": torch.nn.functional.one_hot(torch.arange(100).view(2, 50) % 5),
    "not finite": torch.full((2, 50, 3), float("inf")),
    "picture": torch.randint(0, 256, (2, 50, 20, 20, 3), dtype=torch.uint8),
    "stacked grey pictures": torch.randint(0, 256, (2, 50, 4, 20, 20), dtype=torch.uint8),
    "too many": torch.randn(2, 50, 300),
}


CASES = by_default([*((kind, 400) for kind in OBSERVATIONS), ("numbers", 0), ("picture", 1)], ("numbers", 0), ("picture", 1))


@pytest.mark.parametrize(("kind", "count"), CASES)
def test_any_data(tmp_path: Path, kind: str, count: int) -> None:
    observation = {"observation": OBSERVATIONS[kind], "nested": {"level": torch.arange(100.0).view(2, 50, 1)}}
    done = torch.zeros(2, 50, 1, dtype=torch.bool)
    data = TensorDict({**observation, "next": {**observation, "reward": torch.ones(2, 50, 1), "done": done}}, [2, 50])
    drawn = np.random.default_rng(0).integers(1, 50, count).tolist()
    plot = Plot(tmp_path / "a.png")
    plot.draw("title", data, Episodes(sorted(drawn), [float(n) for n in drawn], drawn))
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.processes
def test_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["collect", "FrozenLake-v1", "--frames", "400", "--num-envs", "2", "--out", "data", "--plot", "a.svg"]) == 0
    assert "Plot: a.svg" in capsys.readouterr().out
    assert "<svg" in (tmp_path / "a.svg").read_text()
    with pytest.raises(OptionError, match="exists, and nothing is overwritten"):
        Plot(tmp_path / "a.svg")
