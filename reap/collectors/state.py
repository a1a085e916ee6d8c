"""The layout of a collector's `state_dict`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from reap.errors import OptionError

STATE_FORMAT = 1
"""Counts up when the layout of `state_dict` changes."""


def check_state(state: Mapping[str, Any], class_name: str, workers: int, policy: Any) -> None:
    """Raise OptionError unless a state is of this format, and of a collector of this class, with as many workers."""
    expected = (STATE_FORMAT, class_name, workers, isinstance(policy, nn.Module))
    found = (state.get("format"), state.get("class"), len(state.get("workers", ())), state.get("policy") is not None)
    if expected != found:
        raise OptionError(
            f"state: expected (format, class, workers, policy with weights) {expected}, found {found}; it belongs to another "
            "collector"
        )
