"""`--policy`: every form, and every way to get it wrong in one line."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch

from reap.cli.policies import explained, load_policy
from reap.collectors import SyncDataCollector
from reap.envs import GymEnv
from reap.errors import OptionError
from reap.testing import Const, Count

SOURCE = """
from dataclasses import dataclass
import torch
import beside

class Policy(torch.nn.Module):
    def __init__(self, size=1):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(size))
    def forward(self, observation):
        return observation

@dataclass
class Made:
    size: "int" = 3

def make(env): return Policy(env.observation_spec["observation"].shape[-1])
def plain(size=2): return Policy(size)
def fails(): raise ValueError("no\\nweights")
def nothing(): pass
def a_class(): return Policy
policy = Policy()
number = 3
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", sys.path.copy())
    (tmp_path / "beside.py").write_text("value = 1\n")
    (tmp_path / "agent.py").write_text(SOURCE)
    (tmp_path / "broken.py").write_text("import torch\nx = 1 / 0\n")
    (tmp_path / "unreadable.py").write_text("def f(:\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


ENV = GymEnv(Count(3))


def test_the_line_that_is_named_is_the_users(source: Path) -> None:
    (source / "late.py").write_text("import torch\n\ndef act(observation):\n    return torch.ones(2) @ torch.ones(3)\n")
    sys.path.insert(0, str(source))
    act = importlib.import_module("late").act
    named = r"^--policy late: RuntimeError: .* \(late.py, line 4\); reap: raised by the first"
    with pytest.raises(OptionError, match=named), explained("late"):
        SyncDataCollector(GymEnv(Count(3)), act, frames_per_batch=4)


def test_an_error_that_names_the_option_is_left_as_it_is(source: Path) -> None:
    with pytest.raises(OptionError, match=r"^--policy: importing broken.py failed: Zero"), explained("broken.py:make"):
        load_policy("broken.py:make", ENV)


def test_random_is_no_policy() -> None:
    assert load_policy("random", ENV) is None


@pytest.mark.parametrize(("name", "size"), [("make", 1), ("plain", 2), ("Policy", 1)])
@pytest.mark.parametrize("is_absolute", [True, False])
def test_factories(source: Path, name: str, size: int, is_absolute: bool) -> None:
    policy = load_policy(f"{source / 'agent.py' if is_absolute else 'agent.py'}:{name}", ENV)
    assert isinstance(policy, torch.nn.Module)
    assert policy.weight.shape == (size,)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("agent.py:mak", r"agent.py has no factory 'mak'; it has Policy, Made, make, .* Did you mean 'make'\?"),
        ("agent.py:", "has no factory ''"),
        ("agent.py", r"expected the name of a factory too, agent.py:make_policy"),
        ("agent.py:policy", "is a policy; expected a factory"),
        ("agent.py:number", "number in .*agent.py is int"),
        ("agent.py:fails", r"the factory fails in .* failed: ValueError: no weights \(agent.py, line 19\)"),
        ("agent.py:nothing", "to return a module or function, got None"),
        ("agent.py:a_class", "to return a module or function, got <class"),
        ("broken.py:make", r"importing broken.py failed: ZeroDivisionError: division by zero \(broken.py, line 2\)"),
        ("unreadable.py:make", "importing unreadable.py failed: SyntaxError"),
        ("agnt.py:make", r"no file agnt.py. Did you mean 'agent.py'\?"),
        ("nowhere/agent.py:make", "no file nowhere/agent.py"),
        ("missing.pt2", "no file missing.pt2"),
        ("rand", "expected random, module.py:factory or file.pt2"),
        ("agent:make", "expected random, module.py:factory or file.pt2"),
    ],
)
def test_mistakes(source: Path, text: str, words: str) -> None:
    with pytest.raises(OptionError, match=words) as caught:
        load_policy(text, ENV)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".pkl", ".pickle", ".ckpt"])
def test_pickles_are_refused_unread(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"policy{suffix}"
    torch.save(Const(), path)
    with pytest.raises(OptionError, match=r"refused, .* is a pickle.*torch.export.save.*weights_only=True"):
        load_policy(str(path), ENV)
