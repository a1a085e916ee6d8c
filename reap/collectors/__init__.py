"""Collectors."""

from reap.collectors.base import DataCollectorBase
from reap.collectors.local import SyncDataCollector

__all__ = ["DataCollectorBase", "SyncDataCollector"]
