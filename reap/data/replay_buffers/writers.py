"""The import path of writers that torchrl users know."""

from typing import Any

from reap.data.max_value import TensorDictMaxValueWriter
from reap.data.writers import (
    ImmutableDatasetWriter,
    RoundRobinWriter,
    TensorDictRoundRobinWriter,
    Writer,
)
from reap.names import missing_name

__all__ = [
    "ImmutableDatasetWriter",
    "RoundRobinWriter",
    "TensorDictMaxValueWriter",
    "TensorDictRoundRobinWriter",
    "Writer",
]


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name, __all__)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
