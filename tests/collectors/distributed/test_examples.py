"""The examples of collectors beyond one machine run as a reader runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]

EXAMPLES = Path(__file__).parents[3] / "examples"
EXPECTED = {
    "distributed_mp.py": ["(200,) ['time']"] * 3,
    "distributed_submitit.py": ["(2, 200)"] * 3,
    "distributed_rpc.py": ["(2, 200) [None, 'time']"] * 3,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / name)]
    found = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == EXPECTED[name]
