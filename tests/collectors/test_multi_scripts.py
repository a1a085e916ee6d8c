"""Programs with collectors: however they are run, and however they end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from reap.collectors import MultiSyncDataCollector
from reap.testing import Count
from tests.workers.handlers import have_ended, watch
from tests.workers.scripts import Script

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parent.parent.parent

PROGRAM = """
import os, threading
import gymnasium as gym
import numpy as np
import torch
from reap.collectors import MultiSyncDataCollector, MultiaSyncDataCollector, aSyncDataCollector

class Mine(gym.Env):
    observation_space = gym.spaces.Box(-1e6, 1e6, (2,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    def observe(self):
        return np.array([float(os.environ.get("MARK", "-1")), torch.get_default_dtype() == torch.float64], np.float32)
    def reset(self, *, seed=None, options=None):
        return self.observe(), {}
    def step(self, action):
        return self.observe(), 0.0, False, False, {}

class Policy(torch.nn.Module):
    def forward(self, observation):
        return observation[..., :1] * 2

gym.register("Mine-v0", Mine)

def collect(cls=MultiSyncDataCollector, envs=("Mine-v0", "Mine-v0")):
    with cls(list(envs), Policy(), frames_per_batch=4) as collector:
        batch = collector.next().reshape(-1)
        return *batch["observation"][0].tolist(), *batch["action"][0].tolist()

print(*collect())
os.environ["MARK"] = "7"
print(*collect(envs=(Mine, lambda: Mine())))
torch.set_default_dtype(torch.float64)
print(*collect(MultiaSyncDataCollector))
torch.set_default_dtype(torch.float32)
thread = threading.Thread(target=lambda: print(*collect(aSyncDataCollector, ["Mine-v0"])))
thread.start()
thread.join()
"""

SAID = ["-1.0 0.0 -2.0", "7.0 0.0 14.0", "7.0 1.0 14.0", "7.0 0.0 14.0"]


@pytest.mark.parametrize("how", ["file", "-c", "stdin"])
def test_ways_to_run_a_program(how: str, tmp_path: Path) -> None:
    """No guard of __main__; ids, classes and lambdas of __main__; what was changed after a first collector; a thread."""
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    arguments = {"file": [str(file)], "-c": ["-c", PROGRAM], "stdin": ["-"]}[how]
    done = subprocess.run(
        [sys.executable, *arguments],
        input=PROGRAM if how == "stdin" else None,
        capture_output=True,
        text=True,
        timeout=180,
        cwd=tmp_path,
        env={**{key: value for key, value in os.environ.items() if key != "MARK"}, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert (done.stdout.splitlines(), done.stderr, done.returncode) == (SAID, "", 0)


def test_atari() -> None:
    pytest.importorskip("ale_py")
    with MultiSyncDataCollector(["ALE/Pong-v5"] * 2, frames_per_batch=4) as collector:
        batch = collector.next()
    assert batch["observation"].shape == (2, 2, 210, 160, 3)
    assert batch["observation"].any()


def test_the_users_multiprocessing_is_as_it_was() -> None:
    import multiprocessing

    before = multiprocessing.get_start_method(allow_none=True)
    with MultiSyncDataCollector([lambda: Count(3)], frames_per_batch=4) as collector:
        collector.next()
    assert multiprocessing.get_start_method(allow_none=True) == before
    assert not multiprocessing.active_children()


# ---------------------------------------------------------------------- ends of programs

BEGIN = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background jobs ignore it
from reap.collectors import MultiSyncDataCollector, MultiaSyncDataCollector, aSyncDataCollector
import sys, time
def begin(cls, make=None, **options):
    import gymnasium as gym
    given = make or (lambda: gym.make("CartPole-v1"))
    collector = cls([given] * (1 if cls is aSyncDataCollector else 2), frames_per_batch=8, **options)
    collector.next()
    print(*collector._workers.group.pids, flush=True)
    sys.stdin.readline()
    return collector
"""

ENDS: dict[str, tuple[str, int, str]] = {
    "no shutdown": ("collector = begin({0})", 0, ""),
    "a cycle": ("collector = begin({0}); collector.itself = collector", 0, ""),
    "in the middle of a loop": ("for batch in begin({0}): break", 0, ""),
    "an exception": ("for batch in begin({0}): raise KeyError('mine')", 1, "KeyError: 'mine'"),
    "sys.exit": ("collector = begin({0})\nfor batch in collector: sys.exit(3)", 3, ""),
    "a thread that runs": (
        "class Buffer:\n    def extend(self, data): pass\ncollector = begin({0}, replay_buffer=Buffer())\ncollector.start()",
        0,
        "",
    ),
}
CASES = [("MultiSync", end) for end in ENDS] + [("MultiaSync", "no shutdown"), ("aSync", "an exception")]


@pytest.mark.parametrize(("name", "end"), CASES)
def test_ends_of_programs(name: str, end: str) -> None:
    """C02: the interpreter ends without a shutdown."""
    code, expected, error = ENDS[end]
    with Script(BEGIN + code.format(f"{name}DataCollector")) as script:
        workers = watch(map(int, script.line().split()))
        _, errors = script.communicate()
        assert script.code == expected
        assert have_ended(workers)
    if error:
        assert errors.endswith(f"{error}\n")
        assert errors.count("Traceback") == 1
    else:
        assert errors == ""


@pytest.mark.parametrize("name", ["MultiSync", "MultiaSync"])
def test_c06_the_end_of_a_killed_parent(name: str) -> None:
    with Script(BEGIN + f"for batch in begin({name}DataCollector): pass") as script:
        workers = watch(map(int, script.line().split()))
        script.tell("\n")
        os.kill(script.process.pid, signal.SIGKILL)
        assert have_ended(workers)


SLOW = """
import gymnasium as gym
import numpy as np
class Slow(gym.Env):
    observation_space = action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    def reset(self, *, seed=None, options=None):
        if {in_reset}:
            print("waits", flush=True)
            time.sleep(600)
        return np.zeros(1, np.float32), {{}}
    def step(self, action):
        print("waits", flush=True)
        time.sleep(600)
        return np.zeros(1, np.float32), 0.0, False, False, {{}}
collector = {name}DataCollector([Slow] * {workers}, frames_per_batch=8)
collector.next()
"""

INTERRUPTED = {
    "in a rollout": SLOW.replace("{in_reset}", "False"),
    "in the construction": SLOW.replace("{in_reset}", "True"),
    "in the loop's body": "for batch in begin({name}DataCollector):\n    print('waits', flush=True)\n    time.sleep(600)",
    "in a worker's step, and it is shut down": (
        SLOW.replace("{in_reset}", "False").replace(
            "collector.next()", "try:\n    collector.next()\nfinally:\n    collector.shutdown()\n    collector.shutdown()"
        )
    ),
}


@pytest.mark.parametrize("where", INTERRUPTED)
def test_c04_ctrl_c_to_all_processes(where: str) -> None:
    name = "MultiaSync" if where == "in a rollout" else "MultiSync"
    with Script(BEGIN + INTERRUPTED[where].format(name=name, workers=2)) as script:
        script.tell("\n")
        while "waits" not in script.line():  # two workers may write into one line
            pass
        workers = watch(_descendants(script.process.pid))
        os.killpg(script.process.pid, signal.SIGINT)
        _, errors = script.communicate()
        assert script.code == -signal.SIGINT
        assert have_ended(workers)
    assert errors.endswith("KeyboardInterrupt\n")
    assert errors.count("Traceback") == 1, errors


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    parents = [pid]
    while parents:
        for file in Path(f"/proc/{parents.pop()}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                children = [int(child) for child in file.read_text().split()]
                found += children
                parents += children
    return found


def test_nothing_of_it_needs_a_shell(tmp_path: Path) -> None:
    """Without standard streams, as under a service manager."""
    told = tmp_path / "told"
    code = f"""
import os
for descriptor in range(3):
    os.close(descriptor)
from reap.collectors import MultiSyncDataCollector
collector = MultiSyncDataCollector(["CartPole-v1"] * 2, frames_per_batch=8)
shape = tuple(collector.next().batch_size)
collector.shutdown()
with open({str(told)!r}, "w") as file:
    file.write(str(shape))
"""
    arguments: Any = [sys.executable, "-c", code]
    subprocess.run(arguments, timeout=180, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert told.read_text() == "(2, 4)"
