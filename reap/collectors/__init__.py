"""Collectors: they run a policy in envs and hand out batches of its experience.

Names are loaded on first use. Using the name of a collector with worker processes starts the process that forks them: it
imports torch while this one does, and is ready by the time the collector is built.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Any

from reap.names import missing_name

if TYPE_CHECKING:
    from reap.collectors.base import DataCollectorBase
    from reap.collectors.base import DataCollectorBase as BaseCollector
    from reap.collectors.dispatch import Collector, MultiCollector
    from reap.collectors.interruptor import Interruptor
    from reap.collectors.local import SyncDataCollector
    from reap.collectors.multi import MultiaSyncDataCollector, MultiSyncDataCollector, aSyncDataCollector
    from reap.collectors.multi import MultiaSyncDataCollector as MultiAsyncCollector
    from reap.collectors.multi import MultiSyncDataCollector as MultiSyncCollector
    from reap.collectors.multi import aSyncDataCollector as AsyncCollector
    from reap.specs import RandomPolicy
    from reap.weights.base import VanillaWeightUpdater, WeightUpdaterBase
    from reap.weights.engines.updaters import RayWeightUpdater, RemoteModuleWeightUpdater
    from reap.weights.remote import MultiProcessedWeightUpdater

_HOMES = {
    "reap.collectors.base": ("DataCollectorBase",),
    "reap.collectors.dispatch": ("Collector", "MultiCollector"),
    "reap.collectors.interruptor": ("Interruptor",),
    "reap.collectors.local": ("SyncDataCollector",),
    "reap.collectors.multi": ("MultiSyncDataCollector", "MultiaSyncDataCollector", "aSyncDataCollector"),
    "reap.specs": ("RandomPolicy",),
    "reap.weights.base": ("VanillaWeightUpdater", "WeightUpdaterBase"),
    "reap.weights.engines.updaters": ("RayWeightUpdater", "RemoteModuleWeightUpdater"),
    "reap.weights.remote": ("MultiProcessedWeightUpdater",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}
_TODAY = {
    "AsyncCollector": "aSyncDataCollector",
    "BaseCollector": "DataCollectorBase",
    "MultiAsyncCollector": "MultiaSyncDataCollector",
    "MultiSyncCollector": "MultiSyncDataCollector",
}
"""Names that torchrl has for the same classes since 0.13."""
_WITH_PROCESSES = "reap.collectors.multi"

__all__ = [
    "AsyncCollector",
    "BaseCollector",
    "Collector",
    "DataCollectorBase",
    "Interruptor",
    "MultiAsyncCollector",
    "MultiCollector",
    "MultiProcessedWeightUpdater",
    "MultiSyncCollector",
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
    if name in _TODAY:
        return getattr(importlib.import_module(__name__), _TODAY[name])
    home = _HOME.get(name)
    if home is None:
        raise missing_name(__name__, name, __all__)
    if home == _WITH_PROCESSES:
        # Where it cannot start, the collector says why when it is built.
        with contextlib.suppress(OSError):
            importlib.import_module("reap.workers.processes.fork_client").warm_up()
    value = globals()[name] = getattr(importlib.import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
