"""Versions of packages on which data depend, for manifests."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version

NEIGHBOURS = ("reap", "torch", "tensordict", "numpy", "gymnasium")
LOADED = {"ale_py": "ale-py", "mujoco": "mujoco", "minari": "minari", "h5py": "h5py", "pyarrow": "pyarrow"}
"""Packages whose versions matter if they are loaded, by module name."""


def versions() -> dict[str, str]:
    """Versions of Python, of reap and of what it is built on, and of simulators that are loaded."""
    names = [*NEIGHBOURS, *(name for module, name in LOADED.items() if module in sys.modules)]
    return {"python": platform.python_version(), **{name: _version(name) for name in names}}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"
