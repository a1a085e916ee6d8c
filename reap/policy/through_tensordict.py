"""`TensorDictActor`: a policy that is called with a TensorDict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from tensordict import TensorDictBase

from reap.buffers import Slot, Stage
from reap.errors import SpecMismatch
from reap.keys import Key, as_key, nested
from reap.layout import Field
from reap.policy.base import Outputs, OutputWriter
from reap.policy.plain import name_of
from reap.tensordicts import make_tensordict


class TensorDictActor:
    """Hands the policy a new TensorDict of the stage's tensors in each column, and writes what the policy added to it.

    A TensorDict that is used again would go wrong when a policy overwrites an input, skips keys that exist or writes an output
    only sometimes.

    Args:
        policy: takes a TensorDict; returns it or another one, or None for the one it was given.
        stage: what the TensorDict holds.
        device: what it gives as its device.
        inputs: makes a TensorDict of the stage; one of its tensors unless given.
    """

    kind = "tensordict"
    enables_grad = False

    def __init__(
        self,
        policy: Callable[[TensorDictBase], Any],
        stage: Stage,
        device: torch.device | None = None,
        inputs: Callable[[], TensorDictBase] | None = None,
    ) -> None:
        self.outputs: Mapping[Key, Field] = {}
        self.reads: Sequence[Key] = tuple(stage.tensors)
        self._policy = policy
        self._stage = stage
        self._writer = OutputWriter({})
        tensors = partial(make_tensordict, nested(stage.tensors), torch.Size(stage.batch_shape), device=device)
        self._inputs: Callable[[], TensorDictBase] = inputs or tensors

    def probe(self) -> Outputs:
        """Call the policy once; its outputs are the keys that it added."""
        result: Any = self._call()
        if not isinstance(result, TensorDictBase):
            raise SpecMismatch(
                f"policy {name_of(self._policy)}: expected it to return a TensorDict, or None, found {type(result).__name__}"
            )
        found = {as_key(key): value for key, value in result.items(include_nested=True, leaves_only=True)}
        return {key: value for key, value in found.items() if key not in self._stage.fields}

    def fix_outputs(self, outputs: Mapping[Key, Field]) -> None:
        """Take the outputs found by the probe."""
        self.outputs = outputs
        self._writer = OutputWriter(outputs)

    def read_copies(self) -> None:
        """Hand over clones of the inputs."""
        inputs = self._inputs
        self._inputs = lambda: inputs().clone()

    def bind(self, slot: Slot) -> None:
        """Take the slot that following calls write."""
        self._writer.bind(slot)

    def act(self, t: int) -> None:
        """Call the policy and write column `t`."""
        result = self._call()
        self._writer.write(t, {key: result.get(key, None) for key in self._writer.keys})

    def _call(self) -> TensorDictBase:
        given = self._inputs()
        result = self._policy(given)
        return given if result is None else result
