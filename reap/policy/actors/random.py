"""`RandomActor`: random actions for the loop; the `RandomPolicy` that people give to collectors is in `reap.specs`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from reap.keys import Key
from reap.recording.buffers import Slot, Stage
from reap.recording.layout import Field
from reap.specs import Composite, Spec, mask_keys


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
        own = {key: Field(tuple(s.shape[lead:]), s.dtype or torch.float32) for key, s in self._specs.items()}
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
