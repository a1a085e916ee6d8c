"""Envs: what they are, gymnasium's, and batches of them."""

from reap.envs.base import EnvBase
from reap.envs.check_specs import check_env_specs
from reap.envs.creator import EnvCreator
from reap.envs.episodes import step_mdp
from reap.envs.exploration import ExplorationType, exploration_type, set_exploration_type
from reap.envs.gym import GymEnv, GymWrapper
from reap.envs.parallel import ParallelEnv
from reap.envs.serial import SerialEnv

__all__ = [
    "EnvBase",
    "EnvCreator",
    "ExplorationType",
    "GymEnv",
    "GymWrapper",
    "ParallelEnv",
    "SerialEnv",
    "check_env_specs",
    "exploration_type",
    "set_exploration_type",
    "step_mdp",
]
