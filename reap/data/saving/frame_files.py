"""Writes and reads frames in files, one per key, in the format of `TensorDict.load_memmap`."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tensordict import MemoryMappedTensor
from torch import Tensor

from reap.data.dtypes import dtype_named
from reap.data.saving.reading import PIECE, SavedFolder
from reap.errors import SpecMismatch
from reap.keys import Key, Sizes, nested
from reap.system.disk import require_length, reserve
from reap.system.native import path_of
from reap.tensordicts import make_tensordict


class Written(NamedTuple):
    """The files that were written.

    Attributes:
        files: for each key its shape, dtype, and the name of its file; none for a tensor without elements.
        checksums: the CRC-32 of each file, by its name.
    """

    files: dict[Key, dict[str, Any]]
    checksums: dict[str, int]


class Frames(NamedTuple):
    """Tensors `[*batch, *item]` by key, and their batch dimensions.

    Attributes:
        values: the tensors.
        dims: number of batch dimensions.
        sizes: the batch dimensions of items, and of the TensorDicts nested in them.
    """

    values: Mapping[Key, Tensor]
    dims: int
    sizes: Sizes


def write_frames(folder: Path, given: Frames) -> Written:
    """Write frames to files.

    Disk space for all files is reserved before anything is written, and they are written by calls that can fail, not through
    mapped memory, so a full disk is an error.

    Args:
        folder: the target.
        given: the frames.

    Raises:
        DiskFull: there is no room.
    """
    frames, dims, sizes = given
    files: dict[Key, str] = {}
    batch_size = next((frame.shape[:dims] for frame in frames.values()), torch.Size())
    if math.prod(batch_size) and frames:
        require_length(folder, max(frame.nbytes for frame in frames.values()))
        blanks = {key: torch.zeros((), dtype=frame.dtype).expand(frame.shape) for key, frame in frames.items()}
        made = make_tensordict(nested(blanks, sizes), batch_size).memmap_like(str(folder))
        leaves = {key: made.get(key, None) for key in frames}  # None for tensors without bytes, with tensordict 0.10
        files = {
            key: str(Path(leaf.filename).relative_to(folder))
            for key, leaf in leaves.items()
            if isinstance(leaf, MemoryMappedTensor) and frames[key].nbytes
        }
    for key, name in files.items():
        reserve(folder / name, 0, frames[key].nbytes, "a save")
    checksums = {name: _write(folder / name, frames[key]) for key, name in files.items()}
    described = {
        key: {"file": files.get(key), "shape": list(frame.shape), "dtype": str(frame.dtype)} for key, frame in frames.items()
    }
    return Written(described, checksums)


def _write(file: Path, frame: Tensor) -> int:
    """Write a tensor to a file that already has its length; return its CRC-32."""
    total = 0
    with file.open("r+b", buffering=0) as opened:
        for piece in _pieces(frame):
            total = zlib.crc32(piece, total)
            left = memoryview(piece)
            while left:
                left = left[opened.write(left) :]
    return total


def _pieces(frame: Tensor) -> Iterator[Any]:
    """The bytes of a tensor, in order, in cache-sized pieces."""
    if frame.nbytes > PIECE and not (frame.is_contiguous() and frame.device.type == "cpu"):
        parts = frame.split(max(1, PIECE * len(frame) // frame.nbytes)) if len(frame) > 1 else [frame[0]]
        for part in parts:
            yield from _pieces(part)
        return
    flat = frame.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    for start in range(0, len(flat), PIECE):
        yield flat[start : start + PIECE]


def mapped_frames(folder: SavedFolder, files: Mapping[Key, Any]) -> dict[Key, Tensor]:
    """The written tensors, mapped: their files are read on use.

    Raises:
        SpecMismatch: a file is missing, cut short, or elsewhere.
    """
    return {
        key: _mapped(folder, one["file"], torch.Size(one["shape"]), dtype_named(one["dtype"])) for key, one in files.items()
    }


def _mapped(folder: SavedFolder, name: str | None, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    nbytes = shape.numel() * dtype.itemsize
    if name is None:
        return torch.empty(0, dtype=dtype).view(shape)
    if (size := folder.size(name)) < nbytes:
        raise SpecMismatch(f"{folder.path / name}: expected a file of {nbytes} bytes, found {size}; nothing was changed")
    return torch.from_file(path_of(folder.file(name)), shared=False, size=shape.numel(), dtype=dtype).view(shape)
