"""The documented import path of gymnasium's envs."""

from reap.envs.gymnasium.env import GymEnv, GymWrapper
from reap.envs.gymnasium.facts.backend import gym_backend, set_gym_backend

__all__ = ["GymEnv", "GymWrapper", "gym_backend", "set_gym_backend"]
