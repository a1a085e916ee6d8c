"""The combinations that `pairwise` and `each_value` choose: every pair, or value, is there; they are few and stay the same."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from tests.pairwise import by_default, each_value, pairwise


def pairs_of(row: tuple[object, ...]) -> set[tuple[object, ...]]:
    return {(*pair, row[pair[0]], row[pair[1]]) for pair in itertools.combinations(range(len(row)), 2)}


@pytest.mark.parametrize(
    ("options", "most"),
    [
        (["ab", "cd", "ef"], 4),
        (["abcd", "efg", "hij", "kl"], 13),
        (["ab"] * 6, 8),
        (["abcdefgh", "ij", "kl"], 16),
    ],
)
def test_every_pair_is_in_few_combinations(options: Sequence[str], most: int) -> None:
    every = list(itertools.product(*options))
    chosen = pairwise(*options)
    assert set().union(*map(pairs_of, chosen)) == set().union(*map(pairs_of, every))
    assert set(chosen) <= set(every)
    assert len(chosen) == len(set(chosen)) <= most


def test_two_options_are_all_combined() -> None:
    assert pairwise("ab", "cd") == [("a", "c"), ("a", "d"), ("b", "c"), ("b", "d")]


def test_it_chooses_the_same_ones_each_time_in_the_order_of_the_values() -> None:
    expected = [("a", "c", "e"), ("a", "d", "f"), ("b", "c", "f"), ("b", "d", "e")]
    assert [pairwise("ab", "cd", "ef") for _ in range(2)] == [expected] * 2


def test_what_cannot_be_is_left_out_and_what_can_be_is_not() -> None:
    chosen = pairwise([1, 2, 3], [1, 2, 3], "ab", possible=lambda one, two, _: one >= two)
    assert {row[:2] for row in chosen} == {(1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (3, 3)}
    assert {row[::2] for row in chosen} == {row[1:] for row in chosen} == set(itertools.product([1, 2, 3], "ab"))


def test_values_need_not_be_hashable() -> None:
    assert pairwise([[1], [2]], [{}], [None]) == [([1], {}, None), ([2], {}, None)]
    assert each_value([([1], {}), ([2], {})]) == [([1], {}), ([2], {})]


def others(values: list[Any]) -> list[tuple[Any, ...]]:
    """What runs with the tests of processes."""
    params = [value for value in values if hasattr(value, "marks")]
    assert all([mark.name for mark in param.marks] == ["processes"] for param in params)
    return [tuple(param.values) for param in params]


def test_each_value_is_in_a_combination_that_make_test_runs_and_none_is_lost() -> None:
    rows = pairwise("abcde", "fgh", "ij")
    chosen = each_value(rows)
    assert [tuple(getattr(row, "values", row)) for row in chosen] == rows
    quick = [row for row in chosen if not hasattr(row, "marks")]
    assert {value for row in quick for value in row} == set("abcdefghij")
    assert len(quick) == 5
    assert sorted(quick + others(chosen)) == rows


def test_make_test_runs_the_values_that_are_named() -> None:
    chosen = by_default(["a", "b", "c"], "b")
    assert chosen[1] == "b"
    assert others(chosen) == [("a",), ("c",)]
    chosen = by_default([(1, 2), (3, 4)], (1, 2))
    assert chosen[0] == (1, 2)
    assert others(chosen) == [(3, 4)]
