"""The documented import path of gymnasium's envs."""

from reap.envs.gymnasium.backend import gym_backend, set_gym_backend
from reap.envs.gymnasium.env import GymEnv, GymWrapper

__all__ = ["GymEnv", "GymWrapper", "gym_backend", "set_gym_backend"]
