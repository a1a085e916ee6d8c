"""A plugin of pytest that writes down how each test ended, a line of JSON each, to the file that REAP_PEER_REPORT names."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write down a call, or what went wrong before or after it."""
    if report.when == "call" or not report.passed:
        _write(report.nodeid, report.passed, _error(report))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A file that cannot be imported has no ids: say so under its own."""
    if report.failed:
        _write(report.nodeid, False, _error(report))


def _error(report: pytest.TestReport | pytest.CollectReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        return " ".join(crash.message.split())
    lines = str(report.longrepr or "").strip().splitlines()
    return lines[-1] if lines else ""


def _write(test: str, passed: bool, error: str) -> None:
    with Path(os.environ["REAP_PEER_REPORT"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"id": test, "passed": passed, "error": error}) + "\n")
