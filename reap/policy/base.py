"""What an actor is: the only code that knows what a policy looks like."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from reap.buffers import Slot
from reap.keys import Key
from reap.layout import Field

Outputs = Mapping[Key, Any]


class Actor(Protocol):
    """Reads the stage, writes the action and every other output of its policy into a column of the slot.

    Attributes:
        outputs: what it writes, one row's shape and dtype under each key of the slot.
        act: writes the outputs of column `t`.
    """

    outputs: Mapping[Key, Field]
    act: Callable[[int], None]

    def bind(self, slot: Slot) -> None:
        """Take the slot that following calls write."""
        ...


class PolicyActor(Actor, Protocol):
    """An actor that runs a policy given by the user.

    Attributes:
        kind: "plain", "tensordict" or "unwrapped", as `repr(collector)` shows it.
        reads: keys of the stage that the policy is given.
        enables_grad: the policy differentiates inside of its forward, which inference mode would not let it do.
    """

    kind: str
    reads: Sequence[Key]
    enables_grad: bool

    def probe(self) -> Outputs:
        """Call the policy once on the stage and return its outputs, without writing them."""
        ...

    def fix_outputs(self, outputs: Mapping[Key, Field]) -> None:
        """Take the outputs that were found by the probe as the ones to write from now on."""
        ...

    def read_copies(self) -> None:
        """Give the policy a copy of its inputs in each column from now on: it keeps them."""
        ...


class OutputWriter:
    """Writes the outputs of one column into the slot."""

    def __init__(self, outputs: Mapping[Key, Field]) -> None:
        self.keys = tuple(outputs)
        self.views: list[Sequence[torch.Tensor]] = []

    def bind(self, slot: Slot) -> None:
        """Take the slot that following calls write."""
        self.views = [slot.views(key) for key in self.keys]

    def write(self, t: int, values: Outputs) -> None:
        """Write column `t`; outputs that are missing this time are zero."""
        for key, views in zip(self.keys, self.views, strict=True):
            value = values.get(key)
            if value is None:
                views[t].zero_()
            else:
                views[t].copy_(torch.as_tensor(value))


class KeptInputs:
    """Tells whether a policy keeps the tensors it was given, which would change under its hands.

    The stage's tensors are used again for each column. A policy that stores one, a view of one or an array over its memory
    leaves a reference behind: on the tensor or on its storage.

    Args:
        tensors: what it is given, in a list that nobody else keeps.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tensors  # not copied: a list of the caller's would count as a reference, now and not later
        self._storages = [tensor.untyped_storage() for tensor in self._tensors]
        self._expected = self._count()

    def _count(self) -> list[int]:
        tensors = [sys.getrefcount(tensor) for tensor in self._tensors]
        return tensors + [torch._C._storage_Use_Count(storage._cdata) for storage in self._storages]  # pyright: ignore[reportPrivateUsage]

    def found(self) -> bool:
        """Whether any input has more references than before the policy was first called."""
        return any(now > before for now, before in zip(self._count(), self._expected, strict=True))
