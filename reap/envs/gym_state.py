"""State of gymnasium envs that offer it: `state_dict()` and `load_state_dict(state)` on the env itself.

Wrappers count too: an env goes on exactly only if each of its wrappers has no state, or one that is known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
from gymnasium import wrappers

Env = gym.Env[Any, Any]

STATELESS: tuple[type, ...] = (
    wrappers.OrderEnforcing,
    wrappers.PassiveEnvChecker,
    wrappers.TransformAction,
    wrappers.TransformObservation,
    wrappers.TransformReward,
)
ELAPSED = "_elapsed_steps"
HAS_RESET = "_has_reset"


def env_state(env: Env) -> dict[str, Any] | None:
    """The state of an env below its wrappers and the step counts of its time limits; None where there is none to be had."""
    own = env.unwrapped
    if not (callable(getattr(own, "state_dict", None)) and callable(getattr(own, "load_state_dict", None))):
        return None
    chain = list(_wrappers(env))
    if not all(isinstance(part, (*STATELESS, wrappers.TimeLimit)) or getattr(part, "stateless", False) for part in chain):
        return None
    elapsed = [getattr(part, ELAPSED) for part in chain if isinstance(part, wrappers.TimeLimit)]
    return {"env": getattr(own, "state_dict")(), "elapsed": elapsed}  # noqa: B009  found by name above


def load_env_state(env: Env, state: Mapping[str, Any]) -> None:
    """Let an env go on from what `env_state` gave."""
    getattr(env.unwrapped, "load_state_dict")(state["env"])  # noqa: B009
    limits = [part for part in _wrappers(env) if isinstance(part, wrappers.TimeLimit)]
    for part, elapsed in zip(limits, state["elapsed"], strict=True):
        setattr(part, ELAPSED, elapsed)
    for part in _wrappers(env):
        if isinstance(part, wrappers.OrderEnforcing):
            setattr(part, HAS_RESET, True)


def _wrappers(env: Env) -> Iterator[gym.Wrapper[Any, Any, Any, Any]]:
    while isinstance(env, gym.Wrapper):
        yield env
        env = env.env
