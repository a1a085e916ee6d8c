"""`Episode`: the frames of one trajectory, in one piece or in pieces of several batches.

batch 0   a a a b b b        a: (0, row 0, columns 0 to 3)
          c c c c c c        b: (0, row 0, 3 to 6), (1, row 0, 0 to 2)
batch 1   b b d d d d        c: ...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from reap.data.datasets.frames import NEXT, Frames
from reap.errors import SpecMismatch
from reap.keys import Key, plain
from reap.recording.layout import Array

DONE, TERMINATED, TRUNCATED = ("done",), ("terminated",), ("truncated",)
REWARD = ("reward",)


class Piece(NamedTuple):
    """Columns of a row that belong to one episode."""

    frames: Frames
    row: int
    start: int
    stop: int


@dataclass(frozen=True)
class Episode:
    """The frames of one trajectory.

    Attributes:
        id: the number of the trajectory.
        row: the row of its first frame.
        column: its first column, counted over all batches.
        pieces: its frames, in order.
        is_finished: the env ended it, or it was truncated; otherwise the data end in the middle.
    """

    id: int
    row: int
    column: int
    pieces: tuple[Piece, ...]
    is_finished: bool

    def __len__(self) -> int:
        """Number of frames."""
        return sum(piece.stop - piece.start for piece in self.pieces)

    def values(self, key: Key) -> Array:
        """The values under a key, `[T, *item]`."""
        parts = [piece.frames.values[key][piece.row, piece.start : piece.stop] for piece in self.pieces]
        return _array(parts[0] if len(parts) == 1 else torch.cat(parts))

    def observed(self, key: Key) -> Array:
        """The values under a key, followed by the last one under the same key of `"next"`, `[T + 1, *item]`.

        Raises:
            SpecMismatch: a frame does not continue where the one before it ended.
        """
        last = self.pieces[-1]
        end = last.frames.following(key, last.row, last.stop - 1)
        whole = np.concatenate([self.values(key), _array(end)[None]])
        self._check(key, whole)
        return whole

    def _check(self, key: Key, whole: Array) -> None:
        later, at = (NEXT, *key), 0
        for piece in self.pieces:
            count = piece.stop - piece.start
            if later in piece.frames.values:
                following = _array(piece.frames.values[later][piece.row, piece.start : piece.stop])
                same = _bytes(following) == _bytes(whole[at + 1 : at + count + 1])
                if not same.all():
                    step = at + int(np.argmin(same))
                    raise SpecMismatch(
                        f"trajectory {self.id}, step {step}: {plain(later)!r} is not what {plain(key)!r} is in the next frame, "
                        "so these frames are no episode; frames of several steps (MultiStep), or of several collectors with "
                        "the same ids, cannot be turned into one"
                    )
            at += count


def episodes_of(batches: Iterable[Frames]) -> Iterator[Episode]:
    """The episodes in successive batches, in the order in which they end; unfinished ones come last."""
    open_pieces: dict[int, list[Piece]] = {}
    begun: dict[int, tuple[int, int]] = {}
    offset = 0
    for frames in batches:
        for number, row, start, stop, is_done in _segments(frames):
            begun.setdefault(number, (row, offset + start))
            open_pieces.setdefault(number, []).append(Piece(frames, row, start, stop))
            if is_done:
                yield Episode(number, *begun.pop(number), tuple(open_pieces.pop(number)), is_finished=True)
        offset += frames.shape[1]
    for number, pieces in open_pieces.items():
        yield Episode(number, *begun[number], tuple(pieces), is_finished=False)


def _segments(frames: Frames) -> list[tuple[int, int, int, int, bool]]:
    """Id, row, first column, column after the last, and whether it was done there, of each segment, by its end."""
    columns = frames.shape[1]
    done = frames.values[NEXT, *DONE].reshape(frames.ids.shape).numpy()
    found: list[tuple[int, int, int, int, bool]] = []
    for row, (ids, ends) in enumerate(zip(frames.ids, frames.are_ends | done, strict=True)):
        stops = np.flatnonzero(ends) + 1
        starts = [0, *stops[:-1].tolist()]
        for start, stop in zip(starts, stops.tolist(), strict=True):
            if ids[start] >= 0:  # others are columns without a frame
                found.append((int(ids[start]), row, start, stop, bool(done[row, stop - 1])))
    assert all(stop <= columns for _, _, _, stop, _ in found)
    return sorted(found, key=lambda segment: segment[3])


def _array(values: Tensor) -> Array:
    return values.detach().cpu().numpy()


def _bytes(values: Array) -> Array:
    """A void array `[T]` of the bytes of values `[T, *item]`, for comparisons."""
    flat = np.ascontiguousarray(values).reshape(len(values), -1)
    return flat.view(np.dtype((np.void, flat.shape[1] * flat.itemsize)))[:, 0] if flat.size else np.zeros(len(values))
