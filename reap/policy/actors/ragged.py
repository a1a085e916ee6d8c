"""Policies that read objects: strings, graphs, observations whose shape changes.

`RaggedActor` calls a policy with columns of objects; `object_inputs` makes the TensorDicts of those that take
one. They get copies, which a policy may change and keep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from tensordict import TensorDictBase

from reap.keys import Key, nested
from reap.policy.actors.plain import as_outputs
from reap.policy.actors.states import read_keys
from reap.policy.base import Outputs, OutputWriter
from reap.recording.buffers import Slot, Stage
from reap.recording.layout import Field, sizes_of
from reap.recording.objects import copied, copies_of, stacked
from reap.tensordicts import make_tensordict

Read = Callable[[], Any]


class RaggedActor:
    """Calls a policy with tensors and objects of the stage; its output is the action, or a dict of outputs.

    For a single env an object is passed as it is, for example a tensor of the frame's own shape; for a batch of envs, as a list
    with one object for each row.

    Args:
        policy: the module or function.
        stage: its inputs.
        reads: the keys of its arguments, in their order.
        action: the key of an output that is not a dict.
    """

    kind = "ragged"
    enables_grad = False

    def __init__(self, policy: Callable[..., Any], stage: Stage, reads: Sequence[Key], action: Key) -> None:
        self.outputs: Mapping[Key, Field] = {}
        self.reads: Sequence[Key] = tuple(key for key in reads if key in stage.tensors)
        self._policy = policy
        self._inputs: list[Read] = [_reader(stage, key) for key in reads]
        self._action = action
        self.writer = OutputWriter({})

    def probe(self) -> Outputs:
        """Call the policy once."""
        return as_outputs(self._policy(*[read() for read in self._inputs]), self._action)

    def fix_outputs(self, writer: OutputWriter) -> None:
        """Set the writer of the outputs that the probe found."""
        self.outputs, self.writer = writer.outputs, writer

    def read_copies(self) -> None:
        """Pass clones of the tensors to the policy; objects are copies already."""
        self._inputs = [partial(_copy, read) for read in self._inputs]

    def bind(self, slot: Slot) -> None:
        """Bind the slot that later calls write to."""
        self.writer.bind(slot)

    def act(self, t: int) -> None:
        """Call the policy and write column `t`."""
        self.writer.write(t, self.probe())


def _reader(stage: Stage, key: Key) -> Read:
    if key in stage.tensors:
        return partial(_identity, stage.tensors[key])
    objects = stage.arrays[key]
    return (lambda: copies_of(objects[:, 0]).tolist()) if stage.batch_shape else (lambda: copied(objects[0]))


def _identity(value: Any) -> Any:
    return value


def _copy(read: Read) -> Any:
    value = read()
    return value.clone() if isinstance(value, torch.Tensor) else value


def reads_objects(policy: Callable[..., Any], stage: Stage) -> bool:
    """Whether a policy called with a TensorDict reads a column of objects; assumed if its keys are unknown."""
    objects = {key for key, field in stage.fields.items() if field.is_object}
    reads = read_keys(policy)
    return bool(objects.intersection(reads) if reads else objects)


def object_inputs(stage: Stage, device: torch.device | None) -> Callable[[], TensorDictBase]:
    """A function that makes the TensorDict of a column: tensors, and objects as `NonTensorData` or `NonTensorStack`."""
    shape, sizes = torch.Size(stage.batch_shape), sizes_of(stage.fields)
    objects = {key: array[..., 0].reshape(stage.batch_shape) for key, array in stage.arrays.items() if key not in stage.tensors}

    def make() -> TensorDictBase:
        found = {key: stacked(copies_of(array)) for key, array in objects.items()}
        return make_tensordict(nested({**stage.tensors, **found}, sizes), shape, device=device)

    return make
