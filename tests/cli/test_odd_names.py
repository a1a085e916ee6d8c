"""Names of observations that a file system, or HDF5, does not take as they are."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from reap.cli.folder import DataFolder
from reap.cli.main import main
from reap.data import load_run
from reap.errors import DiskFull
from tests.cli.made_envs import folder_with
from tests.cli.test_folder import batch

ENV = """
import gymnasium as gym
import numpy as np

BOX = gym.spaces.Box(0, 99, (1,), np.float32)

class Named(gym.Env):
    observation_space = gym.spaces.Dict({"a/b": BOX, "c d": BOX, "50%": BOX, "in side": gym.spaces.Dict({"e/f": BOX})})
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self.observed(), {}

    def observed(self):
        one, two, three, four = (np.full(1, 10 * self.steps + k, np.float32) for k in range(4))
        return {"a/b": one, "c d": two, "50%": three, "in side": {"e/f": four}}

    def step(self, action):
        self.steps += 1
        return self.observed(), 0.0, False, False, {}

gym.register("Named-v0", Named)
"""

WORDS = ["collect", "named:Named-v0", "--frames", "8", "--num-envs", "2", "--out", "data"]
MINARI = ["--format", "minari", "--dataset", "named/named-v0"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder with the env, and Minari's folder in it."""
    yield from folder_with("named", ENV, tmp_path, monkeypatch)


def test_they_are_refused_before_frames_for_a_data_set_are_collected(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, *MINARI]) == 2
    said = "'a/b': expected a name that HDF5 can hold (no slash, not empty, not '.'), found 'a/b'"
    assert said in " ".join(capsys.readouterr().err.split())
    assert not (here / "data").exists()


def test_they_can_be_dropped(here: Path) -> None:
    assert main([*WORDS, *MINARI, "--drop", "a/b", "--drop", "in side/e/f"]) == 0
    found = load_run("data")
    assert ("a/b" in found.keys(), "in side" in found.keys(), "c d" in found.keys()) == (False, False, True)


KEYS: Any = ["a/b", "c d", "50%", ("in side", "e/f")]


def test_a_killed_run_has_them_and_goes_on_with_them(here: Path) -> None:
    assert main(WORDS) == 0
    whole = load_run("data").clone()
    file = here / "data" / "manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "state": "running", "columns": 2, "next_id": 2}))
    (here / "data" / "meta.json").rename(here / "data" / "meta.json.unfinished")
    killed: Any = load_run("data")
    for place, key in enumerate(KEYS):
        assert killed[key][0, :, 0].tolist() == [place, 10 + place]
    assert set(killed.keys(True, True)) == set(whole.keys(True, True))
    assert main([*WORDS, "--resume"]) == 0
    resumed: Any = load_run("data", verify=True)
    for place, key in enumerate(KEYS):
        assert resumed[key][0, :, 0].tolist() == [place, 10 + place] * 2
        assert torch.equal(resumed["next"][key], resumed[key] + 10)


def test_nothing_of_them_is_left_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise DiskFull("no room")

    monkeypatch.setattr("reap.cli.folder.reserve", full)
    data: Any = batch(2)
    data["a/b"], data["in side"] = data["half"], data["next"].clone()
    folder = DataFolder(tmp_path, 2)
    with pytest.raises(DiskFull):
        folder.write(data)
    assert os.listdir(tmp_path) == ["meta.json.unfinished"]
