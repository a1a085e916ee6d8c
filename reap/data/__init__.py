"""Replay buffers, specs of data, and functions for batches."""

from typing import Any

from reap.data import tensor_specs
from reap.data.buffers.ensemble import ReplayBufferEnsemble
from reap.data.buffers.ray_buffer import RayReplayBuffer
from reap.data.buffers.replay import ReplayBuffer
from reap.data.buffers.tensordict_buffers import (
    PrioritizedReplayBuffer,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from reap.data.max_value import TensorDictMaxValueWriter
from reap.data.postprocs import MultiStep
from reap.data.samplers.prioritized import PrioritizedSampler
from reap.data.samplers.prioritized_slices import PrioritizedSliceSampler
from reap.data.samplers.slices import SliceSampler
from reap.data.samplers.slices_once import SliceSamplerWithoutReplacement
from reap.data.samplers.uniform import RandomSampler, SamplerWithoutReplacement
from reap.data.storages.lazy import LazyMemmapStorage, LazyTensorStorage
from reap.data.storages.lists import ListStorage
from reap.data.writers import ImmutableDatasetWriter, RoundRobinWriter, TensorDictRoundRobinWriter
from reap.specs import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    Unbounded,
)

__all__ = [
    "Binary",
    "Bounded",
    "Categorical",
    "Composite",
    "ImmutableDatasetWriter",
    "LazyMemmapStorage",
    "LazyTensorStorage",
    "ListStorage",
    "MultiCategorical",
    "MultiOneHot",
    "MultiStep",
    "NonTensor",
    "OneHot",
    "PrioritizedReplayBuffer",
    "PrioritizedSampler",
    "PrioritizedSliceSampler",
    "RandomSampler",
    "RayReplayBuffer",
    "ReplayBuffer",
    "ReplayBufferEnsemble",
    "RoundRobinWriter",
    "SamplerWithoutReplacement",
    "SliceSampler",
    "SliceSamplerWithoutReplacement",
    "TensorDictMaxValueWriter",
    "TensorDictPrioritizedReplayBuffer",
    "TensorDictReplayBuffer",
    "TensorDictRoundRobinWriter",
    "Unbounded",
]


def __getattr__(name: str) -> Any:
    """The other names of `reap.data.tensor_specs`, those of before torchrl 0.6 among them."""
    if name in tensor_specs.__all__:
        return getattr(tensor_specs, name)
    raise AttributeError(f"module 'reap.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
