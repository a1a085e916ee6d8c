"""The tolerance of bounds: many envs exceed theirs by rounding."""

from __future__ import annotations

from typing import Any

import torch

from reap.specs import Bounded, Spec

ROUNDING = 1e-6
"""The relative amount, absolute for floats below one, by which a float may exceed its bounds."""


def without_rounding(value: Any, spec: Spec) -> Any:
    """The value, with floats that exceed the spec's bounds by rounding set to the bounds.

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
