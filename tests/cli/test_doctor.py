"""`reap doctor`: what it finds here, and how it judges what is found elsewhere."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

from reap.cli import health
from reap.cli.health import Finding
from reap.cli.main import main
from reap.system.machine import core_quota, free_bytes, limit_of, usable_cores, waited_for_core

NAMES = [
    *("reap", "Python", "system", "torch", "CUDA", "cores", "threads", "memory", "/dev/shm", "open files", "processes"),
    "temporary folder",
]


def test_what_is_here_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in found][: len(NAMES)] == NAMES
    assert found[-1]["name"] == "a worker"
    assert found[-1]["found"].startswith("10 frames of CartPole-v1 in ")
    by_name = {one["name"]: one for one in found}
    assert by_name["torch"]["found"].startswith(torch.__version__)
    assert by_name["gymnasium"]["status"] == "ok"
    assert all(set(one) == {"name", "found", "remedy", "status"} for one in found)
    assert code == any(one["status"] == "warning" for one in found)


@pytest.mark.processes
def test_a_pipe_that_is_closed_is_the_end() -> None:
    """`reap doctor --json | head -1`."""
    program = (
        "import sys; from reap.cli import doctor, main; doctor.findings = lambda: []; sys.exit(main.main(['doctor', '--json']))"
    )
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-c", program], stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_the_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "reap.cli.doctor.findings", lambda: iter([Finding("cores", "2"), Finding("open files", "64", "ulimit -n")])
    )
    assert main(["doctor"]) == 1
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "ok       cores       2",
        "warning  open files  64",
        "                     ulimit -n",
        "1 warning: the remedy is below each.",
    ]


@pytest.mark.parametrize(
    ("finding", "found", "remedy"),
    [
        (health.system("Linux", "Linux-6", True), "Linux-6", ""),
        (
            health.system("Darwin", "macOS", False),
            "macOS",
            "worker processes need Linux; use SyncDataCollector with SerialEnv here",
        ),
        (health.cuda(None, []), "not in this build of torch", ""),
        (health.cuda("12.8", ["A", "B"]), "12.8, 2 devices: A, B", ""),
        (health.cuda("12.8", []), "12.8, 0 devices", "torch finds no device"),
        (health.processors(8, math.inf), "8", ""),
        (health.processors(64, 2.5), "64, limited by the container to the time of 2.5", "plan for 2: workers × threads ≤ 2"),
        (health.processors(4, 0.5), "4, limited by the container to the time of 0.5", "plan for 1"),
        (health.threads(2, 2), "torch uses 2", ""),
        (health.threads(16, 2.5), "torch uses 16", "torch.set_num_threads(2), or OMP_NUM_THREADS=2"),
        (health.memory(2e9, "the machine"), "2.0 GB left; the limit is set by the machine", ""),
        (health.memory(5e8, "the container (cgroup)"), "500.0 MB left", "give the container (cgroup) more"),
        (health.memory(math.inf, "the machine"), "unlimited left", ""),
        (health.shared_memory(6.4e7), "64.0 MB free", "docker run --shm-size=8g"),
        (health.shared_memory(2e9), "2.0 GB free", ""),
        (health.shared_memory(None), "not seen by the system", ""),
        (health.descriptors(256), "256", "ulimit -n 65536"),
        (health.descriptors(math.inf), "unlimited", ""),
        (health.processes(100), "100", "ulimit -u 4096"),
        (health.space("/tmp", 5e7), "/tmp, 50.0 MB free", "set TMPDIR to a folder on a larger disk"),
        (health.space("/none", None), "/none: not seen by the system", "set TMPDIR to a folder that exists"),
        (health.neighbour("gymnasium", "0.29.1", Requirement("gymnasium>=1.0")), "0.29.1", 'pip install "gymnasium>=1.0"'),
        (health.neighbour("gymnasium", "1.1", Requirement("gymnasium>=1.0")), "1.1", ""),
        (health.neighbour("mujoco", "4.0", None), "4.0", ""),
        (health.first_batch(10, 1.53), "10 frames of CartPole-v1 in 1.5 s, including its start", ""),
        (health.first_batch(10, 110.0), "10 frames of CartPole-v1 in 110.0 s", "a slow start"),
    ],
)
def test_judgements(finding: Finding, found: str, remedy: str) -> None:
    assert found in finding.found
    assert remedy in finding.remedy
    assert finding.status == ("warning" if remedy else "ok")


def test_a_worker_that_does_not_start_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError("no more\nprocesses")

    monkeypatch.setattr(health, "MultiSyncDataCollector", refuse)
    assert health.worker() == Finding("a worker", "OSError: no more processes", "collect one batch by hand for the traceback")


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, math.inf),
        ({"cpu.max": "max 100000"}, math.inf),
        ({"cpu.max": "250000 100000"}, 2.5),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, math.inf),
        ({"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 0.5),
    ],
)
def test_the_quota_of_a_container(tmp_path: Path, files: dict[str, str], quota: float) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert core_quota(tmp_path) == quota


@pytest.mark.parametrize(("text", "seconds"), [("7000 2500000000 3\n", 2.5), ("", 0.0), ("none", 0.0), (None, 0.0)])
def test_the_time_that_a_thread_waited_for_a_core(tmp_path: Path, text: str | None, seconds: float) -> None:
    if text is not None:
        (tmp_path / "schedstat").write_text(text)
    assert waited_for_core(tmp_path / "schedstat") == seconds


def test_this_machine(tmp_path: Path) -> None:
    assert usable_cores() >= 1
    assert limit_of("RLIMIT_NOFILE") > 10
    assert free_bytes(tmp_path) > 0
    with pytest.raises(FileNotFoundError):
        free_bytes(tmp_path / "none")
