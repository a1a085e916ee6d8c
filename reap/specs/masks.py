"""Action masks, and random actions that obey them: `random_actions`, and `RandomPolicy` for users."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from reap.errors import CallOrderError, OptionError
from reap.keys import Key, NestedKey, as_key, plain
from reap.specs.base import Spec
from reap.specs.composite import Composite
from reap.specs.indices import Categorical, MultiCategorical
from reap.specs.onehot import MultiOneHot, OneHot
from reap.specs.parts.from_torchrl import as_own

if TYPE_CHECKING:
    from tensordict import TensorDictBase

NAME = "action_mask"


def mask_keys(actions: Mapping[Key, Spec], known: Collection[Key]) -> dict[Key, Key]:
    """The key of the mask of each action that has one.

    It is called `action_mask` and is next to the action, or has entries with the names of the action's. If only one action is a
    choice, a single mask at the root belongs to it.

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
    """Write random actions into a TensorDict, drawn from torch's global generator among those that its masks allow."""
    leaves = dict(actions.leaves())
    masks = mask_keys(leaves, [as_key(key) for key in tensordict.keys(include_nested=True, leaves_only=True)])
    if not masks:
        return tensordict.update(actions.rand())
    drawn = actions.zero()
    for key, spec in leaves.items():
        mask = tensordict.get(plain(masks[key])) if key in masks else None
        drawn.set(plain(key), spec.rand(mask=mask))
    return tensordict.update(drawn)


class RandomPolicy:
    """Draws actions from a spec.

    Args:
        action_spec: spec of the action with its batch dimensions, or a Composite of several actions; torchrl's do too. None: a
            collector takes it from its env.
        action_key: where the action goes, if the spec is not a Composite.

    Attributes:
        action_spec: the spec; None if there is none yet.

    Raises:
        OptionError: not a spec.

    Example:
        >>> from reap.envs import GymEnv
        >>> policy = RandomPolicy(GymEnv("CartPole-v1").action_spec)
    """

    def __init__(self, action_spec: Any = None, action_key: NestedKey = "action") -> None:
        spec = as_own(action_spec)
        if spec is not None and not isinstance(spec, Spec):
            raise OptionError(f"RandomPolicy: expected the spec of an action, env.action_spec, got {action_spec!r}")
        self.action_spec: Spec | None = spec
        self.action_key = action_key

    def set_action_spec_from_env(self, env: Any) -> None:
        """Take the specs of an env's actions, of an env of torchrl too; nothing changes if there is a spec already."""
        if self.action_spec is None:
            self.action_spec = as_own(env.full_action_spec)

    @property
    def actions(self) -> Composite:
        """The specs of the actions under their keys.

        Raises:
            CallOrderError: there is none yet.
        """
        given = self.action_spec
        if given is None:
            raise CallOrderError(
                "RandomPolicy: expected a spec to draw from, has none yet; give it one, RandomPolicy(env.action_spec), or make "
                "a collector with it first, which takes it from its env"
            )
        return given if isinstance(given, Composite) else Composite().with_(as_key(self.action_key), given)

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write random actions into the TensorDict, from torch's global generator; an `action_mask` in it is obeyed."""
        return random_actions(self.actions, tensordict)

    def __repr__(self) -> str:
        return f"RandomPolicy({'' if self.action_spec is None else self.action_spec})"
