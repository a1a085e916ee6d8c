"""`Storage`: the public methods of storages, usable with or without a buffer: items by number, and saves."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reap.data.saving.frame_files import Frames
from reap.data.saving.hooks import StorageCheckpointerBase, TensorStorageCheckpointer
from reap.data.saving.part import load_part, save_part
from reap.data.saving.rest import refused
from reap.data.storages.core import StorageCore
from reap.data.storages.schema import sizes_from
from reap.errors import OptionError
from reap.keys import Key


class Storage(StorageCore):
    """A ring of frames; see `StorageCore` for the methods that buffers use.

    Attributes:
        checkpointer: saves and loads the storage.
    """

    default_checkpointer: type[StorageCheckpointerBase] = TensorStorageCheckpointer
    """The default class of its checkpointer."""

    def __init__(self, max_size: int, *, ndim: int = 1, columns: int | None = None) -> None:
        super().__init__(max_size, ndim=ndim, columns=columns)
        self.checkpointer = self.default_checkpointer()

    # ------------------------------------------------------------------ items

    @property
    def initialized(self) -> bool:
        """Whether something was written, so that its memory is allocated."""
        return self.is_initialised

    @property
    def shape(self) -> torch.Size:
        """The dimensions `[*rows, time]` of its contents."""
        return torch.Size((*self.row_shape, self.ring.readable)) if self.is_initialised else torch.Size((0,) * self.ndim)

    def get(self, index: Any) -> Any:
        """The frames at any index that a tensor accepts; slices and numbers return views, as for a buffer.

        Raises:
            CallOrderError: nothing was written yet.
        """
        return self.at(index)

    def __getitem__(self, index: Any) -> Any:
        return self.get(index)

    def set(self, index: Any, data: Any) -> None:
        """Overwrite or append items, bypassing a buffer's transforms and samplers.

        Args:
            index: the number of one item, or the numbers of several: a slice, range, list or tensor. Those that follow the last
                item are appended.
            data: one item, or several `[n, *item]`.

        Raises:
            OptionError: numbers that are neither in use nor next, or a storage with several dimensions.
            SpecMismatch: data of another form, or a different number of items.
        """
        if self.ndim > 1:
            raise OptionError(f"storage.set: expected a storage with ndim=1, got ndim={self.ndim}; write with buffer.extend")
        if isinstance(index, int | np.integer) or (isinstance(index, Tensor) and not index.ndim):
            self._set_places(np.array([int(index)]), self.single(data))
            return
        if isinstance(index, slice):
            length = len(self) if index.start is not None and index.start < 0 else self.max_size
            index = range(*index.indices(length if index.stop is not None else max(len(self), _count(data))))
        self._set_places(np.asarray(index, np.int64).reshape(-1), self.together(data))

    def __setitem__(self, index: Any, data: Any) -> None:
        self.set(index, data)

    def _set_places(self, numbers: NDArray[np.int64], data: Any) -> None:
        oldest, claimed = self.ring.window
        held, count = claimed - oldest, len(data)
        numbers = np.where(numbers < 0, numbers + held, numbers)
        if len(numbers) != count:
            raise OptionError(f"storage.set: expected one number for each of {count} items, got {len(numbers)}")
        known = int((numbers < held).sum())
        follow = np.arange(held, held + len(numbers) - known)
        if (numbers < 0).any() or not np.array_equal(numbers[known:], follow) or held + len(follow) > self.max_size:
            raise OptionError(
                f"storage.set: expected numbers below {held}, which it holds, then the next ones up to {self.max_size - 1} in "
                f"order, got {numbers.tolist()[:10]}"
            )
        if known:
            places = torch.from_numpy(numbers[:known])
            self.put_at(places, data[:known])
        if len(follow):
            stream = self.ring.new_streams(1)
            origins = np.full(len(follow), 2 * stream, np.int32)
            origins[0] |= 1
            self.append(data[known:], origins)

    def __iter__(self) -> Iterator[Any]:
        """Its items, or its columns, one by one."""
        for number in range(self.ring.readable if self.is_initialised else 0):
            yield self.at((..., number)) if self.ndim > 1 else self.at(number)

    def contains(self, index: int | Tensor) -> Any:
        """Whether it holds an item at a number; a mask `[*numbers]` for a tensor of them."""
        columns = self.ring.readable
        if isinstance(index, Tensor):
            return (index >= -columns) & (index < columns)
        return -columns <= index < columns

    def __contains__(self, index: int) -> bool:
        return bool(self.contains(index))

    # ------------------------------------------------------------------ saves

    def register_save_hook(self, hook: Callable[..., Any]) -> None:
        """Call a function before frames are written to files; see `StorageCheckpointerBase`."""
        self.checkpointer.register_save_hook(hook)

    def register_load_hook(self, hook: Callable[..., Any]) -> None:
        """Call a function after frames were read from files; see `StorageCheckpointerBase`."""
        self.checkpointer.register_load_hook(hook)

    def state_dict(self) -> dict[str, Any]:
        """Its contents as tensors, numbers, strings, lists and dicts, in new memory."""
        with self._taken() as (state, frames):
            return {**state, "frames": {key: frame.to("cpu", copy=True) for key, frame in frames.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the `state_dict` of a storage of the same `max_size`.

        Raises:
            SpecMismatch: it has another size or holds something else; nothing is changed.
            CallOrderError: a process is writing.
        """
        with refused("the state"):
            self.load_state(state["storage"], state["frames"])

    def dumps(self, path: str | Path) -> None:
        """Save it in a folder by its `checkpointer`, completely or not at all; see `buffer.dumps`."""
        self.checkpointer.dumps(self, path)

    def loads(self, path: str | Path) -> None:
        """Load a save of `dumps` from a storage of the same `max_size`; see `buffer.loads`."""
        self.checkpointer.loads(self, path)

    save = dump = dumps
    load = loads

    def save_frames(self, path: str | Path) -> None:
        """Save it in a folder; a checkpointer calls this."""
        with self._taken() as (state, frames):
            written = self.checkpointer.before_save(Frames(frames, self.ndim, self.sizes), Path(path))
            save_part(path, {**state, "kind": type(self).__name__}, written)

    def load_frames(self, path: str | Path) -> None:
        """Load a save of `save_frames`; a checkpointer calls this."""
        state = load_part(path)
        with refused(str(path)):
            read = Frames(state["frames"], self.ndim, sizes_from(state["storage"]))
            self.load_state(state["storage"], self.checkpointer.after_load(read))

    @contextmanager
    def _taken(self) -> Generator[tuple[dict[str, Any], Mapping[Key, Tensor]]]:
        """A context with the state, and the frames as views, which do not change inside it."""
        has_frames = self.is_initialised  # maps the first write of another process, which takes the lock
        with self.control.lock:
            yield {"storage": self.state()}, self.frames() if has_frames else {}


def _count(data: Any) -> int:
    return len(data) if hasattr(data, "__len__") else 0
