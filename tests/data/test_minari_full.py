"""A disk that becomes full while a data set of Minari is made, and a run whose data set is not there yet."""

from __future__ import annotations

import errno
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from reap.cli.main import main
from reap.data import load_run, to_minari
from reap.data.datasets import minari_out
from reap.errors import DiskFull
from reap.optional import load
from tests.disks import on_small_disk

FULL = """
import os, sys
from pathlib import Path
os.environ["MINARI_DATASETS_PATH"] = "/mnt/sets"
from reap.cli.main import main
from reap.data import to_minari
from reap.system.disk import free_space, reserve

rest = Path("rest")
rest.touch()
words = "collect CartPole-v1 --num-envs 4 --frames 400 --out out --format minari --dataset cart/full-v0".split()
reserve(rest, 0, int(free_space(Path())) - 140_000, "a test")
assert main(words) == 1
try:
    to_minari("out", "cart/full-v0")
except OSError as error:
    print("ERROR", error.errno, type(error).__name__, error)
assert sorted(map(str, Path("sets").rglob("*"))) == ["sets/cart", "sets/cart/namespace_metadata.json"]
print("CODE", main([*words, "--resume"]))
rest.unlink()
assert main([*words, "--resume"]) == 0
import minari
print("STEPS", minari.load_dataset("cart/full-v0").total_steps)
"""

TEXT = (
    r"to_minari: expected room for more than \d\S* [kM]B at /mnt/sets/cart, found \d\S* [kM]B free: No space left on device. "
    "Remove something there, or choose a folder on another disk with MINARI_DATASETS_PATH"
)


@pytest.mark.processes
def test_a_data_set_for_which_there_is_no_room() -> None:
    done = on_small_disk(FULL, 4)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    said = [line for line in lines if line.startswith("error: ")]
    assert len(said) == 2
    for line in said:
        assert re.fullmatch(f"error: {TEXT}. The frames are kept; --resume makes the data set of them", line)
    assert re.fullmatch(f"ERROR {errno.ENOSPC} DiskFull {TEXT}", next(line for line in lines if line.startswith("ERROR")))
    assert "CODE 1" in lines
    assert lines[-1] == "STEPS 400"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "sets"


def frames() -> TensorDict:
    flags = {name: torch.zeros(4, 1, dtype=torch.bool) for name in ("done", "terminated", "truncated")}
    steps = torch.arange(4.0)[:, None]
    return TensorDict(
        {"observation": steps, "action": steps, "next": {"observation": steps + 1, "reward": steps, **flags}}, [4]
    )


HDF5 = "Disable slist on flush dest failure failed (file write failed: time = 9, errno = {}, error message = 'No'"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("kind", [OSError, RuntimeError])
@pytest.mark.parametrize("method", ["new", "update_metadata"])
def test_each_error_of_hdf5_is_a_full_disk(
    root: Path, monkeypatch: pytest.MonkeyPatch, method: str, kind: type[Exception], number: int
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise kind(HDF5.format(number))

    monkeypatch.setattr(load("minari.dataset.minari_storage", "a test").MinariStorage, method, full)
    with pytest.raises(DiskFull, match="^to_minari: expected room for more") as caught:
        to_minari(frames(), "full-v0")
    assert caught.value.errno == number
    assert list(root.iterdir()) == []


def test_other_errors_are_as_they_were(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError(HDF5.format(errno.EIO))

    monkeypatch.setattr(minari_out, "write_run_manifest", broken)
    with pytest.raises(RuntimeError, match="^Disable slist"):
        to_minari(frames(), "full-v0")
    assert list(root.iterdir()) == []


WORDS = ["collect", "CartPole-v1", "--frames", "20", "--out", "out", "--format", "minari", "--dataset", "cart/pole-v0"]


def test_a_disk_that_fails_is_one_line(root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error", "out")

    with monkeypatch.context() as patched:
        patched.setattr(minari_out, "_move", fails)
        assert main(WORDS) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[-1] == "error: [Errno 5] Input/output error: 'out'. The frames are kept; --resume makes the data set of them"
    assert json.loads(Path("out/manifest.json").read_text())["state"] == "collected"
    assert main([*WORDS, "--resume"]) == 0
    assert load_run("out", verify=True).shape == (1, 20)
    assert (root / "cart" / "pole-v0" / "manifest.json").exists()


def test_a_run_that_was_killed_after_its_data_set_was_made_is_complete(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(WORDS) == 0
    file = Path("out/manifest.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), "state": "collected"}))
    capsys.readouterr()
    assert main([*WORDS, "--resume"]) == 0
    assert capsys.readouterr().out == "out: the run is complete; there is nothing to resume\n"
    about = root / "cart" / "pole-v0" / "manifest.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "source": {"kind": "TensorDict"}}))
    assert main([*WORDS, "--resume"]) == 2  # a data set of other frames
    assert "'cart/pole-v0' is there already" in " ".join(capsys.readouterr().err.split())
    about.unlink()
    assert main([*WORDS, "--resume"]) == 2
    assert "'cart/pole-v0' is there already" in " ".join(capsys.readouterr().err.split())


def test_a_manifest_for_which_there_is_no_room(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del root

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(DiskFull, match=r"^manifest.json: expected room for \d+ \w+ at "):
        minari_out.write_run_manifest(Path(), {"a": 1})
    assert list(Path().iterdir()) == []
