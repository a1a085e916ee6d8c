"""Saves on a disk that others use too: one save is read, damaged bytes are found, what else lies there does no harm."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import re
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import NonTensorStack, TensorDict

from reap.data.buffers.ensemble import ReplayBufferEnsemble
from reap.data.buffers.replay import ReplayBuffer
from reap.data.samplers.slices import SliceSampler
from reap.data.saving import reading, rest
from reap.data.saving.manifest import MANIFEST
from reap.data.saving.rest import REST
from reap.data.storages import LazyTensorStorage
from reap.errors import CallOrderError, OptionError, SpecMismatch
from tests import warm
from tests.data.claims import claimed
from tests.disks import on_small_disk


def made(count: int = 0, **options: Any) -> ReplayBuffer:
    """A buffer of so many frames, all of which say how many there are."""
    buffer = ReplayBuffer(storage=LazyTensorStorage(64), batch_size=4, generator=torch.Generator().manual_seed(3), **options)
    if count:
        buffer.extend(TensorDict({"x": torch.full((count, 3), float(count)), "next": {"y": torch.arange(count)}}, [count]))
    return buffer


def frames_of(buffer: ReplayBuffer) -> set[float]:
    """What all of its frames say."""
    assert buffer[:]["next", "y"].tolist() == list(range(len(buffer)))
    return set(buffer[:]["x"].flatten().tolist())


# A load reads one save


def test_a_save_during_a_load_is_read_in_full_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is opened next, the save is replaced before: each time another, until the reader has opened all."""
    saves, numbers = {number: made(number) for number in range(20, 29)}, iter(range(21, 29))
    saves[20].dumps(tmp_path / "ck")
    opened = reading.SavedFolder.file

    def replacing(folder: Any, name: str) -> int:
        if (number := next(numbers, None)) is not None:
            saves[number].dumps(tmp_path / "ck")
        return opened(folder, name)

    monkeypatch.setattr(reading.SavedFolder, "file", replacing)
    reader = made()
    reader.loads(tmp_path / "ck")
    assert frames_of(reader) == {28.0}
    assert len(reader) == 28


def test_a_save_that_is_replaced_while_it_is_verified_is_read_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(20).dumps(tmp_path / "ck")
    mapped = rest.mapped_frames

    def replaced(folder: Any, files: Any) -> Any:
        made(30).dumps(tmp_path / "ck")
        return mapped(folder, files)

    monkeypatch.setattr(rest, "mapped_frames", replaced)
    reader = made()
    reader.loads(tmp_path / "ck")
    assert frames_of(reader) == {20.0}


SAVER = """
import sys, torch
from tensordict import TensorDict
from reap.data.buffers.replay import ReplayBuffer
from reap.data.storages import LazyTensorStorage
buffers = []
for count in range(int(sys.argv[2]), int(sys.argv[2]) + 20):
    buffer = ReplayBuffer(storage=LazyTensorStorage(64))
    buffer.extend(TensorDict({"x": torch.full((count, 3), float(count)), "next": {"y": torch.arange(count)}}, [count]))
    buffers.append(buffer)
print("begun", flush=True)
while True:
    for buffer in buffers:
        buffer.dumps(sys.argv[1])
"""


@pytest.mark.processes
@pytest.mark.parametrize("can_exchange", [True, False])
def test_two_savers_a_reader_and_one_that_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    path = tmp_path / "ck"
    made(40).dumps(path)
    code = SAVER if can_exchange else f"from reap.data.saving import folders\nfolders.exchange = lambda *_: False\n{SAVER}"
    reader = made()
    for _ in range(2):
        with warm.Program(code, str(path), "20") as first, warm.Program(code, str(path), "40") as second:
            for saver in (first, second):
                assert saver.stdout.readline() == "begun\n", saver.stderr.read()
            loads, seen = 0, set[int]()
            while loads < 25 or len(seen) < 4:
                reader.loads(path)
                assert frames_of(reader) == {float(len(reader))}
                loads += 1
                seen.add(len(reader))
            for saver in (first, second):
                saver.send_signal(signal.SIGKILL)
                assert saver.wait(100) == -signal.SIGKILL
        reader.loads(path)
        assert frames_of(reader) == {float(len(reader))}
    made(7).dumps(path)
    assert os.listdir(tmp_path) == ["ck"]


def test_a_partial_that_another_process_took_for_stale_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, seen = fcntl.flock, []

    def removing(fd: int, kind: int) -> None:
        if not seen:
            (one,) = tmp_path.glob(".ck.*.partial")
            seen.append(one)
            one.rmdir()
        real(fd, kind)

    monkeypatch.setattr(fcntl, "flock", removing)
    made(5).dumps(tmp_path / "ck")
    assert os.listdir(tmp_path) == ["ck"]


# Damage


def files_of(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def test_every_byte_that_is_changed_is_found(tmp_path: Path) -> None:
    made(20).dumps(tmp_path / "ck")
    chance, buffer = random.Random(1), made(9)
    before = repr(buffer.state_dict())
    names = [str(file.relative_to(tmp_path / "ck")) for file in files_of(tmp_path / "ck")]
    assert names == [MANIFEST, "meta.json", "next/meta.json", "next/y.memmap", REST, "x.memmap"]
    for name in ("next/y.memmap", REST, "x.memmap"):
        file = tmp_path / "ck" / name
        content = file.read_bytes()
        for place in {0, len(content) - 1, *(chance.randrange(len(content)) for _ in range(6))}:
            file.write_bytes(content[:place] + bytes([content[place] ^ 1 << chance.randrange(8)]) + content[place + 1 :])
            with pytest.raises(SpecMismatch, match=rf"{name}: expected \d+ bytes with the checksum \w+, found .*it is damaged"):
                buffer.loads(tmp_path / "ck")
        file.write_bytes(content)
    assert repr(buffer.state_dict()) == before
    buffer.loads(tmp_path / "ck")
    assert frames_of(buffer) == {20.0}


def test_verify_false_looks_at_no_checksum(tmp_path: Path) -> None:
    made(20).dumps(tmp_path / "ck")
    with (tmp_path / "ck" / "x.memmap").open("r+b") as file:
        file.write(torch.tensor(5.0).numpy().tobytes())
    buffer = made()
    buffer.loads(tmp_path / "ck", verify=False)
    assert buffer[0]["x"].tolist() == [5.0, 20.0, 20.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda file: file.unlink(), "expected the checksums of the files, found none"),
        (lambda file: file.write_text("{"), "manifest.json: expected a file of dumps, found it damaged"),
        (lambda file: file.write_text('{"files": []}'), "manifest.json: expected a file of dumps, found it damaged"),
        (lambda file: file.write_text('{"files": {}}'), "reap.pt: expected its checksum in manifest.json, found none"),
    ],
)
def test_a_manifest_that_is_damaged(tmp_path: Path, change: Callable[[Path], Any], message: str) -> None:
    made(20).dumps(tmp_path)
    change(tmp_path / MANIFEST)
    with pytest.raises(SpecMismatch, match=message):
        made().loads(tmp_path)


def test_saves_of_earlier_versions_load_without_checksums(tmp_path: Path) -> None:
    made(20).dumps(tmp_path)
    (tmp_path / MANIFEST).unlink()
    rest = torch.load(tmp_path / REST, weights_only=True)
    del rest["manifest"]
    torch.save(rest, tmp_path / REST)
    buffer = made()
    buffer.loads(tmp_path)
    assert frames_of(buffer) == {20.0}


def test_frames_are_read_by_tensordict_and_the_manifest_is_plain(tmp_path: Path) -> None:
    made(20).dumps(tmp_path)
    assert TensorDict.load_memmap(tmp_path)["x"].shape == (20, 3)
    files = json.loads((tmp_path / MANIFEST).read_text())["files"]
    assert set(files) == {"meta.json", "next/meta.json", "next/y.memmap", REST, "x.memmap"}
    assert files["next/y.memmap"]["bytes"] == 160


def test_rows_that_are_apart_are_written_in_pieces(tmp_path: Path) -> None:
    buffer, twin = (ReplayBuffer(storage=LazyTensorStorage(60, ndim=2)) for _ in range(2))
    buffer.extend(TensorDict({"x": torch.randn(3, 7, 5, 20_000), "flag": torch.rand(3, 7) < 0.5}, [3, 7]))
    assert buffer[:]["x"][0].nbytes > 2 * reading.PIECE
    assert not buffer[:]["x"].is_contiguous()
    buffer.dumps(tmp_path)
    twin.loads(tmp_path)
    assert (twin[:] == buffer[:]).all()


def test_ensembles(tmp_path: Path) -> None:
    ensemble = ReplayBufferEnsemble(made(4), made(5))
    ensemble.dumps(tmp_path / "ck")
    twin = ReplayBufferEnsemble(made(), made())
    twin.loads(tmp_path / "ck")
    assert [len(buffer) for buffer in twin.buffers] == [4, 5]
    other = ReplayBufferEnsemble(made(6), made(7))
    other.dumps(tmp_path / "other")
    (tmp_path / "ck" / "1").rename(tmp_path / "away")
    (tmp_path / "other" / "1").rename(tmp_path / "ck" / "1")
    with pytest.raises(SpecMismatch, match="1/manifest.json: expected .* it is damaged"):
        twin.loads(tmp_path / "ck")
    twin.loads(tmp_path / "ck", verify=False)
    assert [len(buffer) for buffer in twin.buffers] == [4, 7]


# What else lies there


def test_what_lies_beside_a_save_neither_stops_it_nor_is_touched(tmp_path: Path) -> None:
    beside = [f".ck.{number:08x}.{kind}" for number, kind in enumerate(["partial"] * 4 + ["before"] * 2)]
    (tmp_path / beside[0]).symlink_to("/nowhere")
    os.mkfifo(tmp_path / beside[1])
    (tmp_path / beside[2]).write_text("mine")
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(tmp_path / beside[3]))
        (tmp_path / beside[4]).symlink_to("/nowhere")
        os.mkfifo(tmp_path / beside[5])
        (tmp_path / ".ck.notes.partial").mkdir()
        made(5).dumps(tmp_path / "ck")
        made(6).dumps(tmp_path / "ck")
    reader = made()
    reader.loads(tmp_path / "ck")
    assert frames_of(reader) == {6.0}
    assert sorted(os.listdir(tmp_path)) == sorted(["ck", ".ck.notes.partial", *beside])


def test_a_partial_of_another_user_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stale = tmp_path / ".ck.00000000.partial"
    stale.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: stale.stat().st_uid + 1)
    made(5).dumps(tmp_path / "ck")
    assert stale.exists()
    monkeypatch.undo()
    made(5).dumps(tmp_path / "ck")
    assert os.listdir(tmp_path) == ["ck"]


def test_links_lead_to_the_save(tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(tmp_path / "runs" / "7")
    made(5).dumps(tmp_path / "latest")
    made(6).dumps(tmp_path / "latest")
    assert (tmp_path / "latest").is_symlink()
    reader = made()
    reader.loads(tmp_path / "runs" / "7")
    assert frames_of(reader) == {6.0}
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(OptionError, match="expected an empty folder, a saved buffer, or nothing"):
        made(5).dumps(tmp_path / "loop")
    with pytest.raises(OptionError, match="expected a folder that dumps wrote"):
        reader.loads(tmp_path / "loop")


@pytest.mark.parametrize("name", [REST, MANIFEST, "x.memmap"])
def test_a_pipe_or_a_folder_in_the_place_of_a_file(tmp_path: Path, name: str) -> None:
    made(5).dumps(tmp_path / "ck")
    file = tmp_path / "ck" / name
    file.unlink()
    buffer = made(9)
    for place in (os.mkfifo, os.mkdir):
        place(file)
        with pytest.raises((SpecMismatch, OptionError)):
            buffer.loads(tmp_path / "ck")
        (file.rmdir if file.is_dir() else file.unlink)()
    assert frames_of(buffer) == {9.0}


def test_a_pipe_at_the_path(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ck")
    with pytest.raises(OptionError, match="expected an empty folder, a saved buffer, or nothing"):
        made(5).dumps(tmp_path / "ck")
    with pytest.raises(OptionError, match="expected a folder that dumps wrote"):
        made(5).loads(tmp_path / "ck")


# A full disk

FULL = """
import os, torch
from tensordict import TensorDict
from reap.data.buffers.replay import ReplayBuffer
from reap.data.storages import LazyTensorStorage
from reap.system.disk import free_space
from reap.errors import DiskFull
from pathlib import Path
def buffer(value):
    made = ReplayBuffer(storage=LazyTensorStorage(1000), batch_size=4)
    made.extend(TensorDict({"x": torch.full((1000, 1000), value), "y": torch.zeros(1000)}, [1000]))
    return made
buffer(1.0).dumps("ck")
free = free_space(Path())
try:
    buffer(2.0).dumps("ck")
except DiskFull as error:
    print(error)
assert os.listdir() == ["ck"] and free_space(Path()) == free, (os.listdir(), free, free_space(Path()))
reader = ReplayBuffer(storage=LazyTensorStorage(1000), batch_size=4)
reader.loads("ck")
print(reader[:]["x"].unique().tolist(), len(reader))
"""


def test_a_full_disk_is_an_error_and_the_save_before_is_there() -> None:
    done = on_small_disk(FULL, 6)
    assert done.stderr == ""
    said, loaded = done.stdout.splitlines()
    assert re.fullmatch(
        r"replay buffer: a save: expected room for 4.0 MB at /mnt/ck, found 2\.\d MB free: the disk is full. Remove something "
        "there, or choose a folder on another disk",
        said,
    )
    assert loaded == "[1.0] 1000"


LIMITED = """
import os, resource, sys, torch
from tensordict import TensorDict
from reap.data.buffers.replay import ReplayBuffer
from reap.data.storages import LazyTensorStorage
from reap.errors import DiskFull
os.chdir(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
buffer = ReplayBuffer(storage=LazyTensorStorage(1000), batch_size=4)
buffer.extend(TensorDict({"x": torch.zeros(1000, 100)}, [1000]))
try:
    buffer.dumps("ck")
except DiskFull as error:
    print(error.errno, error)
print(os.listdir())
"""


@pytest.mark.processes
@pytest.mark.parametrize("limit", [3_000, 100_000])
def test_files_longer_than_a_limit_are_an_error(tmp_path: Path, limit: int) -> None:
    code, out, errors = warm.run(LIMITED, str(tmp_path), str(limit), timeout=180)
    assert (code, errors) == (0, "")
    said, left = out.splitlines()
    assert said.startswith("27 replay buffer: a save: expected room for 400.0 kB at ")
    assert left == "[]"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE, errno.EIO])
@pytest.mark.parametrize("name", ["x.memmap", "ck"])
def test_files_that_cannot_be_opened_are_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    buffer = made(9)
    buffer.dumps(tmp_path / "ck")
    opened = os.open

    def failing(path: Any, *rest: Any, **options: Any) -> int:
        if Path(path).name == name:
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, *rest, **options)

    monkeypatch.setattr("reap.data.saving.reading.os.open", failing)
    with pytest.raises(OSError, match=name) as caught:
        buffer.loads(tmp_path / "ck")
    assert caught.value.errno == number
    assert len(buffer) == 9


# Loads beside writers, and states that somebody altered


@pytest.mark.parametrize("shared", [False, True])
def test_a_writer_that_begins_during_a_load_is_noticed(shared: bool) -> None:
    """It has claimed its columns after the load looked for writers first, and before it took the lock."""
    buffer = made(20, shared=shared)
    state, ring = made(9).state_dict(), buffer.storage.ring
    before, claims = buffer.state_dict(), []

    class Late(dict[str, Any]):
        """A state by which somebody begins to write, when it is asked for its generator."""

        def __getitem__(self, key: str) -> Any:
            if key == "generator":
                claims.append(claimed(ring, 4))
            return super().__getitem__(key)

    with pytest.raises(CallOrderError, match="expected no process to write while it is loaded"):
        buffer.load_state_dict(Late(state))
    assert list(ring.under_way()) == [(20, 4)]
    ring.give_up(claims[0])
    after = buffer.state_dict()
    assert (after["storage"]["control"]["claimed"], before["storage"]["control"]["claimed"]) == (24, 20)
    assert torch.equal(after["generator"], before["generator"])
    buffer.load_state_dict(state)
    assert frames_of(buffer) == {9.0}


@pytest.mark.processes
def test_writers_and_loads_in_turn(tmp_path: Path) -> None:
    buffer, stop = made(20), threading.Event()
    buffer.dumps(tmp_path / "ck")

    def write() -> None:
        while not stop.is_set():
            buffer.extend(TensorDict({"x": torch.zeros(8, 3), "next": {"y": torch.zeros(8, dtype=torch.int64)}}, [8]))

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        tries = loads = 0
        while tries < 200 or not loads:
            tries += 1
            try:
                buffer.loads(tmp_path / "ck", verify=False)
                loads += 1
            except CallOrderError:
                pass
            assert 0 <= buffer.storage.control.words[4] <= 2
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    buffer.loads(tmp_path / "ck")
    assert frames_of(buffer) == {20.0}


def control(change: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    return lambda state: state["storage"]["control"].update(change)


ALTERED: dict[str, Callable[[dict[str, Any]], None]] = {
    "written": control({"written": "9"}),
    "transforms": control({"transforms": None}),
    "writing": control({"writing": [[3]]}),
    "writing beyond": control({"writing": [[10**6, 3]]}),
    "streams": control({"origins": torch.full((64,), -2, dtype=torch.int32)}),
    "claimed": control({"claimed": 4.0}),
    "objects": lambda state: state["storage"].update(objects={}),
    "fewer objects": lambda state: state["storage"]["objects"]["word",].pop(),
    "rubbish objects": lambda state: state["storage"]["objects"].update({("word",): [{"kind": "evil", "value": 0}] * 9}),
    "ahead": lambda state: state.update(ahead={"samples": []}),
    "a sample": lambda state: state["ahead"]["samples"].append({"kind": "evil"}),
}


@pytest.mark.parametrize("what", ALTERED)
def test_a_state_that_somebody_altered_changes_nothing(what: str) -> None:
    def worded(count: int) -> ReplayBuffer:
        buffer = made()
        words = NonTensorStack(*(f"{number} of {count}" for number in range(count)))
        buffer.extend(TensorDict({"x": torch.full((count,), float(count)), "word": words}, [count]))
        return buffer

    buffer, state = worded(5), worded(9).state_dict()
    state["generator"] = torch.Generator().manual_seed(99).get_state()
    before = repr(buffer.state_dict())
    ALTERED[what](state)
    with pytest.raises(SpecMismatch):
        buffer.load_state_dict(state)
    assert repr(buffer.state_dict()) == before


def test_what_a_sampler_knew_that_does_not_fit_is_found_out_again(caplog: pytest.LogCaptureFixture) -> None:
    def sliced() -> ReplayBuffer:
        buffer = made(sampler=SliceSampler(slice_len=2, traj_key="id"))
        buffer.extend(TensorDict({"id": torch.arange(20) // 5, "x": torch.arange(20)}, [20]))
        return buffer

    buffer, state = sliced(), (source := sliced()).state_dict()
    source.sample()
    state = source.state_dict()
    state["sampler"]["state"]["index"] = {"read_until": 20, "table": {}}
    buffer.load_state_dict(state)
    assert "its state does not fit the frames of the loaded buffer" in caplog.text
    first, second = buffer.sample(40)["x"].view(-1, 2).unbind(1)
    assert ((second - first == 1) & (first // 5 == second // 5)).all()
