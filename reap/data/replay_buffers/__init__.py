"""The import path of replay buffers, their storages, samplers and writers that torchrl users know."""

from typing import Any

from reap.data.buffers.ensemble import ReplayBufferEnsemble
from reap.data.buffers.ray_buffer import RayReplayBuffer
from reap.data.buffers.remote import RemoteTensorDictReplayBuffer
from reap.data.buffers.replay import ReplayBuffer
from reap.data.buffers.tensordict_buffers import (
    PrioritizedReplayBuffer,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from reap.data.max_value import TensorDictMaxValueWriter
from reap.data.samplers.base import Sampler
from reap.data.samplers.prioritized import PrioritizedSampler
from reap.data.samplers.prioritized_slices import PrioritizedSliceSampler
from reap.data.samplers.slices import SliceSampler
from reap.data.samplers.slices_once import SliceSamplerWithoutReplacement
from reap.data.samplers.uniform import (
    RandomSampler,
    SamplerWithoutReplacement,
)
from reap.data.saving.hooks import (
    ListStorageCheckpointer,
    StorageCheckpointerBase,
    TensorStorageCheckpointer,
)
from reap.data.storages import (
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    Storage,
    TensorStorage,
)
from reap.data.writers import (
    ImmutableDatasetWriter,
    RoundRobinWriter,
    TensorDictRoundRobinWriter,
    Writer,
)
from reap.names import missing_name

__all__ = [
    "ImmutableDatasetWriter",
    "LazyMemmapStorage",
    "LazyStackStorage",
    "LazyTensorStorage",
    "ListStorage",
    "ListStorageCheckpointer",
    "PrioritizedReplayBuffer",
    "PrioritizedSampler",
    "PrioritizedSliceSampler",
    "RandomSampler",
    "RayReplayBuffer",
    "RemoteTensorDictReplayBuffer",
    "ReplayBuffer",
    "ReplayBufferEnsemble",
    "RoundRobinWriter",
    "Sampler",
    "SamplerWithoutReplacement",
    "SliceSampler",
    "SliceSamplerWithoutReplacement",
    "Storage",
    "StorageCheckpointerBase",
    "TensorDictMaxValueWriter",
    "TensorDictPrioritizedReplayBuffer",
    "TensorDictReplayBuffer",
    "TensorDictRoundRobinWriter",
    "TensorStorage",
    "TensorStorageCheckpointer",
    "Writer",
]


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name, __all__)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
