"""`Span`: how far slices may extend over the starts and ends of trajectories, where they are cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from reap.data.episodes.trajectories import Numbers
from reap.errors import OptionError
from reap.option_values import whole_number

GivenSpan = bool | int | Sequence[bool | int]


class Span(NamedTuple):
    """Maximum number of frames of a slice cut at the start of a trajectory, and at its end; True for all but one.

    Example:
        >>> span = Span(True, 2)
        >>> span.reach(8), span.starts(np.array([10, 8, 3]), 8)
        ((7, 2), array([12, 10,  5]))
    """

    begin: bool | int
    end: bool | int

    def reach(self, length: int) -> tuple[int, int]:
        """Maximum number of frames of a slice of this length cut at the start, and at the end."""
        if self == (False, False):
            return 0, 0
        before, beyond = (length - 1 if side is True else min(side, length - 1) for side in self)
        return before, beyond

    def starts(self, lengths: Numbers, length: int) -> Numbers:
        """Number of slices of this length that start in trajectories of these lengths."""
        return np.maximum(lengths - length + (1 + sum(self.reach(length))), 1)


def as_span(given: GivenSpan) -> Span:
    """The option `span`, for both ends.

    Raises:
        OptionError: not a valid span.
    """
    sides = tuple(map(_as_side, given if isinstance(given, Sequence) else (given, given)))
    match sides:
        case (bool() | int() as begin, bool() | int() as end):
            return Span(begin, end)
        case _:
            raise OptionError(f"span: expected True, False, a number of frames, or a pair of these, got {given!r}")


def _as_side(side: Any) -> bool | int | None:
    """The option for one end; None if it is not valid."""
    if isinstance(side, bool | np.bool_):
        return bool(side)
    number = whole_number(side)
    return None if number is None or number < 0 else number
