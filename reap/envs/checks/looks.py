"""Looks: checks of whole columns, for NaN, numbers outside their bounds, and invalid choices.

A correct column costs a few passes; only for a wrong one are the frame and the fault located.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from reap.envs.checks.rounding import ROUNDING
from reap.recording.layout import Array
from reap.specs import Binary, Bounded, Categorical, MultiCategorical, MultiOneHot, OneHot, Spec, Unbounded
from reap.specs.onehot import ONE_HOT, is_not_one_hot

Mask = NDArray[np.bool_]

SPREAD_BYTES = 256
"""Bounds of values up to this size are expanded to all frames, because comparing rows of a few numbers is slow."""


FEW_BYTES, FEW_COLUMNS = 512, 1024
"""Maximum size of columns of choices that are cached, and their maximum number."""


class Look(Protocol):
    """Checks the values of one key, arrays `[..., *value]`."""

    def is_fine(self, array: Array) -> bool:
        """Whether all values are correct."""
        ...

    def wrong(self, array: Array) -> Mask:
        """Which frames `[...]` are wrong."""
        ...

    def words(self, value: Array, row: int) -> tuple[str, str]:
        """Texts for the expected and the found value, for a wrong value in this row."""
        ...


class NoNaN:
    """Checks that no number is NaN.

    Args:
        ndim: dimensions of a value.
    """

    def __init__(self, ndim: int) -> None:
        self._ndim = ndim

    def is_fine(self, array: Array) -> bool:
        """Whether no number is NaN."""
        return not array.size or not np.isnan(array.min())

    def wrong(self, array: Array) -> Mask:
        """Which frames `[...]` contain NaN."""
        return any_of_frame(np.isnan(array), self._ndim)

    def words(self, value: Array, row: int) -> tuple[str, str]:
        """Texts with the index of the NaN."""
        return "numbers", f"NaN{_at(np.isnan(value))}"


class Bounds:
    """Checks that numbers are between their bounds, up to one part in a million.

    Args:
        low: the minimum values, `[E, *value]`, or `[*value]` for a single env.
        high: the maximum values.
        ndim: dimensions of a value.
    """

    def __init__(self, low: Array, high: Array, ndim: int) -> None:
        self._low, self._high, self._ndim = low, high, ndim
        self._least, self._most = _with_slack(low, -1), _with_slack(high, 1)
        self._is_uniform = bool((self._least == self._least.flat[0]).all() and (self._most == self._most.flat[0]).all())
        self._spread: tuple[Any, Array, Array] = (None, low, high)

    @property
    def is_endless(self) -> bool:
        """Whether the bounds exclude no number."""
        low, high = self._low, self._high
        if low.dtype.kind == "b":
            return True
        least, most = (-np.inf, np.inf) if low.dtype.kind == "f" else (np.iinfo(low.dtype).min, np.iinfo(low.dtype).max)
        return bool((low == least).all() and (high == most).all())

    def is_fine(self, array: Array) -> bool:
        """Whether all numbers are between the bounds; NaN is not."""
        if not array.size:
            return True
        if self._is_uniform:
            return bool(array.min() >= self._least.flat[0] and array.max() <= self._most.flat[0])
        least, most = self._ends(array)
        return bool((array >= least).all() and (array <= most).all())

    def wrong(self, array: Array) -> Mask:
        """Which frames have a number outside the bounds; NaN does not count."""
        least, most = self._ends(array)
        return any_of_frame((array < least) | (array > most), self._ndim)

    def words(self, value: Array, row: int) -> tuple[str, str]:
        """Texts for the bounds, and the number outside them."""
        low, high = (end[row] if end.ndim > self._ndim else end for end in (self._low, self._high))
        outside = (value < _with_slack(low, -1)) | (value > _with_slack(high, 1))
        index = tuple(int(i) for i in np.argwhere(outside)[0])
        return f"values in [{low[index]}, {high[index]}]", f"{value[index]}{_at(outside)}"

    def _ends(self, array: Array) -> tuple[Array, Array]:
        """The bounds in a form that can be compared with an array `[E, T, *value]` or `[T, *value]`."""
        if self._spread[0] != array.shape:
            ends = (self._least, self._most)
            lead = ends[0].ndim - self._ndim  # dimensions of rows in front of the columns
            rows = [np.expand_dims(end, tuple(range(lead, lead + array.ndim - end.ndim))) for end in ends]
            if array.itemsize * int(np.prod(array.shape[array.ndim - self._ndim :])) <= SPREAD_BYTES:
                rows = [np.broadcast_to(end, array.shape).copy() for end in rows]
            self._spread = (array.shape, *rows)
        return self._spread[1:]


class ChoiceRange:
    """Checks that indices are in range.

    Args:
        counts: the number of choices of each, `[*value]` or `[]`.
        ndim: dimensions of a value.
    """

    def __init__(self, counts: Array, ndim: int) -> None:
        self._counts, self._ndim = counts, ndim

    def is_fine(self, array: Array) -> bool:
        """Whether all indices are in range."""
        return not self._outside(array).any()

    def wrong(self, array: Array) -> Mask:
        """Which frames have an index out of range."""
        return any_of_frame(self._outside(array), self._ndim)

    def words(self, value: Array, row: int) -> tuple[str, str]:
        """Texts for the maximum indices, and the value."""
        return f"integers from 0 to {(self._counts - 1).tolist()}", str(value.tolist())

    def _outside(self, array: Array) -> Mask:
        return (array < 0) | (array >= self._counts)


class OneHotBlocks:
    """Checks that blocks of the last dimension are one-hot.

    Args:
        sizes: the lengths of the blocks.
        ndim: dimensions of a value.
    """

    def __init__(self, sizes: Iterable[int], ndim: int) -> None:
        self._sizes, self._ndim = list(sizes), ndim
        self._cuts = np.cumsum(self._sizes)[:-1]
        # Small columns that were right once, by their bytes: with few choices and rows they come again and again.
        self._known: set[tuple[Any, bytes]] = set()

    def is_fine(self, array: Array) -> bool:
        """Whether all blocks are one-hot."""
        if array.nbytes > FEW_BYTES:
            return not self.wrong(array).any()
        column = array.dtype, array.tobytes()
        if column in self._known:
            return True
        is_fine = not self.wrong(array).any()
        if is_fine and len(self._known) < FEW_COLUMNS:
            self._known.add(column)
        return is_fine

    def wrong(self, array: Array) -> Mask:
        """Which frames have a block that is not one-hot."""
        blocks = np.split(array, self._cuts, axis=-1)
        return any_of_frame(np.logical_or.reduce(list(map(is_not_one_hot, blocks))), self._ndim - 1)

    def words(self, value: Array, row: int) -> tuple[str, str]:
        """Texts for the blocks, and the value."""
        blocks = f" in each of the blocks {self._sizes}" if len(self._sizes) > 1 else ""
        return f"{ONE_HOT}{blocks}", str(value.tolist())


def number_looks(spec: Spec, lead: int) -> tuple[NoNaN | None, Bounds | None]:
    """The checks of the numbers of a spec whose first `lead` dimensions are the env's rows."""
    if not isinstance(spec, Bounded | Unbounded) or spec.dtype.is_complex:
        return None, None
    ndim = spec.ndim - lead
    bounds = Bounds(_rows(spec.low, lead), _rows(spec.high, lead), ndim) if isinstance(spec, Bounded) else None
    numbers = NoNaN(ndim) if spec.dtype.is_floating_point else None
    return numbers, None if bounds is None or bounds.is_endless else bounds


def choice_look(spec: Spec, lead: int) -> Look | None:
    """The check of the choices of a spec; None for a spec of other values."""
    ndim = spec.ndim - lead
    if isinstance(spec, OneHot):
        return OneHotBlocks([spec.n], ndim)
    if isinstance(spec, MultiOneHot):
        return OneHotBlocks(spec.nvec.tolist(), ndim)
    if isinstance(spec, MultiCategorical):
        return ChoiceRange(spec.nvec.numpy(), ndim)
    if isinstance(spec, Categorical | Binary):
        return ChoiceRange(np.asarray(2 if isinstance(spec, Binary) else spec.n), ndim)
    return None


def as_numpy(value: torch.Tensor) -> Array:
    """The numbers of a tensor as an array; float32 if numpy lacks the dtype."""
    wide = value.detach().cpu().resolve_conj().resolve_neg()
    return (wide.float() if wide.dtype.is_floating_point and wide.dtype.itemsize < 4 else wide).numpy()


def any_of_frame(wrong: Array, ndim: int) -> Mask:
    """Whether any of the flags `[..., *value]` of each frame `[...]` is set."""
    return np.asarray(wrong.any(tuple(range(wrong.ndim - ndim, wrong.ndim)))) if ndim else wrong


def _rows(bound: torch.Tensor, lead: int) -> Array:
    """A bound `[*batch, *value]` as `[E, *value]`, or as `[*value]` if it is the same for all rows."""
    value, array = bound.shape[lead:], as_numpy(bound)
    rows = array.reshape(-1, *value) if lead else array[None]
    same = bool((rows == rows[:1]).all())
    return rows[0] if same else rows


def _with_slack(bound: Array, sign: int) -> Array:
    if bound.dtype.kind != "f":
        return bound
    size = np.where(np.isfinite(bound), np.maximum(1.0, np.abs(bound)), 0.0)
    return (bound + sign * ROUNDING * size).astype(bound.dtype)


def _at(wrong: Array) -> str:
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f" at index {index}" if index else ""
