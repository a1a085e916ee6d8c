"""Values of options: positive integers, finite numbers from 0 on, bools, and seeds."""

from __future__ import annotations

import math
import sys
from operator import index as as_integer
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor

from reap.errors import OptionError, shown

MOST = 2**63 - 1
"""The largest integer of torch and NumPy."""


def positive(value: Any, name: str) -> int:
    """The value, a positive integer of Python's, NumPy's or torch's, as one of Python's.

    Raises:
        OptionError: it is not, or it is larger than torch's integers.
    """
    number = whole_number(value)
    if number is not None and 1 <= number <= MOST:
        return number
    reach = range_of(max(0, number or 0))
    raise OptionError(f"{name}: expected a positive integer{reach}, got {shown(value):.100}")


def whole_number(value: Any) -> int | None:
    """An integer of Python's, NumPy's or torch's as one of Python's; None for anything else, bools included."""
    if isinstance(value, bool | np.bool_) or (isinstance(value, Tensor) and value.dtype is torch.bool):
        return None
    try:
        return as_integer(value)
    except (TypeError, ValueError):  # the latter for tensors of several numbers
        return None


def is_count(value: Any, least: int = 1) -> TypeGuard[int]:
    """Whether the value is an integer of Python's, not a bool, of at least `least`, and one of torch's integers."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= MOST


def range_of(number: int) -> str:
    """The range of torch's integers, for the error about a number outside it; empty for a number in it.

    Example:
        >>> range_of(2**70), range_of(2)
        (' below 2**63', '')
    """
    if abs(number) <= MOST:
        return ""
    return " below 2**63" if number > 0 else " above -2**63"


def not_negative(value: Any, name: str) -> float:
    """The value, a finite number from 0 on: of Python or NumPy, or from a tensor with one element.

    Raises:
        OptionError: it is not.
    """
    number = value.item() if isinstance(value, np.generic | np.ndarray | Tensor) and math.prod(value.shape) == 1 else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= sys.float_info.max:
        raise OptionError(f"{name}: expected a finite number from 0 on, got {shown(value):.100}")
    return number


def switch(value: Any, name: str) -> bool:
    """The value, a bool of Python's or NumPy's, as one of Python's.

    Raises:
        OptionError: it is not.

    Example:
        >>> switch("no", "shuffle")
        Traceback (most recent call last):
        reap.errors.OptionError: shuffle: expected a bool, got 'no'
    """
    if not isinstance(value, bool | np.bool_):
        raise OptionError(f"{name}: expected a bool, got {shown(value):.100}")
    return bool(value)


def checked_seeding(seed: Any, static_seed: Any) -> tuple[int, bool]:
    """The arguments of a `set_seed`, as an int and a bool of Python's.

    Raises:
        OptionError: the seed is not an integer from 0 to 2**63 - 1, or `static_seed` not a bool.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise OptionError(f"seed: expected an integer from 0 to 2**63 - 1, got {shown(seed):.100}")
    return int(seed), switch(static_seed, "static_seed")
