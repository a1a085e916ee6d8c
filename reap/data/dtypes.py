"""Dtypes by name."""

from __future__ import annotations

import torch

from reap.errors import SpecMismatch


def dtype_named(name: str) -> torch.dtype:
    """The dtype of a name like `"torch.float32"`.

    Raises:
        SpecMismatch: there is no such dtype.
    """
    dtype = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise SpecMismatch(f"expected the name of a dtype, got {name!r}")
    return dtype
