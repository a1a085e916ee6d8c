"""`made_launcher`: launchers by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reap.errors import OptionError
from reap.workers.launchers.base import Launcher
from reap.workers.launchers.delayed import DelayedLauncher
from reap.workers.launchers.mp import MpLauncher
from reap.workers.launchers.submitit import SubmititLauncher


def made_launcher(given: Any, slurm_kwargs: Mapping[str, Any] | None = None) -> Launcher:
    """The launcher for the option `launcher`.

    Args:
        given: `"mp"`, `"submitit"`, `"submitit_delayed"`, an executor of submitit, or a launcher.
        slurm_kwargs: parameters of the executor made for `"submitit"`.

    Raises:
        OptionError: anything else.
        ImportError: submitit is not installed.

    Example:
        >>> made_launcher("mp").is_local
        True
    """
    if given == "mp":
        if slurm_kwargs:
            raise OptionError('slurm_kwargs: they are for launcher="submitit", got launcher="mp"')
        return MpLauncher()
    if given == "submitit":
        return SubmititLauncher(parameters=slurm_kwargs)
    if given == "submitit_delayed":
        return DelayedLauncher()
    if callable(getattr(given, "submit", None)) and hasattr(given, "update_parameters"):
        return SubmititLauncher(given, slurm_kwargs)
    if callable(getattr(given, "launch", None)):
        return given
    raise OptionError(f'launcher: expected "mp", "submitit", "submitit_delayed" or an executor of submitit, got {given!r}')
