"""`PackedWeights`: one update of the weights, prepared once for all workers whose policies have the same layout.

policy, TensorDict, state dict --- names and shapes checked, extra states pickled --> mailbox of worker 0, 1, ...
                                  '--- block: one piece of memory, for weights sent as bytes
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import cloudpickle
import torch

from reap.errors import OptionError
from reap.recording.layout import Block, Layout
from reap.system.memory import Bytes
from reap.weights.attributes import ATTRIBUTES
from reap.weights.half import WeightHalf
from reap.weights.weight_layout import WeightLayout, extra_states

NAME = "packed"


class PackedWeights:
    """Weights for mailboxes of one layout.

    Args:
        described: the layout.
        weights: a module, a TensorDict of parameters or a state dict.
        extra: extra state by its name in a state dict; that of `weights` if None.

    Attributes:
        tensors: the given tensors by their names in the layout.

    Raises:
        OptionError: not weights.
        SpecMismatch: names or shapes differ.
    """

    def __init__(self, described: WeightLayout, weights: Any, extra: Mapping[str, Any] | None = None) -> None:
        self.tensors: Mapping[str, torch.Tensor] = described.select(weights)
        self._described = described
        self._extra = with_extra({}, described.canonical(extra_states(weights) if extra is None else extra))

    @cached_property
    def _blob(self) -> bytes:
        return packed(self._extra)

    def extra_after(self, before: Mapping[str, Any]) -> tuple[Mapping[str, Any], bytes]:
        """The latest of each extra state sent to a mailbox, as states and as bytes.

        Args:
            before: the states sent to it before.
        """
        changes, known = self._extra.get(ATTRIBUTES, {}), before.get(ATTRIBUTES, {})
        if before.keys() <= self._extra.keys() and known.keys() <= changes.keys():
            return self._extra, self._blob
        merged = with_extra(before, {ATTRIBUTES: changes}) | {n: state for n, state in self._extra.items() if n != ATTRIBUTES}
        return merged, packed(merged)

    @cached_property
    def block(self) -> Bytes:
        """The tensors in one piece of memory, for `unpacked_half`; it must not be written to again."""
        return block_of(self._described, self.tensors, None)


class PackingMailbox(ABC):
    """A mailbox that packs the weights it is given; a subclass sends them.

    Attributes:
        described: the layout of the weights.
    """

    described: WeightLayout

    def check(self, weights: Any) -> None:
        """Raise OptionError or SpecMismatch if `write` would."""
        self.described.select(weights)

    def write(self, weights: Any, version: int, extra: Mapping[str, Any] | None = None) -> None:
        """Pack weights and send them; see `Mailbox`."""
        self.send(PackedWeights(self.described, weights, extra), version)

    @abstractmethod
    def send(self, packed: PackedWeights, version: int) -> None:
        """Send packed weights; see `Mailbox`."""


def block_of(described: WeightLayout, tensors: Mapping[str, torch.Tensor], before: Bytes | None) -> Bytes:
    """Pack tensors into one piece of memory; missing ones are taken from an earlier piece."""
    block = Block.private(_layout(described))
    half = WeightHalf(block, NAME, described)
    half.fill(tensors, before=half if before is None else half_in(described, before))
    return block.memory


def half_in(described: WeightLayout, memory: Bytes) -> WeightHalf:
    """The weights in the result of `block_of`."""
    return WeightHalf(Block(_layout(described), memory), NAME, described)


def _layout(described: WeightLayout) -> Layout:
    return Layout(WeightHalf.fields_of(NAME, described))


def with_extra(before: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """The latest of each extra state, as bytes, because a policy may later change the objects it returned."""
    found = {**before, **{name: cloudpickle.dumps(state) for name, state in extra.items() if name != ATTRIBUTES}}
    if changes := {**before.get(ATTRIBUTES, {}), **extra.get(ATTRIBUTES, {})}:
        found[ATTRIBUTES] = changes
    return found


def packed(extra: Mapping[str, Any]) -> bytes:
    """The result of `with_extra` as bytes; empty if there are no states."""
    return cloudpickle.dumps(dict(extra)) if extra else b""


def unpacked(blob: bytes) -> dict[str, Any]:
    """Unpack extra states."""
    return {name: state if name == ATTRIBUTES else pickle.loads(state) for name, state in pickle.loads(blob).items()}


def checked_version(version: int) -> int:
    """The version; raises OptionError if it is invalid."""
    if version < 1:
        raise OptionError(f"version: expected 1 or more, got {version}")
    return version
