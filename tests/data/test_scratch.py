"""Folders of storages of files: room is taken before it is written to, one storage uses a folder, nothing is left for ever."""

from __future__ import annotations

import errno
import gc
import os
import pickle
import re
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from reap.data import LazyMemmapStorage, ReplayBuffer
from reap.data.storages import lazy
from reap.data.storages.files import scratch
from reap.data.storages.files.scratch import LOCK, PREFIX, Scratch, remove_abandoned, remove_frames
from reap.errors import ClosedError, OptionError
from tests import warm
from tests.disks import on_small_disk


def buffer_in(folder: Path | None, size: int = 4, **options: Any) -> ReplayBuffer:
    return ReplayBuffer(storage=LazyMemmapStorage(size, scratch_dir=folder, **options), batch_size=2)


def frames(first: int, count: int) -> TensorDict:
    return TensorDict({"x": torch.arange(first, first + count)}, [count])


# A disk that is full

SEVERAL = """
import gc, shutil, sys
import torch
from tensordict import TensorDict
from reap import LazyMemmapStorage, ReplayBuffer
from reap.errors import DiskFull
sys.modules["reap.data.storages.lazy"].PIECE = 1 << 20
sys.modules["reap.data.storages.next_values.side_store"].RESERVE_BYTES = 1 << 18
KINDS = {"time": ((100, 2000), 1, False), "rows": ((4, 25, 2000), 2, False), "once": ((100, 2000), 1, True)}
shape, ndim, once = KINDS[sys.argv[1]]
def make(name):
    return ReplayBuffer(storage=LazyMemmapStorage(1000, scratch_dir=name, ndim=ndim, observations_once=once), batch_size=4)
def frames(number):
    x = torch.full(shape, float(number))
    return TensorDict({"x": x, "next": {"x": x + (0 if once else 1)}} if once else {"x": x}, shape[:-1])
buffers, written = [make(name) for name in "ab"], [0, 0]  # 8 MB each
refused = 0
while refused < 2 and sum(written) < 40:
    for place, buffer in enumerate(buffers):
        before = len(buffer), buffer.write_count
        try:
            buffer.extend(frames(written[place]))
            written[place] += 1
        except DiskFull as error:
            refused += 1
            if refused == 1:
                print(error)
            assert (len(buffer), buffer.write_count) == before == (100 * written[place],) * 2
for place, buffer in enumerate(buffers):
    held = buffer[:]["x"].reshape(-1, 2000)
    assert (held == held[:, :1]).all()
    assert sorted(set(held[:, 0].tolist())) == list(range(written[place])), "what was stored is there"
    assert set(buffer.sample(200)["x"][:, 0].tolist()) <= set(range(written[place]))
print(sum(written) >= 8)
del held, buffer, buffers[0]
gc.collect()
shutil.rmtree("a")
for number in range(written[1], 10):
    buffers[0].extend(frames(number))  # with room again
print(len(buffers[0]))
"""


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["time", "rows", "once"])
def test_several_storages_on_a_disk_that_is_too_small_for_them(kind: str) -> None:
    done = on_small_disk(SEVERAL.replace("sys.argv[1]", repr(kind)), 12)
    assert done.stderr == ""
    said, enough, length = done.stdout.splitlines()
    assert said.startswith("replay buffer: ")
    assert "expected room for " in said
    assert " free: the disk is full. Remove something there" in said
    assert (enough, length) == ("True", "1000")
    assert done.returncode == 0


FIRST = """
import os
import torch
from reap import LazyMemmapStorage, ReplayBuffer
first, second = (ReplayBuffer(storage=LazyMemmapStorage(1000, scratch_dir=name), batch_size=4) for name in "ab")
first.extend(torch.ones(100, 2000))
try:
    second.extend(torch.ones(100, 2000))  # all of a small storage has room from the first write on
except MemoryError as error:
    print(error)
print(len(second), os.listdir("b"))
for _ in range(20):
    first.extend(torch.ones(100, 2000))
print(len(first))
"""


@pytest.mark.processes
def test_the_first_write_to_a_disk_that_is_too_small_makes_no_file() -> None:
    done = on_small_disk(FIRST, 12)
    said, second, first = done.stdout.splitlines()
    assert re.match(r"replay buffer: 1000 frames need 8\.0 MB, the disk of b has 4\.\d MB left.*at most 5\d\d, or less", said)
    assert (second, first) == ("0 []", "1000")
    assert (done.returncode, done.stderr) == (0, "")


LIMITED = """
import os, resource, sys
import torch
from tensordict import TensorDict
from reap import LazyMemmapStorage, ReplayBuffer
from reap.errors import DiskFull
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
once = sys.argv[2] == "once"
buffer = ReplayBuffer(storage=LazyMemmapStorage(1000, scratch_dir=sys.argv[1], observations_once=once))
x = torch.ones(10, 100)
try:
    buffer.extend(TensorDict({"x": x, "next": {"x": x}}, [10]))
except DiskFull as error:
    print(error.errno, error)
print(os.listdir(sys.argv[1]), len(buffer))
"""


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["all", "once"])
def test_files_longer_than_a_limit_are_an_error(tmp_path: Path, kind: str) -> None:
    code, out, errors = warm.run(LIMITED, str(tmp_path), kind, timeout=180)
    assert (code, errors) == (0, "")
    said, left = out.splitlines()
    assert said.startswith("27 replay buffer: its files: expected room for ")
    assert "the file would exceed the largest size allowed there (see ulimit -f)" in said
    assert left == "['reap.lock'] 0"


def test_a_storage_larger_than_a_piece_stays_sparse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy, "PIECE", 1 << 20)
    buffer = buffer_in(tmp_path / "frames", 1_000_000)
    file = tmp_path / "frames" / "x.memmap"
    held: list[int] = []
    for _ in range(3):
        buffer.extend(frames(0, 100_000))
        held.append(file.stat().st_blocks * 512)
    assert file.stat().st_size == 8_000_000
    megabyte = 1 << 20
    assert megabyte <= held[0] <= megabyte + 4096
    assert 1.6e6 <= held[1] <= 2 * megabyte + 4096
    assert 2.4e6 <= held[2] <= 3 * megabyte + 4096


def test_a_load_takes_its_room_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    source = buffer_in(None, 10)
    source.extend(frames(0, 7))
    buffer = buffer_in(tmp_path / "frames", 10)
    monkeypatch.setattr(lazy, "reserve", lambda file, offset, nbytes, what: asked.append(nbytes))
    buffer.load_state_dict(source.state_dict())
    assert asked == [80]
    assert buffer[:]["x"].tolist() == list(range(7))


# One storage in a folder


def test_the_first_write_of_a_second_storage_is_refused(tmp_path: Path) -> None:
    first, second = buffer_in(tmp_path), buffer_in(tmp_path, existsok=True)
    first.extend(frames(0, 3))
    expected = rf"found {tmp_path} in use, claimed by this process \({os.getpid()}\)\. Choose another folder"
    for _ in range(2):
        with pytest.raises(OptionError, match=expected):
            second.extend(frames(10, 4))
    assert (first[:]["x"].tolist(), len(second)) == ([0, 1, 2], 0)
    del first
    gc.collect()
    second.extend(frames(10, 4))
    assert second[:]["x"].tolist() == [10, 11, 12, 13]


def test_one_that_another_process_uses_is_refused(tmp_path: Path) -> None:
    program = """
import signal, sys, torch
from tensordict import TensorDict
from reap.data import LazyMemmapStorage, ReplayBuffer
buffer = ReplayBuffer(storage=LazyMemmapStorage(4, scratch_dir=sys.argv[1]))
buffer.extend(TensorDict({"x": torch.arange(3)}, [3]))
print("written", flush=True)
signal.pause()
"""
    with warm.Program(program, str(tmp_path)) as other:
        assert other.stdout.readline() == "written\n"
        buffer = buffer_in(tmp_path, existsok=True)
        with pytest.raises(OptionError, match=rf"in use, claimed by process {other.pid} "):
            buffer.extend(frames(10, 4))
        assert TensorDict.load_memmap(tmp_path)["x"].tolist() == [0, 1, 2, 0]
        other.send_signal(signal.SIGKILL)
        other.wait(100)
    buffer.extend(frames(10, 4))
    assert buffer[:]["x"].tolist() == [10, 11, 12, 13]


def test_an_older_one_is_replaced_where_that_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "notes").write_text("mine")
    older = buffer_in(tmp_path, existsok=True)
    older.extend(TensorDict({"x": torch.arange(4), "more": {"y": torch.arange(4)}, "next": {"x": torch.arange(4)}}, [4]))
    del older
    gc.collect()
    with pytest.raises(OptionError, match="expected an empty folder, found something in .*; existsok=True replaces"):
        LazyMemmapStorage(4, scratch_dir=tmp_path)
    newer = buffer_in(tmp_path, existsok=True)
    newer.extend(frames(7, 2))
    assert newer[:]["x"].tolist() == [7, 8]
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert found == ["meta.json", "more", "more/notes", "notes", LOCK, "x.memmap"]


def test_what_came_into_the_folder_before_the_first_write_is_not_written_over(tmp_path: Path) -> None:
    buffer = buffer_in(tmp_path)
    (tmp_path / "x.memmap").write_text("mine")
    with pytest.raises(OptionError, match="expected an empty folder"):
        buffer.extend(frames(0, 2))
    assert (tmp_path / "x.memmap").read_text() == "mine"


@pytest.mark.processes
@pytest.mark.parametrize("folder", ["given", "temporary"])
def test_processes_that_share_a_storage_use_its_folder_together(folder: str, tmp_path: Path) -> None:
    buffer = buffer_in(tmp_path / "frames" if folder == "given" else None)
    buffer.share()
    program = """
import pickle, sys, torch
from tensordict import TensorDict
buffer = pickle.loads(bytes.fromhex(sys.argv[1]))
buffer.extend(TensorDict({"x": torch.arange(3)}, [3]))
"""
    assert warm.run(program, pickle.dumps(buffer).hex(), timeout=180) == (0, "", "")
    assert buffer[:]["x"].tolist() == [0, 1, 2]
    second = buffer_in(buffer.storage.folder, existsok=True)  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(OptionError, match="in use, claimed by"):
        second.extend(frames(5, 1))


def test_a_handle_of_a_storage_whose_folder_is_another_s_by_now_is_refused(tmp_path: Path) -> None:
    buffer = buffer_in(tmp_path)
    buffer.share()
    twin = pickle.loads(pickle.dumps(buffer))
    buffer.extend(frames(0, 2))
    del buffer
    gc.collect()
    other = buffer_in(tmp_path, existsok=True)
    other.extend(frames(5, 4))
    with pytest.raises(ClosedError, match=f"its files in {tmp_path} are gone, or another storage's by now"):
        len(twin)


# What killed processes leave


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


LEFT = """
import signal, sys, tempfile
tempfile.tempdir = sys.argv[1]
import torch
from reap.data import LazyMemmapStorage, ReplayBuffer
kept = [ReplayBuffer(storage=LazyMemmapStorage(10)) for _ in range(2)]
kept[0].extend(torch.arange(3))
print(kept[0].storage.folder, flush=True)
signal.pause()
"""


def test_what_a_killed_process_leaves_goes_with_the_next_storage(temporary: Path) -> None:
    with warm.Program(LEFT, str(temporary)) as process:
        folder = Path(process.stdout.readline().strip())
        mine = buffer_in(None)
        mine.extend(frames(0, 3))
        kept = mine.storage.folder  # pyright: ignore[reportAttributeAccessIssue]
        assert len(os.listdir(temporary)) == 3
        assert (folder / LOCK).exists(), "it is in use"
        process.send_signal(signal.SIGKILL)
        process.wait(100)
    next_one = LazyMemmapStorage(4)
    assert sorted(temporary.iterdir()) == sorted([kept, next_one.folder])
    assert mine[:]["x"].tolist() == [0, 1, 2]


def test_nothing_else_is_removed(temporary: Path) -> None:
    for name in ("reap-other", f"{PREFIX}with files and no lock", "theirs"):
        (temporary / name).mkdir()
        (temporary / name / "file").write_text("here")
    (temporary / f"{PREFIX}file").write_text("here")
    (temporary / f"{PREFIX}link").symlink_to(temporary / "theirs")
    (temporary / "theirs" / LOCK).write_text("")
    before = sorted(temporary.rglob("*"))
    (temporary / f"{PREFIX}empty").mkdir()  # of one that was killed as it began
    remove_abandoned()
    assert sorted(temporary.rglob("*")) == before


def test_that_of_another_user_is_left(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = Scratch(None)
    folder = theirs.folder
    kept = temporary / f"{PREFIX}kept"
    kept.mkdir()
    (kept / LOCK).write_text("somebody 1\n")
    monkeypatch.setattr(scratch.os, "getuid", lambda: os.geteuid() + 1)
    remove_abandoned()
    assert sorted(temporary.iterdir()) == sorted([folder, kept])


def test_where_there_are_no_locks_storages_work_and_nothing_is_removed(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(fd: int, kind: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(scratch.fcntl, "flock", flock)
    first, second = buffer_in(None), buffer_in(temporary / "frames")
    first.extend(frames(0, 2))
    second.extend(frames(2, 2))
    assert [buffer[:]["x"].tolist() for buffer in (first, second)] == [[0, 1], [2, 3]]
    assert len(os.listdir(temporary)) == 2


def test_a_folder_that_is_taken_away_while_it_is_made_is_made_again(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    real = tempfile.mkdtemp

    def mkdtemp(**options: Any) -> str:
        made.append(real(**options))
        if len(made) == 1:
            remove_abandoned()
        return made[-1]

    monkeypatch.setattr(scratch.tempfile, "mkdtemp", mkdtemp)
    storage = LazyMemmapStorage(4)
    assert [Path(path).exists() for path in made] == [False, True]
    assert storage.folder == Path(made[1])


def test_files_that_a_link_leads_to_are_not_removed(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "x.memmap").write_text("theirs")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "next").symlink_to(tmp_path / "theirs")
    remove_frames(tmp_path / "mine")
    assert (tmp_path / "theirs" / "x.memmap").read_text() == "theirs"
