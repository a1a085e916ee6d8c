"""Names that a module does not have."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Any

import pytest

import reap
import reap.data
from reap.names import INSTEAD, missing_name, torchrl_home

DOORS = (
    "reap",
    "reap.data",
    "reap.data.replay_buffers",
    "reap.data.replay_buffers.checkpointers",
    "reap.data.replay_buffers.ray_buffer",
    "reap.data.replay_buffers.replay_buffers",
    "reap.data.replay_buffers.samplers",
    "reap.data.replay_buffers.scheduler",
    "reap.data.replay_buffers.storages",
    "reap.data.replay_buffers.writers",
    "reap.data.tensor_specs",
    "reap.testing",
    "reap.weight_update",
)


def imported(module: str, name: str) -> Any:
    """What `from module import name` gives."""
    found: dict[str, Any] = {}
    exec(f"from {module} import {name}", found)
    return found[name]


@pytest.mark.parametrize("module", DOORS)
def test_an_import_of_a_name_that_is_nowhere(module: str) -> None:
    with pytest.raises(ImportError, match=rf"^cannot import name 'Qwertz' from '{module}'\.$") as error:
        imported(module, "Qwertz")
    assert error.value.name == module


@pytest.mark.parametrize("module", DOORS)
def test_an_attribute_that_is_nowhere(module: str) -> None:
    found = importlib.import_module(module)
    with pytest.raises(AttributeError, match=rf"^module '{module}' has no attribute 'qwertz'\.$"):
        _ = found.qwertz
    assert not hasattr(found, "qwertz")
    assert getattr(found, "qwertz", 3) == 3


def test_the_nearest_name() -> None:
    with pytest.raises(ImportError, match="Did you mean 'LazyTensorStorage'"):
        imported("reap.data", "LazyTensorStorag")
    with pytest.raises(AttributeError, match="Did you mean 'ReplayBuffer'"):
        _ = reap.ReplayBufer  # pyright: ignore[reportAttributeAccessIssue]


def test_a_name_of_another_module() -> None:
    with pytest.raises(ImportError, match="It is in another module: from reap.data import SamplerWithoutReplacement"):
        imported("reap", "SamplerWithoutReplacement")
    with pytest.raises(ImportError, match="It is in another module: from reap.envs import GymEnv|from reap import GymEnv"):
        imported("reap.data", "GymEnv")


def test_a_name_of_torchrl() -> None:
    pytest.importorskip("torchrl")
    with pytest.raises(ImportError, match="that reap does not have: from torchrl.data import StorageEnsemble"):
        imported("reap.data", "StorageEnsemble")
    with pytest.raises(ImportError, match=r"from torchrl.objectives import PPOLoss$|from torchrl.objectives import PPOLoss\.$"):
        imported("reap", "PPOLoss")
    assert torchrl_home("reap.data.replay_buffers.samplers", "SamplerEnsemble") == "torchrl.data.replay_buffers.samplers"
    with pytest.raises(ImportError, match=r"that reap does not have: from torchrl.modules import MLP\.$"):
        imported("reap.data", "MLP")
    assert torchrl_home("reap.collectors.utils", "StepCounter") == "torchrl.envs"
    assert torchrl_home("reap.data", "qwertz") is None


def test_what_to_use_instead() -> None:
    torchrl_data = pytest.importorskip("torchrl.data")
    with pytest.raises(ImportError, match=r"reap has ReplayBufferEnsemble\(\*buffers\) instead"):
        imported("reap.data.replay_buffers.samplers", "SamplerEnsemble")
    pytest.importorskip("torchrl", minversion="0.14")  # some of these names are no older
    packages = ("data.replay_buffers", "collectors", "collectors.distributed", "envs")
    places = [torchrl_data, *(pytest.importorskip(f"torchrl.{package}") for package in packages)]
    assert [name for name in INSTEAD if not any(hasattr(place, name) for place in places)] == []
    assert not any(hasattr(reap.data, name) for name in INSTEAD)


@pytest.mark.processes
def test_torchrl_is_not_imported_for_it() -> None:
    code = (
        "import reap.data, sys\n"
        "try:\n    from reap.data import StorageEnsemble\n"
        "except ImportError:\n    print('torchrl' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_without_torchrl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    torchrl_home.__globals__["_exported"].cache_clear()
    assert torchrl_home("reap.data", "StorageEnsemble") is None
    torchrl_home.__globals__["_exported"].cache_clear()


def test_attributes_of_modules_are_asked_for_in_vain() -> None:
    """Python and its tools ask for names with underscores at every import."""
    with pytest.raises(AttributeError, match=r"^module 'reap.data' has no attribute '__wrapped__'\.$"):
        _ = reap.data.__wrapped__  # pyright: ignore[reportAttributeAccessIssue]


def test_a_star_takes_what_is_listed() -> None:
    found: dict[str, Any] = {}
    exec("from reap.data.replay_buffers.samplers import *", found)
    assert {name for name in found if not name.startswith("__")} == set(
        importlib.import_module("reap.data.replay_buffers.samplers").__all__
    )


def test_the_error_outside_of_an_import() -> None:
    assert isinstance(missing_name("reap.data", "x", ()), AttributeError)
