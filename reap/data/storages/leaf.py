"""`Leaf`: the memory of one key, read and written by numpy or torch, whichever is faster."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reap.data.storages.ring.columns import Pieces, columns_of
from reap.recording.layout import Array, numpy_dtype

NUMPY_BYTES = 1 << 16
"""Up to this many bytes numpy is faster: 1.2 µs instead of 2.9 for torch; beyond, torch uses threads."""


_AS_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

_ODD = frozenset({torch.uint16, torch.uint32, torch.uint64})


def indexable(values: Tensor) -> Tensor:
    """View memory in a dtype for which torch supports indexed writes."""
    dtype = values.dtype
    is_odd = dtype in _ODD or (dtype.itemsize == 1 and dtype.is_floating_point)
    return values.view(_AS_INTEGERS[dtype.itemsize]) if is_odd else values


class Leaf:
    """Values `[*rows, columns, *item]`.

    Args:
        values: the memory.
        dims: number of dimensions for rows and columns.

    Attributes:
        values: the memory.
        flat: the same by place, `[rows * columns, *item]`.

    Example:
        >>> leaf = Leaf(torch.zeros(2, 3), dims=2)
        >>> leaf.write(1, 3, torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        >>> places = torch.tensor([1, 5])
        >>> leaf.take(places, places.numpy())
        tensor([1., 4.])
    """

    def __init__(self, values: Tensor, dims: int) -> None:
        self.values, self._dims = values, dims
        self.flat = values.flatten(0, dims - 1)
        as_numpy = numpy_dtype(values.dtype)
        is_plain = values.is_cpu and not values.is_complex() and torch.from_numpy(np.zeros(0, as_numpy)).dtype == values.dtype
        self._array: Array | None = values.numpy() if is_plain else None
        self._by_place: Array | None = self.flat.numpy() if is_plain else None
        item = math.prod(values.shape[dims:])
        self._shape = math.prod(values.shape[: dims - 1]), values.shape[dims - 1], item  # rows, columns, numbers
        is_integer = is_plain and not values.is_floating_point()
        self._by_row: Array | None = values.reshape(self._shape).numpy() if is_integer else None
        self._rows = (slice(None),) * (dims - 1)
        self._most = NUMPY_BYTES // max(1, item * values.dtype.itemsize)

    def __reduce__(self) -> tuple[Any, ...]:
        return Leaf, (self.values, self._dims)

    def write(self, first: int, end: int, values: Tensor) -> None:
        """Write the columns from one to another.

        Args:
            first: the first of them.
            end: the one after the last.
            values: `[*rows, end - first, *item]`, without a graph.
        """
        if self._array is not None and values.nbytes <= NUMPY_BYTES and not values.is_neg():
            self._array[*self._rows, first:end] = values.numpy()
        else:
            self.values.narrow(self._dims - 1, first, end - first).copy_(values)

    def take(self, places: Tensor, at: NDArray[np.int64]) -> Tensor:
        """A copy of the values at places `[B]`, `[B, *item]`.

        Args:
            places: the places, on the memory's device.
            at: the same, on the CPU.
        """
        if self._by_place is not None and 0 < len(at) <= self._most:
            return torch.from_numpy(self._by_place.take(at, 0))
        return self.flat.index_select(0, places)

    def put(self, places: Tensor, values: Tensor) -> None:
        """Write values `[B, *item]` to places `[B]` on the memory's device."""
        indexable(self.flat)[places] = indexable(values)

    def numbers(self, pieces: Pieces) -> Array:
        """The values in blocks of columns, `[rows, n, k]`, as numpy arrays; floats as float64, since numpy lacks some dtypes.

        The result is a view of the memory if it needs no copy.
        """
        if self._by_row is not None:
            return columns_of(self._by_row, pieces)
        time = self._dims - 1
        values = torch.cat([self.values.narrow(time, first, end - first) for first, end in pieces], time).cpu()
        values = values.double() if values.is_floating_point() else values
        rows, _, item = self._shape
        return values.reshape(rows, sum(end - first for first, end in pieces), item).numpy()
