"""`reap.tune` and `reap tune`: real envs for a second or two; what is printed, drawn and refused."""

from __future__ import annotations

import io
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import DependencyNotInstalled
from rich.console import Console

import reap
from reap.cli.main import main
from reap.cli.policies import load_policy
from reap.errors import OptionError
from reap.specs import Composite, OneHot, Unbounded
from reap.testing import Count
from reap.tuning import Kind, Setup, Trial, Tuning, tune
from reap.tuning.mlp import MLP
from reap.tuning.parts import Parts, measure

PARTS = Parts(step=1e-3, step_cpu=4e-4, reset=0.002, policy=(1e-4,) * 4, transfer=0.0, cores=2)


def trial(kind: Kind, envs: int, workers: int, rate: float) -> Trial:
    return Trial(Setup(kind, envs, workers), 2 * rate, [rate])


TUNING = Tuning('"CartPole-v1"', "policy", 100, PARTS, (trial(Kind.MULTI_ASYNC, 8, 2, 3000.0), trial(Kind.SYNC, 4, 1, 1000.0)))


def count_env() -> reap.GymEnv:
    return reap.GymEnv(Count(5))


@pytest.mark.processes
def test_a_real_run() -> None:
    threads = torch.get_num_threads()
    tuning = tune(count_env, seconds=1.5, cores=1, frames_per_batch=64)
    assert torch.get_num_threads() == threads
    assert (tuning.env, tuning.policy, tuning.parts.cores) == ("count_env", "None", 1)
    rates = [one.rate for one in tuning.trials]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] > 0
    assert tuning.best == tuning.trials[0].setup
    assert tuning.best_synchronous.is_synchronous
    assert 0 < tuning.parts.step < 0.1
    assert f"{tuning.best.envs}, count_env" in tuning.code


def test_the_table_and_the_code() -> None:
    assert str(TUNING).splitlines() == [
        "step 1.0 ms (40% of it CPU), reset 2.0 ms, policy 100 µs for 1, 100 µs for 64; 2 cores",
        "",
        "collector                processes  envs         frames/s  of the estimate",
        "MultiaSyncDataCollector  2 workers  8 envs each     3,000              50%",
        "SyncDataCollector                   4 envs          1,000              50%",
        "",
        "from reap import MultiaSyncDataCollector, SerialEnv",
        "",
        "collector = MultiaSyncDataCollector(",
        '    [lambda: SerialEnv(8, "CartPole-v1")] * 2,',
        "    policy,",
        "    frames_per_batch=104,",
        ")",
        "",
        "# on-policy, where all frames of a batch are to be by the latest weights:",
        "import torch",
        "from reap import SerialEnv, SyncDataCollector",
        "",
        "torch.set_num_threads(1)",
        "collector = SyncDataCollector(",
        '    SerialEnv(4, "CartPole-v1"),',
        "    policy,",
        "    frames_per_batch=100,",
        ")",
    ]


def race_of(monkeypatch: pytest.MonkeyPatch, *setups: Setup) -> None:
    """Let only these set-ups race."""
    monkeypatch.setattr("reap.tuning.search.candidates", lambda *_arguments, **_options: setups)


def make_none() -> None:
    pass


@pytest.mark.parametrize(
    ("env", "env_kwargs", "factory", "shown_env", "shown_policy"),
    [
        (lambda: reap.GymEnv(Count(5)), None, lambda: None, "make_env", "make_policy()"),
        (partial(reap.GymEnv, "CartPole-v1"), None, partial(make_none), "make_env", "make_policy()"),
        (count_env, None, make_none, "count_env", "make_none()"),
        (
            "CartPole-v1",
            {"categorical_action_encoding": True},
            None,
            '"CartPole-v1", create_env_kwargs={"categorical_action_encoding": True}',
            "None",
        ),
    ],
)
def test_the_code_is_python_whatever_makes_env_and_policy(
    env: Any, env_kwargs: Any, factory: Any, shown_env: str, shown_policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    race_of(monkeypatch, Setup(Kind.SYNC, 1))
    tuning = tune(env, create_env_kwargs=env_kwargs, policy_factory=factory, seconds=0.1, cores=1, frames_per_batch=8)
    assert (tuning.env, tuning.policy) == (shown_env, shown_policy)
    compile(tuning.code, "code", "exec")
    assert tuning.code in str(tuning), "no line is broken"


BALANCE = """
import torch
from gains import GAIN

class Balance(torch.nn.Module):
    def forward(self, observation):
        return (observation[..., 2] + GAIN * observation[..., 3] > 0).long()

def make_policy():
    return Balance()

def fails():
    return lambda observation: observation.nothing
"""


@pytest.mark.processes
def test_a_policy_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.chdir(tmp_path)
    race_of(monkeypatch, Setup(Kind.MULTI_SYNC, 1, 2))
    Path("gains.py").write_text("GAIN = 0.2\n")
    Path("balance.py").write_text(BALANCE)
    words = ["tune", "CartPole-v1", "--seconds", "0.2", "--policy"]
    assert main([*words, "balance.py:make_policy", "--indices"]) == 0
    out = capsys.readouterr().out
    assert "MultiSyncDataCollector" in out
    assert '"CartPole-v1", create_env_kwargs={"categorical_action_encoding": True}' in out, "no line is broken"
    assert "    policy,\n" in out
    assert out.endswith("\npolicy is the one of balance.py:make_policy.\n")
    policy = load_policy("balance.py:make_policy", reap.GymEnv("CartPole-v1"))
    assert isinstance(policy, torch.nn.Module)
    shapes = {"observation": {0: torch.export.Dim("envs")}}
    program = torch.export.export(policy, (torch.zeros(2, 4),), dynamic_shapes=shapes)
    torch.export.save(program, "balance.pt2")
    assert main([*words, "balance.pt2", "--indices"]) == 0
    assert capsys.readouterr().out.endswith("\npolicy is the one of balance.pt2.\n")
    assert main([*words, "balance.py:make_policy"]) == 2
    assert "On the command line that is --indices." in capsys.readouterr().err
    assert main([*words, "balance.py:fails"]) == 2
    assert "--policy balance.py:fails: AttributeError" in capsys.readouterr().err


def test_an_env_that_cannot_be_made(capsys: pytest.CaptureFixture[str]) -> None:
    def missing(**_: Any) -> Any:
        raise DependencyNotInstalled("Box2D is not installed")

    gym.register("Lander-v0", missing)
    try:
        assert main(["tune", "Lander-v0"]) == 2
    finally:
        del gym.registry["Lander-v0"]
    assert "the env Lander-v0 cannot be made: DependencyNotInstalled: Box2D" in capsys.readouterr().err


class Warned(DeprecationWarning):
    """Of an env, when it is made."""


def test_warnings_of_an_env_are_shown_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> reap.GymEnv:
        warnings.warn("out of date. (v1)", Warned, stacklevel=1)
        return count_env()

    def race(*_arguments: object) -> Iterator[list[Trial]]:
        make().close()
        warnings.warn("of something else", Warned, stacklevel=1)
        yield list(TUNING.trials)

    monkeypatch.setattr("reap.tuning.search.measure", lambda *_: PARTS)
    monkeypatch.setattr("reap.tuning.search.race", race)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        tune(make, seconds=1.0, cores=2)
        warnings.warn("out of date. (v1)", Warned, stacklevel=1)
    assert [str(one.message) for one in told] == ["out of date. (v1)", "of something else", "out of date. (v1)"]


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_shown_on_a_terminal(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
    shown: list[str] = []

    def race(*_arguments: object) -> Iterator[list[Trial]]:
        yield [TUNING.trials[1]]
        shown.append(console.file.getvalue())  # pyright: ignore[reportAttributeAccessIssue]
        yield list(TUNING.trials)
        shown.append(console.file.getvalue())  # pyright: ignore[reportAttributeAccessIssue]

    monkeypatch.setattr("reap.tuning.search.measure", lambda *_: PARTS)
    monkeypatch.setattr("reap.tuning.search.race", race)
    assert tune(count_env, seconds=1.0, cores=2, console=console).best == TUNING.best
    if not terminal:
        assert shown == ["", ""]
        return
    assert "Measuring the parts ..." in shown[0]
    assert "SyncDataCollector" in shown[0]
    assert "MultiaSyncDataCollector" in shown[1].removeprefix(shown[0])


def test_the_plot(tmp_path: Path) -> None:
    TUNING.plot(tmp_path / "tuning.png")
    assert (tmp_path / "tuning.png").read_bytes().startswith(b"\x89PNG")


def test_an_env_that_waits_is_seen_to_wait() -> None:
    busy = measure(count_env, lambda: None, cores=1, seconds=0.2)
    assert busy.step_cpu <= busy.step
    assert busy.threads == 1
    assert len(busy.policy) == 4
    assert min(busy.policy) > 0


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_network_for_an_env(env_id: str, rows: int) -> None:
    network = MLP(reap.GymEnv(env_id), [8, 8])
    env = reap.SerialEnv(rows, env_id)
    collector = reap.SyncDataCollector(env, network, frames_per_batch=5 * rows, check="all")
    assert env.action_spec.is_in(collector.next()["action"][:, 0])
    collector.shutdown()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tune(count_env(), seconds=1), "expected a gymnasium id or a factory, got an env"),
        (
            lambda: tune(lambda: reap.SerialEnv(2, count_env), seconds=1),
            r"expected a factory of one env, found a batch of \[2\]",
        ),
        (lambda: tune(count_env, seconds=0), "seconds: expected a positive number, got 0"),
        (lambda: tune(count_env, cores=0), "cores: expected a positive integer, got 0"),
        (lambda: tune(count_env, frames_per_batch=0), "frames_per_batch: expected a positive integer, got 0"),
        (lambda: tune(count_env, lambda x: x, hidden=[4]), "one of policy, policy_factory and hidden, got policy and hidden"),
        (lambda: tune("FrozenLake-v1", hidden=64), r"hidden: expected a list of positive widths, such as \[64, 64\], got 64"),
        (lambda: tune("FrozenLake-v1", hidden=["a"]), r"hidden: expected a list of positive widths, .* got \['a'\]"),
        (lambda: tune(count_env, seconds="a"), "seconds: expected a finite number from 0 on, got 'a'"),
        (
            lambda: tune("FrozenLake-v1", hidden=[0]),
            r"hidden: expected a list of positive widths, such as \[64, 64\], got \[0\]",
        ),
    ],
)
def test_mistakes(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        call()


BOX = spaces.Box(-1, 1, (2,), np.float32)
CHOICE = spaces.Discrete(2)


class Spaces(gym.Env[Any, Any]):
    def __init__(self, observation: spaces.Space[Any], action: spaces.Space[Any] = CHOICE) -> None:
        self.observation_space, self.action_space = observation, action


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(5),
        spaces.Tuple((BOX, BOX)),
        spaces.Dict(observation=spaces.Dict(a=BOX)),
        spaces.Dict(observation=spaces.Text(5)),
        spaces.Sequence(BOX),
        spaces.Graph(BOX, None),
        spaces.OneOf((BOX, CHOICE)),
    ],
    ids=lambda space: type(space).__name__,
)
def test_observations_without_one_shape_have_no_network(space: spaces.Space[Any]) -> None:
    message = (
        f"expected an observation that is one tensor of numbers, found the observation 'observation' of the space {space};"
    )
    with pytest.raises(OptionError, match=re.escape(message)):
        tune(lambda: reap.GymEnv(Spaces(space)), hidden=[4])


class Nested(reap.EnvBase):
    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(observation=Composite(a=Unbounded((2,))))
        self.action_spec = OneHot(2)

    def _reset(self, tensordict: Any = None, **keywords: Any) -> Any:
        raise AssertionError

    def _step(self, tensordict: Any) -> Any:
        raise AssertionError


def test_an_observation_of_an_own_env_without_one_shape_has_no_network() -> None:
    with pytest.raises(OptionError, match=r"found the observation 'observation' of the spec Composite\("):
        tune(Nested, hidden=[4])


def test_actions_of_integers_have_no_network() -> None:
    with pytest.raises(OptionError, match=r"hidden: expected a Bounded action of floats, found Bounded\(.*int64"):
        tune(lambda: reap.GymEnv(Spaces(BOX, spaces.Box(0, 5, (2,), np.int64))), hidden=[4])


def test_the_command_names_an_observation_without_one_shape(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(gym.registry, "Words-v0", EnvSpec("Words-v0", entry_point=partial(Spaces, spaces.Text(5))))
    assert main(["tune", "Words-v0", "--hidden", "8"]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "hidden: expected an observation that is one tensor of numbers, found the observation 'observation' of" in error


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reap.cli.tune.tune", lambda *_arguments, **_options: TUNING)
    plot = tmp_path / "tuning.png"
    assert main(["tune", "CartPole-v1", "--hidden", "8", "8", "--plot", str(plot)]) == 0
    out = capsys.readouterr().out
    assert str(TUNING).splitlines()[3] in out
    assert "\npolicy is your network.\n" in out
    assert plot.exists()
    assert main(["tune", "CartPole-v1", "--plot", str(plot)]) == 2
    assert "nothing is overwritten" in " ".join(capsys.readouterr().err.split())
    assert main(["tune", "CartPole-v1", "--policy", "a.py:f", "--hidden", "8"]) == 2
    assert "--hidden: expected it alone" in " ".join(capsys.readouterr().err.split())
    assert main(["tune", "CartPole-v1", "--hidden"]) == 2
    assert "--hidden: expected the widths of the hidden layers, such as --hidden 64 64, got none" in capsys.readouterr().err
    assert main(["tune", "CartPole-v1", "--hidden", "8,8"]) == 2
    assert "For full helptext, see reap tune --help" in capsys.readouterr().err


class SlowAtFirst(Count):
    """Takes its time for the first reset, if it is the first env.

    Args:
        resets: one for each reset of any of these envs.
    """

    def __init__(self, resets: list[int]) -> None:
        super().__init__(5)
        self._resets = resets

    def reset(self, **options: Any) -> Any:
        if not self._resets:
            time.sleep(0.5)
        self._resets.append(1)
        return super().reset(**options)


def test_the_first_reset_is_not_counted() -> None:
    resets: list[int] = []
    assert measure(lambda: reap.GymEnv(SlowAtFirst(resets)), lambda: None, 1, 0.1).reset < 0.25
