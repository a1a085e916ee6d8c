"""`SumTree`: draws places in proportion to their values.

    level 0    a value for each place                    1,000,000
    level 1    the sum of each FANOUT neighbours            31,250
    ...        until a level is at most TOP long; that one is searched as a whole

A whole batch passes through a level in one call, so few broad levels are faster than many narrow ones. A sum is always
computed from the nodes below it, never updated by a difference, so it does not drift. The tree also keeps the smallest values
above 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reap.errors import OptionError

Values = NDArray[np.float64]
Places = NDArray[np.int64]

FANOUT = 32
TOP = 32_768

MANY = 1_024
"""Number of nodes from which a search for duplicates pays off."""


def as_priorities(priority: Any) -> Tensor:
    """Priorities, one number or several, as float64 `[B]`.

    Raises:
        OptionError: they are no numbers.
    """
    try:
        if priority.is_complex() if isinstance(priority, Tensor) else np.iscomplexobj(priority):
            raise TypeError
        return torch.as_tensor(priority, dtype=torch.float64).reshape(-1)
    except (TypeError, ValueError, RuntimeError):
        kind = type(priority).__name__
        raise OptionError(f"priority: expected a number, or one for each frame, got {priority!r} ({kind})") from None


class SumTree:
    """A value for each place, initially 0, and their sums.

    Arguments and results are numpy arrays, which are fastest for the few numbers of a batch; whole blocks are processed by
    torch, which is fastest for those.

    Args:
        size: number of places.

    Attributes:
        values: the value of each place, `[size]`: to be read only, here and below.
        sums: the values, and above them their sums, the lowest level first.
        lows: the smallest value above 0 below each node, for each level above the values.

    Example:
        >>> tree = SumTree(100_000)
        >>> tree.set(np.array([7, 70_000]), np.array([1.0, 3.0]))
        >>> tree.draw(np.array([0.0, 0.2, 0.25, 0.99])).tolist()
        [7, 7, 70000, 70000]
        >>> tree.lowest, tree.highest
        (1.0, 3.0)
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.sums = list(_levels(size, 0.0))
        self.lows = list(_levels(size, math.inf))[1:]
        self.values: Values = self.sums[0].numpy()[:size]

    @property
    def lowest(self) -> float:
        """The smallest value above 0; infinite if there is none."""
        return float(self.lows[-1].numpy().min()) if self.lows else _least_above_zero(self.sums[0]).item()

    @property
    def highest(self) -> float:
        """The largest value."""
        return self.sums[0].max().item()

    def set(self, places: Places, values: Values | float) -> None:
        """Set values.

        Args:
            places: `[n]`; if one occurs twice, its last value counts.
            values: `[n]`, or one for all; finite and not negative.
        """
        self.values[places] = values
        nodes = places
        for level, (sums, above) in enumerate(pairwise(self.sums)):
            nodes = _parents(nodes, len(sums) // FANOUT)
            blocks = _blocks(sums, nodes)
            least = _least_above_zero(blocks) if not level else _blocks(self.lows[level - 1], nodes).amin(1)
            above.numpy()[nodes] = blocks.sum(1).numpy()
            self.lows[level].numpy()[nodes] = least.numpy()

    def draw(self, points: Values) -> Places:
        """Draw places in proportion to their values, and never one whose value is 0.

        Args:
            points: `[B]`, uniform from 0 to 1; not all values may be 0.
        """
        top = self.sums[-1]
        sums = top.cumsum(0).numpy()
        order = points.argsort()  # neighbours are looked up one after the other: that is quicker, and no other result
        mass = _below(points[order] * sums[-1], sums[-1])
        nodes = sums.searchsorted(mass, side="right")
        mass -= sums[nodes] - top.numpy()[nodes]
        for level in self.sums[-2::-1]:
            blocks = _blocks(level, nodes)
            sums = blocks.cumsum(1)
            mass = _below(np.maximum(mass, 0.0), sums.numpy()[:, -1])
            child = torch.searchsorted(sums, torch.from_numpy(mass).unsqueeze(1), right=True)
            nodes = nodes * FANOUT + child.squeeze(1).numpy()
            if level is not self.sums[0]:
                mass -= (sums.gather(1, child) - blocks.gather(1, child)).squeeze(1).numpy()
        places = np.empty_like(nodes)
        places[order] = nodes
        return places

    @classmethod
    def of(cls, values: Values) -> SumTree:
        """A tree with these values."""
        tree = cls(len(values))
        tree.set(np.arange(len(values)), values)
        return tree

    def __reduce__(self) -> tuple[Any, ...]:
        return SumTree.of, (self.values.copy(),)


def _levels(size: int, fill: float) -> Iterator[Tensor]:
    """Arrays for the levels of a tree, the lowest first; all but the top one consist of whole blocks."""
    while size > TOP:
        blocks = -(-size // FANOUT)
        yield torch.full((blocks * FANOUT,), fill, dtype=torch.float64)
        size = blocks
    yield torch.full((size,), fill, dtype=torch.float64)


def _parents(nodes: Places, count: int) -> Places:
    """The parents of these nodes; without duplicates if there are many."""
    if len(nodes) >= count:
        return np.arange(count)
    parents = nodes // FANOUT
    return parents if len(nodes) < MANY else np.unique(parents)


def _blocks(level: Tensor, nodes: Places) -> Tensor:
    """The nodes below each of these nodes, `[n, FANOUT]`."""
    return level.view(-1, FANOUT).index_select(0, torch.from_numpy(nodes))


def _least_above_zero(values: Tensor) -> Tensor:
    """The smallest value above 0 along the last dimension; infinite if there is none."""
    least = values.amin(-1)
    return least if least.numpy().all() else torch.where(values > 0, values, math.inf).amin(-1)


def _below(mass: Values, total: Any) -> Values:
    """The mass brought below the total, where rounding may have left it."""
    return np.minimum(mass, np.nextafter(total, 0.0))
