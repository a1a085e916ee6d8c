"""`StorageCheckpointerBase`: saves and loads a storage, with the user's functions on the way to the files and back.

dumps   frames of the storage ──> save hooks ──> one file per key
loads   one file per key ──> load hooks ──> frames of the storage
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from reap.errors import OptionError, SpecMismatch
from reap.keys import Key, nested
from reap.tensordicts import make_tensordict


class StorageCheckpointerBase:
    """Saves a storage in a folder, and loads it from there.

    A save hook is called as `hook(frames, path=folder)`, a load hook as `hook(frames, out=None)`, with a TensorDict
    `[*rows, time]` whose memory is the storage's, or the files'. Each returns the TensorDict that is written, or loaded.
    `buffer.dumps` and `buffer.loads` use the hooks of `buffer.storage.checkpointer` too.

    Example:
        >>> from reap.data import LazyTensorStorage
        >>> storage = LazyTensorStorage(10)
        >>> storage.register_save_hook(lambda frames, path: frames.exclude("scratch"))
    """

    def __init__(self) -> None:
        self.save_hooks: list[Callable[..., Any]] = []
        """Called before frames are written, in this order."""
        self.load_hooks: list[Callable[..., Any]] = []
        """Called after frames were read, in this order."""

    def register_save_hook(self, hook: Callable[..., Any]) -> None:
        """Call a function before frames are written, after those that are there."""
        self.save_hooks.append(_checked(hook))

    def register_load_hook(self, hook: Callable[..., Any]) -> None:
        """Call a function after frames were read, after those that are there."""
        self.load_hooks.append(_checked(hook))

    def dumps(self, storage: Any, path: str | Path) -> None:
        """Save a storage in a folder, which is there in full or not at all; see `SavedPart.dumps`."""
        storage.save_frames(path)

    def loads(self, storage: Any, path: str | Path) -> None:
        """Load a save of `dumps` into a storage; see `SavedPart.loads`."""
        storage.load_frames(path)

    def before_save(self, frames: Mapping[Key, Tensor], dims: int, path: Path) -> tuple[Mapping[Key, Tensor], int]:
        """The frames to write, and how many of their dimensions are the batch's."""
        for hook in self.save_hooks:
            frames, dims = _taken_apart(hook(_joined(frames, dims), path=path))
        return frames, dims

    def after_load(self, frames: Mapping[Key, Tensor], dims: int) -> Mapping[Key, Tensor]:
        """The frames `[*rows, columns, *item]` to load."""
        for hook in self.load_hooks:
            frames, dims = _taken_apart(hook(_joined(frames, dims), out=None))
        return frames

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class TensorStorageCheckpointer(StorageCheckpointerBase):
    """Saves a storage of tensors: one file per key, which `TensorDict.load_memmap` reads, and one of the rest."""


class ListStorageCheckpointer(StorageCheckpointerBase):
    """Saves a `ListStorage`: one file for all items. Its frames are no tensors, so that hooks are refused."""

    def register_save_hook(self, hook: Callable[..., Any]) -> None:
        """Refuse.

        Raises:
            OptionError: always.
        """
        raise OptionError("ListStorage: a save of items has no tensors for a hook; use a LazyTensorStorage, or change the data")

    register_load_hook = register_save_hook


def _checked(hook: Any) -> Callable[..., Any]:
    if not callable(hook):
        raise OptionError(f"hook: expected a function, got {type(hook).__name__}: {hook!r:.100}")
    return hook


def _joined(frames: Mapping[Key, Tensor], dims: int) -> TensorDict:
    batch_size = next((frame.shape[:dims] for frame in frames.values()), torch.Size())
    return make_tensordict(nested(frames), batch_size)


def _taken_apart(frames: Any) -> tuple[dict[Key, Tensor], int]:
    if not isinstance(frames, TensorDictBase):
        raise SpecMismatch(f"hook of a save: expected it to return a TensorDict, got {type(frames).__name__}: {frames!r:.100}")
    found: Any = frames.items(include_nested=True, leaves_only=True)
    return {key if isinstance(key, tuple) else (key,): value for key, value in found}, frames.ndim
