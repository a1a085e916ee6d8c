"""Cuts a batch to the columns that fit a number of frames."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase

from reap.recording.buffers import MASK


def cut(batch: TensorDictBase, frames: int) -> tuple[TensorDictBase, int]:
    """The first columns of a batch with at most this number of valid frames, and the number of valid frames left out."""
    mask = batch.get(MASK, None)
    valid = torch.ones(batch.shape, dtype=torch.bool) if mask is None else mask
    columns, kept = fitting(valid, frames)
    return batch[..., :columns], int(valid.sum()) - kept


def fitting(valid: torch.Tensor, frames: int) -> tuple[int, int]:
    """The number of first columns with at most this number of valid frames, and their valid frames.

    Args:
        valid: mask `[*batch, columns]`.
        frames: maximum number of valid frames.
    """
    totals: list[int] = valid.reshape(-1, valid.shape[-1]).sum(0).cumsum(0).tolist()
    kept = [total for total in totals if total <= frames]
    return len(kept), kept[-1] if kept else 0
