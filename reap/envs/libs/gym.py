"""The documented import path of gymnasium's envs."""

from reap.envs.gym import GymEnv, GymWrapper

__all__ = ["GymEnv", "GymWrapper"]
