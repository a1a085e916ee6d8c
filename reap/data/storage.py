"""`Storage`: frames in a ring of columns, one for each row; a place is a number from 0 to rows * columns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from reap.data.control import Control
from reap.data.items import Leaves
from reap.data.ring import Ring
from reap.errors import OptionError

Mark = Callable[[Leaves], None]
"""Changes what was taken, `[B, *item]` under each key, in place."""


class Storage:
    """Frames in a ring.

    Args:
        max_size: frames that there is room for, over all rows.
        ndim: batch dimensions that are kept apart, time last: 1 for `[time]`, 2 for `[rows, time]`.

    Raises:
        OptionError: no such size or number of dimensions.
    """

    def __init__(self, max_size: int, *, ndim: int = 1) -> None:
        self.max_size, self.ndim = positive(max_size, "max_size"), positive(ndim, "ndim")
        self.control = Control(max_size)
        self.rows = 1
        """Rows, once something was written."""
        self.ring = Ring(self.control, max_size)

    def __len__(self) -> int:
        """Frames that can be read."""
        return self.ring.readable * self.rows

    @property
    @abstractmethod
    def is_initialised(self) -> bool:
        """Whether its memory is taken."""

    @abstractmethod
    def append(self, data: Any, origins: Any) -> Tensor:
        """Write data behind what was written last, and return their places.

        Args:
            data: `[*rows, columns]`.
            origins: for each column, twice the number of its stream, plus one where a write begins.
        """

    @abstractmethod
    def get(self, places: Tensor, mark: Mark | None = None) -> Any:
        """A copy of what lies at these places `[B]`, changed by `mark`."""

    @abstractmethod
    def put(self, places: Tensor, data: Any) -> None:
        """Write data `[B]` in the place of what lies there."""

    @abstractmethod
    def contents(self) -> Any:
        """All that was written, `[*rows, columns]`, in the order of the places."""

    @property
    def columns_in_use(self) -> int:
        """Columns that hold something, or are being written."""
        return self.ring.claimed - self.ring.oldest

    def as_index(self, places: Tensor) -> Tensor:
        """Places as people write them: `[B]` for one dimension, `[B, ndim]` for more."""
        return places

    def as_places(self, index: Any) -> Tensor:
        """The places of an index `[B]`, `[B, ndim]`, or a tuple with a tensor for each dimension."""
        return torch.as_tensor(index, dtype=torch.int64).reshape(-1)

    def places_in_use(self) -> Tensor:
        """The places of `contents()`, in the same shape."""
        places = torch.arange(self.rows * self.ring.capacity).view(self.rows, -1)
        return places[:, : self.columns_in_use].reshape(*self.row_shape, -1)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """How the rows stand in `contents()`."""
        return ()

    def share(self) -> None:
        """Let other processes write too, and sample.

        Raises:
            OptionError: that cannot be.
        """
        raise OptionError(f"replay buffer: a {type(self).__name__} cannot be shared between processes; use a LazyTensorStorage")


def positive(value: Any, name: str) -> int:
    """The value, a positive integer.

    Raises:
        OptionError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(f"{name}: expected a positive integer, got {value!r}")
    return value
