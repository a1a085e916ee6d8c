"""reap: collects reinforcement-learning experience for PyTorch.

Names are loaded when they are first used, so that `import reap` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reap.collectors import (
        DataCollectorBase,
        Interruptor,
        MultiaSyncDataCollector,
        MultiProcessedWeightUpdater,
        MultiSyncDataCollector,
        RandomPolicy,
        RayWeightUpdater,
        RemoteModuleWeightUpdater,
        SyncDataCollector,
        VanillaWeightUpdater,
        WeightUpdaterBase,
        aSyncDataCollector,
    )
    from reap.data import (
        Binary,
        Bounded,
        Categorical,
        Composite,
        LazyMemmapStorage,
        LazyTensorStorage,
        MultiCategorical,
        MultiOneHot,
        MultiStep,
        NonTensor,
        OneHot,
        PrioritizedReplayBuffer,
        ReplayBuffer,
        SliceSampler,
        TensorDictPrioritizedReplayBuffer,
        TensorDictReplayBuffer,
        Unbounded,
    )
    from reap.display import progress
    from reap.envs import (
        EnvBase,
        EnvCreator,
        ExplorationType,
        GymEnv,
        GymWrapper,
        ParallelEnv,
        SerialEnv,
        check_env_specs,
        exploration_type,
        set_exploration_type,
        step_mdp,
    )
    from reap.evaluation import evaluate
    from reap.loggers import log
    from reap.recording.split import split_trajectories
    from reap.replaying import replay
    from reap.tuning import tune

__version__ = "0.1.0"

_HOMES = {
    "reap.collectors": (
        "DataCollectorBase",
        "Interruptor",
        "MultiProcessedWeightUpdater",
        "MultiSyncDataCollector",
        "MultiaSyncDataCollector",
        "RandomPolicy",
        "RayWeightUpdater",
        "RemoteModuleWeightUpdater",
        "SyncDataCollector",
        "VanillaWeightUpdater",
        "WeightUpdaterBase",
        "aSyncDataCollector",
    ),
    "reap.data": (
        "Binary",
        "Bounded",
        "Categorical",
        "Composite",
        "LazyMemmapStorage",
        "LazyTensorStorage",
        "MultiCategorical",
        "MultiOneHot",
        "MultiStep",
        "NonTensor",
        "OneHot",
        "PrioritizedReplayBuffer",
        "ReplayBuffer",
        "SliceSampler",
        "TensorDictPrioritizedReplayBuffer",
        "TensorDictReplayBuffer",
        "Unbounded",
    ),
    "reap.envs": (
        "EnvBase",
        "EnvCreator",
        "ExplorationType",
        "GymEnv",
        "GymWrapper",
        "ParallelEnv",
        "SerialEnv",
        "check_env_specs",
        "exploration_type",
        "set_exploration_type",
        "step_mdp",
    ),
    "reap.evaluation": ("evaluate",),
    "reap.display": ("progress",),
    "reap.loggers": ("log",),
    "reap.recording.split": ("split_trajectories",),
    "reap.replaying": ("replay",),
    "reap.tuning": ("tune",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}
_MODULES = frozenset({"collectors", "data", "envs", "errors", "evaluation", "replaying", "testing", "tuning", "weight_update"})
"""Modules that are imported when they are first named, so that `reap.data.load_run` works after `import reap`."""

__all__ = [  # noqa: RUF022  in the order of their homes
    "DataCollectorBase",
    "Interruptor",
    "MultiProcessedWeightUpdater",
    "MultiSyncDataCollector",
    "MultiaSyncDataCollector",
    "RandomPolicy",
    "RayWeightUpdater",
    "RemoteModuleWeightUpdater",
    "SyncDataCollector",
    "VanillaWeightUpdater",
    "WeightUpdaterBase",
    "aSyncDataCollector",
    "Binary",
    "Bounded",
    "Categorical",
    "Composite",
    "LazyMemmapStorage",
    "LazyTensorStorage",
    "MultiCategorical",
    "MultiOneHot",
    "MultiStep",
    "NonTensor",
    "OneHot",
    "PrioritizedReplayBuffer",
    "ReplayBuffer",
    "SliceSampler",
    "TensorDictPrioritizedReplayBuffer",
    "TensorDictReplayBuffer",
    "Unbounded",
    "EnvBase",
    "EnvCreator",
    "ExplorationType",
    "GymEnv",
    "GymWrapper",
    "ParallelEnv",
    "SerialEnv",
    "check_env_specs",
    "exploration_type",
    "set_exploration_type",
    "step_mdp",
    "evaluate",
    "progress",
    "log",
    "split_trajectories",
    "replay",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"reap.{name}")
    home = _HOME.get(name)
    if home is None:
        raise importlib.import_module("reap.names").missing_name(__name__, name, __all__)
    value = globals()[name] = getattr(importlib.import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
