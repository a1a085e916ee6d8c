"""Options of torchrl's batches of envs that say how data travels between processes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from reap.errors import OptionError, callers_level, nearest

TRANSPORT: Mapping[str, Any] = {
    "allow_step_when_done": False,
    "consolidate": True,
    "daemon": False,
    "memmap": False,
    "metadata_from_workers": False,
    "mp_start_method": None,
    "non_blocking": False,
    "num_sub_threads": 1,
    "num_threads": None,
    "pin_memory": False,
    "policy_proof": None,
    "serial_for_single": False,
    "share_individual_td": None,
    "shared_memory": True,
    "shutdown_timeout": 10.0,
    "use_buffers": None,
}
"""The options, and torchrl's default values."""


def warn_of(owner: str, given: Mapping[str, Any], own: Sequence[str]) -> None:
    """Warn about options that have no effect here, unless they have torchrl's default values.

    Args:
        owner: the name of the class that was given the options.
        given: the options.
        own: names of other options, for the error.

    Raises:
        OptionError: an unknown option.
    """
    for name in given:
        if name not in TRANSPORT:
            raise OptionError(f"{owner}: unknown option {name!r}.{nearest(name, (*own, *TRANSPORT))}")
    others = sorted(name for name, value in given.items() if value != TRANSPORT[name])
    if others:
        warnings.warn(
            f"{owner}: options {others} say how data travels, and have no effect: envs write straight into the memory of "
            "collectors",
            DeprecationWarning,
            stacklevel=callers_level(),
        )


def merged_kwargs(own: Sequence[Mapping[str, Any] | None], given: Sequence[Mapping[str, Any] | None]) -> list[dict[str, Any]]:
    """The keywords of each env's factory, updated with others."""
    return [{**(before or {}), **(after or {})} for before, after in zip(own, given, strict=True)]
