"""Programs that use `RayCollector`, on a Ray that runs already: the examples, and ways for a program to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.workers.handlers import have_ended, patience, watch
from tests.workers.ray.local import ROOT, _nothing_left_running, local_ray, on_ray  # noqa: F401  fixtures

ray = pytest.importorskip("ray")

pytestmark = on_ray()

EXAMPLES = Path(ROOT) / "examples"
PREAMBLE = """
import os, signal, sys
from reap.collectors.distributed import RayCollector

options = {"frames_per_batch": 20, "stall_after": None, "ray_init_config": {"log_to_driver": False}}
collector = RayCollector("CartPole-v1", num_collectors=2, **options)
collector.next()
print(*(line.whereabouts.pid for line in collector._group.carrier.lines.values()), flush=True)
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a program that finds the Ray of this process."""
    made: list[subprocess.Popen[str]] = []

    def start(*command: str, text: str = "") -> subprocess.Popen[str]:
        path = tmp_path / "script.py"
        path.write_text(PREAMBLE + textwrap.dedent(text), encoding="utf-8")
        environ = {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address, "PYTHONPATH": ROOT}
        arguments = [sys.executable, *(command or (str(path),))]
        made.append(
            subprocess.Popen(arguments, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
        )
        return made[-1]

    yield start
    for program in made:
        program.kill()
        program.communicate()


def workers_of(program: subprocess.Popen[str]) -> list[int]:
    assert program.stdout is not None
    return watch(int(pid) for pid in program.stdout.readline().split())


def noise(text: str) -> list[str]:
    """What a program says on stderr, but for Ray's greeting."""
    greetings = (
        "Using address",
        "Connecting to existing Ray cluster",
        "Connected to Ray cluster",
        "Token authentication",
        "FutureWarning",
    )
    lines = [line for line in text.splitlines() if line.strip()]
    return [line for line in lines if not any(greeting in line for greeting in greetings) and "warnings.warn" not in line]


ENDS: list[tuple[str, str, int]] = [
    ("the end of the script", "", 0),
    ("sys.exit", "sys.exit(3)", 3),
    ("Ray is shut down first", "import ray; ray.shutdown(); collector.shutdown()", 0),
    ("the collector after Ray", "import ray; ray.shutdown()", 0),
]


@pytest.mark.parametrize(("text", "code"), [one[1:] for one in ENDS], ids=[one[0] for one in ENDS])
def test_a_program_that_does_not_shut_down_ends_in_silence(run: Any, text: str, code: int) -> None:
    program = run(text=text)
    workers = workers_of(program)
    out, err = program.communicate(timeout=patience(60))
    assert (program.returncode, out, noise(err)) == (code, "", [])
    assert have_ended(workers)


def test_workers_end_with_a_trainer_that_is_killed(run: Any) -> None:
    program = run(text="for batch in collector: pass")
    workers = workers_of(program)
    program.send_signal(signal.SIGKILL)
    assert have_ended(workers)


def test_ctrl_c_ends_a_program(run: Any) -> None:
    program = run(text="for batch in collector: pass")
    workers = workers_of(program)
    program.send_signal(signal.SIGINT)
    _, err = program.communicate(timeout=patience(60))
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert have_ended(workers)


RUNS = {
    "ray_collector.py": "4,000 frames in 8 batches",
    "weights_by_ray.py": "both actors have the newest weights",
    "impala_ray.py": "solved after",
}


@pytest.mark.parametrize("name", RUNS)
def test_examples(run: Any, name: str) -> None:
    out, err = run(str(EXAMPLES / name)).communicate(timeout=patience(170))
    assert RUNS[name] in out, err


def test_ray_still_runs() -> None:
    assert ray.is_initialized()
    assert ray.get(ray.put(1)) == 1
