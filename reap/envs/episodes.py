"""Steps by TensorDicts: a rollout, and the way from one step to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from reap.errors import SpecMismatch
from reap.keys import plain
from reap.optional import tensordict as load_tensordict

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from reap.envs.base import EnvBase
    from reap.envs.specs import EnvSpecs


def step_mdp(
    tensordict: TensorDictBase,
    *,
    keep_other: bool = True,
    exclude_reward: bool = True,
    exclude_done: bool = False,
    exclude_action: bool = True,
) -> TensorDictBase:
    """The root of the next step: what is under `"next"` moves to the root.

    Args:
        tensordict: a step's result `[*batch_size]`.
        keep_other: keep root keys that have no successor under `"next"`.
        exclude_reward: leave the reward behind.
        exclude_done: leave the done flags behind.
        exclude_action: leave the action behind.
    """
    following = tensordict.get("next")
    result = tensordict.exclude("next") if keep_other else tensordict.select()
    result = result.copy()
    result.update(following)
    gone: list[str] = []
    if exclude_reward:
        gone.append("reward")
    if exclude_done:
        gone.extend(("done", "terminated", "truncated"))
    if exclude_action:
        gone.append("action")
    return result.exclude(*gone)


def rollout(
    env: EnvBase,
    max_steps: int,
    policy: Callable[[TensorDictBase], TensorDictBase | None] | None,
    start: TensorDictBase | None,
    break_when_any_done: bool,
    set_truncated: bool,
) -> TensorDictBase:
    """Stack up to `max_steps` steps along a last dimension named `"time"`."""
    current = env.empty_tensordict() if start is None else start
    steps: list[TensorDictBase] = []
    while len(steps) < max_steps:
        acted = env.rand_action(current) if policy is None else policy(current)
        stepped = env.step(current if acted is None else acted)
        steps.append(stepped.copy())
        done = stepped.get(("next", "done"))
        if len(steps) == max_steps or (break_when_any_done and bool(done.any())):
            break
        current = step_mdp(stepped)
        if bool(done.any()):
            current = env.reset(current.set("_reset", done))
    stacked = load_tensordict().stack(steps, len(env.batch_size))
    stacked.refine_names(..., "time")
    if set_truncated:
        last = (..., slice(-1, None), slice(None))
        for flag in ("truncated", "done"):
            stacked.get(("next", flag))[last] = True
    return stacked


def finish_step(env: EnvBase, given: TensorDictBase, result: TensorDictBase) -> TensorDictBase:
    """Put what a step returned under `"next"`, with all done flags of the env."""
    shape_flags(env, result, "_step")
    complete_flags(env, result)
    return given.set("next", result)


def finish_reset(env: EnvBase, result: TensorDictBase) -> TensorDictBase:
    """Add cleared done flags to what a reset returned."""
    shape_flags(env, result, "_reset")
    for key, spec in env.full_done_spec.leaves():
        if plain(key) not in result.keys(include_nested=True):
            result.set(plain(key), spec.zero())
    return result
