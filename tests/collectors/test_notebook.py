"""Collectors with processes in a Jupyter notebook: cells define envs and policies, and go on where others stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parent.parent.parent

DEFINITIONS = """
import gymnasium as gym, numpy as np, torch
from reap.collectors import MultiaSyncDataCollector, MultiSyncDataCollector

class Counter(gym.Env):
    observation_space = gym.spaces.Box(-1e6, 1e6, (1,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, np.float32), {}
    def step(self, action):
        self.steps += 1
        return np.full(1, self.steps, np.float32), 0.0, self.steps == 4, False, {}

class Half(torch.nn.Module):
    def forward(self, observation):
        return observation / 2
"""
BUILD = "collector = {name}([Counter, lambda: Counter()], Half(), frames_per_batch=12)"
COLLECT = """
batch = collector.next().reshape(-1)
print(batch["observation"].flatten().int().tolist())
print(bool((batch["action"] * 2 == batch["observation"]).all()))
"""
END = """
pids = collector._workers.group.pids
collector.shutdown()
import os
print([os.path.exists(f"/proc/{pid}") for pid in pids])
"""


def printed(notebook: Any) -> list[str]:
    """What each cell printed; nothing else comes out of them, no warning either."""
    outputs = [cell.outputs for cell in notebook.cells]
    assert {(out.output_type, out.name) for several in outputs for out in several} <= {("stream", "stdout")}
    return ["".join(out.text for out in several) for several in outputs]


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("MultiSyncDataCollector", [0, 1, 2, 3, 0, 1] * 2, [2, 3, 0, 1, 2, 3] * 2),
        ("MultiaSyncDataCollector", [0, 1, 2, 3] * 3, [0, 1, 2, 3] * 3),
    ],
)
def test_cells_build_go_on_and_end(
    name: str, first: list[int], second: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(variable, str(tmp_path))
    sources = [DEFINITIONS, BUILD.format(name=name), COLLECT, COLLECT, END]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    client = nbclient.NotebookClient(notebook, timeout=180, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}})
    client.execute()
    expected = ["", "", f"{first}\nTrue\n", f"{second}\nTrue\n", "[False, False]\n"]
    assert printed(notebook) == expected
