"""`DataFolder`: what is on the disk, and when."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import NonTensorStack, TensorDict, TensorDictBase

from reap.cli import folder as folder_module
from reap.cli.folder import DataFolder
from reap.cli.runs import file_lengths
from reap.errors import DiskFull, OptionError, SpecMismatch
from reap.recording.layout import OBJECT, Field
from tests import warm
from tests.disks import on_small_disk


def batch(columns: int, start: int = 0) -> TensorDictBase:
    time = torch.arange(start, start + columns).expand(2, -1)
    values = {
        "observation": time.unsqueeze(-1) * torch.ones(3),
        "next": {"done": time.unsqueeze(-1) % 3 == 0},
        "half": time.to(torch.bfloat16),
    }
    return TensorDict(values, [2, columns])


def test_batches_one_after_the_other(tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    folder = DataFolder(out, 7)
    assert [folder.write(batch(3, start)) for start in (0, 3, 6)] == [3, 3, 1]
    with pytest.raises(FileNotFoundError):
        TensorDict.load_memmap(out)  # not finished
    folder.finish()
    loaded = TensorDict.load_memmap(out)
    assert loaded.batch_size == (2, 7)
    assert (loaded == batch(7)).all()
    files = sorted(str(file.relative_to(out)) for file in out.rglob("*") if file.is_file())
    assert files == ["half.memmap", "meta.json", "next/done.memmap", "next/meta.json", "observation.memmap"]


def test_less_than_was_planned(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path, 100)
    folder.write(batch(4))
    folder.write(batch(4, 4))
    data = folder.finish()
    assert data is not None
    assert (TensorDict.load_memmap(tmp_path) == batch(8)).all()
    assert (tmp_path / "observation.memmap").stat().st_size == 2 * 8 * 3 * 4
    assert not [file for file in tmp_path.iterdir() if file.name.startswith((".", "meta.json."))]


@pytest.mark.parametrize("is_new", [True, False])
def test_nothing_at_all_leaves_nothing(tmp_path: Path, is_new: bool) -> None:
    out = tmp_path / "new" if is_new else tmp_path
    assert DataFolder(out, 5).finish() is None
    assert out.exists() != is_new
    assert not list(tmp_path.iterdir())


def test_folders_that_are_not_empty(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    with pytest.raises(OptionError, match=r"expected a new or empty folder, found 'x' in it; name another$"):
        DataFolder(tmp_path, 5)
    with pytest.raises(OptionError, match=r"found a file"):
        DataFolder(tmp_path / "x", 5)
    assert [file.name for file in tmp_path.iterdir()] == ["x"]
    (tmp_path / "manifest.json").touch()
    with pytest.raises(OptionError, match=r"continue that run with --resume if it was stopped"):
        DataFolder(tmp_path, 5)


@pytest.mark.parametrize("path", ["/proc/reap", "/dev/null/reap"])
def test_folders_that_cannot_be_written(path: str) -> None:
    with pytest.raises(OptionError, match=r"cannot be written"):
        DataFolder(Path(path), 5)


def test_no_space(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "out", 1 << 50)
    with pytest.raises(
        DiskFull, match=r"--out: expected room for \d.* PB at .*out, found .* free: too little. Remove something there"
    ):
        folder.write(batch(2))
    assert folder.finish() is None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("piece", [7, 1 << 20])
@pytest.mark.parametrize("has_room", [True, False])
@pytest.mark.parametrize(("written", "columns"), [(1, 2), (4, 5), (4, 100), (99, 100)])
def test_files_are_made_shorter_by_a_copy_or_where_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int, columns: int, piece: int, has_room: bool
) -> None:
    def no_room(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "")

    monkeypatch.setattr(file_lengths, "PIECE", piece)
    if not has_room:
        monkeypatch.setattr(folder_module, "relaid", no_room)
    folder = DataFolder(tmp_path, columns)
    folder.write(batch(written))
    before = {file: file.stat().st_ino for file in tmp_path.rglob("*.memmap")}
    data = folder.finish()
    assert data is not None
    assert (data == batch(written)).all()
    after = {file: file.stat().st_ino for file in tmp_path.rglob("*.memmap")}
    assert [before[file] != after[file] for file in before] == [has_room] * 3
    assert (tmp_path / "next" / "done.memmap").stat().st_size == 2 * written


FULL = """
import torch
from pathlib import Path
from tensordict import TensorDict
from reap.cli.folder import DataFolder
from reap.system.disk import free_space, reserve
from reap.errors import DiskFull

def batch(columns):
    return TensorDict({"a": torch.arange(3 * columns).view(3, columns, 1).expand(3, columns, 1000).clone()}, [3, columns])

folder = DataFolder(Path("out"), 200)
folder.write(batch(20))
rest = Path("rest")
rest.touch()
reserve(rest, 0, int(free_space(Path())), "a test")
assert free_space(Path()) == 0
data = folder.finish()
assert data.shape == (3, 20) and (data == batch(20)).all()
print(Path("out/a.memmap").stat().st_size, free_space(Path()) > 4_000_000)
try:
    DataFolder(Path("again"), 2000).write(batch(20))
except DiskFull as error:
    print(error)
"""


@pytest.mark.processes
def test_a_run_that_ends_early_on_a_full_disk_is_kept() -> None:
    done = on_small_disk(FULL, 6)
    assert done.stderr == ""
    first, second = done.stdout.splitlines()
    assert first == f"{3 * 20 * 8000} True"
    assert second.startswith("--out: expected room for 48.0 MB at again, found ")


LIMITED = """
import os, resource, sys, torch
from pathlib import Path
from tensordict import TensorDict
from reap.cli.folder import DataFolder
from reap.errors import DiskFull
os.chdir(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
folder = DataFolder(Path("out"), 200)
try:
    folder.write(TensorDict({"a": torch.zeros(1, 2, 10_000), "b": torch.zeros(1, 2)}, [1, 2]))
except DiskFull as error:
    print(error)
print(folder.finish(), Path("out").exists())
"""


@pytest.mark.processes
def test_files_longer_than_a_limit_are_an_error(tmp_path: Path) -> None:
    code, out, errors = warm.run(LIMITED, str(tmp_path), timeout=180)
    assert (code, errors) == (0, "")
    said = r"--out: expected room for 8.0 MB at out, found .* free: the file would exceed .*\nNone False\n"
    assert re.fullmatch(said, out)


def test_two_runs_in_one_folder(tmp_path: Path) -> None:
    first = DataFolder(tmp_path / "out", 2)
    with pytest.raises(OptionError, match="expected a new or empty folder, but another run is making one there; name another"):
        DataFolder(tmp_path / "out", 2)
    first.write(batch(2))
    assert first.finish() is not None


def test_what_others_put_there_meanwhile_stays(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "out", 1 << 50)
    (tmp_path / "out" / "notes").write_text("mine")
    os.mkfifo(tmp_path / "out" / "pipe")
    with pytest.raises(DiskFull):
        folder.write(batch(2))
    assert folder.finish() is None
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["notes", "pipe"]


def test_a_link_leads_to_the_folder(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to(tmp_path / "far" / "away")
    folder = DataFolder(tmp_path / "out", 2)
    folder.write(batch(2))
    folder.finish()
    assert (TensorDict.load_memmap(tmp_path / "far" / "away") == batch(2)).all()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(OptionError, match="found a file"):
        DataFolder(tmp_path / "loop", 2)


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "out")
    with pytest.raises(OptionError, match="found a file"):
        DataFolder(tmp_path / "out", 2)


FIELDS = {
    ("word",): OBJECT,
    ("observation",): Field((3,), torch.float32),
    ("next", "word"): OBJECT,
    ("next", "done"): Field((1,), torch.bool),
}


@pytest.mark.parametrize(
    ("drop", "message"),
    [
        ([], "^word holds Python objects .* leave it out with --drop word$"),
        (["next/word"], "^word holds Python objects"),
        (["world"], "--drop world: expected one of the keys word, observation, next/word, next/done. Did you mean 'word'?"),
        (["word", "observation", "done"], "--drop: expected at least one key to remain"),
    ],
)
def test_what_cannot_be_stored_is_refused_before(tmp_path: Path, drop: list[str], message: str) -> None:
    folder = DataFolder(tmp_path, 4)
    with pytest.raises(OptionError, match=message):
        folder.expect(FIELDS, 2, drop)
    folder.finish()
    with pytest.raises(DiskFull, match="--out: expected room for"):
        DataFolder(tmp_path, 1 << 50).expect(FIELDS, 2, ["word"])


def test_dropped_keys_are_left_out(tmp_path: Path) -> None:
    words = NonTensorStack(NonTensorStack("a", "b"), NonTensorStack("c", "d"))
    data = batch(2).set("word", words).set(("next", "word"), words)
    folder = DataFolder(tmp_path, 2)
    fields = {**FIELDS, ("half",): Field((), torch.bfloat16)}
    folder.expect(fields, 2, ["word", "half"])
    folder.write(data)
    stored = folder.finish()
    assert stored is not None
    assert (stored == batch(2).exclude("half")).all()
    assert set(stored.keys(True, True)) == {"observation", ("next", "done")}


def test_python_objects_are_refused(tmp_path: Path) -> None:
    words = NonTensorStack(NonTensorStack("a", "b"), NonTensorStack("c", "d"))
    folder = DataFolder(tmp_path, 4)
    with pytest.raises(SpecMismatch, match=r"'words' holds Python objects"):
        folder.write(batch(2).set("words", words))
    folder.finish()
    assert not list(tmp_path.iterdir())
