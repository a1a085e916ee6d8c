"""Room is taken before it is written to, and given back where it does not suffice."""

from __future__ import annotations

import ctypes
import errno
import subprocess
import sys
from pathlib import Path

import pytest

from reap.errors import DiskFull
from reap.system import disk
from reap.system.disk import free_space, give_back, reserve, room
from tests.architecture import ROOT
from tests.disks import on_small_disk

BLOCK = 512
"""Bytes of what `st_blocks` counts."""


def held(file: Path) -> int:
    return file.stat().st_blocks * BLOCK


def test_the_disk_holds_what_was_reserved_and_reads_zeros(tmp_path):
    file = tmp_path / "frames"
    file.write_bytes(b"here")
    reserve(file, 4, 3_000_000, "a test")
    assert file.stat().st_size == 3_000_004
    assert held(file) >= 3_000_004
    assert file.read_bytes() == b"here" + bytes(3_000_000)


def test_a_part_of_a_sparse_file_is_reserved_by_its_descriptor(tmp_path):
    file = tmp_path / "frames"
    with file.open("w+b") as opened:
        opened.truncate(1 << 40)
        reserve(opened.fileno(), 1 << 39, 1 << 20, "a test")
        assert file.stat().st_size == 1 << 40
        assert 1 << 20 <= held(file) < 2 << 20
        give_back(opened.fileno(), 1 << 39, 1 << 20)
        assert file.stat().st_size == 1 << 40
        assert held(file) < 1 << 20


def test_nothing_is_reserved_for_no_bytes(tmp_path):
    reserve(tmp_path / "is not there", 0, 0, "a test")


LIMITED = """
import os, resource, sys
from pathlib import Path
from reap.system.disk import reserve
from reap.errors import DiskFull
file = Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, resource.RLIM_INFINITY))
try:
    reserve(file, 4, 3_000_000, "a test")
except DiskFull as error:
    print(error.errno, error)
print(file.read_bytes(), file.stat().st_blocks * 512 <= 4096)
"""


def test_beyond_the_limit_of_a_file_nothing_is_kept(tmp_path):
    file = tmp_path / "frames"
    file.write_bytes(b"here")
    command = [sys.executable, "-c", LIMITED, str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first.startswith(f"{errno.EFBIG} a test: expected room for 3.0 MB at {file}, found ")
    assert "exceed the largest size allowed there (see ulimit -f). Remove something there, or choose a folder" in first
    assert second == "b'here' True"


FULL = """
from pathlib import Path
from reap.system.disk import free_space, reserve
from reap.errors import DiskFull
first, second, free = Path("first"), Path("second"), free_space(Path())
first.touch(), second.touch()
reserve(first, 0, 3_000_000, "a test")
assert free_space(Path()) <= free - 3_000_000
before = free_space(Path())
try:
    reserve(second, 0, 6_000_000, "a test")
except DiskFull as error:
    print(error.errno, error)
assert (second.stat().st_size, second.stat().st_blocks) == (0, 0), second.stat()
assert free_space(Path()) == before, (before, free_space(Path()))
second.write_bytes(bytes(5_000_000))
"""


def test_a_full_disk_is_an_error_and_gets_back_what_was_taken():
    done = on_small_disk(FULL, 8)
    assert done.stderr == ""
    assert done.stdout == (
        f"{errno.ENOSPC} a test: expected room for 6.0 MB at second, found 5.4 MB free: the disk is full. "
        "Remove something there, or choose a folder on another disk\n"
    )


WITHOUT = """
from pathlib import Path
from reap.system.disk import reserve
file = Path("frames")
file.touch()
reserve(file, 0, 3_000_000, "a test")
print(file.stat().st_size, file.stat().st_blocks)
"""


def test_a_file_system_that_reserves_nothing_is_not_written_to():
    done = on_small_disk(WITHOUT, 8, kind="ramfs")
    assert (done.stdout, done.stderr) == ("3000000 0\n", "")


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOSYS])
def test_where_nothing_can_be_reserved_what_is_free_is_compared(tmp_path, monkeypatch, number):
    monkeypatch.setattr(disk, "fallocate", lambda *_: ctypes.set_errno(number) or -1)
    file = tmp_path / "frames"
    file.touch()
    reserve(file, 0, 1000, "a test")
    assert file.stat().st_size == 1000
    needed = 2 * int(free_space(tmp_path))
    with pytest.raises(DiskFull, match=r"^a test: expected room for [\d.]+ [TGM]B at .* free: too little"):
        reserve(file, 1000, needed, "a test")
    assert file.stat().st_size == 1000


def test_a_call_that_signals_break_off_asks_for_less_until_it_comes_to_an_end(tmp_path, monkeypatch):
    asked, system = [], disk.fallocate

    def interrupted(fd, mode, offset, nbytes):
        asked.append(nbytes)
        return (ctypes.set_errno(errno.EINTR) or -1) if nbytes > 4 << 20 else system(fd, mode, offset, nbytes)

    monkeypatch.setattr(disk, "fallocate", interrupted)
    file = tmp_path / "frames"
    file.touch()
    reserve(file, 0, 10 << 20, "a test")
    assert [nbytes >> 20 for nbytes in asked] == [10] * 5 + [8, 4, 4, 2]
    assert held(file) >= 10 << 20


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_write_without_room_says_how_much_there_is(tmp_path, number):
    with (
        pytest.raises(DiskFull, match=r"a test: expected room for 7.0 MB") as raised,
        room(tmp_path, lambda: 7_000_000, "a test"),
    ):
        raise OSError(number, "from the system")
    assert raised.value.errno == number


def test_another_failure_of_a_write_is_left_as_it_is(tmp_path):
    with pytest.raises(OSError, match="from the system") as raised, room(tmp_path, lambda: 7_000_000, "a test"):
        raise OSError(errno.EIO, "from the system")
    assert not isinstance(raised.value, DiskFull)
