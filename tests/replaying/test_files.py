"""Records of episodes in files, and `reap replay`, which reads them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from reap import SerialEnv, SyncDataCollector, replay
from reap.cli.main import main
from reap.errors import OptionError
from reap.recording.records import EpisodeRecord, Note, Recipe
from reap.replaying import EpisodeFolder
from reap.replaying.files import INDEX, VALUES
from tests.replaying.test_rerun import Noisy, altered


def collected(env_id: str = "FrozenLake-v1") -> list[EpisodeRecord]:
    with SyncDataCollector(
        SerialEnv(2, env_id), frames_per_batch=100, record_episodes=True, max_frames_per_traj=20, seed=0
    ) as collector:
        collector.next()
        return list(collector.episodes.values())


def assert_same(one: EpisodeRecord, other: EpisodeRecord) -> None:
    for name, value in vars(one).items():
        found = getattr(other, name)
        if name in ("actions", "first", "results"):
            assert value.keys() == found.keys()
            assert all(np.array_equal(value[key], found[key]) and value[key].dtype == found[key].dtype for key in value)
        elif name == "lead":
            assert len(value) == len(found)
        elif name == "recipe":
            assert (value.env_id, dict(value.options)) == (found.env_id, found.options)
        else:
            assert value == found


def test_what_is_written_is_read(tmp_path: Path) -> None:
    records = collected()
    folder = EpisodeFolder(tmp_path / "new" / "episodes")
    folder.add(records[:3])
    folder.add(records[3:])
    read = EpisodeFolder(tmp_path / "new" / "episodes")
    assert list(read) == list(folder) == [record.id for record in records]
    for record in records:
        assert_same(record, read[record.id])
        assert replay(None, read[str(record.id)]).equal


def test_episodes_by_what_they_are(tmp_path: Path) -> None:
    (record, *_) = collected()
    folder = EpisodeFolder(tmp_path)
    for key, (reward, length) in enumerate([(1.0, 5), (3.0, 2), (-2.0, 9), (0.0, 4)]):
        folder.add([altered(record, id=key, reward=reward, length=length)])
    found = {name: folder.id_of(name) for name in ("best", "worst", "longest", "shortest", "first", "last")}
    assert found == {"best": 1, "worst": 2, "longest": 2, "shortest": 1, "first": 0, "last": 3}
    for name in ("7", "strangest", ""):
        with pytest.raises(KeyError, match="expected the id of one of the 4 episodes"):
            folder.id_of(name)
    with pytest.raises(KeyError, match="holds no episodes"):
        EpisodeFolder(tmp_path / "none").id_of("best")


STATES: dict[str, Any] = {
    "bytes": b"\x00\xff",
    "python": random.Random(3).getstate(),
    "numpy": np.random.default_rng(3).bit_generator.state,
    "old numpy": np.random.RandomState(3).get_state(legacy=False),
    "torch": torch.Generator().manual_seed(3).get_state(),
    "nested": {"a": [1, 2.5, None, True, (np.float32(1.5), "b")]},
}


@pytest.mark.parametrize("name", STATES)
def test_states_of_generators(name: str, tmp_path: Path) -> None:
    record = altered(collected()[0], note=Note(None, {"x": STATES[name]}))
    EpisodeFolder(tmp_path).add([record])
    found = EpisodeFolder(tmp_path)[record.id].note.state["x"]
    assert repr(found) == repr(STATES[name]).replace("np.float32(1.5)", "1.5")


def test_what_only_a_pickle_could_hold(tmp_path: Path) -> None:
    record = collected()[0]
    with pytest.raises(OptionError, match="expected plain data to write to a file, found object"):
        EpisodeFolder(tmp_path).add([altered(record, note=Note(None, {"own": object()}))])
    with pytest.raises(OptionError, match="action holds Python objects"):
        EpisodeFolder(tmp_path).add([altered(record, actions={("action",): np.array([object()])})])
    EpisodeFolder(tmp_path).add([altered(record, recipe=Recipe(factory=b"a pickle"))])
    assert EpisodeFolder(tmp_path)["last"].recipe is None


def test_a_run_that_was_killed(tmp_path: Path) -> None:
    records = collected()
    EpisodeFolder(tmp_path).add(records)
    index = tmp_path / INDEX
    text = index.read_text()
    index.write_text(text[: -len(text.splitlines()[-1]) // 2])
    assert list(EpisodeFolder(tmp_path)) == [record.id for record in records[:-1]]
    (tmp_path / VALUES).write_bytes(b"")
    with pytest.raises(OptionError, match="the file was cut short"):
        _ = EpisodeFolder(tmp_path)["first"]
    index.write_text("[]\n")
    with pytest.raises(OptionError, match="expected a line of JSON for each episode"):
        EpisodeFolder(tmp_path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "frames"
    words = ["collect", "FrozenLake-v1", "--frames", "301", "--num-envs", "3", "--frames-per-batch", "90", "--record-episodes"]
    assert main([*words, "--out", str(out)]) == 0
    return out


def test_a_folder_of_frames_with_its_episodes(run: Path) -> None:
    data = TensorDict.load_memmap(str(run))
    assert "episodes" not in set(data.keys())
    ended = data["collector", "traj_ids"][data["next", "done"][..., 0]].tolist()
    folder = EpisodeFolder(run / "episodes")
    assert sorted(folder) == sorted(ended)
    for record in folder.values():
        mine = data["collector", "traj_ids"][record.row] == record.id
        stored = data["next", "observation"][record.row][mine].numpy()
        np.testing.assert_array_equal(record.results["next", "observation"], stored)
        assert replay(None, record).equal


def test_the_list(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(run)]) == 0
    out = capsys.readouterr().out
    assert f"{len(EpisodeFolder(run / 'episodes'))} episodes" in out
    assert "…" in out
    assert "terminated" in out


def test_an_episode(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    longest = EpisodeFolder(run / "episodes")["longest"]
    assert main(["replay", str(run), "--episode", "longest"]) == 0
    whole = f"episode {longest.id}: {longest.length} of {longest.length} steps, equal to the record, bit for bit"
    assert capsys.readouterr().out == f"{whole}; return {longest.reward:,.6g}\n"
    video = tmp_path / "a.mp4"
    assert main(["replay", str(run), "--episode", str(longest.id), "--to", "2", "--video", str(video)]) == 0
    part = f"episode {longest.id}: 2 of {longest.length} steps, equal to the record, bit for bit"
    assert capsys.readouterr().out.splitlines() == [
        f"{part}; return of the whole episode {longest.reward:,.6g}",
        f"Video: {video}",
    ]
    assert video.stat().st_size > 0


def test_an_episode_that_departs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = collected()[0]
    EpisodeFolder(tmp_path / "episodes").add([altered(record, reward=1.0, terminated=not record.terminated)])
    assert main(["replay", str(tmp_path), "--episode", "first"]) == 1
    assert f"departs at step {record.length} in ('next', 'terminated')" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "expected the folder of a reap collect --record-episodes"),
        (["--episode", "7000"], "--episode 7000: expected the id of one of"),
        (["--to", "3"], "--video and --to: expected --episode too"),
        (["--episode", "best", "--to", "3000"], "--to: expected a number from 0 to"),
        (["--episode", "best", "--video", "a.gif"], "expected the name of an .mp4 file"),
    ],
)
def test_mistakes(words: list[str], message: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(run if words else tmp_path), *words]) == 2
    assert message in capsys.readouterr().err


def test_records_of_a_factory_need_its_env(tmp_path: Path) -> None:
    with SyncDataCollector(Noisy, frames_per_batch=30, record_episodes=True) as collector:
        collector.next()
        EpisodeFolder(tmp_path).add(collector.episodes.take())
    record = EpisodeFolder(tmp_path)["last"]
    assert replay(Noisy, record).equal
    with pytest.raises(OptionError, match="give the env, or a factory of it"):
        replay(None, record)
