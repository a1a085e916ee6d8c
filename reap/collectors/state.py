"""The layout of a collector's `state_dict`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from reap.errors import OptionError

STATE_FORMAT = 1
"""Counts up when the layout of `state_dict` changes."""


def policy_state(policy: Any) -> dict[str, Any] | None:
    """A copy of a module's state: training that goes on does not change it. None for other policies."""
    if not isinstance(policy, nn.Module):
        return None
    return {
        name: value.detach().clone() if isinstance(value, torch.Tensor) else value
        for name, value in policy.state_dict().items()
    }


def check_state(state: Mapping[str, Any], class_name: str, workers: int, policy: Any) -> None:
    """Raise OptionError unless a state is of this format, and of a collector of this class, with as many workers."""
    if not isinstance(state, Mapping):
        raise OptionError(f"state: expected what state_dict() gave, got {type(state).__name__}")
    expected = (STATE_FORMAT, class_name, workers, isinstance(policy, nn.Module))
    found = (state.get("format"), state.get("class"), len(state.get("workers", ())), state.get("policy") is not None)
    if expected != found:
        raise OptionError(
            f"state: expected (format, class, workers, policy with weights) {expected}, found {found}; it belongs to another "
            "collector"
        )
