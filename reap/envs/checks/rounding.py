"""How far a float may lie outside of its bounds: many envs leave theirs by rounding."""

from __future__ import annotations

from typing import Any

import torch

from reap.specs import Bounded, Spec

ROUNDING = 1e-6
"""By what share of itself, or of one where it is smaller, a float may lie outside of its bounds."""


def without_rounding(value: Any, spec: Spec) -> Any:
    """The value, with floats that lie outside of the spec's bounds by rounding put on the bounds.

    Example:
        >>> without_rounding(torch.tensor([1.0000005, 1.1]), Bounded(0, 1, shape=2))
        tensor([1.0000, 1.1000])
    """
    if not isinstance(spec, Bounded) or not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    if value.shape != spec.shape or value.dtype != spec.dtype:
        return value
    inside = spec.project(value)
    slack = ROUNDING * torch.where(value.isfinite(), value.abs(), 0.0).clamp(min=1.0)
    return torch.where((value - inside).abs() <= slack, inside, value)
