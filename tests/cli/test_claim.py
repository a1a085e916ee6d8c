"""Runs that are killed before their manifest is written, and runs that start in one folder."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from reap.cli.main import main
from reap.cli.runs import claim
from reap.data import load_run
from reap.errors import OptionError
from tests.cli.made_envs import folder_with
from tests.warm import Program

ENV = '''
"""An env whose process ends at once in the middle of its making, if the environment says so."""
import os, signal
import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv

class Made(CartPoleEnv):
    def __init__(self, **options):
        super().__init__(**options)
        if os.environ.get("KILL"):
            os.kill(os.getpid(), signal.SIGKILL)

gym.register("Made-v0", Made)
'''

CODE = """
import os, runpy, sys
os.chdir(sys.argv.pop(1))
os.environ["KILL"] = "yes"
sys.path.insert(0, os.getcwd())
runpy.run_module("reap", run_name="__main__")
"""

WORDS = ["collect", "made:Made-v0", "--frames", "20", "--num-envs", "2", "--out", "data"]
FORMATS: dict[str, list[str]] = {"memmap": [], "minari": ["--format", "minari", "--dataset", "made/made-v0"]}
AGAIN = pytest.mark.parametrize("again", [[], ["--resume"]], ids=["again", "resumed"])


@pytest.fixture(params=FORMATS.values(), ids=list(FORMATS))
def words(request: pytest.FixtureRequest) -> list[str]:
    return [*WORDS, *request.param]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder with the env, and Minari's folder in it."""
    yield from folder_with("made", ENV, tmp_path, monkeypatch)


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split())


def assert_complete(folder: Path) -> None:
    assert load_run(folder, verify=True).shape == (2, 10)
    assert json.loads((folder / "manifest.json").read_text())["state"] == "complete"
    assert not [file.name for file in folder.iterdir() if file.name.startswith((".", "progress", "meta.json."))]


@pytest.mark.processes
@AGAIN
def test_a_run_that_was_killed_while_its_envs_were_made_begins_anew(here: Path, words: list[str], again: list[str]) -> None:
    with Program(CODE, str(here), *words) as process:
        errors = process.stderr.read()
        assert process.wait(50) == -signal.SIGKILL, errors
    left = sorted(os.listdir("data"))
    assert left == (["progress"] if "minari" in words else ["meta.json.unfinished", "progress"])
    assert main([*words, *again]) == 0
    assert_complete(here / "data")


def leave(folder: Path, *names: str) -> None:
    """What a start leaves: empty files, and folders with a copy of the manifest."""
    folder.mkdir()
    for name in names:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.touch()


@AGAIN
@pytest.mark.parametrize(
    "names",
    [
        ["progress"],
        ["meta.json.unfinished"],
        ["meta.json.unfinished", "progress", ".manifest.json.x1/manifest.json", ".manifest.json.x2/manifest.json"],
    ],
)
def test_each_rest_of_a_start_is_begun_anew(here: Path, words: list[str], names: list[str], again: list[str]) -> None:
    leave(here / "data", *names)
    assert main([*words, *again]) == 0
    assert_complete(here / "data")


@pytest.mark.parametrize(
    "name", ["notes", "frames.reap", "observation.memmap", ".manifest.json.x1/other", "episodes/episodes.jsonl", "meta.json"]
)
def test_anything_else_is_refused(here: Path, words: list[str], name: str, capsys: pytest.CaptureFixture[str]) -> None:
    leave(here / "data", "meta.json.unfinished", "progress", name)
    before = sorted((here / "data").rglob("*"))
    assert main(words) == 2
    found = Path(name).parts[0]
    assert f"--out data: expected a new or empty folder, found '{found}' in it; name another" in said(capsys)
    assert main([*words, "--resume"]) == 2
    assert "data: expected a folder of reap collect, found no manifest.json in it" in said(capsys)
    assert sorted((here / "data").rglob("*")) == before


@pytest.mark.parametrize("name", ["meta.json.unfinished", "progress"])
def test_files_with_contents_and_links_are_no_rests(
    here: Path, words: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "data").mkdir()
    (here / "data" / name).write_text("mine")
    assert main(words) == 2
    assert f"found '{name}' in it; name another" in said(capsys)
    assert (here / "data" / name).read_text() == "mine"
    (here / "data" / name).unlink()
    (here / "empty").touch()
    (here / "data" / name).symlink_to(here / "empty")
    assert main(words) == 2
    assert f"found '{name}' in it; name another" in said(capsys)


@AGAIN
def test_a_start_that_is_under_way_is_refused(
    here: Path, words: list[str], again: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    lock = claim.claimed(Path("data"), here / "data")
    assert main([*words, *again]) == 2
    assert "--out data: another process is writing there; wait for it to end, or stop it" in said(capsys)
    assert os.listdir("data") == ["progress"]
    os.close(lock)
    assert main([*words, *again]) == 0


def test_a_run_that_came_and_went_between_the_looks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one has written its manifest and released its lock after this one saw an empty folder."""
    flock = fcntl.flock

    def late(*arguments: Any) -> None:
        (tmp_path / "manifest.json").write_text("{}")
        flock(*arguments)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(OptionError, match="expected a new or empty folder, found .*; continue it with --resume"):
        claim.claimed(tmp_path, tmp_path)
    assert os.listdir(tmp_path) == ["manifest.json"]
    (tmp_path / "manifest.json").unlink()

    def removed(*arguments: Any) -> None:
        (tmp_path / "progress").unlink()
        flock(*arguments)

    monkeypatch.setattr(fcntl, "flock", removed)
    with pytest.raises(OptionError, match="another process is writing there"):
        claim.claimed(tmp_path, tmp_path)


def test_without_locks_a_start_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", none)
    os.close(claim.claimed(tmp_path, tmp_path))
    with pytest.raises(OptionError, match="another process is writing there"):
        claim.claimed(tmp_path, tmp_path)
    os.close(claim.locked(tmp_path, tmp_path))


def test_a_run_that_kept_nothing_restores_a_folder_that_is_there(here: Path, words: list[str]) -> None:
    (here / "data").mkdir()
    assert main([*words, "--drop", "world"]) == 2
    assert os.listdir("data") == []


def test_a_run_that_was_killed_as_its_files_were_made_has_no_frames(here: Path) -> None:
    """The files have their full length, and `meta.json` has its name still; no frame is complete."""
    assert main(WORDS) == 0
    file = here / "data" / "manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "state": "running", "columns": 0, "next_id": 0}))
    (here / "data" / "progress").touch()
    with pytest.raises(OptionError, match="data: no batch was complete"):
        load_run(here / "data")
    assert main([*WORDS, "--resume"]) == 0
    assert_complete(here / "data")
    assert torch.equal(load_run(here / "data")["collector", "traj_ids"][:, 0], torch.tensor([0, 1]))
