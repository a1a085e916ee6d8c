"""`Continuity`: whether one frame came right after another, by what both of them say of the moment between.

earlier frame   ... ("next", "observation") = x
later frame     "observation" = x  ...              the same bytes: it went on from there
"""

from __future__ import annotations

import math
from hashlib import blake2b

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reap.buffers import DONE, REWARD, TERMINATED, TRUNCATED, after
from reap.data.storages.tensors import TensorStorage
from reap.keys import Key

MULTI_STEP: Key = ("steps_to_next_obs",)
"""Where this stands, `"next"` is what comes several steps later."""

NOT_CARRIED = frozenset(key[-1] for key in (DONE, REWARD, TERMINATED, TRUNCATED))
"""Last names of what an env says of a step, and does not go on from."""

CHUNK_BYTES = 1 << 21

AS_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
"""Numbers are compared as integers of their size: NaN is then like itself, and 0.0 unlike -0.0."""

Places = NDArray[np.int64]


class Continuity:
    """Compares what frames say comes next with what others began from.

    Args:
        storage: what holds the frames; something was written to it.

    Attributes:
        keys: what is compared: keys that stand under `"next"` too, with the same shape and dtype.
    """

    def __init__(self, storage: TensorStorage) -> None:
        assert storage.schema is not None
        self._storage, self._fields = storage, storage.schema.fields
        self.keys: tuple[Key, ...] = () if MULTI_STEP in self._fields else tuple(filter(self._is_carried, self._fields))

    def _is_carried(self, key: Key) -> bool:
        field = self._fields[key]
        return key[0] != "next" and key[-1] not in NOT_CARRIED and not field.is_object and self._fields.get(after(key)) == field

    def holds(self, earlier: Places, later: Places) -> NDArray[np.bool_]:
        """Whether each later frame went on from where the earlier one ended, `[n]`; True where nothing can be compared."""
        agree = torch.ones(len(earlier), dtype=torch.bool)
        for key in self.keys:
            step = max(1, CHUNK_BYTES // max(1, self._fields[key].nbytes))
            for start in range(0, len(earlier), step):
                here = slice(start, start + step)
                differ = self._bits(after(key), earlier[here]) != self._bits(key, later[here])
                agree[here] &= ~differ.any(1).cpu()
        return agree.numpy()

    def ends(self, places: Places) -> list[bytes]:
        """For each frame, a digest of what comes next."""
        return self._digests([after(key) for key in self.keys], places)

    def starts(self, places: Places) -> list[bytes]:
        """For each frame, a digest of what it began from: that of `ends` for the frame before."""
        return self._digests(self.keys, places)

    def _digests(self, keys: list[Key] | tuple[Key, ...], places: Places) -> list[bytes]:
        digests = [blake2b(digest_size=16) for _ in range(len(places))]
        for key in keys:
            for digest, value in zip(digests, self._bits(key, places).cpu().numpy(), strict=True):
                digest.update(value.tobytes())
        return [digest.digest() for digest in digests]

    def _bits(self, key: Key, places: Places) -> Tensor:
        """The values at these places as integers, `[n, ...]`."""
        values = self._storage.values(key, torch.from_numpy(places))
        return values.reshape(len(places), math.prod(values.shape[1:])).view(AS_INTEGERS[values.element_size()])
