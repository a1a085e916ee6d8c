"""The script for machines with a CUDA device: all of it that needs none finds nothing wrong here, and it sees what is wrong."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.architecture import ROOT

SCRIPT = str(ROOT / "benchmarks" / "gpu_check.py")
BREAK = """
import runpy, sys
import torch
from reap.collectors import DataCollectorBase

DataCollectorBase.update_policy_weights_ = lambda self, *arguments, **options: None
sys.path.insert(0, sys.argv[1].rpartition("/")[0])
sys.argv = [sys.argv[1], "--device", "cpu", "--seconds", "0.01"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.processes
@pytest.mark.timeout(240)
def test_nothing_is_wrong_here() -> None:
    command = [sys.executable, SCRIPT, "--device", "cpu", "--seconds", "0.01"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert (done.returncode, lines[-1]) == (0, "all passed"), done.stdout + done.stderr
    assert sum(line.startswith("PASS") for line in lines) == len(lines) - 2 == 37


@pytest.mark.processes
@pytest.mark.timeout(240)
def test_weights_that_do_not_arrive_are_seen() -> None:
    done = subprocess.run([sys.executable, "-c", BREAK, SCRIPT], capture_output=True, text=True, check=False)
    failed = [line.split("  ")[1] for line in done.stdout.splitlines() if line.startswith("FAIL")]
    assert failed == ["MultiSync: an update is acted on"]
    assert done.returncode == 1


@pytest.mark.processes
def test_no_device() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False, env=environ)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, "gpu_check: torch finds no CUDA device")
