"""`EpisodeQueue`: takes rollouts, gives whole episodes, without a bias towards short ones.

The k-th episode of each row is delivered before the k+1-th of any: rows take turns. If episodes were delivered as
they complete, short ones would be over-represented: a row delivers them while other rows are still busy with long ones.

    rollouts   [E, T] -> chunks [E*T]       spans of each row's episodes: (chunk, start, stop), ...
    delivery   the next n episodes in turn, gathered from the chunks by one index per leaf
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase, is_non_tensor

from reap.collectors.delivery.steps import ndim_of
from reap.collectors.options.collector import CollectorOptions
from reap.collectors.state import as_state_dict_gave
from reap.errors import OptionError
from reap.keys import as_key, nested
from reap.option_values import is_count, whole_number
from reap.recording.buffers import DONE, IDS, after
from reap.recording.split import split_trajectories
from reap.recording.trajectories import NO_ID
from reap.system.interrupts import deferring_interrupts
from reap.tensordicts import make_tensordict, sizes_in

FORMATS = ("padded", "cat")


@dataclass
class Row:
    """The episodes of one row.

    Attributes:
        complete: episodes waiting for delivery, each a list of spans `(chunk, start, stop)`.
        open: spans of the unfinished episode.
        id: its id.
    """

    complete: deque[list[tuple[int, int, int]]] = field(default_factory=deque[list[tuple[int, int, int]]])
    open: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    id: int = NO_ID


class EpisodeQueue:
    """Takes rollouts, gives batches of exactly `count` complete episodes.

    Args:
        count: episodes of a batch.
        form: "padded" `[count, T_max]` with a mask, or "cat" `[frames]`, one episode after the other.
        max_pending_frames: maximum number of frames that wait for delivery.

    Raises:
        OptionError: `count` is below 1, or the format is unknown.
    """

    def __init__(self, count: int, form: str, max_pending_frames: int) -> None:
        if not is_count(whole_number(count)):
            raise OptionError(f"trajs_per_batch: expected a positive number of episodes, got {count!r}")
        if form not in FORMATS:
            raise OptionError(f"traj_format: expected one of {FORMATS}, got {form!r}")
        self._count, self._form, self._limit = count, form, max_pending_frames
        self._rows: list[Row] = []
        self._turn = 0
        self._chunks: dict[int, TensorDictBase] = {}
        self._uses: dict[int, int] = {}
        self._number = 0
        self._told = 0
        self.pending_frames = 0

    def expect(self, rows: int) -> None:
        """Expect episodes of this number of rows; each rollout holds some of the rows."""
        self._rows = [Row() for _ in range(rows)]

    def expect_more(self, rows: int) -> None:
        """Expect episodes of more rows, numbered after the existing ones."""
        self._rows += [Row() for _ in range(rows)]

    def add(self, rollout: TensorDictBase, first_row: int = 0) -> int:
        """Add a rollout `[*P, T]`; return the number of frames dropped with episodes that were cut off.

        Args:
            rollout: the rollout.
            first_row: the number of its first row, if a rollout holds some of the rows only.

        Raises:
            OptionError: too many frames are waiting; the rollout has been added nevertheless.
        """
        columns = rollout.shape[-1]
        ids = rollout.get(IDS).reshape(-1, columns).cpu().numpy()
        done = rollout.get(after(DONE)).reshape(-1, columns).cpu().numpy()
        self._rows = self._rows or [Row() for _ in range(len(ids))]
        chunk, self._number = self._number, self._number + 1
        self._chunks[chunk] = rollout.reshape(-1).clone()
        self._uses[chunk] = 1
        rows = self._rows[first_row : first_row + len(ids)]
        dropped = sum(self._add_row(row, ids[b], done[b], chunk, b * columns) for b, row in enumerate(rows))
        self._release([(chunk, 0, 0)])
        if self.pending_frames > self._limit:
            lengths = [len(row.complete) for row in self._rows]
            late = lengths.index(min(lengths))
            raise OptionError(
                f"max_pending_frames={self._limit}: {self.pending_frames} frames wait for a long episode of row {late} "
                f"(complete episodes that wait, by row: {lengths}); increase max_pending_frames, or limit episodes with "
                "max_frames_per_traj"
            )
        return dropped

    def _add_row(self, row: Row, ids: np.ndarray, done: np.ndarray, chunk: int, offset: int) -> int:
        cuts = [0, *(np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist(), len(ids)]
        dropped = 0
        for start, stop in pairwise(cuts):
            number = int(ids[start])
            # Where nothing was recorded an episode may be under way: it continues afterwards.
            if number == NO_ID:
                continue
            if number != row.id:
                dropped += self._drop(row)
                row.id = number
            row.open.append((chunk, offset + start, offset + stop))
            self._uses[chunk] += 1
            self.pending_frames += stop - start
            if done[stop - 1]:
                row.complete.append(row.open)
                row.open, row.id = [], NO_ID
        return dropped

    def is_ahead(self, rows: range, frames: int) -> bool:
        """Whether these rows are ahead: they hold two batches of episodes and this many frames, and wait for others."""
        enough, own = 2 * -(-self._count // len(self._rows)), [self._rows[b].complete for b in rows]
        waiting = sum(stop - start for episodes in own for spans in episodes for _, start, stop in spans)
        return all(len(episodes) >= enough for episodes in own) and waiting >= frames

    def _drop(self, row: Row) -> int:
        frames = sum(stop - start for _, start, stop in row.open)
        self.pending_frames -= frames
        self._release(row.open)
        row.open = []
        return frames

    def state(self) -> dict[str, Any] | None:
        """The waiting episodes, finished or not, as tensors, numbers and lists; None if frames hold other objects."""
        chunks: dict[int, list[tuple[Any, torch.Tensor]]] = {}
        for number, frames in self._chunks.items():
            if any(map(is_non_tensor, frames.values(include_nested=True))):
                return None
            leaves = frames.items(include_nested=True, leaves_only=True)
            chunks[number] = [(key, value.clone()) for key, value in leaves]
        rows = [{"id": row.id, "open": list(row.open), "complete": list(row.complete)} for row in self._rows]
        sizes = {key: size for frames in self._chunks.values() for key, size in sizes_in(frames, 1).items()}
        return {
            "turn": self._turn,
            "number": self._number,
            "pending": self.pending_frames,
            "rows": rows,
            "chunks": chunks,
            "sizes": [(key, list(size)) for key, size in sizes.items()],
        }

    @as_state_dict_gave()
    def read(self, state: Mapping[str, Any] | None) -> tuple[EpisodeQueue, bool]:
        """A queue like this one with the episodes of a state, and True; for a state of None an empty queue, and False."""
        given = state or {"turn": 0, "number": 0, "pending": 0, "rows": [], "chunks": {}}
        made = copy(self)
        made._turn, made._number, made.pending_frames = map(int, (given["turn"], given["number"], given["pending"]))
        made._rows = [Row(deque(row["complete"]), list(row["open"]), row["id"]) for row in given["rows"]] or [
            Row() for _ in self._rows
        ]
        made._chunks = {}
        sizes = {as_key(key): tuple(size) for key, size in given.get("sizes", ())}
        for number, leaves in given["chunks"].items():
            tree = nested({as_key(key): value.clone() for key, value in leaves}, sizes)
            made._chunks[number] = make_tensordict(tree, leaves[0][1].shape[:1])
        spans = [span for row in made._rows for episode in (*row.complete, row.open) for span in episode]
        made._uses = dict(Counter(chunk for chunk, _, _ in spans))
        if not made._uses.keys() <= made._chunks.keys():
            raise KeyError("frames of an episode")
        return made, state is not None

    def left_over(self) -> int:
        """Number of waiting frames that will never be delivered, since no rollouts follow; each is reported once."""
        frames, self._told = self.pending_frames - self._told, self.pending_frames
        return frames

    @property
    def is_ready(self) -> bool:
        """Whether a batch is ready."""
        rows = len(self._rows)
        if not rows:
            return False
        whole, rest = divmod(self._count, rows)
        extra = {(self._turn + i) % rows for i in range(rest)}
        return all(len(row.complete) >= whole + (b in extra) for b, row in enumerate(self._rows))

    def take(self) -> TensorDictBase:
        """The next batch; call `is_ready` first."""
        spans: list[tuple[int, int, int]] = []
        for _ in range(self._count):
            spans.extend(self._rows[self._turn].complete.popleft())
            self._turn = (self._turn + 1) % len(self._rows)
        batch = self._gather(spans)
        self.pending_frames -= batch.shape[0]
        self._release(spans)
        return split_trajectories(batch) if self._form == "padded" else batch

    def _gather(self, spans: list[tuple[int, int, int]]) -> TensorDictBase:
        used = sorted({chunk for chunk, _, _ in spans})
        sizes = [self._chunks[chunk].shape[0] for chunk in used]
        bases = dict(zip(used, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))
        index = np.concatenate([np.arange(bases[chunk] + start, bases[chunk] + stop) for chunk, start, stop in spans])
        chunks = [self._chunks[chunk] for chunk in used]
        whole = TensorDict.cat(chunks, 0) if len(chunks) > 1 else chunks[0]
        batch: Any = whole[torch.from_numpy(index)]
        batch.names = ["time"]
        return batch

    def _release(self, spans: list[tuple[int, int, int]]) -> None:
        for chunk, _, _ in spans:
            self._uses[chunk] -= 1
        for chunk in [chunk for chunk, uses in self._uses.items() if not uses]:
            del self._chunks[chunk], self._uses[chunk]


def make_queue(options: CollectorOptions) -> EpisodeQueue | None:
    """The queue for these options; None if they ask for none."""
    if options.trajs_per_batch is None:
        return None
    # A buffer of frames has no room for padding.
    form = "cat" if ndim_of(options.replay_buffer) == 1 else options.traj_format
    return EpisodeQueue(options.trajs_per_batch, form, options.max_pending_frames)


def next_episodes(
    queue: EpisodeQueue,
    next_rollout: Callable[[], TensorDictBase | None],
    first_row: Callable[[], int],
    discard: Callable[[int], None],
) -> TensorDictBase | None:
    """Add rollouts to a queue until it has a batch, and return that; None if there are no more rollouts.

    Args:
        queue: the queue.
        next_rollout: gives a rollout, or None.
        first_row: the number of that rollout's first row.
        discard: called with the number of frames that are not delivered.
    """
    while not queue.is_ready:
        rollout = next_rollout()
        if rollout is None:
            discard(queue.left_over())
            return None
        # Ctrl-C would leave a part of it.
        with deferring_interrupts(), torch.inference_mode(mode=False):
            discard(queue.add(rollout, first_row()))
    # Ordinary tensors, whatever mode the caller is in.
    with deferring_interrupts(), torch.inference_mode(mode=False):
        return queue.take()
