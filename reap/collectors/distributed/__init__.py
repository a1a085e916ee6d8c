"""Collectors whose workers may be on other machines. Names are loaded when they are first used: each engine is optional."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from reap.names import missing_name

if TYPE_CHECKING:
    from reap.collectors.distributed.ray import RayCollector
    from reap.collectors.distributed.rpc import RPCDataCollector
    from reap.collectors.distributed.rpc import RPCDataCollector as RPCCollector
    from reap.collectors.distributed.torch_distributed import DistributedDataCollector, DistributedSyncDataCollector
    from reap.collectors.distributed.torch_distributed import DistributedDataCollector as DistributedCollector
    from reap.collectors.distributed.torch_distributed import DistributedSyncDataCollector as DistributedSyncCollector
    from reap.weights.engines.updaters import DistributedWeightUpdater, RPCWeightUpdater
    from reap.workers.launchers.delayed import DEFAULT_SLURM_CONF_MAIN, submitit_delayed_launcher
    from reap.workers.launchers.submitit import DEFAULT_SLURM_CONF

_HOMES = {
    "reap.collectors.distributed.ray": ("RayCollector",),
    "reap.collectors.distributed.rpc": ("RPCDataCollector",),
    "reap.collectors.distributed.torch_distributed": ("DistributedDataCollector", "DistributedSyncDataCollector"),
    "reap.workers.launchers.delayed": ("DEFAULT_SLURM_CONF_MAIN", "submitit_delayed_launcher"),
    "reap.weights.engines.updaters": ("DistributedWeightUpdater", "RPCWeightUpdater"),
    "reap.workers.launchers.submitit": ("DEFAULT_SLURM_CONF",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}
_TODAY = {
    "DistributedCollector": "DistributedDataCollector",
    "DistributedSyncCollector": "DistributedSyncDataCollector",
    "RPCCollector": "RPCDataCollector",
}
"""Names that torchrl has for the same classes since 0.13."""

__all__ = [
    "DEFAULT_SLURM_CONF",
    "DEFAULT_SLURM_CONF_MAIN",
    "DistributedCollector",
    "DistributedDataCollector",
    "DistributedSyncCollector",
    "DistributedSyncDataCollector",
    "DistributedWeightUpdater",
    "RPCCollector",
    "RPCDataCollector",
    "RPCWeightUpdater",
    "RayCollector",
    "submitit_delayed_launcher",
]


def __getattr__(name: str) -> Any:
    if name in _TODAY:
        return getattr(importlib.import_module(__name__), _TODAY[name])
    home = _HOME.get(name)
    if home is None:
        raise missing_name(__name__, name, __all__)
    value = globals()[name] = getattr(importlib.import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
