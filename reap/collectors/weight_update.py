"""The import path of weight updaters that torchrl users know."""

from reap.weights.base import VanillaWeightUpdater, WeightUpdaterBase
from reap.weights.engines.updaters import RayWeightUpdater, RemoteModuleWeightUpdater
from reap.weights.remote import MultiProcessedWeightUpdater

__all__ = [
    "MultiProcessedWeightUpdater",
    "RayWeightUpdater",
    "RemoteModuleWeightUpdater",
    "VanillaWeightUpdater",
    "WeightUpdaterBase",
]


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
