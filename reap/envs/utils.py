"""The documented import path of what helps with envs."""

from reap.envs.check_specs import check_env_specs
from reap.envs.episodes import step_mdp
from reap.envs.exploration import ExplorationType, exploration_type, set_exploration_type

__all__ = ["ExplorationType", "check_env_specs", "exploration_type", "set_exploration_type", "step_mdp"]
