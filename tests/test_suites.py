"""What `make` runs: its targets look for tests where they are."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
ON_ENGINES = re.compile(r"mark\.(distributed|ray)\b|= on_ray\(")


def test_tests_on_engines_are_where_make_looks_for_them() -> None:
    found = re.search(r"^DISTRIBUTED := (.*?[^\\])$", (ROOT / "Makefile").read_text(), re.MULTILINE | re.DOTALL)
    assert found
    places = [ROOT / name for name in found[1].replace("\\", "").split()]
    assert all(place.exists() for place in places)
    marked = [file for file in (ROOT / "tests").rglob("test_*.py") if ON_ENGINES.search(file.read_text())]
    ours = [file for file in marked if file != Path(__file__)]
    assert len(ours) > 20
    assert [str(file) for file in ours if not any(file.is_relative_to(place) for place in places)] == []
