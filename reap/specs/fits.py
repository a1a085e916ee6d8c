"""Which values fit into an array: one rule for the first step and for all later ones.

    shape              equal; lists and tuples count as the arrays that they make; nothing is broadcast
    float -> float     any width; a number that would become infinite does not fit
    int, bool -> float yes
    int -> int         a wider dtype, or values that it holds
    float -> int       never
    flags              bool, or the integers 0 and 1, one of them for each row

Whole columns are checked for NaN, numbers outside their bounds, and invalid choices (`reap.envs.checks.slot`).
"""

from __future__ import annotations

import math
import operator
import struct
import sys
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from reap.errors import OptionError, SpecMismatch, shown
from reap.keys import Key, plain

Array = NDArray[Any]

Check = Literal["types", "all", "first"]
"""How closely values are checked. "types": shape, dtype and choices of each value, and NaN; "all": bounds too; "first": the
first reset, step and policy call only."""

NOT_REAL: tuple[type, ...] = (str, bytes, complex, np.complexfloating, np.datetime64, np.timedelta64)
NUMBERS = "biuf"
INTEGERS = "iu"

TOO_LARGE = (OverflowError, struct.error)
"""The errors of `struct` for a number that would become infinite; the latter for whole numbers beyond the greatest float."""

PLAIN_NUMBERS = frozenset({float, int, bool, np.float16, np.float32, np.float64, np.int8, np.int16, np.int32, np.int64})
"""Types of rewards that `struct` packs as they are: their values are real, and one that is too large raises `TOO_LARGE`."""

GREATEST_SQUARES = {np.dtype(np.float16): 6.5504e4**2, np.dtype(np.float32): 3.4028e38**2}
"""Squares below which a number is finite in a dtype."""


def float32_format(count: int) -> struct.Struct:
    """The format of `count` float32 numbers; packing raises one of `TOO_LARGE` for one that would become infinite."""
    return struct.Struct(f"{'<' if sys.byteorder == 'little' else '>'}{count}f")


OTHER_SHAPES = (
    "an observation whose shape changes needs a collector with use_buffers=False, an info of any kind "
    "info_keys={name: NonTensor(())}"
)

OTHER_REWARDS = (
    "an env whose rewards are several numbers says so by reward_space, a Box of their shape (not for vector envs: use a "
    "SerialEnv), or a wrapper makes one number of them"
)

_pack_float32 = float32_format(1).pack


@dataclass(frozen=True)
class Outside:
    """Numbers under one key that are outside their bounds.

    Attributes:
        key: the key.
        frames: in how many frames.
        text: a description of the first of them.
    """

    key: Key
    frames: int
    text: str


def checked_level(check: Any) -> Check:
    """The level that was asked for.

    Raises:
        OptionError: there is none of that name.
    """
    if check not in get_args(Check):
        raise OptionError(f"check: expected one of {list(get_args(Check))}, got {check!r}")
    return check


class Fit:
    """Takes the values of one key into arrays of one shape and dtype.

    Args:
        key: the key.
        shape: the shape of a value.
        dtype: the dtype that it is written as.

    Example:
        >>> Fit(("position",), (2,), np.dtype(np.float32)).take([1, 2])
        array([1, 2])
        >>> Fit(("position",), (2,), np.dtype(np.float32)).take(np.ones(1))
        Traceback (most recent call last):
        reap.errors.SpecMismatch: env.step: 'position': expected shape (2,), dtype float32, found an array of shape (1,), ...
    """

    def __init__(self, key: Key, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.key, self.shape, self.dtype = key, shape, dtype
        # The dtype in which values come, once it is known to fit; and where it is the wider one, what their squares stay below.
        self._usual = dtype
        self._greatest_square: float | None = None

    def take(self, value: Any, where: str = "env.step") -> Array:
        """The value as it can be assigned to an array of this shape and dtype.

        Raises:
            SpecMismatch: it does not fit.
        """
        if type(value) is np.ndarray and value.dtype is self._usual and value.shape == self.shape:
            if self._greatest_square is None:
                return value
            flat = value.reshape(-1)
            if flat.dot(flat) < self._greatest_square:
                return value
        array = as_array(value)
        fitting = None if array is None or array.shape != self.shape else as_dtype(array, self.dtype)
        if fitting is None or array is None:
            raise self.mismatch(value, where)
        self._expect(array.dtype)
        return fitting

    def _expect(self, source: np.dtype[Any]) -> None:
        """Check arrays of this dtype in a shorter way from now on, where possible."""
        if _always_fits(source, self.dtype):
            self._usual, self._greatest_square = source, None
        elif source.kind == self.dtype.kind == "f" and self.dtype in GREATEST_SQUARES:
            self._usual, self._greatest_square = source, GREATEST_SQUARES[self.dtype]

    def mismatch(self, value: Any, where: str) -> SpecMismatch:
        """The error for a value that does not fit."""
        expected, found = expected_and_found(value, self.shape, self.dtype)
        return SpecMismatch(f"{where}: {plain(self.key)!r}: expected {expected}, found {found}; {OTHER_SHAPES}")


class LooseFit(Fit):
    """Takes values as numpy assigns them: it broadcasts and casts."""

    def take(self, value: Any, where: str = "env.step") -> Array:
        """The value, broadcast and cast to the shape and the dtype.

        Raises:
            SpecMismatch: numpy cannot do that.
        """
        try:
            array = np.asarray(value, self.dtype)
            if value is not None or self.dtype.hasobject:  # None is NaN for numpy
                is_one = array.size == 1 == math.prod(self.shape)
                return array.reshape(self.shape) if is_one else np.broadcast_to(array, self.shape)
        except (TypeError, ValueError):  # no numbers, or parts of different shapes
            pass
        raise self.mismatch(value, where)


def expected_and_found(value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[str, str]:
    """The expected and the found value, in the words of an error, for one that does not fit."""
    array = as_array(value)
    if array is not None and array.shape == shape and array.dtype.kind in INTEGERS and dtype.kind in INTEGERS:
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
        index = tuple(int(i) for i in np.argwhere((array < least) | (array > most))[0])
        return f"values in [{least}, {most}]", f"{array[index]} at index {index}"
    return f"shape {shape}, dtype {dtype}", describe(value)


def as_array(value: Any) -> Array | None:
    """The array that a value is or makes; None if that is not an array of numbers."""
    if value is None or np.ma.is_masked(value):  # numbers that are masked are none
        return None
    try:
        array = np.asarray(_numbers_of(value) if isinstance(value, torch.Tensor) else value)
    except (TypeError, ValueError, RuntimeError):  # parts of different shapes; a tensor on another device, or of another layout
        return None
    return array if array.dtype.kind in "biufcO" else None


def _numbers_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without its graph; of a dtype that numpy lacks as float32."""
    numbers = tensor.detach()
    return numbers.float() if tensor.dtype is torch.bfloat16 else numbers


def as_dtype(array: Array, dtype: np.dtype[Any]) -> Array | None:
    """An array that can be assigned to one of a dtype, by the rule above; None if it does not fit."""
    source = array.dtype
    if source == dtype:
        return array
    if source.kind == "O" or dtype.kind == "O":
        return None
    if dtype.kind == "f" and source.kind in NUMBERS:
        return _finite(array, dtype)
    if dtype.kind in INTEGERS and source.kind in "biu":
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
        held = source.kind == "b" or np.can_cast(source, dtype) or not array.size
        return array if held or (int(array.min()) >= least and int(array.max()) <= most) else None
    if dtype.kind == "b" and source.kind in INTEGERS:
        return array if bool(((array == 0) | (array == 1)).all()) else None
    return array if dtype.kind == "c" and source.kind in "biufc" else None


def _always_fits(source: np.dtype[Any], dtype: np.dtype[Any]) -> bool:
    """Whether any value of one dtype can be assigned to another."""
    if source.kind == "O" or dtype.kind == "O":
        return source == dtype
    return np.can_cast(source, dtype) or (source.kind in "biu" and dtype.kind == "f" and dtype.itemsize > 2)


def _finite(array: Array, dtype: np.dtype[Any]) -> Array | None:
    if _always_fits(array.dtype, dtype):
        return array
    with np.errstate(over="ignore"):
        cast = array.astype(dtype)
    return cast if bool((np.isinf(cast) == np.isinf(array)).all()) else None


def one_number(value: Any, name: str = "reward") -> float:
    """The number in a reward, which may be an array of one element; finite as float32 if it is finite.

    Raises:
        SpecMismatch: it is something else.
    """
    array = as_array(value)
    try:
        number = _float_of(array.item() if array is not None and array.size == 1 else None)
    except (TypeError, ValueError, RuntimeError):
        hint = "" if array is None or array.size < 2 else f"; {OTHER_REWARDS}"
        raise SpecMismatch(f"env.step: {name}: expected one number, found {describe(value)}{hint}") from None
    except OverflowError:
        raise too_large(value, name) from None
    return number


def too_large(value: Any, name: str = "reward") -> SpecMismatch:
    """The error for a finite number that would become infinite as float32."""
    return SpecMismatch(f"env.step: {name}: expected a number that float32 holds, found {shown(value)}")


def _float_of(value: Any) -> float:
    """A real number as a float that float32 holds: one of numpy's or Python's, or of a class with `__float__`.

    Raises:
        OverflowError: it would become infinite.
        TypeError: it is none.
    """
    if isinstance(value, NOT_REAL):
        raise TypeError
    number = float(value)
    if math.isinf(number) and isinstance(value, np.floating) and not np.isinf(value):
        raise OverflowError
    _pack_float32(number)
    return number


def one_flag(value: Any, name: str) -> bool:
    """A flag: a bool, the integer 0 or 1, or an array with one such element.

    Raises:
        SpecMismatch: it is something else.
    """
    if value is True or value is False:
        return value
    array = as_array(value)
    if array is not None and array.size == 1 and (array.dtype.kind == "b" or array.dtype.kind in INTEGERS):
        number = array.item()
        if number in (0, 1):
            return bool(number)
    raise SpecMismatch(f"env.step: {name}: expected one bool, found {describe(value)}")


def flags_of_rows(value: Any, rows: int, name: str) -> Array:
    """Flags bool `[rows]`, one for each row: bools, or the integers 0 and 1.

    Raises:
        SpecMismatch: something else, or of another number of rows.
    """
    array = as_array(value)
    if array is not None and array.shape in ((rows,), (rows, 1)):
        fitting = as_dtype(array, np.dtype(bool))
        if fitting is not None:
            return fitting.reshape(rows).astype(bool)
    raise SpecMismatch(f"env.step: {name}: expected one bool for each of {rows} rows, found {describe(value)}")


def one_choice(value: Any, start: int, count: int, key: Key) -> int:
    """A choice of `count`, counted from 0: an integer from `start` on.

    Raises:
        SpecMismatch: it is not an integer, or outside its range.
    """
    try:
        place = operator.index(value) - start
    except (TypeError, ValueError, RuntimeError):  # the latter two for tensors
        place = -1
    if not 0 <= place < count or getattr(value, "shape", ()) != ():
        raise SpecMismatch(
            f"{plain(key)!r}: expected an integer from {start} to {start + count - 1}, found {describe_choices(value)}; "
            "correct the value, or the n of its Discrete space"
        )
    return place


def describe(value: Any) -> str:
    """A value as it reads after "found"."""
    if isinstance(value, np.ndarray):
        array: Array = value
        if np.ma.is_masked(value):
            return f"an array of shape {array.shape}, dtype {array.dtype}, with masked elements"
        return f"an array of shape {array.shape}, dtype {array.dtype}"
    return f"{shown(value)} ({type(value).__name__})"


def describe_choices(value: Any) -> str:
    """The same, with the numbers of a small array."""
    numbers = f": {value.tolist()}" if isinstance(value, np.ndarray) and value.size <= 32 else ""
    return f"{describe(value)}{numbers}"
