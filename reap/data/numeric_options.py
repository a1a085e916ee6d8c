"""Options that are numbers: positive integers, and finite numbers from 0 on."""

from __future__ import annotations

import math
from operator import index as as_integer
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reap.errors import OptionError


def positive(value: Any, name: str) -> int:
    """The value, a positive integer of Python's, NumPy's or torch's, as one of Python's.

    Raises:
        OptionError: it is not.
    """
    number = whole_number(value)
    if number is None or number < 1:
        raise OptionError(f"{name}: expected a positive integer, got {value!r}")
    return number


def whole_number(value: Any) -> int | None:
    """An integer of Python's, NumPy's or torch's as one of Python's; None for anything else, bools included."""
    if isinstance(value, bool | np.bool_) or (isinstance(value, Tensor) and value.dtype is torch.bool):
        return None
    try:
        return as_integer(value)
    except (TypeError, ValueError):  # the latter for tensors of several numbers
        return None


def not_negative(value: Any, name: str) -> float:
    """The value, a finite number from 0 on: of Python or NumPy, or from a tensor with one element.

    Raises:
        OptionError: it is not.
    """
    number = value.item() if isinstance(value, np.generic | np.ndarray | Tensor) and math.prod(value.shape) == 1 else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < math.inf:
        raise OptionError(f"{name}: expected a finite number from 0 on, got {value!r}")
    return number
