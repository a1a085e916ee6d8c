"""The script of docs/scaling.md: its table for a given profile, and the commands of the page with a profile of its own."""

from __future__ import annotations

import json
import shlex
import sys
from functools import partial
from pathlib import Path

import pytest

from benchmarks import scaling
from reap import SerialEnv

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "scaling.md"
PROFILE = [
    {
        "name": "images",
        "bytes_per_frame": 30_000.0,
        "frames_per_message": 400,
        "frames_per_second": 500.0,
        "bytes_per_update": 8_000_000,
    },
    {
        "name": "numbers",
        "bytes_per_frame": 64.5,
        "frames_per_message": 8_000,
        "frames_per_second": 10_000.0,
        "bytes_per_update": 0,
    },
]
TABLE = """\
                             8 workers a node, learner with 100 Gbit/s
┏━━━━━━━━━┳━━━━━━━━━━━━━━━┳━━━━━━━┳━━━━━━━━━━━━┳━━━━━━━━━━━┳━━━━━━━━━━━━┳━━━━━━━━━━━━┳━━━━━━━━━━━━━┓
┃ task    ┃ bytes a frame ┃ nodes ┃   frames/s ┃ Gbit/s in ┃ messages/s ┃ Gbit/s out ┃     full at ┃
┡━━━━━━━━━╇━━━━━━━━━━━━━━━╇━━━━━━━╇━━━━━━━━━━━━╇━━━━━━━━━━━╇━━━━━━━━━━━━╇━━━━━━━━━━━━╇━━━━━━━━━━━━━┩
│ images  │        30,000 │    10 │     40,000 │      9.60 │        200 │       2.56 │   104 nodes │
│         │        30,000 │   100 │    400,000 │     96.00 │      2,000 │      25.60 │   104 nodes │
│         │        30,000 │ 1,000 │  4,000,000 │    960.00 │     20,000 │     256.00 │   104 nodes │
│ numbers │            64 │    10 │    800,000 │      0.41 │        200 │       0.00 │ 2,422 nodes │
│         │            64 │   100 │  8,000,000 │      4.13 │      2,000 │       0.00 │ 2,422 nodes │
│         │            64 │ 1,000 │ 80,000,000 │     41.28 │     20,000 │       0.00 │ 2,422 nodes │
└─────────┴───────────────┴───────┴────────────┴───────────┴────────────┴────────────┴─────────────┘"""


def said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    """What the script prints."""
    monkeypatch.setattr(sys, "argv", ["scaling.py", *arguments])
    scaling.main()
    return "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())


def test_the_table_of_a_given_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(PROFILE))
    options = ["--workers-per-node", "8", "--network-gbit", "100", "--updates-per-second", "0.5"]
    assert said(capsys, monkeypatch, "--profile", str(path), *options) == TABLE


@pytest.mark.distributed
@pytest.mark.timeout(120)
def test_the_commands_of_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    commands = [shlex.split(line) for line in lines if line.startswith("python ")]
    assert [command[:3] for command in commands] == [
        ["python", "benchmarks/scaling.py", one] for one in ("--save", "--profile")
    ]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(scaling, "TASKS", {"CartPole x 2": (partial(SerialEnv, 2, "CartPole-v1"), None, 80)})
    first, second = (said(capsys, monkeypatch, *command[2:]) for command in commands)
    assert "16 workers a node, learner with 25 Gbit/s" in first
    assert "32 workers a node, learner with 100 Gbit/s" in second
    (profile,) = json.loads(Path("profile.json").read_text())
    assert (profile["name"], profile["frames_per_message"], profile["bytes_per_update"]) == ("CartPole x 2", 80, 0)
    assert profile["bytes_per_frame"] > 4 * 4
    assert f"{32 * 10 * profile['frames_per_second']:,.0f}" in second
