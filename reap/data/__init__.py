"""Replay buffers, specs of data, and what works on batches."""

from reap.data.postprocs import MultiStep
from reap.data.replay import ReplayBuffer
from reap.data.samplers.uniform import RandomSampler
from reap.data.storages import LazyMemmapStorage, LazyTensorStorage
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
    "MultiCategorical",
    "MultiOneHot",
    "MultiStep",
    "NonTensor",
    "OneHot",
    "RandomSampler",
    "ReplayBuffer",
    "RoundRobinWriter",
    "TensorDictRoundRobinWriter",
    "Unbounded",
]
