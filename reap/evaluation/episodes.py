"""`Evaluation`: the results of whole episodes of one policy; `EpisodeLog`: the episodes in successive batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tensordict import TensorDictBase

from reap.errors import SpecMismatch
from reap.keys import plain
from reap.recording.buffers import DONE, MASK, REWARD, after


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The results of whole episodes of one policy. `print` shows mean, spread and number.

    Attributes:
        returns: sums of rewards, float64 `[episodes]`: the first episode of each env, then the second of each, and so on.
        lengths: frames, int64 `[episodes]`, in the same order.
        version: the version of the weights, if given to an `Evaluator`.

    Example:
        >>> result = Evaluation(np.array([200.0, 180.0]), np.array([200, 180]))
        >>> result.mean, result.std
        (190.0, 10.0)
        >>> print(result)
        return 190.0 ± 10.0 (180.0 to 200.0), length 190.0, 2 episodes
    """

    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    version: int | None = None

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """Standard deviation of the returns (of these episodes: divided by their number)."""
        return float(self.returns.std())

    def __str__(self) -> str:
        least, most, number = self.returns.min(), self.returns.max(), len(self.returns)
        spread = f"{self.mean:.1f} ± {self.std:.1f} ({least:.1f} to {most:.1f})"
        version = "" if self.version is None else f"version {self.version}: "
        return f"{version}return {spread}, length {self.lengths.mean():.1f}, {number:,} episode{'' if number == 1 else 's'}"


class Ended(NamedTuple):
    """A finished episode: its row, the column of its last frame, the sum of its rewards, its length in frames."""

    row: int
    column: int
    reward: float
    length: int


class EpisodeLog:
    """Adds up the episodes in successive batches `[*P, T]`.

    Args:
        rows: number of rows, the product of `P`.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._reward = np.zeros(rows, np.float64)
        self._length = np.zeros(rows, np.int64)

    def add(self, batch: TensorDictBase) -> list[Ended]:
        """The episodes that end in this batch, by column.

        Raises:
            SpecMismatch: there is not exactly one reward and one done flag per frame.
        """
        reward, done = self._frames(batch, REWARD, np.float64), self._frames(batch, DONE, np.bool_)
        mask = batch.get(plain(MASK), None)
        valid = np.ones_like(done) if mask is None else mask.reshape(done.shape).numpy()
        ended: list[Ended] = []
        for b in range(self._rows):
            start = 0
            for column in np.flatnonzero(done[b] & valid[b]).tolist():
                self._count(b, reward[b, start : column + 1], valid[b, start : column + 1])
                ended.append(Ended(b, column, float(self._reward[b]), int(self._length[b])))
                self._reward[b] = self._length[b] = 0
                start = column + 1
            self._count(b, reward[b, start:], valid[b, start:])
        return sorted(ended, key=lambda episode: episode.column)

    def _count(self, b: int, reward: NDArray[np.float64], valid: NDArray[np.bool_]) -> None:
        self._reward[b] += reward[valid].sum()
        self._length[b] += np.count_nonzero(valid)

    def _frames(self, batch: TensorDictBase, key: tuple[str, ...], dtype: Any) -> NDArray[Any]:
        value = batch.get(plain(after(key)), None)
        if value is None or value.numel() != batch.numel():
            found = "none" if value is None else list(value.shape)
            raise SpecMismatch(f"episodes: expected one {key[-1]} per frame, {[*batch.shape, 1]}, found {found}")
        return value.reshape(self._rows, batch.shape[-1]).cpu().numpy().astype(dtype)
