"""Episodes on TensorDicts: the results of resets and steps, rollouts, and `step_mdp`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from reap.envs.faces.done_flags import DoneFlags, complete_flags, require_not_done
from reap.envs.faces.results import check_result, clear_flags, merge_rows
from reap.errors import OptionError, SpecMismatch
from reap.keys import NestedKey
from reap.option_values import switch
from reap.optional import tensordict as load_tensordict
from reap.recording.buffers import after

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from reap.envs.specs import EnvSpecs

    Call = Callable[[TensorDictBase], TensorDictBase]


ROOT_FLAGS: Sequence[NestedKey] = ["done", "terminated", "truncated"]


def step_mdp(
    tensordict: TensorDictBase,
    next_tensordict: TensorDictBase | None = None,
    keep_other: bool = True,
    exclude_reward: bool = True,
    exclude_done: bool = False,
    exclude_action: bool = True,
    reward_keys: NestedKey | Sequence[NestedKey] = "reward",
    done_keys: NestedKey | Sequence[NestedKey] = ROOT_FLAGS,
    action_keys: NestedKey | Sequence[NestedKey] = "action",
) -> TensorDictBase:
    """The root of the next step: the entries under `"next"` move to the root.

    Args:
        tensordict: a step's result `[*batch_size]`.
        next_tensordict: receives the result; None makes a new TensorDict.
        keep_other: keep root keys without a successor under `"next"`.
        exclude_reward: omit the reward.
        exclude_done: omit the done flags.
        exclude_action: omit the action.
        reward_keys: a key or a list of keys; a tuple of names is one nested key.
        done_keys: likewise; by default the three flags at the root.
        action_keys: likewise.

    Raises:
        OptionError: not a bool where one is expected.
    """
    gone: list[NestedKey] = []
    for name, is_gone, keys in (
        ("exclude_reward", exclude_reward, reward_keys),
        ("exclude_done", exclude_done, done_keys),
        ("exclude_action", exclude_action, action_keys),
    ):
        gone.extend(_key_list(keys) if switch(is_gone, name) else ())
    result = tensordict.exclude("next").copy() if switch(keep_other, "keep_other") else tensordict.select()
    result.update(tensordict.get("next").copy())
    result = result.exclude(*gone)
    return result if next_tensordict is None else next_tensordict.update(result)


def _key_list(keys: Any) -> list[NestedKey]:
    return [keys] if isinstance(keys, str | tuple) else list(keys)


def rollout(
    env: EnvSpecs,
    reset: Call,
    step: Call,
    policy: Callable[[TensorDictBase], TensorDictBase | None],
    start: TensorDictBase | None,
    max_steps: int,
    *,
    callback: Callable[[Any, TensorDictBase], Any] | None,
    break_when_any_done: bool,
    set_truncated: bool,
    is_lazy: bool,
    device: torch.device | str | None,
) -> TensorDictBase:
    """Stack up to `max_steps` steps along a last dimension named `"time"`; see `EnvBase.rollout`.

    Raises:
        OptionError: `max_steps` is below 1.
    """
    if max_steps < 1:
        raise OptionError(f"rollout: expected one step or more, got {max_steps}")
    current = env.empty_tensordict() if start is None else start
    steps: list[TensorDictBase] = []
    flags = DoneFlags(env)
    while len(steps) < max_steps:
        acted = policy(current)
        stepped = step(current if acted is None else acted)
        steps.append(stepped.copy() if device is None else stepped.copy().to(device))
        if callback is not None:
            callback(env, stepped)
        ended = flags.read(stepped.get("next"))
        if len(steps) == max_steps or (break_when_any_done and ended is not None):
            break
        current = step_mdp(stepped, reward_keys=env.reward_keys, action_keys=env.action_keys)
        if ended is not None:
            done = torch.from_numpy(ended[0] | ended[1])
            current = reset(current.set("_reset", done.view(*env.batch_size, 1)))
    made, lead = load_tensordict(), len(env.batch_size)
    stacked = made.LazyStackedTensorDict.lazy_stack(steps, lead) if is_lazy else made.stack(steps, lead)
    stacked.refine_names(..., "time")
    if set_truncated:
        last = (*(slice(None),) * len(env.batch_size), -1)
        for key, _ in env.full_done_spec.leaves():
            if key[-1] != "terminated":
                stacked.get(after(key))[last] = True
    return stacked


def with_own_mask(env: EnvSpecs, given: TensorDictBase | None) -> tuple[TensorDictBase | None, torch.Tensor | None]:
    """The argument of `_reset`, with a copy of the mask in it, and the mask `[*batch_size, 1]`; None if there is none.

    Raises:
        SpecMismatch: a mask of another size or dtype.
    """
    mask = None if given is None else given.get("_reset", None)
    if given is None or mask is None:
        return given, None
    shape = (*env.batch_size, 1)
    if mask.dtype != torch.bool or mask.numel() != math.prod(shape):
        raise SpecMismatch(
            f"{type(env).__name__}.reset: '_reset': expected shape {shape} and dtype bool, found {tuple(mask.shape)} and "
            f"{mask.dtype}; give one flag for each row"
        )
    own = mask.reshape(shape).clone()
    return given.copy().set("_reset", own.clone()), own


def finish_reset(
    env: EnvSpecs, given: TensorDictBase | None, begun: TensorDictBase | None, mask: torch.Tensor | None
) -> TensorDictBase:
    """The result of `reset`: its argument with the reset rows replaced, and with all done flags of the env.

    Args:
        env: the env.
        given: the argument of `reset`.
        begun: the result of `_reset`; None if no row was to be reset.
        mask: the rows `[*batch_size, 1]` that were to be reset; None for all.

    Raises:
        SpecMismatch: the result of `_reset` does not fit the specs.
    """
    result = env.empty_tensordict() if given is None else given.copy()
    result.pop("_reset", None)
    if begun is not None:
        check_result(env, begun, "_reset", by_hand=True)
        require_not_done(env, begun, mask)
        new = env.empty_tensordict().update(begun)
        new.pop("_reset", None)
        clear_flags(env, new)
        result = result.update(new) if mask is None or bool(mask.all()) else merge_rows(result, new, mask)
    clear_flags(env, result)
    return result


def finish_step(env: EnvSpecs, given: TensorDictBase, result: TensorDictBase) -> TensorDictBase:
    """The results of a step, with all done flags of the env.

    Raises:
        SpecMismatch: the result of `_step` does not fit the specs.
    """
    check_result(env, result, "_step", by_hand=True)
    if result is given:
        result = result.copy()
    complete_flags(env, result)
    return result
