"""What engines of envs print of themselves: not a line for each env and worker; what concerns the user is printed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from reap.envs import GymEnv

mujoco = pytest.importorskip("mujoco")

MODEL = Path(gymnasium.__file__).parent / "envs/mujoco/assets/half_cheetah.xml"

PROGRAM = """\
import sys
import ale_py, gymnasium
from reap import GymEnv, MultiSyncDataCollector, SerialEnv

gymnasium.register_envs(ale_py)
for make in ("HalfCheetah-v5", "ALE/Pong-v5", lambda: gymnasium.make("ALE/Pong-v5"),
             lambda: GymEnv("ALE/Pong-v5", num_envs=2, vectorization_mode="vector_entry_point")):
    with MultiSyncDataCollector([make] * 2, frames_per_batch=16) as collector:
        collector.next()
GymEnv("ALE/Pong-v5").close()
print("what the program prints", file=sys.stderr)
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed_remark(capfd: pytest.CaptureFixture[str], **options: Any) -> str:
    gymnasium.make("HalfCheetah-v5", **options).close()
    return capfd.readouterr().err


def test_remarks_on_a_model_of_gymnasiums_own_are_not_printed(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    GymEnv("HalfCheetah-v5").close()
    GymEnv("HalfCheetah-v5", num_envs=2).close()
    assert capfd.readouterr().err == ""
    assert list(here.iterdir()) == []
    assert mujoco.get_mju_user_warning() is None


def test_remarks_on_a_model_of_the_users_are(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "own.xml").write_text(MODEL.read_text())
    expected = printed_remark(capfd, xml_file=str(here / "own.xml"))
    GymEnv("HalfCheetah-v5", xml_file=str(here / "own.xml")).close()
    assert capfd.readouterr().err == expected


def test_a_handler_of_the_program_gets_the_remarks() -> None:
    said: list[str] = []
    handler = said.append
    mujoco.set_mju_user_warning(handler)
    try:
        gymnasium.make("HalfCheetah-v5").close()
        expected = list(said)
        GymEnv("HalfCheetah-v5").close()
        assert said == 2 * expected
        assert mujoco.get_mju_user_warning() == handler
    finally:
        mujoco.set_mju_user_warning(None)


def test_warnings_of_a_simulation_are_printed(capfd: pytest.CaptureFixture[str]) -> None:
    GymEnv("HalfCheetah-v5").close()
    inner: Any = gymnasium.make("Hopper-v5").unwrapped
    inner.data.qpos[:] = float("nan")
    mujoco.mj_step(inner.model, inner.data)
    assert "The simulation is unstable" in capfd.readouterr().err


@pytest.mark.processes
def test_workers_print_what_the_program_prints(here: Path) -> None:
    pytest.importorskip("ale_py")
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "what the program prints\n")
    assert list(here.iterdir()) == []
