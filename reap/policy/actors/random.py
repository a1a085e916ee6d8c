"""Random actions: `RandomPolicy` for people, `RandomActor` for the loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from reap.keys import Key, NestedKey, as_key
from reap.recording.buffers import Slot, Stage
from reap.recording.layout import Field, field_of
from reap.specs import Composite, Spec, mask_keys, random_actions

if TYPE_CHECKING:
    from tensordict import TensorDictBase


class RandomPolicy:
    """Draws actions from a spec.

    Args:
        action_spec: spec of the action with its batch dimensions, or a Composite of several actions.
        action_key: where the action goes, if the spec is not a Composite.

    Example:
        >>> from reap.envs import GymEnv
        >>> policy = RandomPolicy(GymEnv("CartPole-v1").action_spec)
    """

    def __init__(self, action_spec: Spec, action_key: NestedKey = "action") -> None:
        self.action_spec = action_spec
        self.action_key = action_key

    @property
    def actions(self) -> Composite:
        """The specs of the actions under their keys."""
        given = self.action_spec
        return given if isinstance(given, Composite) else Composite().with_(as_key(self.action_key), given)

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write random actions into the TensorDict, from torch's global generator; an `action_mask` in it is obeyed."""
        return random_actions(self.actions, tensordict)

    def __repr__(self) -> str:
        return f"RandomPolicy({self.action_spec})"


class RandomActor:
    """Writes random actions, from a generator of its own, and zeros for every other output of the policy.

    Args:
        actions: specs of the actions.
        stage: holds the action mask, if the env has one.
        outputs: the outputs of the policy, so that all batches have the same keys.
    """

    def __init__(self, actions: Composite, stage: Stage, outputs: Mapping[Key, Field] | None = None) -> None:
        self._specs = dict(actions.leaves())
        lead = len(stage.batch_shape)
        own = {key: field_of(actions, key, lead) for key in self._specs}
        self.outputs: Mapping[Key, Field] = {**own, **(outputs or {})}
        self._zeros = tuple(key for key in self.outputs if key not in self._specs)
        masks = mask_keys(self._specs, stage.tensors)
        self._masks = {key: stage.tensors[mask] for key, mask in masks.items()}
        self.generator = torch.Generator()
        self._views: list[tuple[Spec, Sequence[torch.Tensor], torch.Tensor | None]] = []

    def bind(self, slot: Slot) -> None:
        """Take the slot that following calls write; the outputs of the policy are zero in it."""
        self._views = [(spec, slot.views(key), self._masks.get(key)) for key, spec in self._specs.items()]
        for key in self._zeros:
            slot.by_row(key)[...] = 0

    def act(self, t: int) -> None:
        """Draw the actions of column `t`."""
        for spec, views, mask in self._views:
            views[t].copy_(spec.rand(generator=self.generator, mask=mask))
