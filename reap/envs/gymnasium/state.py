"""The state of gymnasium envs that have `state_dict()` and `load_state_dict(state)`.

Wrappers matter too: an env resumes exactly only if each of its wrappers has no state, or a state that is known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
from gymnasium import wrappers

from reap.envs.gymnasium.calls import Env, GymCalls
from reap.errors import SpecMismatch

STATELESS: tuple[type, ...] = (
    wrappers.OrderEnforcing,
    wrappers.PassiveEnvChecker,
    wrappers.TransformAction,
    wrappers.TransformObservation,
    wrappers.TransformReward,
)
ELAPSED = "_elapsed_steps"
HAS_RESET = "_has_reset"


def env_state(calls: GymCalls) -> dict[str, Any] | None:
    """The state of the unwrapped env, the step counts of its time limits, and a seed that waits for the next reset.

    None if the env offers no state.
    """
    env = calls.env
    own = env.unwrapped
    if not (callable(getattr(own, "state_dict", None)) and callable(getattr(own, "load_state_dict", None))):
        return None
    chain = list(_wrappers(env))
    if not all(isinstance(part, (*STATELESS, wrappers.TimeLimit)) or getattr(part, "stateless", False) for part in chain):
        return None
    elapsed = [getattr(part, ELAPSED) for part in chain if isinstance(part, wrappers.TimeLimit)]
    state = getattr(own, "state_dict")()  # noqa: B009  found by name above
    return {"env": state, "elapsed": elapsed, "seed": calls.pending_seed}


def load_env_state(calls: GymCalls, state: Mapping[str, Any]) -> None:
    """Resume an env from an `env_state`.

    Raises:
        SpecMismatch: the number of time limits differs; nothing is changed then.
    """
    env = calls.env
    limits = [part for part in _wrappers(env) if isinstance(part, wrappers.TimeLimit)]
    if len(limits) != len(state["elapsed"]):
        raise SpecMismatch(f"state: expected {len(limits)} time limits around {env}, found {len(state['elapsed'])}")
    getattr(env.unwrapped, "load_state_dict")(state["env"])  # noqa: B009
    calls.seed(state["seed"])
    for part, elapsed in zip(limits, state["elapsed"], strict=True):
        setattr(part, ELAPSED, elapsed)
    for part in _wrappers(env):
        if isinstance(part, wrappers.OrderEnforcing):
            setattr(part, HAS_RESET, True)


def _wrappers(env: Env) -> Iterator[gym.Wrapper[Any, Any, Any, Any]]:
    while isinstance(env, gym.Wrapper):
        yield env
        env = env.env
