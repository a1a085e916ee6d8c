"""Shapes, devices, dtypes and values in the forms in which specs accept them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, SupportsIndex, cast

import numpy as np
import torch

from reap.errors import OptionError

ShapeLike = SupportsIndex | Iterable[SupportsIndex]
DeviceLike = torch.device | str | int
DTypeLike = torch.dtype | str
Destination = torch.device | torch.dtype | str | int


def as_shape(shape: ShapeLike) -> torch.Size:
    """A shape from one or several numbers.

    Example:
        >>> as_shape(3), as_shape([2, 3])
        (torch.Size([3]), torch.Size([2, 3]))
    """
    # Tuples and lists first: isinstance of the protocol takes ten times as long.
    if not isinstance(shape, tuple | list) and isinstance(shape, SupportsIndex):
        shape = (shape,)
    sizes = tuple(int(size) for size in shape)
    if any(size < 0 for size in sizes):
        raise OptionError(f"shape: expected sizes of 0 or more, found {sizes}.")
    return torch.Size(sizes)


def as_sizes(shape: tuple[int | Iterable[int], ...]) -> tuple[int, ...]:
    """The arguments of `expand` as numbers: `expand(2, 3)` and `expand((2, 3))` mean the same."""
    if len(shape) == 1 and isinstance(shape[0], Iterable):
        return tuple(int(size) for size in shape[0])
    return tuple(int(cast("int", size)) for size in shape)


def as_device(device: DeviceLike | None) -> torch.device:
    """A device; None is torch's default."""
    return torch.get_default_device() if device is None else torch.device(device)


def as_dtype(dtype: DTypeLike | None) -> torch.dtype:
    """A dtype, given as such or by its name; None is torch's default.

    Raises:
        OptionError: there is no dtype of that name.

    Example:
        >>> as_dtype("int64"), as_dtype(None)
        (torch.int64, torch.float32)
    """
    if dtype is None:
        return torch.get_default_dtype()
    found = getattr(torch, dtype.removeprefix("torch."), None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype):
        raise OptionError(f"dtype: expected a torch.dtype or the name of one, found {dtype!r}.")
    return found


def as_tensor(value: Any) -> torch.Tensor | None:
    """A tensor from a tensor, numpy array or numpy number; None for anything else."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, np.ndarray | np.generic) and np.asarray(value).dtype.kind in "biuf":
        return torch.from_numpy(np.array(value))
    return None
