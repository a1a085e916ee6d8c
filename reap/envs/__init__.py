"""Envs: their base class, gymnasium's envs, and batches of envs."""

from reap.envs.base import EnvBase
from reap.envs.checks.specs import check_env_specs
from reap.envs.creator import EnvCreator
from reap.envs.exploration import ExplorationType, exploration_type, set_exploration_type
from reap.envs.faces.episodes import step_mdp
from reap.envs.gymnasium.env import GymEnv, GymWrapper
from reap.envs.parallel.env import ParallelEnv
from reap.envs.pettingzoo.env import PettingZooEnv, PettingZooWrapper
from reap.envs.pettingzoo.group_map import MarlGroupMapType
from reap.envs.serial import SerialEnv

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
    "check_env_specs",
    "exploration_type",
    "set_exploration_type",
    "step_mdp",
]


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
