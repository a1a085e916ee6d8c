"""The rows in what is written: how many columns each has, without the frames that are not valid."""

from __future__ import annotations

import math
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from reap.buffers import MASK
from reap.data.storages.trees import Tree
from reap.tensordicts import peek


def valid_rows(data: Any, written: Any, ndim: int) -> tuple[Any, list[int]]:
    """What is written, and the columns of each row that lies behind another in it; one number where each row has its own.

    Args:
        data: what was given.
        written: what transforms made of it; of one dimension, frames with a False `("collector", "mask")` are left out.
        ndim: dimensions of the storage.
    """
    if ndim > 1:
        return written, [written.shape[ndim - 1]]
    rows = _rows_in(data, written)
    mask = _mask_of(written)
    if mask is None:
        return written, [written.shape[0] // rows] * rows
    return written[mask], mask.view(rows, -1).sum(1).tolist()


def _rows_in(data: Any, written: Any) -> int:
    """Rows of the data that lie behind one another in the one dimension of what is written of them."""
    if written is data or data.ndim < 2 or len(written) != math.prod(data.shape):
        return 1
    return len(written) // data.shape[-1]


def _mask_of(data: Any) -> Tensor | None:
    """Which frames `[time]` are valid; None if all are."""
    if not isinstance(data, TensorDictBase | Tree) or data.ndim != 1:
        return None
    mask = data.leaves.get(MASK) if isinstance(data, Tree) else peek(data, MASK)
    return None if mask is None or bool(mask.all()) else mask
