"""Policies that are methods of an env: `env.rand_action`, `env.rand_step`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

LIBRARIES = "reap", "torchrl"


def as_policy(policy: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """The policy to act with: None, for random actions, instead of an env's `rand_action` or `rand_step`.

    The caller of a policy steps the env; `rand_step` would step it twice. An env with its own way of drawing random actions
    keeps it: its `rand_action` acts.
    """
    env: Any = getattr(policy, "__self__", None)
    name = getattr(policy, "__name__", None)
    if name not in {"rand_action", "rand_step"} or not any(_is_envs(kind) for kind in type(env).__mro__):
        return policy
    draws = type(env).rand_action
    return None if _library_of(draws) in LIBRARIES else env.rand_action


def _is_envs(kind: type) -> bool:
    return kind.__name__ == "EnvBase" and _library_of(kind) in LIBRARIES


def _library_of(thing: Any) -> str:
    return str(thing.__module__).partition(".")[0]
