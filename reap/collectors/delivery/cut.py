"""A part of a batch: as many columns as a number of frames allows."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase

from reap.recording.buffers import MASK


def cut(batch: TensorDictBase, frames: int) -> tuple[TensorDictBase, int]:
    """The first columns of a batch that hold at most so many valid frames, and the number of valid frames that are left out."""
    mask = batch.get(MASK, None)
    valid = torch.ones(batch.shape, dtype=torch.bool) if mask is None else mask
    columns, kept = fitting(valid, frames)
    return batch[..., :columns], int(valid.sum()) - kept


def fitting(valid: torch.Tensor, frames: int) -> tuple[int, int]:
    """How many of the first columns hold at most so many valid frames, and how many these hold.

    Args:
        valid: mask `[*batch, columns]`.
        frames: how many there may be.
    """
    totals: list[int] = valid.reshape(-1, valid.shape[-1]).sum(0).cumsum(0).tolist()
    kept = [total for total in totals if total <= frames]
    return len(kept), kept[-1] if kept else 0
