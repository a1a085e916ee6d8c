"""The documented import path of functions for envs."""

from reap.envs.checks.specs import check_env_specs
from reap.envs.exploration import ExplorationType, exploration_type, set_exploration_type
from reap.envs.faces.episodes import step_mdp
from reap.envs.pettingzoo.group_map import MarlGroupMapType
from reap.specs import RandomPolicy

__all__ = [
    "ExplorationType",
    "MarlGroupMapType",
    "RandomPolicy",
    "check_env_specs",
    "exploration_type",
    "set_exploration_type",
    "step_mdp",
]
