"""The import path of the base of envs that torchrl users know."""

from reap.envs.base import EnvBase

__all__ = ["EnvBase"]
