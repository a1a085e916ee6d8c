"""`DataFolder`: what is on the disk, and when."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from tensordict import NonTensorStack, TensorDict, TensorDictBase

from reap.cli.folder import DataFolder
from reap.errors import OptionError, SpecMismatch


def batch(columns: int, start: int = 0) -> TensorDictBase:
    time = torch.arange(start, start + columns).expand(2, -1)
    values = {
        "observation": time.unsqueeze(-1) * torch.ones(3),
        "next": {"done": time.unsqueeze(-1) % 3 == 0},
        "half": time.to(torch.bfloat16),
    }
    return TensorDict(values, [2, columns])


def test_batches_one_behind_the_other(tmp_path: Path) -> None:
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
    with pytest.raises(OptionError, match=r"expected a new or empty folder, found 'x' in it"):
        DataFolder(tmp_path, 5)
    with pytest.raises(OptionError, match=r"found a file"):
        DataFolder(tmp_path / "x", 5)
    assert [file.name for file in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("path", ["/proc/reap", "/dev/null/reap"])
def test_folders_that_cannot_be_written(path: str) -> None:
    with pytest.raises(OptionError, match=r"cannot be written"):
        DataFolder(Path(path), 5)


def test_no_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = DataFolder(tmp_path / "out", 1 << 50)
    with pytest.raises(OptionError, match=r"\d TB are needed there, and .* are free"):
        folder.write(batch(2))
    assert folder.finish() is None

    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    folder = DataFolder(tmp_path / "out", 4)
    with pytest.raises(OSError, match="No space left"):
        folder.write(batch(2))
    assert folder.finish() is None
    assert not list(tmp_path.iterdir())


def test_python_objects_are_refused(tmp_path: Path) -> None:
    words = NonTensorStack(NonTensorStack("a", "b"), NonTensorStack("c", "d"))
    folder = DataFolder(tmp_path, 4)
    with pytest.raises(SpecMismatch, match=r"'words' holds Python objects"):
        folder.write(batch(2).set("words", words))
    folder.finish()
    assert not list(tmp_path.iterdir())
