"""Records of the episodes of a run: each that ends in its frames has one, whenever the run was killed, and no other has."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from reap.cli.folder import DataFolder
from reap.cli.main import main
from reap.collectors import SyncDataCollector
from reap.data import load_run
from reap.data.datasets.record_file import RecordFile
from reap.errors import DiskFull
from reap.replaying import EpisodeFolder, replay
from tests.warm import Program

WORDS = "collect CartPole-v1 --frames {} --num-envs 2 --frames-per-batch 80 --record-episodes --out data"
FORMATS = {"memmap": "", "minari": " --format minari --dataset cart/pole-v0"}

KILLED = """
import os, runpy, signal, sys
os.chdir(sys.argv.pop(1))
count, is_after = int(sys.argv.pop(1)), sys.argv.pop(1) == "after"
from reap.cli.runs.run import Run
from reap.replaying import EpisodeFolder

add, write = EpisodeFolder.add, Run.write
runs, calls = [], []

def noted(self, *arguments):
    runs.append(self)
    return write(self, *arguments)

def killed(self, records):
    calls.append(1)
    if len(calls) < count or is_after:
        add(self, records)
    if len(calls) == count:
        runs[-1].flush()  # what the thread had to write
        os.kill(os.getpid(), signal.SIGKILL)

Run.write, EpisodeFolder.add = noted, killed
runpy.run_module("reap", run_name="__main__")
"""


@pytest.fixture(params=FORMATS.values(), ids=list(FORMATS))
def end(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


def words(frames: int, end: str) -> list[str]:
    return (WORDS.format(frames) + end).split()


def ends() -> dict[int, int]:
    """The lengths of the episodes that end in the frames."""
    data: Any = load_run("data")
    ids, done = data["collector", "traj_ids"], data["next", "done"][..., 0]
    return {one: int((ids == one).sum()) for one in ids[done].tolist()}


def records() -> dict[int, int]:
    return {one.id: one.length for one in EpisodeFolder("data/episodes").values()}


def kill(end: str, count: int, moment: str) -> None:
    """Kill a run before or after it writes the records of a batch."""
    with Program(KILLED, os.getcwd(), str(count), moment, *words(800, end)) as process:
        errors = process.stderr.read()
        assert process.wait(60) == -signal.SIGKILL, errors


@pytest.mark.processes
def test_a_killed_run_has_the_record_of_each_episode_that_ends_in_its_frames(end: str) -> None:
    kill(end, 3, "before")
    assert load_run("data").shape == (2, 80)
    assert records() == ends()
    assert len(ends()) > 5


@pytest.mark.processes
@pytest.mark.parametrize("count", [1, 3])
def test_records_of_frames_that_were_lost_are_removed_by_resume(end: str, count: int) -> None:
    kill(end, count, "after")
    before = ends() if count > 1 else {}
    assert records().items() > before.items()
    with Path("data/episodes/episodes.jsonl").open("a") as index:
        index.write('{"id": 12')
    assert main([*words(800, end), "--resume"]) == 0
    assert load_run("data").shape == (2, 400)
    assert records() == ends()
    assert records().items() >= before.items()
    assert all(replay(None, EpisodeFolder("data/episodes")[name]).equal for name in ("first", "last"))


@pytest.mark.parametrize("batches", [0, 2])
def test_a_full_disk_leaves_no_record_without_frames(end: str, batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call of each of these is that of the first batch."""
    kind, name = (RecordFile, "_write_record") if end else (DataFolder, "write")
    write, calls = getattr(kind, name), Counter[str]()

    def full(*arguments: Any) -> Any:
        calls[name] += 1
        if calls[name] > batches:
            raise DiskFull("no room")
        return write(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(kind, name, full)
        assert main(words(800, end)) == 1
    if batches:
        assert load_run("data").shape == (2, 80)
        assert records() == ends()
    else:
        assert not Path("data").exists()
    assert main([*words(800, end), *(["--resume"] if batches else [])]) == 0
    assert records() == ends()


@pytest.fixture
def folder(tmp_path: Path) -> EpisodeFolder:
    with SyncDataCollector("CartPole-v1", frames_per_batch=200, record_episodes=True, seed=0) as collector:
        collector.next()
        found = EpisodeFolder(tmp_path / "records")
        found.add(collector.episodes.take())
    assert len(found) > 5
    return found


def test_the_last_records_are_removed_in_place(folder: EpisodeFolder) -> None:
    index, (one, two, *_) = folder.path / "episodes.jsonl", folder
    before = index.stat().st_ino
    folder.keep({one, two})
    assert index.stat().st_ino == before
    again = EpisodeFolder(folder.path)
    assert list(again) == list(folder) == [one, two]
    assert replay(None, again[two]).equal


def test_other_records_can_be_removed_too(folder: EpisodeFolder) -> None:
    one, _, three, *rest = folder
    folder.keep({one, three, 10_000})
    again = EpisodeFolder(folder.path)
    assert list(again) == list(folder) == [one, three]
    assert replay(None, again[three]).equal
    again.keep(())
    assert not folder.path.exists()
    assert rest
    EpisodeFolder(folder.path).keep({1})


@pytest.mark.processes
def test_without_ends_in_the_frames_the_records_of_ids_that_are_given_again_are_removed() -> None:
    drop = " --drop done"
    kill(drop, 3, "after")
    taken = int(load_run("data")["collector", "traj_ids"].max()) + 1
    before = [one for one in records() if one < taken]
    assert main([*words(800, drop), "--resume"]) == 0
    assert [one for one in records() if one < taken] == before
