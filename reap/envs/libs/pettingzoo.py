"""The import path of PettingZoo's envs that torchrl users know."""

from reap.envs.pettingzoo.env import PettingZooEnv, PettingZooWrapper

__all__ = ["PettingZooEnv", "PettingZooWrapper"]
