"""Collectors: they run a policy in envs and hand out batches of its experience.

Names are loaded when they are first used. With the name of a collector that has worker processes, the process that forks
them starts: it imports torch while this one does, and is ready when the collector is built.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reap.collectors.base import DataCollectorBase
    from reap.collectors.interruptor import Interruptor
    from reap.collectors.local import SyncDataCollector
    from reap.collectors.multi import MultiaSyncDataCollector, MultiSyncDataCollector, aSyncDataCollector
    from reap.specs import RandomPolicy
    from reap.weights.base import VanillaWeightUpdater, WeightUpdaterBase
    from reap.weights.engines.updaters import RayWeightUpdater, RemoteModuleWeightUpdater
    from reap.weights.remote import MultiProcessedWeightUpdater

_HOMES = {
    "reap.collectors.base": ("DataCollectorBase",),
    "reap.collectors.interruptor": ("Interruptor",),
    "reap.collectors.local": ("SyncDataCollector",),
    "reap.collectors.multi": ("MultiSyncDataCollector", "MultiaSyncDataCollector", "aSyncDataCollector"),
    "reap.specs": ("RandomPolicy",),
    "reap.weights.base": ("VanillaWeightUpdater", "WeightUpdaterBase"),
    "reap.weights.engines.updaters": ("RayWeightUpdater", "RemoteModuleWeightUpdater"),
    "reap.weights.remote": ("MultiProcessedWeightUpdater",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}
_WITH_PROCESSES = "reap.collectors.multi"

__all__ = [
    "DataCollectorBase",
    "Interruptor",
    "MultiProcessedWeightUpdater",
    "MultiSyncDataCollector",
    "MultiaSyncDataCollector",
    "RandomPolicy",
    "RayWeightUpdater",
    "RemoteModuleWeightUpdater",
    "SyncDataCollector",
    "VanillaWeightUpdater",
    "WeightUpdaterBase",
    "aSyncDataCollector",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'reap.collectors' has no attribute {name!r}")
    if home == _WITH_PROCESSES:
        # Where it cannot start, the collector says why when it is built.
        with contextlib.suppress(OSError):
            importlib.import_module("reap.workers.processes.fork_client").warm_up()
    value = globals()[name] = getattr(importlib.import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
