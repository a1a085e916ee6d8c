"""The import path of collectors that torchrl users know."""

from reap.collectors.base import DataCollectorBase
from reap.collectors.dispatch import Collector, MultiCollector
from reap.collectors.interruptor import Interruptor
from reap.collectors.local import SyncDataCollector
from reap.collectors.multi import MultiaSyncDataCollector, MultiSyncDataCollector, aSyncDataCollector
from reap.specs import RandomPolicy

BaseCollector = DataCollectorBase
MultiSyncCollector = MultiSyncDataCollector
MultiAsyncCollector = MultiaSyncDataCollector
AsyncCollector = aSyncDataCollector

__all__ = [
    "AsyncCollector",
    "BaseCollector",
    "Collector",
    "DataCollectorBase",
    "Interruptor",
    "MultiAsyncCollector",
    "MultiCollector",
    "MultiSyncCollector",
    "MultiSyncDataCollector",
    "MultiaSyncDataCollector",
    "RandomPolicy",
    "SyncDataCollector",
    "aSyncDataCollector",
]


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
