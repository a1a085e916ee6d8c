"""Runs that are killed or stopped, and go on: what is there after each, and at the end."""

from __future__ import annotations

import json
import os
import random
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from reap.cli.main import main
from reap.data import load_run
from reap.data.datasets.episodes import Episode, episodes_of
from reap.data.datasets.run_folder import run_frames
from reap.errors import OptionError, SpecMismatch
from reap.replaying.files import EpisodeFolder
from reap.seeds import seed_chain
from tests.cli.made_envs import folder_with
from tests.warm import Program

ENV = '''
"""An env that tells of its episodes in a file as they end, and may kill its process a while after the 20th."""
import os, signal, threading
import gymnasium as gym
import numpy as np

class Told(gym.Env):
    observation_space = gym.spaces.Box(0, np.inf, (3,), np.float64)
    action_space = gym.spaces.Discrete(2)
    ended = 0
    seed, episode = -1, 0

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.seed, self.episode = seed, 0
        self.episode, self.step_number = self.episode + 1, 0
        return self.observed(), {}

    def observed(self):
        return np.array([self.seed, self.episode, self.step_number], np.float64)

    def step(self, action):
        self.step_number += 1
        over = self.step_number == 3 + self.episode % 5
        if over:
            Told.ended += 1
            file = os.open("ends", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(file, b"%d %d\\n" % (self.seed, self.episode))
            os.close(file)
            if Told.ended == 20 and (delay := os.environ.get("KILL_AFTER")):
                threading.Timer(float(delay), os.kill, (os.getpid(), signal.SIGKILL)).start()
        return self.observed(), float(action), over, False, {}

gym.register("Told-v0", Told)
'''

CODE = """
import os, runpy, sys
os.chdir(sys.argv.pop(1))
os.environ["KILL_AFTER"] = sys.argv.pop(1)
sys.path.insert(0, os.getcwd())
runpy.run_module("reap", run_name="__main__")
"""

ROWS = 2
FORMATS = {"memmap": "", "minari": " --format minari --dataset told/told-v0"}


@pytest.fixture(params=FORMATS.values(), ids=list(FORMATS))
def words(request: pytest.FixtureRequest) -> str:
    """The end of the command line, which says the format."""
    return request.param


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder with the env, and Minari's folder in it."""
    yield from folder_with("told", ENV, tmp_path, monkeypatch)


def command(frames: int, end: str) -> list[str]:
    # A batch is one column: what is lost is less than an episode.
    return f"collect told:Told-v0 --frames {frames} --num-envs {ROWS} --frames-per-batch {ROWS} --out data{end}".split()


def killed(here: Path, frames: int, end: str, delay: float) -> None:
    with Program(CODE, str(here), str(delay), *command(frames, end)) as process:
        errors = process.stderr.read()
        assert process.wait(50) == -signal.SIGKILL, errors


def ended(here: Path) -> Counter[int]:
    """How many episodes of each seed have ended, by the env itself."""
    return Counter(int(line.split()[0]) for line in (here / "ends").read_text().splitlines())


def episodes(folder: Path) -> list[Episode]:
    return list(episodes_of(run_frames(folder)))


def assert_whole(found: list[Episode]) -> None:
    """Each episode is that of one env from its beginning, bit for bit; and no two have the same id."""
    assert len({one.id for one in found}) == len(found)
    for one in found:
        seed, number, steps = one.observed(("observation",)).T
        assert len(set(seed)) == len(set(number)) == 1
        assert steps.tolist() == list(range(len(one) + 1))
        assert (len(one) == 3 + int(number[0]) % 5) == one.is_finished
        reward, action = one.values(("next", "reward")), one.values(("action",))
        assert np.array_equal(reward[:, 0], action.argmax(-1))


def assert_nothing_lost(here: Path, seeds: list[int]) -> None:
    """Of the episodes of these seeds that ended, none lacks but for the one under way in each env."""
    load_run(here / "data", verify=True)
    found = episodes(here / "data")
    assert_whole(found)
    kept: dict[int, list[int]] = {seed: [] for seed in seeds}
    for one in found:
        seed, number, _ = one.observed(("observation",))[0]
        if one.is_finished and seed in kept:
            kept[int(seed)].append(int(number))
    for seed, count in ended(here).items():
        if seed in kept:
            assert kept[seed] == list(range(1, len(kept[seed]) + 1))
            assert 0 <= count - len(kept[seed]) <= 1


@pytest.mark.processes
@pytest.mark.parametrize("delays", [[0.0, 0.05], None])
def test_killed_at_any_moment(here: Path, words: str, delays: list[float] | None) -> None:
    chance = random.Random(0)
    for number, delay in enumerate([chance.uniform(0, 0.3) for _ in range(6)] if delays is None else delays):
        killed(here, 1_000_000, f"{words} --resume" if number else words, delay)
        manifest = json.loads((here / "data" / "manifest.json").read_text())
        assert manifest["state"] == "running"
        assert [session["seed"] for session in manifest["sessions"]] == seed_chain(0, ROWS * number)[::ROWS]
        assert_nothing_lost(here, manifest["sessions"][-1]["seeds"])
    manifest = json.loads((here / "data" / "manifest.json").read_text())
    for one in episodes(here / "data"):
        places = {(row, s["first_column"]): seed for s in manifest["sessions"] for row, seed in enumerate(s["seeds"])}
        if (one.row, one.column) in places:
            assert one.observed(("observation",))[0, 0] == places[one.row, one.column]


STOPPING = """
import os, signal
import torch

calls = 0

def act(observation):
    global calls
    calls += 1
    if calls == int(os.environ.get("STOP_AT", "0")):
        signal.raise_signal(signal.SIGINT)
    return torch.nn.functional.one_hot(torch.randint(2, observation.shape[:1]), 2)

def make():
    return act
"""


@pytest.mark.processes
def test_stopped_and_resumed(
    here: Path, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    frames, words = ROWS * 100, f" --policy stopping.py:make{words}"
    (here / "stopping.py").write_text(STOPPING)
    monkeypatch.setenv("STOP_AT", "31")
    assert main(command(frames, words)) == 130
    out = capsys.readouterr().out
    assert "--resume continues with the same options and policy." in " ".join(out.split())
    assert "since the run was resumed" not in out
    before: Any = load_run(here / "data", verify=True).clone()
    first = before.shape[1]
    assert 20 < first < 40
    assert json.loads((here / "data" / "manifest.json").read_text())["state"] == "stopped"
    monkeypatch.delenv("STOP_AT")

    (here / "stopping.py").write_text(STOPPING + "#")
    for change, said in {
        "": "expected the options of the run in data; the checksum of the file of --policy was",
        " --seed 7 --indices": "--indices was False and is True; the checksum of the file of --policy was",
    }.items():
        assert main(command(frames, f"{words}{change} --resume")) == 2
        err = " ".join(capsys.readouterr().err.split())
        assert said in err
        assert "A run has one set of options and one policy: begin another with --out" in err
    (here / "stopping.py").write_text(STOPPING)
    assert main(command(frames, f"{words} --resume")) == 0
    out = capsys.readouterr().out
    assert f"data: {ROWS * first:,} frames are there" in out
    data: Any = load_run(here / "data", verify=True)
    assert data.shape == (ROWS, 100)
    assert all((data[:, :first].get(key) == before.get(key)).all() for key in before.keys(True, True))
    assert data["collector", "traj_ids"][:, first:].min() > data["collector", "traj_ids"][:, :first].max()
    assert_whole(episodes(here / "data"))
    ended = int(data["next", "done"][:, first:].sum())
    assert re.search(rf"^episodes +{ended:,} finished since the run was resumed$", out, re.MULTILINE)
    assert not (here / "data" / "progress").exists()
    assert main(command(frames, f"{words} --resume")) == 0
    assert "the run is complete" in capsys.readouterr().out
    assert_same(load_run(here / "data"), data)


def assert_same(found: Any, wanted: Any) -> None:
    assert all(torch.equal(found.get(key), wanted.get(key)) for key in wanted.keys(True, True))


def test_a_run_that_was_killed_before_its_first_batch(here: Path, words: str) -> None:
    assert main(command(ROWS * 10, words)) == 0
    whole = load_run(here / "data").clone()
    manifest = json.loads((here / "data" / "manifest.json").read_text())
    for file in (here / "data").rglob("*.reap"):
        file.write_bytes(b"")
    if not words:
        (here / "data" / "meta.json").rename(here / "data" / "meta.json.unfinished")
    manifest |= {"state": "running", "columns": 0, "next_id": 0}
    (here / "data" / "manifest.json").write_text(json.dumps(manifest))
    (here / "data" / "progress").write_bytes(b"\0" * 16)
    if words:
        (here / "minari" / "told" / "told-v0").rename(here / "elsewhere")
    with pytest.raises((OptionError, SpecMismatch)):
        load_run(here / "data")
    assert main(command(ROWS * 10, f"{words} --resume")) == 0
    again: Any = load_run(here / "data", verify=True)
    assert again.shape == whole.shape
    assert again["collector", "traj_ids"].min() == 0


LOCKING = """
import fcntl, signal, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("locked", flush=True)
signal.pause()
"""


def test_another_process_is_writing(here: Path, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(ROWS * 10, words)) == 0
    manifest = json.loads((here / "data" / "manifest.json").read_text())
    (here / "data" / "manifest.json").write_text(json.dumps(manifest | {"state": "running"}))
    if words:
        (here / "minari" / "told" / "told-v0").rename(here / "elsewhere")
    with Program(LOCKING, str(here / "data" / "progress")) as process:
        assert process.stdout.readline() == "locked\n"
        assert main(command(ROWS * 10, f"{words} --resume")) == 2
    assert "another process is writing there" in " ".join(capsys.readouterr().err.split())


def test_there_is_nothing_to_resume(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(10, " --resume")) == 2
    assert "expected a folder of reap collect, there is no such folder" in " ".join(capsys.readouterr().err.split())
    (here / "data").mkdir()
    assert main(command(10, " --resume")) == 2
    assert "expected a folder of reap collect, found no manifest.json in it" in " ".join(capsys.readouterr().err.split())
    (here / "data" / "manifest.json").write_text("{}")
    assert main(command(10, " --resume")) == 2
    assert "found something else" in " ".join(capsys.readouterr().err.split())
    (here / "data" / "manifest.json").write_text('{"manifest_version": 99}')
    assert main(command(10, " --resume")) == 2
    assert "expected version 1, found 99" in " ".join(capsys.readouterr().err.split())


def test_a_manifest_says_where_data_are_from(here: Path) -> None:
    assert main(command(20, "")) == 0
    manifest = json.loads((here / "data" / "manifest.json").read_text())
    assert manifest["options"]["env_id"] == "told:Told-v0"
    assert manifest["sessions"] == [{"first_column": 0, "seed": 0, "seeds": seed_chain(0, 1), "next_seed": seed_chain(0, 2)[2]}]
    assert manifest["versions"]["torch"] == torch.__version__
    assert (manifest["state"], manifest["columns"]) == ("complete", 10)
    assert manifest["files"]["observation.memmap"]["bytes"] == 20 * 3 * 8
    assert TensorDict.load_memmap(here / "data").shape == (2, 10)
    with (here / "data" / "observation.memmap").open("r+b") as file:
        file.write(b"x")
    assert load_run(here / "data").shape == (2, 10)
    with pytest.raises(SpecMismatch, match=r"observation.memmap: expected .*, found"):
        load_run(here / "data", verify=True)
    (here / "data" / "observation.memmap").unlink()
    with pytest.raises(SpecMismatch, match="no such file"):
        load_run(here / "data", verify=True)


def test_options_that_do_not_go_together(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for end, said in {
        " --format minari": "expected --dataset ID with it",
        " --dataset a/b-v0": "--dataset a/b-v0: expected --format minari with it",
        " --format minari --dataset a/b-v0": "a namespace of two letters or more",
        " --format minari --dataset told": "expected 'namespace/name-v0'",
        " --format minari --dataset told/b-v0 --drop next/done": "expected to keep next/done",
    }.items():
        assert main(command(10, end)) == 2
        assert said in " ".join(capsys.readouterr().err.split())
    assert not (here / "data").exists()
    (here / "minari" / "told" / "b-v0").mkdir(parents=True)
    assert main(command(10, " --format minari --dataset told/b-v0")) == 2
    assert "is there already" in " ".join(capsys.readouterr().err.split())
    assert os.listdir(here / "minari" / "told" / "b-v0") == []


def test_records_of_a_resumed_run_have_the_ids_of_its_frames(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "stopping.py").write_text(STOPPING)
    words = "collect CartPole-v1 --frames 400 --frames-per-batch 20 --policy stopping.py:make --record-episodes --out data"
    monkeypatch.setenv("STOP_AT", "150")
    assert main(words.split()) == 130
    monkeypatch.delenv("STOP_AT")
    index = next((here / "data" / "episodes").glob("*.json*"))
    with index.open("a") as file:
        file.write('{"id": 12')  # as a run that was killed leaves it
    assert main([*words.split(), "--resume"]) == 0
    data: Any = load_run(here / "data")
    ends = data["next", "done"][..., 0]
    assert sorted(EpisodeFolder(here / "data" / "episodes")) == sorted(data["collector", "traj_ids"][ends].tolist())
