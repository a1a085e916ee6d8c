"""The settings that a worker takes over from the process that launches it.

`ProcessContext` is for a worker on the same machine: environment, directory, paths, arguments, and everything in
`RemoteContext`. The latter is for a worker elsewhere, and holds only settings that mean the same on any machine, which paths,
the home directory and device numbers do not.
"""

from __future__ import annotations

import importlib
import os
import pickle
import sys
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from reap.errors import OptionError
from reap.workers import logs
from reap.workers.pickling import pickled

LOCAL_VARIABLES = frozenset({"PATH", "HOME", "CUDA_VISIBLE_DEVICES"})
"""Environment variables that are meaningful on one machine only."""


class Context(Protocol):
    """The settings that one process takes over from another; can be pickled."""

    def restore(self) -> None:
        """Apply these settings to this process."""
        ...


@dataclass(frozen=True)
class RemoteContext:
    """Settings that mean the same on any machine.

    Attributes:
        variables: environment variables to set; others are left alone.
        dtype: the name of torch's default dtype; None if torch is not loaded.
        filters: the warning filters, pickled; empty if they cannot be pickled.
    """

    variables: Mapping[str, str]
    dtype: str | None
    filters: bytes

    @classmethod
    def capture(cls, variables: Iterable[str] = ()) -> RemoteContext:
        """Capture the current settings of this process.

        Args:
            variables: names of environment variables to include if they are set.

        Raises:
            OptionError: a variable is meaningful on this machine only.

        Example:
            >>> os.environ["REAP_EXAMPLE"] = "on"
            >>> RemoteContext.capture(["REAP_EXAMPLE"]).variables
            {'REAP_EXAMPLE': 'on'}
        """
        names = list(variables)
        if refused := sorted(LOCAL_VARIABLES.intersection(names)):
            raise OptionError(f"variables: {', '.join(refused)}: a worker on another machine has its own; leave it out")
        torch: Any = sys.modules.get("torch")
        get_dtype = getattr(torch, "get_default_dtype", None)
        dtype = str(get_dtype()).removeprefix("torch.") if get_dtype else None
        return cls({name: os.environ[name] for name in names if name in os.environ}, dtype, _filters())

    def restore(self) -> None:
        """Apply these settings to this process."""
        os.environ.update(self.variables)
        if self.dtype not in {None, "float32"} or "torch" in sys.modules:
            torch = importlib.import_module("torch")
            torch.set_default_dtype(getattr(torch, self.dtype or "float32"))
        if self.filters:
            warnings.filters[:] = pickle.loads(self.filters)  # pyright: ignore[reportIndexIssue]
            with warnings.catch_warnings():  # entering and leaving it, the module notices that its list has changed
                pass


@dataclass(frozen=True)
class ProcessContext:
    """Settings that are the same on this machine.

    Attributes:
        environ: all environment variables.
        directory: the working directory; empty if it was removed.
        path: `sys.path`.
        argv: `sys.argv`.
        logging: levels, filters and handlers of the standard streams.
        anywhere: the settings that would mean the same on another machine.
    """

    environ: Mapping[str, str]
    directory: str
    path: list[str]
    argv: list[str]
    logging: logs.Logging
    anywhere: RemoteContext

    @classmethod
    def capture(cls) -> ProcessContext:
        """Capture the current settings of this process."""
        path = [entry for entry in sys.path if isinstance(entry, str)]  # pyright: ignore[reportUnnecessaryIsInstance]
        return cls(dict(os.environ), _directory(), path, list(sys.argv), logs.capture(), RemoteContext.capture())

    def restore(self) -> None:
        """Apply these settings to this process."""
        os.environ.clear()
        os.environ.update(self.environ)
        time.tzset()
        if self.directory:
            os.chdir(self.directory)
        sys.path[:] = self.path
        sys.argv[:] = self.argv
        importlib.invalidate_caches()
        self.anywhere.restore()
        logs.restore(self.logging)


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
