"""Collectors: they run a policy in envs and hand out batches of its experience."""

from reap.collectors.base import DataCollectorBase
from reap.collectors.interruptor import Interruptor
from reap.collectors.local import SyncDataCollector
from reap.collectors.multi import MultiSyncDataCollector
from reap.collectors.multi_async import MultiaSyncDataCollector, aSyncDataCollector
from reap.policy.random import RandomPolicy
from reap.weights.base import VanillaWeightUpdater, WeightUpdaterBase
from reap.weights.remote import MultiProcessedWeightUpdater

__all__ = [
    "DataCollectorBase",
    "Interruptor",
    "MultiProcessedWeightUpdater",
    "MultiSyncDataCollector",
    "MultiaSyncDataCollector",
    "RandomPolicy",
    "SyncDataCollector",
    "VanillaWeightUpdater",
    "WeightUpdaterBase",
    "aSyncDataCollector",
]
