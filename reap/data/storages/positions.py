"""Converts between places of a storage and users' indices.

`by_position`: an index into the contents of a buffer, if some places hold incomplete frames.

places      0  1  2  3  4  5  6       3 and 4 are incomplete
contents    a  b  c        d  e       buffer[:], without them
index       a number is a place, as extend and sample give them: buffer[5] is d; buffer[3] is refused
            slices, masks and negative numbers are positions in the contents: buffer[-1] is e, buffer[3:] are d and e
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reap.errors import OptionError


def by_position(index: Any, whole: slice | NDArray[np.int64], time: int) -> Any:
    """Convert an index such that all of it refers to positions in the contents.

    Args:
        index: any index that a tensor accepts.
        whole: the places of complete columns, as returned by `Ring.whole`.
        time: the dimension of the contents that holds the columns.

    Raises:
        OptionError: a number is the place of a column that is incomplete, or is being written.

    Example:
        >>> whole = np.array([0, 1, 2, 5, 6])
        >>> (
        ...     by_position(5, whole, 0),
        ...     by_position(torch.tensor([6, 0, -1]), whole, 0),
        ...     by_position((1, slice(3, None)), whole, 1),
        ... )
        (3, tensor([ 4,  0, -1]), (1, slice(3, None, None)))
    """
    if isinstance(whole, slice) and not whole.start:
        return index  # a place is where in the contents it is
    held = np.arange(whole.start, whole.stop) if isinstance(whole, slice) else whole
    parts = index if isinstance(index, tuple) else (index,)
    if len(parts) <= time or not all(_is_of_one_dimension(part) for part in parts[: time + 1]):
        return index
    placed = (*parts[:time], _position(parts[time], held), *parts[time + 1 :])
    return placed if isinstance(index, tuple) else placed[0]


def _is_of_one_dimension(part: Any) -> bool:
    """Whether it indexes exactly one dimension, as a mask of one dimension does."""
    return part is not None and part is not Ellipsis


def _position(part: Any, whole: NDArray[np.int64]) -> Any:
    if isinstance(part, slice):
        return part
    places = torch.as_tensor(part)
    if places.dtype in (torch.bool, torch.uint8):
        return part
    numbers = places.numpy()
    found = np.searchsorted(whole, numbers)
    hidden = (numbers >= 0) & (whole[np.minimum(found, len(whole) - 1)] != numbers)
    if hidden.any():
        place = int(numbers[hidden].flat[0])
        raise OptionError(
            f"index: expected frames that were written to their end, found place {place}, at which a write was broken off or "
            "is under way"
        )
    positions = torch.from_numpy(np.where(numbers >= 0, found, numbers))
    return positions if places.ndim else int(positions)


def whole_numbers(index: Any) -> Tensor:
    """The numbers of an index, int64, as `extend` and `sample` give them.

    Raises:
        OptionError: it holds others: a mask would be read as frames 0 and 1, and fractions would be cut.
    """
    try:
        numbers = torch.as_tensor(index)
    except (TypeError, ValueError, RuntimeError):
        raise OptionError(f"index: expected whole numbers, as extend and sample give them, got {index!r}") from None
    if numbers.numel() and (numbers.dtype is torch.bool or numbers.is_floating_point() or numbers.is_complex()):
        hint = "; write mask.nonzero().squeeze(-1)" if numbers.dtype is torch.bool else ""
        raise OptionError(f"index: expected whole numbers, as extend and sample give them, got {numbers.dtype}{hint}")
    return numbers.to(torch.int64)


def index_of(places: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Places `[B]` of a storage with these rows and columns, as a number for each dimension, `[B, ndim]`."""
    return torch.stack(torch.unravel_index(places, shape), -1)


def places_of(index: Any, shape: tuple[int, ...]) -> Tensor:
    """The places `[B]` of an index `[B, ndim]`, or of a tuple with a tensor for each dimension.

    Args:
        index: a number for each dimension of each place.
        shape: rows and columns of the storage.

    Raises:
        OptionError: a number outside the storage.

    Example:
        >>> index_of(torch.tensor([0, 5]), (2, 3)), places_of([[0, 0], [1, 2]], (2, 3))
        (tensor([[0, 0],
                [1, 2]]), tensor([0, 5]))
    """
    parts = index if isinstance(index, tuple) else whole_numbers(index).reshape(-1, len(shape)).unbind(-1)
    places = torch.zeros((), dtype=torch.int64)
    for dim, (part, size) in enumerate(zip(parts, shape, strict=True)):
        numbers = whole_numbers(part)
        if len(outside := numbers[(numbers < 0) | (numbers >= size)]):
            raise OptionError(f"index: expected numbers from 0 to {size - 1} in dimension {dim}, got {int(outside[0])}")
        places = places * size + numbers
    return places.reshape(-1)
