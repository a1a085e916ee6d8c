"""The `space` of a spec: its number of values, or its bounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class CategoricalBox:
    """One choice among `n`.

    Example:
        >>> CategoricalBox(4)
        CategoricalBox(n=4)
    """

    n: int


@dataclass(frozen=True)
class BoxList:
    """Several choices, each among its own number.

    Example:
        >>> boxes = BoxList((CategoricalBox(2), CategoricalBox(3)))
        >>> boxes[1].n, [box.n for box in boxes]
        (3, [2, 3])
    """

    boxes: tuple[CategoricalBox, ...]

    def __iter__(self) -> Iterator[CategoricalBox]:
        return iter(self.boxes)

    def __getitem__(self, index: int) -> CategoricalBox:
        return self.boxes[index]

    def __len__(self) -> int:
        return len(self.boxes)


@dataclass(frozen=True, eq=False)
class ContinuousBox:
    """Bounds per element, both inclusive; tensors of the spec's shape and dtype, for reading only.

    Example:
        >>> ContinuousBox(torch.tensor(0.0), torch.tensor(1.0)).high
        tensor(1.)
    """

    low: torch.Tensor
    high: torch.Tensor

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ContinuousBox):
            return NotImplemented
        return torch.equal(self.low, other.low) and torch.equal(self.high, other.high)

    def __hash__(self) -> int:
        return hash((ContinuousBox, self.low.shape))
