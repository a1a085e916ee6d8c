"""Envs: their base class, gymnasium's envs, and batches of envs."""

from importlib.util import find_spec
from typing import Any

from reap.envs import transforms
from reap.envs.adapters.transformed import TransformedEnv
from reap.envs.base import EnvBase
from reap.envs.checks.specs import check_env_specs
from reap.envs.creator import EnvCreator
from reap.envs.exploration import ExplorationType, exploration_type, set_exploration_type
from reap.envs.faces.episodes import step_mdp
from reap.envs.gymnasium.env import GymEnv, GymWrapper
from reap.envs.gymnasium.facts.backend import gym_backend, set_gym_backend
from reap.envs.gymnasium.facts.infos import default_info_dict_reader
from reap.envs.parallel.env import ParallelEnv
from reap.envs.pettingzoo.env import PettingZooEnv, PettingZooWrapper
from reap.envs.pettingzoo.group_map import MarlGroupMapType
from reap.envs.serial import SerialEnv
from reap.names import missing_name

__all__ = [
    "EnvBase",
    "EnvCreator",
    "ExplorationType",
    "GymEnv",
    "GymWrapper",
    "MarlGroupMapType",
    "ParallelEnv",
    "PettingZooEnv",
    "PettingZooWrapper",
    "SerialEnv",
    "TransformedEnv",
    "check_env_specs",
    "default_info_dict_reader",
    "exploration_type",
    "gym_backend",
    "set_exploration_type",
    "set_gym_backend",
    "step_mdp",
]


def __getattr__(name: str) -> Any:
    """Torchrl's transforms, under the path where its users look for them: `from reap.envs import StepCounter`."""
    if name[0].isupper() and find_spec("torchrl") is not None:
        found = getattr(transforms, name, None)
        if found is not None:
            return found
    raise missing_name(__name__, name, __all__)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
