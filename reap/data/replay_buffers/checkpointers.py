"""The import path of checkpointers that torchrl users know."""

from typing import Any

from reap.data.saving.hooks import (
    ListStorageCheckpointer,
    StorageCheckpointerBase,
    TensorStorageCheckpointer,
)
from reap.names import missing_name

__all__ = [
    "ListStorageCheckpointer",
    "StorageCheckpointerBase",
    "TensorStorageCheckpointer",
]


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name, __all__)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
