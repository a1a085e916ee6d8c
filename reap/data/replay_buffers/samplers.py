"""The import path of samplers that torchrl users know."""

from typing import Any

from reap.data.samplers.base import Sampler
from reap.data.samplers.prioritized import PrioritizedSampler
from reap.data.samplers.prioritized_slices import PrioritizedSliceSampler
from reap.data.samplers.slices import SliceSampler
from reap.data.samplers.slices_once import SliceSamplerWithoutReplacement
from reap.data.samplers.uniform import (
    RandomSampler,
    SamplerWithoutReplacement,
)
from reap.names import missing_name

__all__ = [
    "PrioritizedSampler",
    "PrioritizedSliceSampler",
    "RandomSampler",
    "Sampler",
    "SamplerWithoutReplacement",
    "SliceSampler",
    "SliceSamplerWithoutReplacement",
]


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name, __all__)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
