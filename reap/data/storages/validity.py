"""`Validity`: tells which frames of a storage are steps of an env, unlike idle rows and an env's own reset steps."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from reap.data.storages.bits import Mask
from reap.data.storages.leaf import Leaf
from reap.data.storages.ring.control import EDITS, Control
from reap.keys import Key
from reap.recording.buffers import MASK
from reap.recording.layout import Array, Field


class Validity:
    """Reads the mask of frames.

    Args:
        mask: the values under `("collector", "mask")`, one flag for each frame.
        control: counts frames that replaced others; None if appended frames may be invalid too.
    """

    def __init__(self, mask: Leaf, control: Control | None) -> None:
        self._mask, self._control = mask, control

    def of(self, places: Array) -> Mask | None:
        """Which of these places `[n]` hold valid frames; None if all do."""
        if self._control is not None and not self._control.words[EDITS]:
            return None
        flags = self._mask.take(torch.from_numpy(places).to(self._mask.values.device), places)
        valid: Mask = flags.reshape(len(places)).cpu().numpy() != 0
        return None if valid.all() else valid


def validity_in(leaves: Mapping[Key, Leaf], fields: Mapping[Key, Field], ndim: int, control: Control) -> Validity | None:
    """Make a reader of the mask; None if all frames are valid. With one dimension, only replaced frames may be invalid.

    Args:
        leaves: the memory of each key.
        fields: shape and dtype of one frame's value under each key.
        ndim: dimensions of the storage.
        control: the control of the storage.
    """
    mask = leaves.get(MASK)
    if mask is None or math.prod(fields[MASK].shape) != 1:
        return None
    return Validity(mask, control if ndim == 1 else None)
