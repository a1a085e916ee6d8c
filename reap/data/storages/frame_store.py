"""`FrameStore`: the interface of a storage for parts that read its frames."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from reap.data.storages.ring.control import Control
from reap.data.storages.ring.ring import Ring
from reap.data.storages.schema import Schema
from reap.keys import Key


class FrameStore(Protocol):
    """Frames `[rows, columns]` by place; `TensorRing` is one.

    Attributes:
        rows: number of rows.
        ndim: batch dimensions, time last.
        device: the device of its tensors.
        control: the counters and tables of its ring.
        schema: the fields of a frame; None before the first write.
    """

    rows: int
    ndim: int
    device: torch.device
    control: Control
    schema: Schema | None

    @property
    def ring(self) -> Ring:
        """The state of its columns."""
        ...

    @property
    def keys(self) -> tuple[Key, ...]:
        """The keys of a frame."""
        ...

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The dimensions of the rows."""
        ...

    def leaf(self, key: Key) -> Tensor:
        """The values of all frames under a key, `[rows * columns, *item]`."""
        ...

    def values(self, key: Key, places: Tensor) -> Tensor:
        """A copy of the values under a key at places `[B]`."""
        ...

    def copied(self, index: Any) -> Any:
        """A copy of the frames at an index."""
        ...

    def viewed(self, index: Any) -> Any:
        """The frames at an index, as a view where possible."""
        ...
