"""Replay buffers, specs of data, and functions for batches."""

from typing import Any

from reap.data import tensor_specs
from reap.data.buffers.ensemble import ReplayBufferEnsemble
from reap.data.buffers.ray_buffer import RayReplayBuffer
from reap.data.buffers.remote import RemoteTensorDictReplayBuffer
from reap.data.buffers.replay import ReplayBuffer
from reap.data.buffers.tensordict_buffers import (
    PrioritizedReplayBuffer,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from reap.data.datasets.minari_in import from_minari
from reap.data.datasets.minari_out import to_minari
from reap.data.datasets.run_folder import load_run
from reap.data.max_value import TensorDictMaxValueWriter
from reap.data.postprocs import MultiStep
from reap.data.samplers.base import Sampler
from reap.data.samplers.prioritized import PrioritizedSampler
from reap.data.samplers.prioritized_slices import PrioritizedSliceSampler
from reap.data.samplers.slices import SliceSampler
from reap.data.samplers.slices_once import SliceSamplerWithoutReplacement
from reap.data.samplers.uniform import RandomSampler, SamplerWithoutReplacement
from reap.data.saving.hooks import ListStorageCheckpointer, StorageCheckpointerBase, TensorStorageCheckpointer
from reap.data.schedulers import LambdaScheduler, LinearScheduler, ParameterScheduler, SchedulerList, StepScheduler
from reap.data.storages import (
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    Storage,
    TensorStorage,
)
from reap.data.writers import ImmutableDatasetWriter, RoundRobinWriter, TensorDictRoundRobinWriter, Writer
from reap.names import missing_name
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
    "LambdaScheduler",
    "LazyMemmapStorage",
    "LazyStackStorage",
    "LazyTensorStorage",
    "LinearScheduler",
    "ListStorage",
    "ListStorageCheckpointer",
    "MultiCategorical",
    "MultiOneHot",
    "MultiStep",
    "NonTensor",
    "OneHot",
    "ParameterScheduler",
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
    "SchedulerList",
    "SliceSampler",
    "SliceSamplerWithoutReplacement",
    "StepScheduler",
    "Storage",
    "StorageCheckpointerBase",
    "TensorDictMaxValueWriter",
    "TensorDictPrioritizedReplayBuffer",
    "TensorDictReplayBuffer",
    "TensorDictRoundRobinWriter",
    "TensorStorage",
    "TensorStorageCheckpointer",
    "Unbounded",
    "Writer",
    "from_minari",
    "load_run",
    "to_minari",
]


def __getattr__(name: str) -> Any:
    """The other names of `reap.data.tensor_specs`, including those from before torchrl 0.6."""
    if name in tensor_specs.__all__:
        return getattr(tensor_specs, name)
    raise missing_name(__name__, name, __all__)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
