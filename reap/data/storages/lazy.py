"""`LazyTensorStorage` and `LazyMemmapStorage`: tensors in memory, and in files.

LazyTensorStorage   RAM, shared memory after `share()`, or the memory of a CUDA device
LazyMemmapStorage   one file per key, which `TensorDict.load_memmap` reads
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from mmap import PAGESIZE
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from reap.data.storages.files.room import refuse_beyond
from reap.data.storages.files.scratch import ONCE_FILE, Scratch
from reap.data.storages.given import TensorStorage
from reap.data.storages.next_values.side_store import Sparse
from reap.data.storages.next_values.store import StoreNext
from reap.data.storages.ring.control import RESERVED
from reap.data.storages.ring.ring import Ring
from reap.errors import DiskFull, OptionError, SpecMismatch
from reap.keys import Key, nested, plain
from reap.option_values import switch
from reap.recording.layout import Block, Layout, sizes_of
from reap.system.disk import free_space, give_back, require_length, reserve, room
from reap.system.endings import at_end
from reap.system.forks import Forked
from reap.system.handles import Handle
from reap.system.memory import available_memory, empty_memory, take_pages
from reap.tensordicts import make_tensordict

PIECE = 1 << 28
"""Minimum number of bytes reserved on a disk at a time; larger storages stay sparse after the last write."""


class LazyTensorStorage(TensorStorage):
    """Tensors in RAM, or in the memory of a CUDA device.

    Args:
        max_size: maximum number of frames, over all rows.
        device: the device of the frames; "auto" means that of the first frames written.
        ndim: number of batch dimensions, time last.
        observations_once: store values under `"next"` only where they differ from the root of the following frame.
            Samples are the same; views of the contents are copies. Frames of one env must follow each other in time.
        compilable: the default of its buffer's `compilable`; see `ReplayBuffer`.
        consolidated: accepted; on the CPU all keys are always in one piece of memory.
        shared_init: share it immediately, so that any process that receives it can make the first write.
        cleanup_memmap: must be True, since shared memory leaves no files.

    Raises:
        OptionError: an invalid size, number of dimensions, or device.

    Example:
        >>> storage = LazyTensorStorage(100)
        >>> storage
        LazyTensorStorage(max_size=100, ndim=1, device='cpu', nothing yet)
    """

    def __init__(
        self,
        max_size: int,
        *,
        device: Any = "cpu",
        ndim: int = 1,
        observations_once: bool = False,
        compilable: bool = False,
        consolidated: bool = False,
        shared_init: bool = False,
        cleanup_memmap: bool = True,
    ) -> None:
        self._start(max_size, ndim=ndim, device=device, observations_once=observations_once)
        self.compilable = switch(compilable, "compilable")
        switch(consolidated, "consolidated")
        if not switch(cleanup_memmap, "cleanup_memmap"):
            raise OptionError("cleanup_memmap: expected True, got False: shared memory leaves no files that could be kept")
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise OptionError(f"device={str(self.device)!r}: torch finds no CUDA device here")
        self._fd: int | None = None
        if switch(shared_init, "shared_init"):
            self.share()

    @property
    def place(self) -> str:
        """A description of its memory."""
        if self.device.type != "cpu":
            return f"the memory of {self.device}"
        return "RAM of this process" if self._fd is None else "shared memory"

    def _allocate(self, layout: Layout, lead: tuple[int, ...]) -> Mapping[Key, Tensor]:
        if self.device.type == "cuda":
            refuse_beyond(self.max_size, layout, torch.cuda.mem_get_info(self.device)[0], str(self.device))
            return {key: torch.zeros(field.shape, dtype=field.dtype, device=self.device) for key, field in layout.items()}
        refuse_beyond(self.max_size, layout, *available_memory())
        if self._fd is None:
            return _tensors(Block.private(layout))
        take_pages(self._fd, layout.nbytes)
        return self._attach(layout, lead)

    def _attach(self, layout: Layout, lead: tuple[int, ...]) -> Mapping[Key, Tensor]:
        assert self._fd is not None
        return _tensors(Block.shared(layout, os.dup(self._fd)))

    @property
    def new_keys_refused(self) -> str:
        """The reason why frames cannot get new keys after the first write; see `TensorMemory`."""
        if self._fd is None and type(self._nexts) is StoreNext:
            return ""
        return super().new_keys_refused

    def _sparse(self, start: int, nbytes: int) -> Sparse:
        return Sparse(nbytes, available_memory, self._fd, -(-start // PAGESIZE) * PAGESIZE)

    def share(self) -> None:
        """Move to memory that other processes can map.

        Raises:
            OptionError: it is on another device than the CPU, or holds objects.
            MemoryError: a copy of its contents does not fit into memory.
        """
        if self._fd is not None:
            return
        if self.device.type != "cpu":
            raise OptionError(
                f"replay buffer: only one on the CPU can be shared between processes; this one is on {self.device}"
            )
        if self._objects:
            raise OptionError(
                f"replay buffer: Python objects cannot be shared between processes: {list(map(plain, self._objects))}"
            )
        self._hold(empty_memory())
        self.control = self.control.shared()
        self._ring = Ring(self.control, self._ring.capacity)
        schema, old, nexts = self.schema, self._leaves, self._nexts
        self._nexts = nexts.fresh()
        if schema is not None:
            self._take(schema, self._allocate)
            self._nexts.copy_from(nexts)
            for key, leaf in self._leaves.items():
                leaf.values.copy_(old[key].values)

    def _hold(self, fd: int) -> None:
        self._fd = fd
        at_end(self, os.close, fd)

    def __getstate__(self) -> dict[str, Any]:
        if self._fd is None:
            return {**vars(self), "_accepted": None}
        return {**self._unmapped(), "_fd": Handle.of(self._fd)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self._fd is not None:
            self._hold(state["_fd"].opened("replay buffer"))
            self._map_later()


def _disk_left(folder: Path) -> tuple[float, str]:
    """The number of free bytes on the disk of a folder, and a description of the disk."""
    return free_space(folder), f"the disk of {folder}"


def _tensors(block: Block) -> dict[Key, Tensor]:
    return {key: block.tensor(key) for key in block.layout}


_forked: Forked[LazyMemmapStorage] = Forked(lambda storage: storage.leave_files())


class LazyMemmapStorage(TensorStorage):
    """Tensors in files, one per key, for data larger than RAM.

    Disk space is reserved before each write: a write without enough space raises DiskFull and stores nothing. Only one
    storage at a time may use a folder: the first write of a second one is refused.

    Args:
        max_size: maximum number of frames, over all rows.
        scratch_dir: a folder for the files, empty or not yet existing; None makes a temporary one, which is removed with the
            storage (that of a killed process, when the next one is made).
        existsok: replace, at the first write, files that a storage no longer in use left in `scratch_dir`.
        ndim: number of batch dimensions, time last.
        device: "cpu" or, with the same meaning, "auto".
        observations_once: as with a `LazyTensorStorage`; a separate file holds the values under `"next"` that are stored.
        compilable: as with a `LazyTensorStorage`.
        shared_init: likewise.
        auto_cleanup: remove the files with the storage or the process; by default only in a temporary folder.

    Raises:
        OptionError: an invalid size, number of dimensions or device, or a folder that is not empty.
        DiskFull: there is no room for a temporary folder.
    """

    def __init__(
        self,
        max_size: int,
        *,
        scratch_dir: str | Path | None = None,
        existsok: bool = False,
        ndim: int = 1,
        device: Any = "cpu",
        observations_once: bool = False,
        compilable: bool = False,
        shared_init: bool = False,
        auto_cleanup: bool | None = None,
    ) -> None:
        self._start(max_size, ndim=ndim, device="cpu" if device == "auto" else device, observations_once=observations_once)
        if self.device.type != "cpu":
            raise OptionError(f"LazyMemmapStorage: files are read into RAM: expected device='cpu', got {str(self.device)!r}")
        self.compilable = switch(compilable, "compilable")
        _forked.add(self)
        is_removed = None if auto_cleanup is None else switch(auto_cleanup, "auto_cleanup")
        self._scratch = Scratch(scratch_dir, replaces=switch(existsok, "existsok"), is_removed=is_removed)
        self._files: dict[Key, Path] = {}
        if switch(shared_init, "shared_init"):
            self.share()

    @property
    def folder(self) -> Path:
        """The folder of its files."""
        return self._scratch.folder

    @property
    def place(self) -> str:
        """A description of its memory."""
        return f"files in {self.folder}"

    @property
    def holds_objects(self) -> bool:
        """False: files hold tensors."""
        return False

    def _allocate(self, layout: Layout, lead: tuple[int, ...]) -> Mapping[Key, Tensor]:
        if tiny := [plain(key) for key, field in layout.items() if field.dtype.is_floating_point and field.dtype.itemsize == 1]:
            raise SpecMismatch(
                f"replay buffer: {tiny}: tensordict's files hold no floats of 8 bits; use a LazyTensorStorage, or store their "
                "bytes (view(torch.uint8))"
            )
        refuse_beyond(self.max_size, layout, *_disk_left(self.folder))
        self._scratch.claim()
        blanks = {key: torch.zeros((), dtype=field.dtype).expand(field.shape) for key, field in layout.items()}
        try:
            with room(self.folder, layout.nbytes, "replay buffer: its files"):
                require_length(self.folder, max(field.nbytes for field in layout.values()))
                tree = nested(blanks, sizes_of(layout, len(lead)))
                make_tensordict(tree, torch.Size(lead)).memmap_like(str(self.folder))
        except BaseException:
            self._scratch.remove_files()
            raise
        return self._attach(layout, lead)

    def _attach(self, layout: Layout, lead: tuple[int, ...]) -> Mapping[Key, Tensor]:
        self._scratch.join()
        files = TensorDict.load_memmap(self.folder)
        held = {key: files.get(key, None) for key in layout}  # None for tensors without bytes, with tensordict 0.10
        self._files = {key: Path(leaf.filename) for key, leaf in held.items() if leaf is not None and layout[key].nbytes}
        return {
            key: torch.zeros(field.shape, dtype=field.dtype) if (leaf := held[key]) is None else leaf.as_subclass(Tensor)
            for key, field in layout.items()
        }

    def _reserve(self, columns: int) -> None:
        """Reserve disk space for the first `columns` columns; see `TensorMemory`."""
        words, reserved = self.control.words, self.control.words[RESERVED]
        if columns <= reserved:
            return
        capacity = self.ring.capacity
        each = sum(self._leaves[key].values.nbytes for key in self._files) // capacity
        ahead = min(capacity, max(columns, reserved + -(-PIECE // max(1, each))))
        try:
            self._reserve_columns(reserved, ahead)
        except DiskFull:
            if ahead == columns:
                raise
            self._reserve_columns(reserved, ahead := columns)
        words[RESERVED] = ahead

    def _reserve_columns(self, first: int, end: int) -> None:
        """Reserve space for a range of columns, in all rows of all files, or for none."""
        capacity, taken = self.ring.capacity, list[tuple[Path, int, int]]()
        item = {key: self._leaves[key].values.nbytes // (self.rows * capacity) for key in self._files}
        what = f"replay buffer: frames {first * self.rows} to {end * self.rows} of {self.max_size}"
        try:
            for key, file in self._files.items():
                for row in range(self.rows):
                    piece = file, (row * capacity + first) * item[key], (end - first) * item[key]
                    reserve(*piece, what)
                    taken.append(piece)
        except BaseException:
            for piece in taken:
                give_back(*piece)
            raise

    def _sparse(self, start: int, nbytes: int) -> Sparse:
        fd = os.open(self.folder / ONCE_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            return Sparse(nbytes, partial(_disk_left, self.folder), fd)
        finally:
            os.close(fd)

    def leave_files(self) -> None:
        """Stop writing to the files in a forked child, unless they are shared."""
        if not self.control.is_shared:
            self.control.refusal = (
                "replay buffer: its files belong to the parent process; call share() before the fork to write from both"
            )

    def share(self) -> None:
        """Let other processes write to the files too."""
        self.control = self.control.shared()
        self._ring = Ring(self.control, self._ring.capacity)

    def __getstate__(self) -> dict[str, Any]:
        if not self.control.is_shared:
            raise OptionError(
                "replay buffer: files are not copied into a pickle; call share() before a buffer of files is sent to another "
                "process, or dumps(path) to save it"
            )
        return self._unmapped()

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._map_later()
