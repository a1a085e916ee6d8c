"""`check_env_specs` compares the values that an env returns with its specs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from reap.envs.base import EnvBase
from reap.envs.checks.rounding import without_rounding
from reap.envs.make_env import build_env
from reap.errors import BoundsWarning, SpecMismatch, nearest
from reap.keys import Key, as_key, plain
from reap.option_values import positive, switch
from reap.specs import Composite, Spec

if TYPE_CHECKING:
    from tensordict import TensorDictBase


def check_env_specs(env: Any, *, check_dtype: bool = True, seed: int | None = None, steps: int = 3) -> None:
    """Compare the values that an env returns with its specs: keys, shapes, dtypes, ranges, devices.

    It is reset and stepped with random actions. Floats may exceed their bounds by rounding: one part in a million.

    Args:
        env: an env of reap, gymnasium or torchrl, or a gymnasium id.
        check_dtype: compare dtypes and ranges too.
        seed: seeds the env first, and torch's generator for the actions (restored afterwards).
        steps: number of steps.

    Raises:
        SpecMismatch: a value differs from its spec; the message names the key, both, and the call.
        OptionError: an argument of another type, or not a seed.

    Example:
        >>> from reap.envs import GymEnv
        >>> check_env_specs(GymEnv("CartPole-v1"))
    """
    switch(check_dtype, "check_dtype")
    positive(steps, "steps")
    checked = build_env(env)
    with torch.random.fork_rng([]), warnings.catch_warnings():
        warnings.simplefilter("ignore", BoundsWarning)  # they are errors here
        if seed is not None:
            checked.set_seed(seed)
            torch.manual_seed(seed)
        _check_run(checked, check_dtype, steps)


def _check_run(env: EnvBase, check_dtype: bool, steps: int) -> None:
    name = type(env).__name__
    first = env.reset()
    observed, flags, rewards = _leaves(env.observation_spec), _leaves(env.full_done_spec), _leaves(env.full_reward_spec)
    first = first.exclude(*map(plain, rewards))
    check_values(first, {**observed, **flags}, f"{name}.reset", env, check_dtype=check_dtype)
    for key in flags:
        if bool(first.get(plain(key)).any()):
            raise SpecMismatch(
                f"{name}.reset: {plain(key)!r}: expected no flag that is True after a reset of all rows, found one"
            )
    current = first
    for step in range(steps):
        acted = env.rand_action(current.copy())
        check_values(acted, _leaves(env.full_action_spec), f"{name}.rand_action", env, check_dtype=check_dtype, more=True)
        following = env.step(acted).get("next")
        where = f"{name}.step ({step + 1} after the reset)"
        check_values(following, {**observed, **rewards, **flags}, where, env, check_dtype=check_dtype)
        if any(bool(following.get(plain(key)).any()) for key in flags):
            current = env.reset()
        else:
            current = following.exclude(*map(plain, rewards))


def check_values(
    td: TensorDictBase,
    specs: Mapping[Key, Spec],
    where: str,
    env: EnvBase,
    *,
    check_dtype: bool = True,
    more: bool = False,
) -> None:
    """Raise SpecMismatch unless a TensorDict holds a value of each spec and, unless there may be `more`, nothing else."""
    if td.batch_size != env.batch_size:
        raise SpecMismatch(f"{where}: expected batch size {tuple(env.batch_size)}, found {tuple(td.batch_size)}")
    found = {as_key(key): value for key, value in td.items(include_nested=True, leaves_only=True)}
    objects = {key: td.get(plain(key), None) for key, spec in specs.items() if spec.dtype is None}
    found.update({key: value for key, value in objects.items() if value is not None})
    for key, spec in specs.items():
        if key not in found:
            others = [str(plain(other)) for other in found if other not in specs]
            raise SpecMismatch(
                f"{where}: expected key {plain(key)!r}, as the specs say, found {sorted(map(str, map(plain, found)))}."
                f"{nearest(str(plain(key)), others)}"
            )
        _check_value(found[key], spec, key, where, env, check_dtype)
    unknown = [plain(key) for key in found if key not in specs]
    if unknown and not more:
        raise SpecMismatch(f"{where}: expected only keys of the specs, found {unknown} too; add them to observation_spec")


def _check_value(value: Any, spec: Spec, key: Key, where: str, env: EnvBase, check_dtype: bool) -> None:
    if check_dtype or spec.dtype is None:
        spec.validate(without_rounding(value, spec), key=plain(key), where=where)
    elif value.shape != spec.shape:
        raise SpecMismatch(f"{where}: key {plain(key)!r}: expected shape {tuple(spec.shape)}, found {tuple(value.shape)}.")
    if env.device is not None and spec.dtype is not None and value.device != env.device:
        raise SpecMismatch(
            f"{where}: key {plain(key)!r}: expected device {env.device}, as the env says, found {value.device}; "
            f"make it there: torch.zeros(..., device=self.device)"
        )


def _leaves(spec: Composite) -> dict[Key, Spec]:
    return dict(spec.leaves())
