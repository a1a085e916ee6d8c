"""The documented import path of gymnasium's envs."""

from reap.envs.gymnasium.env import GymEnv, GymWrapper

__all__ = ["GymEnv", "GymWrapper"]
