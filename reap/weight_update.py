"""Weight sync schemes: how weights get from one process to the policies of others."""

from typing import Any

from reap.names import missing_name
from reap.weights.engines.schemes import DistributedWeightSyncScheme, RayWeightSyncScheme, RPCWeightSyncScheme
from reap.weights.scheme import WeightSyncScheme
from reap.weights.schemes import MultiProcessWeightSyncScheme, NoWeightSyncScheme, SharedMemWeightSyncScheme
from reap.weights.strategy import WeightStrategy

__all__ = [
    "DistributedWeightSyncScheme",
    "MultiProcessWeightSyncScheme",
    "NoWeightSyncScheme",
    "RPCWeightSyncScheme",
    "RayWeightSyncScheme",
    "SharedMemWeightSyncScheme",
    "WeightStrategy",
    "WeightSyncScheme",
]


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name, __all__)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
