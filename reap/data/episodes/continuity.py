"""`Continuity`: tells whether one frame directly follows another, by comparing the observation that both hold.

earlier frame   ... ("next", "observation") = x
later frame     "observation" = x  ...              the same bytes: it continues the earlier one
"""

from __future__ import annotations

import math
from hashlib import blake2b

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reap.data.storages.bits import carried, differing
from reap.data.storages.tensors import TensorRing
from reap.keys import Key
from reap.recording.buffers import after

MULTI_STEP: Key = ("steps_to_next_obs",)
"""If data have this key, `"next"` holds values from several steps later."""

CHUNK_BYTES = 1 << 21

Places = NDArray[np.int64]


class Continuity:
    """Compares the next observations of frames with the observations of others.

    Args:
        storage: holds the frames; it is not empty.

    Attributes:
        keys: the keys to compare, which are also under `"next"`, with the same shape and dtype.
    """

    def __init__(self, storage: TensorRing) -> None:
        assert storage.schema is not None
        self._storage, self._fields = storage, storage.schema.fields
        self.keys = () if MULTI_STEP in self._fields else carried(self._fields)

    def holds(self, earlier: Places, later: Places) -> NDArray[np.bool_]:
        """Whether each later frame continues the earlier one, `[n]`; True if nothing can be compared."""
        agree = np.ones(len(earlier), np.bool_)
        for key in self.keys:
            step = max(1, CHUNK_BYTES // max(1, self._fields[key].nbytes))
            for start in range(0, len(earlier), step):
                here = slice(start, start + step)
                agree[here] &= ~differing(self._values(after(key), earlier[here]), self._values(key, later[here]))
        return agree

    def ends(self, places: Places) -> list[bytes]:
        """For each frame, a digest of its next observations."""
        return self._digests([after(key) for key in self.keys], places)

    def starts(self, places: Places) -> list[bytes]:
        """For each frame, a digest of its observations, which equals that of `ends` for the previous frame."""
        return self._digests(self.keys, places)

    def _digests(self, keys: list[Key] | tuple[Key, ...], places: Places) -> list[bytes]:
        digests = [blake2b(digest_size=16) for _ in range(len(places))]
        for key in keys:
            values = self._values(key, places).cpu()
            as_bytes = values.reshape(len(places), math.prod(values.shape[1:])).view(torch.uint8).numpy()
            for digest, value in zip(digests, as_bytes, strict=True):
                digest.update(value.tobytes())
        return [digest.digest() for digest in digests]

    def _values(self, key: Key, places: Places) -> Tensor:
        """The values at these places, `[n, *item]`."""
        return self._storage.values(key, torch.from_numpy(places))
