"""Indices of an ensemble, which select buffers and frames in them; and the probabilities of its buffers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from reap.data.consistent_sample import spread
from reap.errors import OptionError


def numbers_of(index: Any, count: int) -> int | list[int]:
    """The number of one buffer, or those of several.

    Args:
        index: a number, slice, range, list, array or tensor of numbers, a mask, or `...`.
        count: number of buffers.

    Raises:
        OptionError: anything else.

    Example:
        >>> numbers_of(-1, 3), numbers_of(..., 3), numbers_of([True, False, True], 3)
        (-1, [0, 1, 2], [0, 2])
    """
    if isinstance(index, slice) or index is ...:
        return list(range(count))[index if isinstance(index, slice) else slice(None)]
    try:
        given = torch.as_tensor(list(index) if isinstance(index, range) else index)
    except (TypeError, ValueError, RuntimeError):
        given = torch.tensor(0.5)
    if given.shape == (0,):
        return []
    if given.dtype is torch.bool and given.shape == (count,):
        given = given.nonzero().squeeze(1)
    if given.ndim > 1 or given.dtype.is_floating_point or given.dtype is torch.bool:
        raise OptionError(
            f"ReplayBufferEnsemble: expected a number, slice, range, list or tensor of numbers, or ..., for its {count} "
            f"buffers, got {index!r:.100}"
        )
    numbers: Any = given.tolist()
    return numbers


def inner_of(index: tuple[Any, ...]) -> Any:
    """The part of an index that follows the part for the buffers, and selects their contents."""
    return index[1] if len(index) == 2 else index[1:]


def index_of(number: int, index: Tensor | tuple[Tensor, ...]) -> TensorDict:
    """Indices of buffers, and of frames in them."""
    index = torch.stack(index, -1) if isinstance(index, tuple) else index
    ids = torch.full(index.shape[:1], number)
    return TensorDict({"buffer_ids": ids, "index": index}, index.shape[:1])


def with_index(data: Any, index: TensorDict) -> Any:
    """Add this index to a sample, if it is a TensorDict."""
    if not isinstance(data, TensorDictBase):
        return data
    entries = {key: spread(value, data) for key, value in index.items()}
    return data.exclude("index").set("index", TensorDict(entries, data.batch_size))


def weights_of(p: Tensor | Sequence[float] | None, count: int) -> Tensor:
    """The probability of each buffer; equal for None.

    Raises:
        OptionError: not one non-negative number for each buffer.
    """
    try:
        weights = torch.as_tensor([1] * count if p is None else p, dtype=torch.float64).reshape(-1)
    except (TypeError, ValueError, RuntimeError):
        weights = torch.empty(0)
    if len(weights) != count or not (weights >= 0).all() or not 0 < float(weights.sum()) < math.inf:
        raise OptionError(f"p: expected {count} numbers from 0 on, one for each buffer, got {p!r}")
    return weights / weights.sum()
