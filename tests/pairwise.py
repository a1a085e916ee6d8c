"""Few combinations of many options: each value of one option meets each value of every other, or occurs at all.

A test with options of 4, 3, 3 and 2 values has 72 cases. A mistake that takes one value, or two values of different
options together, shows in 12 of them already:

    @pytest.mark.parametrize(("storage", "sampler", "ndim", "once"), pairwise(STORAGES, SAMPLERS, [1, 2, 3], [False, True]))
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

Pair = tuple[int, int, int, int]
"""An option and the place of its value, and the same of a later option."""


def pairwise(*options: Sequence[Any], possible: Callable[..., bool] = lambda *row: True) -> list[tuple[Any, ...]]:
    """Combinations in which each pair of values of two options occurs; the same ones every time.

    Args:
        options: the values of each option.
        possible: whether a combination, one value of each option, can be; pairs that are in none are left out.
    """
    rows = [
        places
        for places in itertools.product(*(range(len(values)) for values in options))
        if possible(*(values[place] for values, place in zip(options, places, strict=True)))
    ]
    pairs = {row: _pairs(row) for row in rows}
    missing = set[Pair]().union(*pairs.values())
    chosen: list[tuple[int, ...]] = []
    while missing:
        best = max(rows, key=lambda row: len(pairs[row] & missing))  # the first of those that add the most
        missing -= pairs[best]
        chosen.append(best)
    return [tuple(values[place] for values, place in zip(options, row, strict=True)) for row in sorted(chosen)]


def by_default(values: Iterable[Any], *quick: Any) -> list[Any]:
    """Values of an option, of which `make test` runs some; the others, much like these, run with the tests of processes."""
    others = pytest.mark.processes
    return [
        value if value in quick else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=others)
        for value in values
    ]


def each_value(combinations: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Combinations, of which `make test` runs a few, so that each value of each option is in one; the others as above."""
    rows = list(combinations)
    places = range(len(rows[0]) if rows else 0)
    missing = [(place, value) for place in places for value in _apart(row[place] for row in rows)]
    quick: list[int] = []
    while missing:
        new = [sum(row[place] == value for place, value in missing) for row in rows]
        best = new.index(max(new))  # the first of those that add the most
        missing = [(place, value) for place, value in missing if rows[best][place] != value]
        quick.append(best)
    return [row if place in quick else pytest.param(*row, marks=pytest.mark.processes) for place, row in enumerate(rows)]


def _apart(values: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def _pairs(row: tuple[int, ...]) -> frozenset[Pair]:
    return frozenset((first, row[first], second, row[second]) for first, second in itertools.combinations(range(len(row)), 2))
