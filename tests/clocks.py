"""A clock that tests set, in place of `perf_counter`."""

from __future__ import annotations

import importlib

import pytest


class Clock:
    """Stands in for `perf_counter`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def set_clock(monkeypatch: pytest.MonkeyPatch, *modules: str) -> Clock:
    """A clock that these modules read from now on."""
    clock = Clock()
    for module in modules:
        monkeypatch.setattr(importlib.import_module(module), "perf_counter", clock)
    return clock
