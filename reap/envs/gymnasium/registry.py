"""Gymnasium's registry in another process: the entries that it lacks there."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import gymnasium as gym

OWN = "gymnasium."
"""Entry points of gymnasium's own envs begin with this."""


def registry_entries() -> Callable[[], None]:
    """Registers, in whatever process it is called, the envs that this process has registered and that one lacks.

    Ids that a package registers when it is imported (`ale_py`) come with its import.
    """
    entries = {name: spec for name, spec in gym.registry.items() if not _is_own(spec)}
    modules = {str(spec.entry_point).partition(":")[0].partition(".")[0] for spec in entries.values() if _is_named(spec)}
    return partial(_register, sorted(modules & sys.modules.keys() - {"__main__"}), entries)


def _is_named(spec: Any) -> bool:
    return isinstance(spec.entry_point, str)


def _is_own(spec: Any) -> bool:
    return _is_named(spec) and spec.entry_point.startswith(OWN)


def _register(modules: list[str], entries: dict[str, Any]) -> None:
    if not entries.keys() - gym.registry.keys():
        return
    for module in modules:
        import_module(module)
    for name, spec in entries.items():
        gym.registry.setdefault(name, spec)
