"""`reap collect` from the words of the command line to what is on the disk and the screen."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from reap.cli.main import main
from reap.collectors import SyncDataCollector
from reap.envs import SerialEnv
from reap.testing import Count, Crash
from tests.warm import Program

POLICY = """
import os, signal
import torch

class Agent(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.net = torch.nn.Linear(size, 2)
        self.calls = 0
        self.at = {}
    def forward(self, observation):
        self.calls += 1
        if self.calls in self.at:
            self.at[self.calls]()
        return torch.distributions.Categorical(logits=self.net(observation), validate_args=False).sample()

def make(env):
    return Agent(env.observation_spec["observation"].shape[-1])

def interrupted(env, once=True):
    agent = make(env)
    # The probe is call 1; batches are of 16 columns.
    agent.at = {40: lambda: signal.raise_signal(signal.SIGINT)}
    return agent

def terminated(env):
    agent = make(env)
    agent.at = {40: lambda: signal.raise_signal(signal.SIGTERM)}
    return agent

def impatient(env):
    agent = make(env)
    agent.at = {calls: lambda: signal.raise_signal(signal.SIGINT) for calls in (40, 42)}
    return agent

def at_once(env):
    agent = make(env)
    agent.at = {calls: lambda: signal.raise_signal(signal.SIGINT) for calls in (2, 3)}
    return agent

def ready(env):
    agent = make(env)
    agent.at = {400: lambda: print("ready", flush=True)}
    return agent

def index(observation):
    return torch.zeros(observation.shape[0], dtype=torch.int64)

def make_index():
    return index

def make_wide():
    return torch.nn.Linear(7, 1)
"""


class Mission(gym.Env[dict[str, Any], int]):
    """Observes its steps, and a text."""

    observation_space = gym.spaces.Dict({"count": gym.spaces.Box(0, 99, (1,)), "mission": gym.spaces.Text(99)})
    action_space = gym.spaces.Discrete(2)
    steps = 0
    """Of all of its kind."""

    def observed(self) -> dict[str, Any]:
        return {"count": np.array([self.count], np.float32), "mission": f"goto{self.count}"}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.count = 0
        return self.observed(), {}

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.count += 1
        Mission.steps += 1
        return self.observed(), 1.0, self.count == 5, False, {}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder with a policy, and envs to test with."""
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "agent.py").write_text(POLICY)
    gym.register("ReapTest/Count-v0", lambda: Count(6))
    gym.register("ReapTest/Crash-v0", lambda: Crash(50))
    gym.register("ReapTest/Broken-v0", lambda: 1 / 0)
    gym.register("ReapTest/Mission-v0", Mission)
    yield tmp_path
    for name in ("Count", "Crash", "Broken", "Mission"):
        del gym.registry[f"ReapTest/{name}-v0"]


def reap(words: str) -> int:
    return main(["collect", *words.split()])


def collected(env_id: str, rows: int, frames: int, policy: Any = None, seed: int = 0, **options: Any) -> TensorDictBase:
    """What a collector with the same seed delivers, in one batch."""
    env = SerialEnv(rows, env_id, create_env_kwargs={"categorical_action_encoding": policy is not None})
    with SyncDataCollector(env, policy, frames_per_batch=frames, **options) as collector:
        collector.set_seed(seed)
        return collector.next()


def assert_equal(found: TensorDictBase, wanted: TensorDictBase) -> None:
    assert found.batch_size == wanted.batch_size
    assert set(found.keys(True, True)) == set(wanted.keys(True, True))
    for key in wanted.keys(True, True):
        assert torch.equal(found[key], wanted[key]), key


def test_text_is_refused_before_a_step_and_stored_without(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Mission.steps = 0
    assert reap("ReapTest/Mission-v0 --frames 20 --out data") == 2
    assert "mission holds Python objects (text, for example)" in (shown := capsys.readouterr()).err
    assert "leave it out with --drop mission" in shown.err
    assert reap("ReapTest/Mission-v0 --frames 20 --out data --drop misson") == 2
    assert "Did you mean 'mission'?" in capsys.readouterr().err
    assert not (here / "data").exists()
    assert Mission.steps == 0
    words = "ReapTest/Mission-v0 --frames 20 --num-envs 2 --drop mission --drop next/terminated --out data"
    assert reap(words) == 0
    stored = TensorDict.load_memmap(here / "data")
    assert_equal(
        stored, collected("ReapTest/Mission-v0", 2, 20).exclude("mission", ("next", "mission"), ("next", "terminated"))
    )
    assert "terminated" in stored.keys()


def test_a_disk_without_room_is_found_before_a_step(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Mission.steps = 0
    assert reap(f"ReapTest/Mission-v0 --frames {10**14} --drop mission --out data") == 2
    assert re.search(r"--out: expected room for [\d.]+ PB at data, found .* free", capsys.readouterr().err)
    assert Mission.steps == 0
    assert not (here / "data").exists()


@pytest.mark.parametrize(("rows", "frames"), [(1, 300), (3, 1000), (8, 20)])
def test_the_same_frames_as_a_collector(here: Path, capsys: pytest.CaptureFixture[str], rows: int, frames: int) -> None:
    assert reap(f"CartPole-v1 --frames {frames} --num-envs {rows} --seed 3 --out data") == 0
    columns = -(-frames // rows)
    assert_equal(TensorDict.load_memmap(here / "data"), collected("CartPole-v1", rows, rows * columns, seed=3))
    shown = capsys.readouterr()
    assert shown.err == ""
    assert f"frames    {rows * columns:,}  ({rows} env{'' if rows == 1 else 's'} × {columns:,})" in shown.out
    assert 'TensorDict.load_memmap("data")' in shown.out


def test_the_same_frames_with_a_policy(here: Path) -> None:
    words = "CartPole-v1 --num-envs 4 --policy agent.py:make --indices --seed 5 --max-frames-per-traj 9"
    assert reap(f"{words} --frames 400 --out a") == 0
    assert reap(f"{words} --frames 400 --frames-per-batch 28 --out b") == 0
    torch.manual_seed(5)
    weights = torch.nn.Linear(4, 2)

    def policy(observation: torch.Tensor) -> torch.Tensor:
        return torch.distributions.Categorical(logits=weights(observation), validate_args=False).sample()

    wanted = collected("CartPole-v1", 4, 400, policy, seed=5, max_frames_per_traj=9)
    for name in "ab":
        assert_equal(TensorDict.load_memmap(here / name), wanted)


def test_the_global_generator_is_left_alone(here: Path) -> None:
    state = torch.get_rng_state()
    assert reap("CartPole-v1 --frames 64 --policy agent.py:make --indices --out data") == 0
    assert torch.equal(torch.get_rng_state(), state)


def test_the_table(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Five episodes of six steps in each env, and the beginning of a sixth."""
    assert reap("ReapTest/Count-v0 --frames 64 --num-envs 2 --out data") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "episodes  10 finished" in [line.strip() for line in lines]
    for name in ("return", "length"):
        row = next(line for line in lines if line.strip().startswith(f"{name} "))
        assert row.split() == [name, "6", "6", "6", "6", "6", "6"]
    assert [line.split() for line in lines if "median" in line] == [
        ["5", "%", "25", "%", "median", "75", "%", "95", "%", "mean"]
    ]


@pytest.mark.processes
def test_a_program_of_torch_export(here: Path) -> None:
    class Program(torch.nn.Module):
        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            return (observation[:, 2] > 0).long()

    shapes = {"observation": {0: torch.export.Dim("envs")}}
    torch.export.save(torch.export.export(Program(), (torch.zeros(2, 4),), dynamic_shapes=shapes), "any.pt2")
    torch.export.save(torch.export.export(Program(), (torch.zeros(2, 4),)), "two.pt2")
    assert reap("CartPole-v1 --frames 90 --num-envs 3 --policy any.pt2 --indices --out data") == 0
    data = TensorDict.load_memmap(here / "data")
    assert torch.equal(data["action"], (data["observation"][..., 2] > 0).long())
    assert reap("CartPole-v1 --frames 90 --num-envs 3 --policy two.pt2 --indices --out none") == 2
    assert not (here / "none").exists()


# Ends before the end


@pytest.mark.parametrize(("factory", "code"), [("interrupted", 130), ("terminated", 143), ("impatient", 130)])
def test_a_signal_keeps_what_is_complete(here: Path, capsys: pytest.CaptureFixture[str], factory: str, code: int) -> None:
    """The signal comes in the third batch: it is completed, or dropped at a second signal."""
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    words = f"CartPole-v1 --frames 400 --num-envs 2 --frames-per-batch 32 --policy agent.py:{factory} --indices --out data"
    assert reap(words) == code
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    columns = 32 if factory == "impatient" else 48
    torch.manual_seed(0)
    weights = torch.nn.Linear(4, 2)

    def policy(observation: torch.Tensor) -> torch.Tensor:
        return torch.distributions.Categorical(logits=weights(observation), validate_args=False).sample()

    assert_equal(TensorDict.load_memmap(here / "data"), collected("CartPole-v1", 2, 2 * columns, policy))
    assert f"Interrupted: {2 * columns} of 400 frames were complete; they are kept" in capsys.readouterr().out


def test_a_signal_in_the_last_batch_changes_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        reap("CartPole-v1 --frames 90 --num-envs 2 --frames-per-batch 30 --policy agent.py:interrupted --indices --out data")
        == 0
    )
    assert "Interrupted" not in capsys.readouterr().out


def test_a_signal_before_anything_is_complete(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reap("CartPole-v1 --frames 400 --policy agent.py:at_once --indices --out data") == 130
    assert "Nothing is kept: no batch was complete." in capsys.readouterr().out
    assert not (here / "data").exists()


def test_an_env_that_fails_keeps_what_is_complete(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reap("ReapTest/Crash-v0 --frames 100 --frames-per-batch 20 --out data") == 1
    assert TensorDict.load_memmap(here / "data").batch_size == (1, 40)
    shown = capsys.readouterr().out
    assert re.search(r"error: RuntimeError: crashed in step 50.* \(envs.py, line \d+\); .*reap: raised in step of ", shown)
    assert "The run failed: 40 of 100 frames were complete; they are kept" in shown
    with pytest.raises(RuntimeError, match="crashed in step 50"):
        reap("ReapTest/Crash-v0 --frames 100 --frames-per-batch 20 --out again --traceback")
    assert TensorDict.load_memmap(here / "again").batch_size == (1, 40)


# Mistakes: one line, exit code 2, nothing left


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("CartPol-v1 --frames 10 --out data", r"unknown env id 'CartPol-v1'.* Did you mean 'CartPole-v1'\?"),
        ("nowhere:A-v1 --frames 10 --out data", "the env nowhere:A-v1 cannot be made: ModuleNotFoundError: No module"),
        ("ReapTest/Broken-v0 --frames 10 --out data", "the env ReapTest/Broken-v0 cannot be made: ZeroDivisionError"),
        ("CartPole-v1 --frames 0 --out data", "--frames 0: expected a positive number"),
        ("CartPole-v1 --frames 10 --num-envs -1 --out data", "--num-envs -1: expected a positive number"),
        ("CartPole-v1 --frames 10 --out data --port 0", "--port: expected True, False or a port from 1 to 65535, got 0"),
        ("CartPole-v1 --frames 10 --out data --format minari --dataset 1", "--dataset: expected 'namespace/name-v0'"),
        (
            "CartPole-v1 --frames 10 --out data --policy agent.py:make_wide",
            r"--policy agent.py:make_wide: RuntimeError: mat1 and .* \(linear.py, line \d+\); reap: raised by the first call",
        ),
        ("CartPole-v1 --frames 10 --seed -1 --out data", "--seed -1: expected a number from 0"),
        ("CartPole-v1 --frames 10 --out .", "--out .: expected a new or empty folder, found 'agent.py' in it"),
        ("CartPole-v1 --frames 10 --out agent.py", "--out agent.py: expected a new or empty folder, found a file"),
        ("CartPole-v1 --frames 10 --out /proc/x", "--out /proc/x: cannot be written"),
        ("CartPole-v1 --frames 10 --out data --policy agent.pkl", "--policy agent.pkl: refused, a .pkl file is a pickle"),
        ("CartPole-v1 --frames 10 --out data --policy agent.py:mak", "has no factory 'mak'.* Did you mean 'make'"),
        ("CartPole-v1 --frames 10 --out data --policy agent.py:make_index", "expected shape .* that is --indices."),
        ("CartPole-v1 --frames 10 --out data --plot agent.py", "--plot agent.py: expected a file ending in one of"),
        ("CartPole-v1 --frames 10 --out data --plot no/where.png", "--plot no/where.png: there is no folder no"),
    ],
)  # fmt: skip
def test_mistakes(here: Path, capsys: pytest.CaptureFixture[str], words: str, message: str) -> None:
    assert reap(words) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("reap: error: ")
    assert shown.err.count("\n") == 1
    assert re.search(message, shown.err), shown.err
    assert [file.name for file in here.iterdir() if file.name != "__pycache__"] == ["agent.py"]


def test_a_page_is_served_and_its_address_printed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reap("CartPole-v1 --frames 10 --out data --page") == 0
    assert re.search(r"^Page: http://127\.0\.0\.1:\d+/\?token=[\w-]{32}$", capsys.readouterr().out, re.MULTILINE)
    assert (here / "data" / "meta.json").exists()


def test_a_port_serves_a_page(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert reap(f"CartPole-v1 --frames 10 --out data --port {port}") == 2
        assert f"--port: port {port} of 127.0.0.1 cannot be bound" in capsys.readouterr().err
    assert not (here / "data").exists()
    assert reap(f"CartPole-v1 --frames 10 --out data --port {port}") == 0
    assert f"Page: http://127.0.0.1:{port}/?token=" in capsys.readouterr().out


def test_matplotlib_is_asked_for_before_anything_else(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Missing:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
            if name == "matplotlib":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])
    assert reap("CartPole-v1 --frames 10 --out data --plot a.png") == 2
    assert (
        'matplotlib is not installed, and reap collect --plot needs it. Install it: pip install "reap[plots]"'
        in capsys.readouterr().err
    )
    assert not (here / "data").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["collect", "CartPole-v1", "--frames", "10"], "--out"),
        (["collect", "CartPole-v1", "--frames", "ten", "--out", "data"], "invalid literal for int"),
        (["collect", "CartPole-v1", "--frames", "10", "--out", "data", "--polcy", "random"], "Perhaps you meant"),
        (["colect"], "collect"),
    ],
)
def test_words_that_are_not_understood(here: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert re.fullmatch(r"reap \d+\.\d+\.\d+\n", capsys.readouterr().out)
    for words in ([], ["--help"]):
        assert main(words) == 0
        assert "collect" in capsys.readouterr().out
    assert main(["collect", "--help"]) == 0
    shown = capsys.readouterr().out
    for option in (
        "ENV_ID",
        "--frames N",
        "--num-envs E",
        "--policy random|FILE.py:FACTORY|FILE.pt2",
        "--seed S",
        "--out DIR",
        "--plot FILE.png",
    ):
        assert option in shown
    assert [group for group in ("collection options", "policy options", "output options") if group not in shown] == []


def test_help_does_not_wait_for_torch() -> None:
    code = "import sys; from reap.cli.main import main; main(['collect', '--help']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=180, check=False).returncode == 0


# In a process of its own


@pytest.mark.processes
def test_a_process(here: Path) -> None:
    words = ["collect", "CartPole-v1", "--frames", "200", "--num-envs", "2", "--out", "data"]
    command = [sys.executable, "-m", "reap", *words]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=180, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "CartPole-v1 · random: 200/200 frames (100%)" in done.stdout
    assert_equal(TensorDict.load_memmap(here / "data"), collected("CartPole-v1", 2, 200))


@pytest.mark.processes
def test_ctrl_c_in_a_process(here: Path) -> None:
    words = [
        "CartPole-v1",
        "--frames",
        "1000000",
        "--frames-per-batch",
        "100",
        "--policy",
        "agent.py:ready",
        "--indices",
        "--out",
        "data",
    ]
    code = "import os, runpy, sys; os.chdir(sys.argv.pop(1)); runpy.run_module('reap', run_name='__main__')"
    with Program(code, str(here), "collect", *words) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        out, err = process.stdout.read(), process.stderr.read()
        assert process.wait(50) == 130, err
    assert "Stopping after this batch" in err
    kept = re.search(r"Interrupted: ([\d,]+) of 1,000,000 frames were complete", out)
    assert kept is not None
    data = TensorDict.load_memmap(here / "data")
    assert data.batch_size == (1, int(kept[1].replace(",", "")))
    assert data.numel() % 100 == 0
    assert data.numel() >= 300
    assert data["observation"].any(-1).all()
