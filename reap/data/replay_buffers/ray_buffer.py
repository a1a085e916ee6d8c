"""The import path of `RayReplayBuffer` that torchrl users know."""

from typing import Any

from reap.data.buffers.ray_buffer import RayReplayBuffer
from reap.names import missing_name

__all__ = [
    "RayReplayBuffer",
]


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name, __all__)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
