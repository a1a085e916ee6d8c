"""Frames in files, one for each key, as `TensorDict.load_memmap` reads them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tensordict import MemoryMappedTensor
from torch import Tensor

from reap.data.storages.schema import dtype_named
from reap.errors import SpecMismatch
from reap.keys import Key, nested
from reap.tensordicts import make_tensordict


def write_frames(folder: Path, frames: Mapping[Key, Tensor], dims: int) -> dict[Key, dict[str, Any]]:
    """Write tensors `[*batch, *item]` to files.

    Args:
        folder: where to.
        frames: the tensors.
        dims: how many dimensions are the batch's.

    Returns:
        For each, its shape, dtype, and the name of its file; none for a tensor without elements.
    """
    files: dict[Key, str] = {}
    batch_size = next((frame.shape[:dims] for frame in frames.values()), torch.Size())
    if math.prod(batch_size) and frames:
        values = {key: frame.cpu() for key, frame in frames.items()}
        written = make_tensordict(nested(values), batch_size).memmap(str(folder))
        leaves = {key: written.get(key) for key in frames}
        files = {
            key: str(Path(leaf.filename).relative_to(folder))
            for key, leaf in leaves.items()
            if isinstance(leaf, MemoryMappedTensor)
        }
    return {
        key: {"file": files.get(key), "shape": list(frame.shape), "dtype": str(frame.dtype)} for key, frame in frames.items()
    }


def mapped_frames(folder: Path, files: Mapping[Key, Any]) -> dict[Key, Tensor]:
    """The tensors that were written, mapped: what lies in their files is read when they are.

    Raises:
        SpecMismatch: a file is missing, cut short, or elsewhere.
    """
    return {
        key: _mapped(folder, one["file"], torch.Size(one["shape"]), dtype_named(one["dtype"])) for key, one in files.items()
    }


def _mapped(folder: Path, name: str | None, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    nbytes = shape.numel() * dtype.itemsize
    if name is None:
        return torch.empty(0, dtype=dtype).view(shape)
    file = (folder / name).resolve()
    size = file.stat().st_size if file.is_relative_to(folder) and file.is_file() else 0
    if size < nbytes:
        raise SpecMismatch(f"{folder / name}: expected a file of {nbytes} bytes, found {size}; nothing was changed")
    return torch.from_file(str(file), shared=False, size=shape.numel(), dtype=dtype).view(shape)
