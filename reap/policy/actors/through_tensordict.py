"""`TensorDictActor`: a policy that is called with a TensorDict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from tensordict import TensorDictBase

from reap.errors import SpecMismatch
from reap.keys import Key, as_key, nested
from reap.policy.actors.plain import name_of
from reap.policy.base import Outputs, OutputWriter, StrictWriter
from reap.recording.buffers import Slot, Stage
from reap.recording.layout import Field, sizes_of
from reap.tensordicts import make_tensordict


class TensorDictActor:
    """Passes the policy a new TensorDict of the stage's tensors in each column, and writes the entries that the policy added.

    Reusing a TensorDict would fail with policies that overwrite an input, skip existing keys or write an output only sometimes.

    Args:
        policy: takes a TensorDict; returns it or another one, or None for the one it was given.
        stage: the tensors of the TensorDict.
        device: the device of the TensorDict.
        inputs: makes a TensorDict of the stage; by default of its tensors.
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
        self.writer = OutputWriter({})
        self._refuses_news = False
        # The names that may be under each path of the policy's TensorDict.
        self._names: dict[Key, set[str]] = {}
        tree = nested(stage.tensors, sizes_of(stage.fields))
        tensors = partial(make_tensordict, tree, torch.Size(stage.batch_shape), device=device)
        self._inputs: Callable[[], TensorDictBase] = inputs or tensors

    def probe(self) -> Outputs:
        """Call the policy once; its outputs are the keys that it added."""
        result: Any = self._call()
        if not isinstance(result, TensorDictBase):
            raise SpecMismatch(
                f"policy {name_of(self._policy)}: expected it to return a TensorDict, or None, found {type(result).__name__}"
            )
        return self._found(result)

    def fix_outputs(self, writer: OutputWriter) -> None:
        """Set the writer of the outputs that the probe found."""
        self.outputs, self.writer, self._refuses_news = writer.outputs, writer, isinstance(writer, StrictWriter)
        known = (*writer.keys, *self._stage.fields)
        paths = {key[:length] for key in known for length in range(len(key))}
        self._names = {path: {key[len(path)] for key in known if key[: len(path)] == path != key} for path in paths}

    def read_copies(self) -> None:
        """Pass clones of the inputs to the policy."""
        inputs = self._inputs
        self._inputs = lambda: inputs().clone()

    def bind(self, slot: Slot) -> None:
        """Bind the slot that later calls write to."""
        self.writer.bind(slot)

    def act(self, t: int) -> None:
        """Call the policy and write column `t`."""
        result = self._call()
        values = {key: value for key in self.writer.keys if (value := result.get(key, None)) is not None}
        if self._refuses_news:
            values.update(self._news(result))
        self.writer.write(t, values)

    def _news(self, result: TensorDictBase) -> Outputs:
        """Outputs that were absent in the first call."""
        for path, names in self._names.items():
            node = result.get(path, None) if path else result
            if isinstance(node, TensorDictBase) and not names.issuperset(node.keys()):
                return {key: value for key, value in self._found(result).items() if key not in self.outputs}
        return {}

    def _found(self, result: TensorDictBase) -> Outputs:
        found = {as_key(key): value for key, value in result.items(include_nested=True, leaves_only=True)}
        return {key: value for key, value in found.items() if key not in self._stage.fields}

    def _call(self) -> TensorDictBase:
        given = self._inputs()
        result = self._policy(given)
        return given if result is None else result
