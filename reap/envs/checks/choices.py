"""Choices: reads discrete actions and observations from arrays, and checks actions before an env steps with them.

A one-hot row equals, byte for byte, the row of an identity matrix at the index of its maximum. Comparing bytes is cheaper
than counting ones and zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from reap.errors import SpecMismatch
from reap.keys import Key, plain
from reap.recording.layout import Array
from reap.specs.fits import as_array, as_dtype, describe_choices
from reap.specs.onehot import ONE_HOT, is_not_one_hot

INT64, BOOL = np.dtype(np.int64), np.dtype(bool)

FEW = 64
"""Maximum number of choices for an identity matrix, whose size grows with the square of that number."""

FEW_COLUMNS = 4096
"""Maximum number of distinct columns that are cached."""

Readers = tuple[Callable[[Array], int], Callable[[Array], list[int]]]
"""Readers of the choice of one row, and of the choices of a column of rows."""


def one_hot_readers(count: int, key: Key) -> Readers:
    """Readers of one-hot rows of int64, `[n]` and `[E, n]`, which raise SpecMismatch for any other row."""
    if count > FEW:
        return _place_among_many(key), _places_among_many(key)
    zeros = count - 1
    identity = np.eye(count, dtype=np.int64)
    # Columns that were right once, by their bytes, and their places: with few choices and rows they come again and again, and
    # looking one up takes a third of the time of `argmax` alone.
    known: dict[bytes, list[int]] = {}

    def place(row: Array) -> int:
        numbers = row.tolist()
        if numbers.count(1) == 1 and numbers.count(0) == zeros:
            return numbers.index(1)
        raise no_choice(row, key, ONE_HOT)

    def places(rows: Array) -> list[int]:
        data = rows.tobytes()
        before = known.get(data)
        if before is not None:
            return before
        found = rows.argmax(-1)
        if identity.take(found, 0).tobytes() != data:
            raise _not_one_hot(rows, key)
        chosen: list[int] = found.tolist()
        if count ** len(rows) <= FEW_COLUMNS:
            known[data] = chosen
        return chosen

    return place, places


def _not_one_hot(rows: Array, key: Key) -> SpecMismatch:
    return no_choice(rows, key, ONE_HOT, is_not_one_hot(rows))


def _place_among_many(key: Key) -> Callable[[Array], int]:
    places = _places_among_many(key)
    return lambda row: places(row[None])[0]


def _places_among_many(key: Key) -> Callable[[Array], list[int]]:
    def places(rows: Array) -> list[int]:
        numbers, found = rows.nonzero()
        if len(numbers) == len(rows) and (numbers == np.arange(len(rows))).all() and (rows[numbers, found] == 1).all():
            return found.tolist()
        raise _not_one_hot(rows, key)

    return places


def index_readers(count: int, key: Key) -> Readers:
    """Readers of indices below `count`, `[]` and `[E]`, which raise SpecMismatch for any other number."""
    expected = f"an integer from 0 to {count - 1}"

    def index(row: Array) -> int:
        found = int(row)
        if 0 <= found < count:
            return found
        raise no_choice(row, key, expected)

    def indices(rows: Array) -> list[int]:
        found = rows.tolist()
        if min(found) >= 0 and max(found) < count:
            return found
        raise no_choice(rows, key, expected, (rows < 0) | (rows >= count))

    return index, indices


def no_choice(rows: Array, key: Key, expected: str, wrong: Any = None) -> SpecMismatch:
    """The error for an action that is not one of the choices.

    Args:
        rows: the action, or those of all rows.
        key: its key.
        expected: a description of the allowed values.
        wrong: the rows that are wrong, bool `[E]`, of which the first is named; None for the action of a single row.
    """
    if wrong is None:
        return SpecMismatch(f"policy: {plain(key)!r}: expected {expected}, found {describe_choices(rows)}")
    b = int(np.flatnonzero(wrong)[0])
    return no_choice(rows[b], key, expected).at(f"row {b}")


def zero_based(value: Any, offset: Array, counts: Array, key: Key) -> Array:
    """Choices counted from 0, int64 of the shape of `counts`.

    Raises:
        SpecMismatch: a wrong shape, not integers, or out of range.
    """
    array = as_array(value)
    fitting = None if array is None or array.shape != counts.shape else as_dtype(array, INT64)
    if fitting is not None:
        places = fitting.astype(np.int64) - offset
        if not ((places < 0) | (places >= counts)).any():
            return places
    last = offset + counts - 1
    raise SpecMismatch(
        f"{plain(key)!r}: expected integers of shape {counts.shape}, from {offset.tolist()} to {last.tolist()}, found "
        f"{describe_choices(value)}; correct the values, or the nvec of the MultiDiscrete space"
    )


def switches(value: Any, shape: tuple[int, ...], key: Key) -> Array:
    """Zeros and ones, int8 of a shape.

    Raises:
        SpecMismatch: a wrong shape, or other values.
    """
    array = as_array(value)
    fitting = None if array is None or array.shape != shape else as_dtype(array, BOOL)
    if fitting is None:
        raise SpecMismatch(f"{plain(key)!r}: expected zeros and ones of shape {shape}, found {describe_choices(value)}")
    return fitting
