"""What a worker shares with the process that wanted it: environment, directory, paths, arguments, warnings, logging."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
import time
import warnings
from typing import Any

from reap.workers import logs
from reap.workers.pickling import pickled

Surroundings = dict[str, Any]


def capture() -> Surroundings:
    """The surroundings of this process as they are now."""
    torch = sys.modules.get("torch")
    dtype = getattr(torch, "get_default_dtype", None)
    return {
        "environ": dict(os.environ),
        "directory": _directory(),
        "path": [entry for entry in sys.path if isinstance(entry, str)],  # pyright: ignore[reportUnnecessaryIsInstance]
        "argv": list(sys.argv),
        "dtype": str(dtype()).removeprefix("torch.") if dtype else None,
        "filters": _filters(),
        "logging": logs.capture(),
    }


def restore(surroundings: Surroundings) -> None:
    """Make them the surroundings of this process."""
    os.environ.clear()
    os.environ.update(surroundings["environ"])
    time.tzset()
    if surroundings["directory"]:
        os.chdir(surroundings["directory"])
    sys.path[:] = surroundings["path"]
    sys.argv[:] = surroundings["argv"]
    importlib.invalidate_caches()
    if surroundings["dtype"] not in {None, "float32"} or "torch" in sys.modules:
        torch = importlib.import_module("torch")
        torch.set_default_dtype(getattr(torch, surroundings["dtype"] or "float32"))
    if surroundings["filters"]:
        warnings.filters[:] = pickle.loads(surroundings["filters"])  # pyright: ignore[reportIndexIssue]
        with warnings.catch_warnings():  # entering and leaving it, the module notices that its list has changed
            pass
    logs.restore(surroundings["logging"])


def _directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was removed
        return ""


def _filters() -> bytes:
    try:
        return pickled(list(warnings.filters))
    except Exception:  # noqa: BLE001  a category of the user's that cannot be pickled is no reason to fail
        return b""
