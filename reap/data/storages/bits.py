"""Compares values of frames byte by byte; lists the values that frames share with their predecessor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reap.keys import Key
from reap.recording.buffers import DONE, REWARD, TERMINATED, TRUNCATED, after
from reap.recording.layout import Field

Mask = NDArray[np.bool_]

NOT_CARRIED = frozenset(key[-1] for key in (DONE, REWARD, TERMINATED, TRUNCATED))
"""Last parts of the keys of step results that are not inputs of the next step."""

SAMPLED_WORDS = 16
"""Number of words of each frame that are compared first."""

WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


def carried(fields: Mapping[Key, Field]) -> tuple[Key, ...]:
    """Keys of a frame's inputs that the previous frame holds under `"next"`, with the same shape and dtype."""
    return tuple(
        key
        for key, field in fields.items()
        if key[0] != "next" and key[-1] not in NOT_CARRIED and not field.is_object and fields.get(after(key)) == field
    )


def differing(ours: Tensor, theirs: Tensor) -> Mask:
    """Which of the values `[n, *item]` differ in any byte.

    A few words of each are compared first; long stretches without a difference are then compared as one piece, which is faster.
    """
    ours, theirs = _words(ours, theirs)
    width = ours.shape[1] if ours.ndim > 1 else 0
    step = width // SAMPLED_WORDS
    if step < 4:
        return _any(ours != theirs)
    differs = _any(ours[:, ::step] != theirs[:, ::step])
    edges = [-1, *np.flatnonzero(differs).tolist(), len(differs)]
    for last, end in pairwise(edges):
        stretch = slice(last + 1, end)
        if end > last + 1 and not torch.equal(ours[stretch], theirs[stretch]):
            differs[stretch] = _any(ours[stretch] != theirs[stretch])
    return differs


def _any(differs: Tensor) -> Mask:
    return differs.any(1).cpu().numpy()


def _words(ours: Tensor, theirs: Tensor) -> tuple[Tensor, Tensor]:
    """Both as whole words, `[n, words]`, so that NaNs are compared by their bits."""
    flat = [
        values.reshape(len(values), -1 if len(values) else math.prod(values.shape[1:])).contiguous()
        for values in (ours, theirs)
    ]
    size = flat[0].shape[1] * flat[0].element_size()
    word = WORDS[math.gcd(8, size, *(values.storage_offset() * values.element_size() for values in flat))]
    return flat[0].view(word), flat[1].view(word)
