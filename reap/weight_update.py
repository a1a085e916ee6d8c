"""Weight sync schemes: how weights get from one process to the policies of others."""

from reap.weights.scheme import WeightSyncScheme
from reap.weights.schemes import MultiProcessWeightSyncScheme, NoWeightSyncScheme, SharedMemWeightSyncScheme

__all__ = ["MultiProcessWeightSyncScheme", "NoWeightSyncScheme", "SharedMemWeightSyncScheme", "WeightSyncScheme"]
