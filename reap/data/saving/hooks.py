"""`StorageCheckpointerBase`: saves and loads a storage, with hooks of the user.

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

from reap.data.saving.frame_files import Frames
from reap.errors import OptionError, SpecMismatch
from reap.keys import Key, nested
from reap.tensordicts import make_tensordict, sizes_in


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
        """Hooks called before frames are written, in this order."""
        self.load_hooks: list[Callable[..., Any]] = []
        """Hooks called after frames are read, in this order."""

    def register_save_hook(self, hook: Callable[..., Any]) -> None:
        """Append a hook that is called before frames are written."""
        self.save_hooks.append(_checked(hook))

    def register_load_hook(self, hook: Callable[..., Any]) -> None:
        """Append a hook that is called after frames are read."""
        self.load_hooks.append(_checked(hook))

    def dumps(self, storage: Any, path: str | Path) -> None:
        """Save a storage in a folder, completely or not at all; see `SavedPart.dumps`."""
        storage.save_frames(path)

    def loads(self, storage: Any, path: str | Path) -> None:
        """Load a save of `dumps` into a storage; see `SavedPart.loads`."""
        storage.load_frames(path)

    def before_save(self, frames: Frames, path: Path) -> Frames:
        """The frames to write."""
        for hook in self.save_hooks:
            frames = _taken_apart(hook(_joined(frames), path=path))
        return frames

    def after_load(self, frames: Frames) -> Mapping[Key, Tensor]:
        """The frames `[*rows, columns, *item]` to load."""
        for hook in self.load_hooks:
            frames = _taken_apart(hook(_joined(frames), out=None))
        return frames.values

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class TensorStorageCheckpointer(StorageCheckpointerBase):
    """Saves a storage of tensors: one file per key, which `TensorDict.load_memmap` reads, and one of the rest."""


class ListStorageCheckpointer(StorageCheckpointerBase):
    """Saves a `ListStorage`: one file for all items. Its frames are not tensors, so hooks are refused."""

    def register_save_hook(self, hook: Callable[..., Any]) -> None:
        """Raise OptionError, because items of a list are not tensors.

        Raises:
            OptionError: always.
        """
        raise OptionError("ListStorage: a save of items has no tensors for a hook; use a LazyTensorStorage, or change the data")

    register_load_hook = register_save_hook


def _checked(hook: Any) -> Callable[..., Any]:
    if not callable(hook):
        raise OptionError(f"hook: expected a function, got {type(hook).__name__}: {hook!r:.100}")
    return hook


def _joined(frames: Frames) -> TensorDict:
    batch_size = next((frame.shape[: frames.dims] for frame in frames.values.values()), torch.Size())
    return make_tensordict(nested(frames.values, frames.sizes), batch_size)


def _taken_apart(frames: Any) -> Frames:
    if not isinstance(frames, TensorDictBase):
        raise SpecMismatch(f"hook of a save: expected it to return a TensorDict, got {type(frames).__name__}: {frames!r:.100}")
    found: Any = frames.items(include_nested=True, leaves_only=True)
    values = {key if isinstance(key, tuple) else (key,): value for key, value in found}
    return Frames(values, frames.ndim, sizes_in(frames, frames.ndim))
