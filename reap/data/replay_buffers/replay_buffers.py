"""The import path of replay buffers that torchrl users know."""

from typing import Any

from reap.data.buffers.ensemble import ReplayBufferEnsemble
from reap.data.buffers.remote import RemoteTensorDictReplayBuffer
from reap.data.buffers.replay import ReplayBuffer
from reap.data.buffers.tensordict_buffers import (
    PrioritizedReplayBuffer,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from reap.names import missing_name

__all__ = [
    "PrioritizedReplayBuffer",
    "RemoteTensorDictReplayBuffer",
    "ReplayBuffer",
    "ReplayBufferEnsemble",
    "TensorDictPrioritizedReplayBuffer",
    "TensorDictReplayBuffer",
]


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name, __all__)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
