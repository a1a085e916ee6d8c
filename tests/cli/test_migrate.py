"""`reap migrate`: what it prints, what it writes, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from reap.cli.main import main

BEFORE = "from torchrl.collectors import SyncDataCollector, Evaluator\nfrom torchrl.data import ReplayBuffer\n"
AFTER = """\
from reap.collectors import SyncDataCollector
from torchrl.collectors import Evaluator
from reap.data import ReplayBuffer
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("train.py")
    path.write_text(BEFORE)
    return path


def test_it_shows_and_writes_nothing(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "train.py"]) == 0
    assert capsys.readouterr().out == (
        "train.py\n"
        "    1 - from torchrl.collectors import SyncDataCollector, Evaluator\n"
        "    1 + from reap.collectors import SyncDataCollector\n"
        "    1 + from torchrl.collectors import Evaluator\n"
        "    2 - from torchrl.data import ReplayBuffer\n"
        "    2 + from reap.data import ReplayBuffer\n"
        "    1 ! torchrl.collectors.Evaluator: use reap.evaluate\n"
        "2 imports in 1 file would change; --write changes them.\n"
    )
    assert program.read_text() == BEFORE


def test_it_writes(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program.chmod(0o640)
    assert main(["migrate", ".", "--write"]) == 0
    assert capsys.readouterr().out.endswith("2 imports in 1 file changed.\n")
    assert program.read_text() == AFTER
    assert program.stat().st_mode & 0o777 == 0o640
    assert main(["migrate", "train.py"]) == 0
    assert capsys.readouterr().out.endswith("\nNo import lines to change at level 3.\n")
    assert [path.name for path in Path().iterdir()] == ["train.py"]


def test_packages_that_are_installed_in_the_folder_stay_as_they_are(program: Path) -> None:
    Path("own/venv").mkdir(parents=True)
    Path("own/venv/pyvenv.cfg").touch()
    others = [Path(name) for name in ("own/venv/a.py", ".venv/lib/torchrl/a.py", "own/site-packages/torchrl/a.py")]
    for path in (*others, own := Path("own/agents/a.py")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(BEFORE)
    assert main(["migrate", ".", "--write"]) == 0
    assert [path.read_text() for path in others] == [BEFORE] * 3
    assert (own.read_text(), program.read_text()) == (AFTER, AFTER)


def test_a_level(program: Path) -> None:
    assert main(["migrate", "train.py", "--level", "1", "--write"]) == 0
    assert program.read_text() == AFTER.replace("reap.data", "torchrl.data")


def test_the_encoding_and_the_line_ends_stay(program: Path) -> None:
    data = "# coding: latin-1\r\nfrom torchrl.envs import GymEnv  # é\r\n".encode("latin-1")
    program.write_bytes(data)
    assert main(["migrate", "train.py", "--write"]) == 0
    assert program.read_bytes() == data.replace(b"torchrl", b"reap")


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbffrom torchrl.envs import GymEnv\r\n",
        b"import os\rfrom torchrl.envs import GymEnv\r",
        b"from torchrl.envs import GymEnv",
    ],
    ids=["a byte-order mark", "carriage returns", "no line end"],
)
def test_bytes_of_all_else_stay(program: Path, data: bytes) -> None:
    program.write_bytes(data)
    assert main(["migrate", "train.py", "--write"]) == 0
    assert program.read_bytes() == data.replace(b"torchrl", b"reap")


def test_a_link_stays_one(program: Path) -> None:
    Path("link.py").symlink_to("train.py")
    assert main(["migrate", "link.py", "--write"]) == 0
    assert Path("link.py").is_symlink()
    assert program.read_text() == AFTER


def test_a_file_that_is_not_python_is_named_and_the_others_are_done(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken.py").write_text("from torchrl import (\n")
    Path("bytes.py").write_bytes(b"x = '\xff'\n")
    Path("cells.py").write_text(f"{BEFORE.splitlines()[0]}\n%matplotlib inline\n")
    Path("nulls.py").write_bytes(b"x = 1\0\n")
    Path("wide.py").write_text(BEFORE, encoding="utf-16")
    assert main(["migrate", ".", "--write"]) == 1
    out = capsys.readouterr().out
    assert "broken.py: left unchanged: it is not Python: '(' was never closed, line 1\n" in out
    assert "cells.py: left unchanged: it is not Python: invalid syntax, line 2; magics of notebooks are not Python\n" in out
    assert "nulls.py: left unchanged: source code string cannot contain null bytes" in out
    assert "wide.py: left unchanged: invalid or missing encoding declaration" in out
    assert "bytes.py: left unchanged: invalid or missing encoding" in out
    assert out.endswith("2 imports in 1 file changed. 5 files could not be read or written.\n")
    assert program.read_text() == AFTER


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "expected a file or a folder, got none"),
        (["none.py"], "none.py: expected a folder or a Python file, FILE.py; it does not exist"),
        (["notes.txt"], "notes.txt: expected a folder or a Python file, FILE.py; found .txt"),
        (["cells.ipynb"], "found .ipynb; this makes a program of a notebook: jupyter nbconvert --to script cells.ipynb"),
    ],
)
def test_mistakes(program: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    Path("notes.txt").touch()
    Path("cells.ipynb").touch()
    assert main(["migrate", "train.py", *words, "--write"] if words else ["migrate"]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert program.read_text() == BEFORE
