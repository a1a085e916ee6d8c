"""What `make` runs: its targets look for tests where they are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ON_ENGINES = re.compile(r"mark\.(distributed|ray)\b|= on_ray\(")


def test_tests_on_engines_are_where_make_looks_for_them() -> None:
    found = re.search(r"^DISTRIBUTED := (.*?[^\\])$", (ROOT / "Makefile").read_text(), re.MULTILINE | re.DOTALL)
    assert found
    places = [ROOT / name for name in found[1].replace("\\", "").split()]
    assert all(place.exists() for place in places)
    marked = [file for file in (ROOT / "tests").rglob("test_*.py") if ON_ENGINES.search(file.read_text())]
    ours = [file for file in marked if file != Path(__file__)]
    assert len(ours) > 20
    assert [str(file) for file in ours if not any(file.is_relative_to(place) for place in places)] == []


GROUPED = """
import os, pathlib, pytest

@pytest.mark.xdist_group("one")
@pytest.mark.parametrize("number", range(8))
def test_of_a_group(number):
    with pathlib.Path(__file__).with_name("workers").open("a") as file:
        file.write(os.environ["PYTEST_XDIST_WORKER"] + " ")
"""


@pytest.mark.processes
def test_tests_of_a_group_run_in_one_process(tmp_path: Path) -> None:
    (tmp_path / "test_grouped.py").write_text(GROUPED)
    command = [sys.executable, "-m", "pytest", "-n2", "--dist", "loadgroup", "-p", "tests.groups", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0, done.stdout
    workers = (tmp_path / "workers").read_text().split()
    assert (len(workers), len(set(workers))) == (8, 1)
