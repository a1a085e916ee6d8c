"""Splits written data into the columns of each row, without invalid frames."""

from __future__ import annotations

import math
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from reap.data.storages.core import require_dims
from reap.data.storages.trees import Tree
from reap.errors import OptionError
from reap.recording.buffers import MASK
from reap.tensordicts import peek


def valid_rows(data: Any, written: Any, ndim: int) -> tuple[Any, list[int]]:
    """The data to write, and the columns of each row if several follow each other; one number if rows are a dimension.

    Args:
        data: the data of the user.
        written: the data after transforms; with one dimension, frames with a False `("collector", "mask")` are dropped.
        ndim: dimensions of the storage.
    """
    if ndim > 1:
        return written, [written.shape[ndim - 1]]
    rows = _rows_in(data, written)
    mask = _mask_of(written)
    if mask is None:
        return written, [written.shape[0] // rows] * rows
    return written[mask], mask.view(rows, -1).sum(1).tolist()


def checked_time(dim: int | None, ndim: int) -> int:
    """The dimension of written data that is time: this one, or the last one for None.

    Raises:
        OptionError: the dimension does not exist.
    """
    time = ndim - 1 if dim is None else dim
    if not 0 <= time < ndim:
        raise OptionError(f"dim_extend: expected 0 to {ndim - 1}, below the storage's ndim, got {dim}")
    return time


def time_last(data: Any, time: int, ndim: int) -> Any:
    """Data with time moved from dimension `time` to the last of their first `ndim` dimensions.

    Raises:
        SpecMismatch: they have fewer dimensions.
    """
    if time == ndim - 1:
        return data
    require_dims(data, ndim)
    order = list(range(data.ndim))
    order.insert(ndim - 1, order.pop(time))
    return data.permute(order)  # not movedim, which tensordict 0.10 has not


def _rows_in(data: Any, written: Any) -> int:
    """The number of rows of the data that follow each other in the single dimension of the written data."""
    if written is data or data.ndim < 2 or len(written) != math.prod(data.shape):
        return 1
    return len(written) // data.shape[-1]


def _mask_of(data: Any) -> Tensor | None:
    """Which frames `[time]` are valid; None if all are."""
    if not isinstance(data, TensorDictBase | Tree) or data.ndim != 1:
        return None
    mask = data.leaves.get(MASK) if isinstance(data, Tree) else peek(data, MASK)
    return None if mask is None or bool(mask.all()) else mask
