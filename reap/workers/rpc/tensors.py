"""Converts values to tensors, which RPC sends without pickling them.

Encoded(body, buffers) --- wrapped ---> body, buffer, buffer, ...  (uint8) --- RPC ---> ... --- unwrapped ---> Encoded
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from reap.workers.messages import Encoded

Tensors = tuple[torch.Tensor, ...]


def wrapped(encoded: Encoded) -> Tensors:
    """The parts of a value as tensors that share its memory, the pickle first."""
    return tuple(_tensor(part) for part in (encoded.body, *encoded.buffers))


def unwrapped(parts: Sequence[torch.Tensor]) -> Encoded:
    """Rebuild a value from received tensors, sharing their memory."""
    body, *buffers = (part.numpy().data for part in parts)
    return Encoded(body, buffers)


def nbytes(parts: Sequence[torch.Tensor]) -> int:
    """Number of bytes in all parts."""
    return sum(part.numel() for part in parts)


def _tensor(part: Any) -> torch.Tensor:
    view = memoryview(part)
    if not view.nbytes:
        return torch.empty(0, dtype=torch.uint8)
    if view.readonly:  # a pickle: torch has no tensors that cannot be written to
        view = memoryview(bytearray(view))
    return torch.from_numpy(np.frombuffer(view, np.uint8))
