"""Tests of one `xdist_group` run in one process: xdist 3.8 writes a group to where pytest 9.2 does not read it any more.

worker of xdist: nodeid "...::test[1]" + mark ---> "...::test[1]@ray" ---> its scheduler, which reads the part after the @
"""

from __future__ import annotations

from typing import Any

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Have each test's id end with its group, where xdist is told to heed groups."""
    if not config.getoption("loadgroup", False):
        return
    for item in items:
        mark = item.get_closest_marker("xdist_group")
        if mark is not None and not item.nodeid.endswith(f"@{mark.args[0]}"):
            given: Any = item
            given._id = given.id.parse(f"{item.nodeid}@{mark.args[0]}")
