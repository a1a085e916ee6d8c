"""`SumTree`: sums and least values are those of its values, and draws are in proportion to them."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from reap.data.samplers.sum_tree import FANOUT, TOP, SumTree

SIZES = (1, 5, FANOUT, TOP, TOP + 1, 50_000, FANOUT * TOP + 7)
"""One level, two and three, and sizes around what begins another."""


def numbers(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(size)


@pytest.mark.parametrize("size", SIZES)
def test_points_find_the_place_at_which_the_sum_exceeds_them(size: int) -> None:
    values = np.floor(8 * numbers(size)) + (np.arange(size) == size // 2)  # whole numbers: sums are exact; some are 0
    tree, sums = SumTree.of(values), values.cumsum()
    points = np.concatenate([numbers(500, 1), [0.0, 1.0 - 2.0**-53]])
    assert tree.draw(points).tolist() == np.searchsorted(sums, points * sums[-1], side="right").tolist()
    assert (tree.lowest, tree.highest, tree.size) == (values[values > 0].min(), values.max(), size)


@pytest.mark.parametrize("size", SIZES)
def test_what_is_set_bit_by_bit_is_what_is_set_at_once(size: int) -> None:
    """Sums depend on the values alone, to the last bit, not on how they came about."""
    values, tree = np.zeros(size), SumTree(size)
    for seed in range(20):
        places = np.random.default_rng(seed).integers(0, size, 1 + seed * 40)
        values[places] = new = numbers(len(places), seed)
        tree.set(places, new)
    values[:3] = 0.0
    tree.set(np.arange(min(3, size)), 0.0)
    whole = SumTree.of(values)
    for mine, theirs in zip(tree.sums + tree.lows, whole.sums + whole.lows, strict=True):
        assert mine.equal(theirs)


def test_the_last_of_several_values_stays() -> None:
    tree = SumTree(100_000)
    tree.set(np.array([7, 9, 7, 7]), np.array([5.0, 1.0, 6.0, 2.0]))
    assert (tree.values[7], tree.values[9], tree.values.sum()) == (2.0, 1.0, 3.0)
    assert set(tree.draw(numbers(100)).tolist()) == {7, 9}


@pytest.mark.parametrize("count", [1, 5, 40])
@pytest.mark.parametrize("size", [50, 50_000, FANOUT * TOP + 7])
def test_what_is_0_is_never_drawn_whatever_rounding_does(size: int, count: int) -> None:
    """Values of every magnitude, or thirds, with 0 before, between and behind them."""
    magnitudes, thirds = np.zeros(size), np.zeros(size)
    magnitudes[np.linspace(1, size - 2, count).astype(int)] = 10.0 ** np.linspace(-300, 290, count)
    thirds[3::7] = 1 / 3
    points = np.concatenate([np.arange(4_000) / 4_000, [1.0 - 2.0**-53]])
    for values in (magnitudes, thirds):
        assert (values[SumTree.of(values).draw(points)] > 0).all()


def test_without_a_value_above_0_the_lowest_is_infinite() -> None:
    for size in (10, 50_000):
        assert (SumTree(size).lowest, SumTree(size).highest) == (np.inf, 0.0)


def test_no_draws_and_no_values() -> None:
    tree = SumTree.of(np.ones(50_000))
    tree.set(np.empty(0, np.int64), np.empty(0))
    assert tree.draw(np.empty(0)).shape == (0,)


def test_pickles_as_its_values() -> None:
    tree = SumTree.of(numbers(50_000))
    copy = pickle.loads(pickle.dumps(tree))
    assert (copy.draw(numbers(100, 5)) == tree.draw(numbers(100, 5))).all()
    copy.set(np.array([3]), 9.0)
    assert tree.values[3] != 9.0
