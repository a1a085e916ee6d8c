"""Ids of cases in names of tests, `test_a17_...`: the legend in `docs/cases.md` lists each of them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
LEGEND = re.findall(r"^\| ([a-k]\d\d) \| (.*) \|$", (ROOT / "docs" / "cases.md").read_text(encoding="utf-8"), re.MULTILINE)
TESTS = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
USED = {found for text in TESTS for found in re.findall(r"def test_([a-z]\d+)_", text)}


def test_each_id_in_a_name_of_a_test_is_in_the_legend() -> None:
    assert {found for found, _ in LEGEND} == USED


def test_the_legend_says_one_thing_of_each_id_in_order() -> None:
    ids = [found for found, _ in LEGEND]
    assert ids == sorted(set(ids))
    assert all(text.strip() for _, text in LEGEND)
