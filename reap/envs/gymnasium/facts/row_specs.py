"""The format and the specs of a row, from gymnasium's spaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import torch
from gymnasium.vector import SyncVectorEnv

from reap.envs.gymnasium.facts.infos import info_leaf
from reap.envs.gymnasium.facts.names import RESERVED
from reap.envs.gymnasium.row_arrays import ONE_REWARD, RowFormat
from reap.envs.gymnasium.values import action_leaves, observation_leaves
from reap.errors import OptionError
from reap.keys import Key
from reap.specs import Composite, Spec, Unbounded, spec_from_space


def row_format(
    env: Any,
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    *,
    name: str,
    categorical: bool,
    infos: Mapping[str, Spec],
) -> RowFormat:
    """The format of an env's rows.

    Args:
        env: the env, or a vector env.
        observation_space: the observation space of a row.
        action_space: the action space of a row.
        name: the key of observations whose space has no names.
        categorical: actions are indices, not one-hot.
        infos: specs of the infos that are observations.

    Raises:
        OptionError: there is nothing to observe, or nothing to choose.
    """
    form = RowFormat(
        observations=tuple(observation_leaves(observation_space, (name,), categorical=categorical)),
        infos=tuple(info_leaf(key, spec) for key, spec in infos.items()),
        actions=tuple(action_leaves(action_space, ("action",), categorical=categorical)),
        observation_space=observation_space,
        action_space=action_space,
        reward_shape=_reward_shape(env),
    )
    if not form.observations and not form.infos:
        raise OptionError(f"{env}: expected an observation space that holds something, got {observation_space}")
    if not form.actions:
        raise OptionError(f"{env}: expected an action space that holds something, got {action_space}")
    return form


def _reward_shape(env: Any) -> tuple[int, ...]:
    """The shape of a reward: one number, unless an env that is stepped alone declares a Box as `reward_space`."""
    single = env.envs[0] if isinstance(env, SyncVectorEnv) else env
    if not (isinstance(single, gym.Env) and single.has_wrapper_attr("reward_space")):
        return ONE_REWARD
    space = single.get_wrapper_attr("reward_space")
    return space.shape if isinstance(space, gym.spaces.Box) and space.shape else ONE_REWARD


def observation_specs(
    env: Any, form: RowFormat, infos: Mapping[str, Spec], *, categorical: bool, dtype: torch.dtype | None
) -> Composite:
    """The specs of a row's observations.

    Args:
        env: the env, for errors.
        form: the format of its rows.
        infos: specs of the infos that count as observations.
        categorical: discrete values are indices, not one-hot.
        dtype: the dtype of float observations.

    Raises:
        OptionError: a duplicate name, or the name of a key of every batch.
    """
    found = {leaf.key: spec_from_space(leaf.space, categorical=categorical, dtype=dtype) for leaf in form.observations}
    _refuse_twice({key[0] for key in found}, infos)
    found.update({(name,): spec for name, spec in infos.items()})
    _refuse_reserved(found, env)
    return _tree(found)


def action_specs(form: RowFormat, *, categorical: bool) -> Composite:
    """The specs of a row's actions."""
    return _tree({leaf.key: spec_from_space(leaf.space, categorical=categorical) for leaf in form.actions})


def reward_specs(form: RowFormat) -> Composite:
    """The spec of a row's reward."""
    return Composite(reward=Unbounded(form.reward_shape, dtype=torch.float32))


def _tree(leaves: Mapping[Key, Spec]) -> Composite:
    tree = Composite()
    for key, spec in leaves.items():
        tree = tree.with_(key, spec)
    return tree


def _refuse_twice(names: set[str], infos: Mapping[str, Spec]) -> None:
    taken = sorted(names & infos.keys())
    if taken:
        raise OptionError(f"info_keys: {taken} are observations of the env already; leave them out or rename the observation")


def _refuse_reserved(keys: Mapping[Key, Spec], env: Any) -> None:
    taken = sorted({key[0] for key in keys} & RESERVED)
    if taken:
        raise OptionError(
            f"{env}: observation keys {taken} collide with keys of every batch; rename them, e.g. with "
            "gymnasium.wrappers.TransformObservation"
        )
