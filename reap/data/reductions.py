"""Reductions of several numbers to one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from reap.errors import OptionError

Reduction = Callable[[Tensor], Tensor]

REDUCTIONS: Mapping[str, Reduction] = {
    "max": lambda values: values.amax(1),
    "min": lambda values: values.amin(1),
    "mean": lambda values: values.double().mean(1),
    "median": lambda values: values.median(1).values,
}
"""From `[n, k]` to `[n]`."""


def checked_reduction(name: str, known: Mapping[str, Reduction] = REDUCTIONS) -> str:
    """The name of a reduction.

    Raises:
        OptionError: it is not a known one.
    """
    if name not in known:
        raise OptionError(f"reduction: expected one of {', '.join(map(repr, known))}, got {name!r}")
    return name
