"""`Labels`: ids and ends, which assign the frames of a buffer to trajectories."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from reap.data.storages.ring.columns import Pieces
from reap.data.storages.ring.control import REPLACED, REPLACEMENT
from reap.data.storages.tensors import TensorRing
from reap.errors import CallOrderError, OptionError
from reap.keys import Key, plain
from reap.recording.buffers import IDS, IS_INIT, MASK

EPISODE: Key = ("episode",)
NEXT_DONE: Key = ("next", "done")


class Columns(NamedTuple):
    """The labels of `n` consecutive columns.

    Attributes:
        ids: int64 `[rows, n]`; zeros if trajectories are told apart by their ends only.
        done: whether a trajectory ends with the frame, bool `[rows, n]`.
        valid: whether the frame may be sampled, bool `[rows, n]`.
        streams: the stream that wrote the column, int32 `[n]`.
        begins: 1 where a write starts with the column, else 0, int32 `[n]`.
        replaced: which frames replaced others, bool `[rows, n]`; None if none did.
        inits: frames that start a trajectory, bool `[rows, n]`; None if unknown.
    """

    ids: NDArray[np.int64]
    done: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    streams: NDArray[np.int32]
    begins: NDArray[np.int32]
    replaced: NDArray[np.bool_] | None = None
    inits: NDArray[np.bool_] | None = None


class Labels:
    """Reads ids and ends of trajectories from the frames themselves.

    Args:
        storage: holds the frames; it is not empty.
        traj_key: the key of ids; None for `("collector", "traj_ids")` or `"episode"`, if the data have them.
        end_key: the key of flags of ends; None for `("next", "done")`, if the data have it. Without ids, `"is_init"` tells
            where trajectories start, if the data have it.

    Attributes:
        has_ids: whether trajectories have ids.

    If both keys are given, the data need only one of them.

    Raises:
        OptionError: the data lack the key, or anything that tells trajectories apart.
    """

    def __init__(self, storage: TensorRing, traj_key: Key | None, end_key: Key | None) -> None:
        known = storage.keys
        if traj_key is not None and end_key is not None and (traj_key in known) != (end_key in known):
            traj_key, end_key = (traj_key, None) if traj_key in known else (None, end_key)
        for key, name in ((traj_key, "traj_key"), (end_key, "end_key")):
            if key is not None and key not in known:
                raise OptionError(f"{name}={plain(key)!r}: the buffer has no such key; it holds {list(map(plain, known))}")
        self._storage = storage
        self._ids = traj_key or next((key for key in (IDS, EPISODE) if key in known), None)
        self._ends = end_key or (NEXT_DONE if NEXT_DONE in known else None)
        self._mask = MASK if MASK in known else None
        self.has_ids = self._ids is not None
        self._inits = IS_INIT if IS_INIT in known and not self.has_ids else None
        self.trusts_order = False
        fields = storage.schema.fields if storage.schema is not None else {}
        self._are_whole = not any(fields[key].dtype.is_floating_point for key in (self._ids, self._ends) if key is not None)
        if self._ids is None and self._ends is None:
            raise OptionError(
                f"slices: expected {plain(IDS)!r}, 'episode' or {plain(NEXT_DONE)!r} in the data, which tell trajectories "
                f"apart, found {list(map(plain, known))}; name yours with traj_key= or end_key="
            )

    def changes(self, edits: int) -> int:
        """A number that changes when in-place edits (counted by `edits`) may have changed these labels."""
        return edits // REPLACEMENT if self._are_whole else edits

    def read(self, start: int, stop: int) -> Columns:
        """The labels of the columns from `start` to `stop`."""
        rows, ring = self._storage.rows, self._storage.ring
        shape, pieces = (rows, stop - start), ring.pieces(start, stop)
        valid = ring.filled(start, stop, rows)
        if self._mask is not None:
            valid &= self._flags(self._mask, pieces)
        ids = np.zeros(shape, np.int64) if self._ids is None else self._numbers(self._ids, pieces)
        done = np.zeros(shape, np.bool_) if self._ends is None else self._flags(self._ends, pieces)
        origins = ring.origins.of(pieces)
        inits = None if self._inits is None else self._flags(self._inits, pieces)
        streams, begins = (origins & ~REPLACED) >> 1, origins & 1
        return Columns(ids, done, valid, streams, begins, ring.origins.replaced(pieces, rows), inits)

    def _flags(self, key: Key, pieces: Pieces) -> NDArray[np.bool_]:
        flags = self._storage.numbers(key, pieces).astype(np.bool_, copy=False)
        return flags[..., 0] if flags.shape[2] == 1 else np.logical_or.reduce(flags, 2)

    def _numbers(self, key: Key, pieces: Pieces) -> NDArray[np.int64]:
        values = self._storage.numbers(key, pieces)
        if values.shape[2] != 1:
            raise OptionError(f"traj_key={plain(key)!r}: expected one number for each frame, found {values.shape[2]}")
        return (values.view(np.int64) if values.dtype == np.float64 else values.astype(np.int64, copy=False))[..., 0]


class GivenLabels:
    """Ids or ends of trajectories given by the user, for frames in the order of their places.

    Args:
        storage: holds the frames.
        trajectories: ids `[*rows, columns]`, or None.
        ends: flags `[*rows, columns]`, or None.

    Raises:
        CallOrderError: their number differs from that of the buffer's frames.
    """

    has_ids = True
    trusts_order = True

    def __init__(self, storage: TensorRing, trajectories: Any, ends: Any) -> None:
        self._storage = storage
        given = torch.as_tensor(ends if trajectories is None else trajectories).reshape(storage.rows, -1)
        columns = storage.columns_in_use
        if given.shape[1] != columns:
            raise CallOrderError(
                f"ends, trajectories: expected one for each of the {storage.rows * columns} frames of the buffer, "
                f"got {given.numel()}"
            )
        self._until = storage.ring.claimed
        self._ids = torch.zeros_like(given) if trajectories is None else given
        self._ends = torch.zeros_like(given) if ends is None else given

    def changes(self, edits: int) -> int:
        """Always the same number: in-place edits do not change these labels."""
        return 0

    def read(self, start: int, stop: int) -> Columns:
        """The labels of the columns from `start` to `stop`."""
        if stop > self._until:
            raise CallOrderError("ends, trajectories: expected no more writes to a buffer for which these were given")
        pieces = self._storage.ring.pieces(start, stop)
        ids, done = (torch.cat([given[:, first:end] for first, end in pieces], 1) for given in (self._ids, self._ends))
        nothing = np.zeros(stop - start, np.int32)
        valid = self._storage.ring.filled(start, stop, len(ids))
        return Columns(ids.long().numpy(), done.bool().numpy(), valid, nothing, nothing)
