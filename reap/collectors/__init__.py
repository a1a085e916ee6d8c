"""Collectors: they run a policy in envs and hand out batches of its experience."""

from reap.collectors.base import DataCollectorBase
from reap.collectors.interruptor import Interruptor
from reap.collectors.local import SyncDataCollector
from reap.policy.random import RandomPolicy
from reap.weights.base import VanillaWeightUpdater, WeightUpdaterBase

__all__ = [
    "DataCollectorBase",
    "Interruptor",
    "RandomPolicy",
    "SyncDataCollector",
    "VanillaWeightUpdater",
    "WeightUpdaterBase",
]
