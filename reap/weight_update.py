"""Weight sync schemes: how weights get from one process to the policies of others."""

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
