"""The import path of batches of envs that torchrl users know."""

from reap.envs.parallel.env import ParallelEnv
from reap.envs.serial import SerialEnv

__all__ = ["ParallelEnv", "SerialEnv"]
