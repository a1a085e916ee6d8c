"""Action masks, and random actions that obey them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from reap.keys import Key, as_key, plain
from reap.specs.base import Spec
from reap.specs.composite import Composite
from reap.specs.indices import Categorical, MultiCategorical
from reap.specs.onehot import MultiOneHot, OneHot

if TYPE_CHECKING:
    from tensordict import TensorDictBase

NAME = "action_mask"


def mask_keys(actions: Mapping[Key, Spec], known: Collection[Key]) -> dict[Key, Key]:
    """The key of the mask of each action that has one.

    It is called `action_mask` and lies beside the action, or has entries named as the action's are. Where only one action is a
    choice, a single mask at the root is its.

    Args:
        actions: specs of the actions.
        known: keys that may be masks.

    Example:
        >>> mask_keys({("action",): OneHot(2)}, {("action_mask",)})
        {('action',): ('action_mask',)}
        >>> mask_keys({("action", "a"): OneHot(2), ("action", "b"): OneHot(3)}, {("action_mask", "a"), ("action_mask", "b")})
        {('action', 'a'): ('action_mask', 'a'), ('action', 'b'): ('action_mask', 'b')}
    """
    choices = [key for key, spec in actions.items() if isinstance(spec, OneHot | MultiOneHot | Categorical | MultiCategorical)]
    found: dict[Key, Key] = {}
    for key in choices:
        places: list[Key] = [(*key[:-1], NAME), (NAME, *key[1:])]
        if len(choices) == 1:
            places.append((NAME,))
        lying = [place for place in places if place in known]
        if lying:
            found[key] = lying[0]
    return found


def random_actions(actions: Composite, tensordict: TensorDictBase) -> TensorDictBase:
    """Write random actions into a TensorDict, from torch's global generator; those that its masks forbid are not drawn."""
    leaves = dict(actions.leaves())
    masks = mask_keys(leaves, [as_key(key) for key in tensordict.keys(include_nested=True, leaves_only=True)])
    if not masks:
        return tensordict.update(actions.rand())
    drawn = actions.zero()
    for key, spec in leaves.items():
        mask = tensordict.get(plain(masks[key])) if key in masks else None
        drawn.set(plain(key), spec.rand(mask=mask))
    return tensordict.update(drawn)
