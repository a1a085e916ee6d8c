"""Envs: what they are, gymnasium's, and batches of them."""

from reap.envs.base import EnvBase
from reap.envs.episodes import step_mdp
from reap.envs.gym import GymEnv, GymWrapper
from reap.envs.serial import SerialEnv

__all__ = ["EnvBase", "GymEnv", "GymWrapper", "SerialEnv", "step_mdp"]
