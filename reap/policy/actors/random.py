"""`RandomActor`: random actions for the loop; `OwnDrawActor`: random actions that an env draws itself.

The `RandomPolicy` that users pass to collectors is in `reap.specs`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from reap.keys import Key, nested, plain
from reap.policy.base import StrictWriter
from reap.recording.buffers import Slot, Stage
from reap.recording.layout import Field, field_of, sizes_of
from reap.specs import Composite, MultiOneHot, OneHot, Spec, mask_keys
from reap.tensordicts import make_tensordict

if TYPE_CHECKING:
    from tensordict import TensorDictBase


class RandomActor:
    """Writes random actions, from its own generator, and zeros for every other output of the policy.

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
        """Bind the slot that later calls write to, and zero the policy's outputs in it."""
        self._views = [(spec, slot.views(key), self._masks.get(key)) for key, spec in self._specs.items()]
        for key in self._zeros:
            slot.by_row(key)[...] = 0

    def act(self, t: int) -> None:
        """Draw the actions of column `t`."""
        for spec, views, mask in self._views:
            views[t].copy_(spec.rand(generator=self.generator, mask=mask))


class OwnDrawActor(RandomActor):
    """Writes the actions that an env draws by its own method, from torch's global generator.

    Args:
        draw: takes a TensorDict of copies of the policy's inputs; returns one that holds the actions.
        actions: specs of the actions.
        stage: the policy's inputs.
        outputs: the outputs of the policy, so that all batches have the same keys.
        device: the device on which the env expects its inputs; None for host memory.
    """

    def __init__(
        self,
        draw: Callable[[TensorDictBase], TensorDictBase],
        actions: Composite,
        stage: Stage,
        outputs: Mapping[Key, Field] | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(actions, stage, outputs)
        one_hot = [key for key, spec in self._specs.items() if isinstance(spec, OneHot | MultiOneHot)]
        own = {key: self.outputs[key] for key in self._specs}
        name = getattr(draw, "__qualname__", type(draw).__name__)
        self._writer = StrictWriter(own, stage.batch_shape, one_hot, name)
        self._draw, self._stage, self._device = draw, stage, device

    def bind(self, slot: Slot) -> None:
        """Bind the slot that later calls write to, and zero the policy's outputs in it."""
        super().bind(slot)
        self._writer.bind(slot)

    def act(self, t: int) -> None:
        """Let the env draw the actions of column `t`."""
        with torch.inference_mode(mode=False), torch.no_grad():
            inputs = {key: tensor.clone() for key, tensor in self._stage.tensors.items()}
            given = make_tensordict(nested(inputs, sizes_of(self._stage.fields)), torch.Size(self._stage.batch_shape))
            drawn = self._draw(given if self._device is None else given.to(self._device))
            self._writer.write(t, {key: drawn.get(plain(key)) for key in self._specs})
