"""`SliceSampler`: samples pieces of trajectories, whose frames followed each other in one env."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reap.data.episodes.index import EpisodeIndex
from reap.data.episodes.labels import GivenLabels, Labels
from reap.data.episodes.trajectories import Numbers
from reap.data.samplers.base import EMPTY, Draw, Sampler
from reap.data.samplers.chosen import Slices, as_draw, cut_slices, whole_slices
from reap.data.samplers.eligible import EligibleTrajectories
from reap.data.samplers.span import GivenSpan, as_span
from reap.data.storages.base import Storage
from reap.data.storages.bits import Mask
from reap.data.storages.items import Leaves
from reap.data.storages.leaf import indexable
from reap.data.storages.tensors import TensorRing
from reap.errors import CallOrderError, OptionError
from reap.keys import Key, NestedKey, as_key, plain
from reap.option_values import positive, switch
from reap.words import counted

TRUNCATED: Key = ("next", "truncated")

RANDOM = 1 << 62
"""Bound of random numbers, so large that their remainders are practically uniform."""


class SliceSampler(Sampler):
    """Pieces of trajectories, one after the other in the sample, `[slices * frames]`.

    First a trajectory is chosen uniformly among those that are long enough, then the start of the slice in it. All frames of a
    slice followed each other in one env, whichever processes wrote them, in whatever order; see `EpisodeIndex`.

    In the sample the last frame of each slice is marked as done, and as truncated unless the trajectory ends there. If the data
    lack these keys, they are added to a TensorDict; a tensorclass is left unchanged.

    Args:
        num_slices: slices in a sample; the sample's size is a multiple of it. Exclusive with `slice_len`.
        slice_len: frames of a slice; the sample's size is a multiple of it.
        end_key: the key of flags at the ends of trajectories; `("next", "done")` if the data have it. If nothing else tells
            trajectories apart, `"is_init"` marks their starts, if the data have it.
        traj_key: the key of ids of trajectories, one number for each frame; `("collector", "traj_ids")` or `"episode"` if the
            data have one of these. If an `end_key` is given too, the data need only one of the two.
        trajectory_key: another name for `traj_key`.
        truncated_key: where slices are marked as truncated; None leaves samples as they are.
        strict_length: skip trajectories that are shorter than a slice; if False they are sampled as a whole, and a sample may
            have fewer frames.
        span: let slices extend over the starts and ends of trajectories, where they are cut: True keeps at least one frame, a
            number cuts at most that many frames, and a pair gives both for start and end.
        ends: bool `[*rows, time]`, the ends of trajectories, for all frames of a buffer that is no longer written, instead of
            keys.
        trajectories: int `[*rows, time]`, ids likewise.
        cache_values: accepted; the index of trajectories is always kept, and updated as they are written.
        compile: accepted but unused, like `use_gpu`: they control torchrl's search for trajectories, which is not needed here.
        use_gpu: see `compile`.
        uniform_over: `"episodes"`, or `"frames"`, which makes all slices equally likely.

    Raises:
        OptionError: invalid arguments, or arguments that exclude each other.

    Example:
        >>> from tensordict import TensorDict
        >>> from reap.data.buffers.replay import ReplayBuffer
        >>> from reap.data.storages import LazyTensorStorage
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(10), sampler=SliceSampler(slice_len=3), batch_size=6)
        >>> _ = buffer.extend(TensorDict({"episode": [1] * 5 + [2] * 5, "step": [0, 1, 2, 3, 4] * 2}, [10]))
        >>> sample = buffer.sample()
        >>> sample["step"].view(2, 3).diff().tolist(), sample["next", "truncated"].flatten().tolist()
        ([[1, 1], [1, 1]], [False, False, True, False, False, True])
    """

    keeps_owners = False
    """Whether its index knows the trajectory of each frame."""

    def __init__(
        self,
        *,
        num_slices: int | None = None,
        slice_len: int | None = None,
        end_key: NestedKey | None = None,
        traj_key: NestedKey | None = None,
        trajectory_key: NestedKey | None = None,
        ends: Tensor | None = None,
        trajectories: Tensor | None = None,
        cache_values: bool = False,
        truncated_key: NestedKey | None = TRUNCATED,
        strict_length: bool = True,
        compile: bool | Mapping[str, Any] = False,  # noqa: A002  its name in torchrl
        span: GivenSpan = False,
        uniform_over: Literal["episodes", "frames"] = "episodes",
        use_gpu: torch.device | bool = False,
    ) -> None:
        if (num_slices is None) == (slice_len is None):
            raise OptionError(f"slices: expected num_slices or slice_len, got num_slices={num_slices}, slice_len={slice_len}")
        if traj_key is not None and trajectory_key is not None and traj_key != trajectory_key:
            raise OptionError(f"slices: traj_key={traj_key!r} and trajectory_key={trajectory_key!r} are one option; give one")
        traj_key = trajectory_key if traj_key is None else traj_key
        if (ends is not None or trajectories is not None) and (traj_key is not None or end_key is not None):
            raise OptionError("slices: expected ends or trajectories, or their keys in the data, got both")
        if uniform_over not in ("episodes", "frames"):
            raise OptionError(f"uniform_over: expected 'episodes' or 'frames', got {uniform_over!r}")
        switch(cache_values, "cache_values")
        self.num_slices = None if num_slices is None else positive(num_slices, "num_slices")
        self.slice_len = None if slice_len is None else positive(slice_len, "slice_len")
        self.traj_key, self.end_key, self.truncated_key = map(_as_key, (traj_key, end_key, truncated_key))
        beside = () if self.truncated_key is None else self.truncated_key[:-1]
        self._flags: tuple[Key, Key] = (*beside, "done"), (*beside, "terminated")
        self.strict_length, self.span, self.uniform_over = switch(strict_length, "strict_length"), as_span(span), uniform_over
        self._given = None if ends is None and trajectories is None else (trajectories, ends)
        self._forget_slices()

    # ------------------------------------------------------------------ draws

    def draw(self, storage: Storage, size: int, generator: torch.Generator | None) -> Draw:
        """Choose slices of `size` frames together; see `Sampler`.

        Raises:
            OptionError: the size is not a multiple of the option, or the data have no such keys.
            CallOrderError: nothing was written yet, or all trajectories are shorter than a slice.
        """
        index = self.updated(storage)
        length, count = self.shape_of(size)
        return as_draw(self._choose(index, length, count, generator))

    def redraw(self, draw: Draw, bad: Mask, storage: Storage, generator: torch.Generator | None) -> Draw:
        """Replace slices with frames that were being written; see `Sampler`."""
        slices: Slices = draw.note
        index = self.updated(storage)
        lost = self.lost(slices, bad, storage)
        return as_draw(slices.only(~lost).together(self._choose(index, self.length, int(lost.sum()), generator)))

    def lost(self, slices: Slices, bad: Mask, storage: Storage) -> NDArray[np.bool_]:
        """Which slices have frames that were being written, or were overwritten since."""
        firsts = slices.lasts - slices.lengths + 1
        return np.logical_or.reduceat(bad, firsts) | (slices.columns < storage.ring.oldest)

    def shape_of(self, size: int) -> tuple[int, int]:
        """The number of frames in a slice, and the number of slices."""
        part, name = (self.num_slices, "num_slices") if self.slice_len is None else (self.slice_len, "slice_len")
        assert part is not None
        if size % part:
            raise OptionError(f"sample: expected a batch_size that is a multiple of {name}={part}, got {size}")
        self.length = size // part if self.slice_len is None else part
        return self.length, size // self.length

    def _choose(self, index: EpisodeIndex, length: int, count: int, generator: torch.Generator | None) -> Slices:
        eligible = self.eligible(index, length)
        chosen, starts = torch.randint(RANDOM, (2, count), generator=generator).numpy()
        return self._cut(index, eligible.choose(chosen), starts, length)

    def _cut(self, index: EpisodeIndex, numbers: Numbers, at_random: Numbers, length: int) -> Slices:
        """Slices of these trajectories, with random starts."""
        table = index.table
        firsts, ends = table.first[numbers], table.end[numbers]
        before, _ = self.span.reach(length)
        starts = firsts + at_random % self.span.starts(ends - firsts, length) - before
        if self.strict_length and not any(self.span):
            return whole_slices(table, numbers, starts, length)
        return cut_slices(table, numbers, starts, length)

    # ------------------------------------------------------------------ trajectories

    def updated(self, storage: Storage) -> EpisodeIndex:
        """The up-to-date index of the storage."""
        index = self._index
        if index is None or index.storage is not storage:
            index = self._new_index(storage)
        index.update()
        return index

    def _new_index(self, storage: Storage) -> EpisodeIndex:
        if not isinstance(storage, TensorRing):
            raise OptionError(f"slices: expected a storage of tensors, got a {type(storage).__name__}; use a LazyTensorStorage")
        if not storage.is_initialised or not storage.ring.claimed:
            raise CallOrderError(EMPTY)
        given = self._given
        labels = Labels(storage, self.traj_key, self.end_key) if given is None else GivenLabels(storage, *given)
        saved = self._saved
        self._forget_slices()
        self._index = index = EpisodeIndex(storage, labels, keeps_owners=self.keeps_owners)
        if saved is not None:
            self._resume(index, saved)
        return index

    def eligible(self, index: EpisodeIndex, length: int) -> EligibleTrajectories:
        """The trajectories from which slices of this length are taken."""
        eligible = self._eligible.get(length)
        if eligible is None:
            eligible = self._new_eligible(index, length)
        if not eligible.count:
            raise _too_short(index, length)
        return eligible

    def _new_eligible(self, index: EpisodeIndex, length: int) -> EligibleTrajectories:
        def starts(lengths: Numbers) -> Numbers:
            return self.span.starts(lengths, length)

        eligible = EligibleTrajectories(
            index.table, length if self.strict_length else 1, starts if self.uniform_over == "frames" else None
        )
        index.watchers.append(eligible)
        self._eligible[length] = eligible
        return eligible

    # ------------------------------------------------------------------ marks

    def mark(self, draw: Draw, leaves: Leaves, storage: Storage) -> None:
        """Mark the ends of slices as done, and as truncated unless trajectories end there."""
        key = self.truncated_key
        if key is None or (key not in leaves and not storage.takes_keys):
            return
        done_key, terminated_key = self._flags
        done, terminated, truncated = leaves.get(done_key), leaves.get(terminated_key), leaves.get(key)
        is_new = truncated is None
        if is_new:
            like = draw.places.unsqueeze(1) if done is None else done
            truncated = leaves[key] = torch.zeros_like(like, dtype=torch.bool)
        real = (
            terminated
            if terminated is not None
            else done
            if done is not None
            else self._own_ends(draw, leaves, storage, truncated.device)
        )
        last, cut, stops, ends = _faces(truncated, draw.note.lasts, done, real)
        still: Any = True if ends is None else ends[last] == 0
        if ends is not None and still.ndim != cut.ndim:
            still = still.reshape(len(last), *cut.shape[1:])
        flags: Any = still if is_new else (cut[last] != 0) | still
        cut[last] = flags.to(cut.dtype) if isinstance(flags, Tensor) else flags
        if stops is not None:
            stops[last] = True
        elif storage.takes_keys:
            leaves[done_key] = torch.zeros_like(truncated, dtype=torch.bool)
            leaves[done_key][torch.from_numpy(draw.note.lasts).to(truncated.device)] = True

    def _flags_of(self, draw: Draw, storage: Storage) -> dict[Any, Tensor]:
        leaves = storage.take(draw.places)
        self.mark(draw, leaves, storage)
        keys = () if self.truncated_key is None else (self.truncated_key, *self._flags)
        return {key: leaves[key] for key in keys if key in leaves}

    def can_sample(self, storage: Storage, batch_size: int) -> bool:
        """Whether there is a trajectory that is long enough; see `Sampler`."""
        try:
            length, _ = self.shape_of(batch_size)
            return self.eligible(self.updated(storage), length).count > 0
        except CallOrderError:
            return False

    def _own_ends(self, draw: Draw, leaves: Leaves, storage: Storage, device: torch.device) -> Tensor | None:
        """The ends of trajectories in a sample, from the argument `ends`, `[B]` or `[B, 1]`; None without it."""
        ends = None if self._given is None else self._given[1]
        if ends is None:
            return None if self.end_key is None else leaves.get(self.end_key)
        rows, capacity = storage.rows, storage.ring.capacity
        given = torch.as_tensor(ends).reshape(rows, -1)
        return given[draw.places // capacity, draw.places % capacity].to(device)

    # ------------------------------------------------------------------ state

    def empty(self) -> None:
        """Forget all trajectories."""
        self._forget_slices()

    def _forget_slices(self) -> None:
        """Forget all trajectories, but not a subclass's other information about frames."""
        self._index: EpisodeIndex | None = None
        self._eligible: dict[int, EligibleTrajectories] = {}
        self._saved: Mapping[str, Any] | None = None
        self.length = 0

    def state_dict(self) -> dict[str, Any]:
        """The state of the sampler, without the contents of the storage."""
        if self._index is None:
            return dict(self._saved or {})
        return {
            "made_for": self._made_for(),
            "index": self._index.state(),
            "members": {length: eligible.numbers.tolist() for length, eligible in self._eligible.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state_dict` of a sampler of a buffer with the same capacity and contents."""
        self._forget_slices()
        # The index of a sampler that uses other keys is of no use for this one, which reads all frames again.
        self._saved = state if state.get("made_for") == self._made_for() else None

    def _made_for(self) -> dict[str, Any]:
        keys = {
            name: None if key is None else list(key) for name, key in (("traj_key", self.traj_key), ("end_key", self.end_key))
        }
        return {**keys, "given": self._given is not None, "strict_length": self.strict_length}

    def repair(self) -> None:
        """Read all frames again before the next draw; see `Sampler`."""
        self._forget_slices()

    def resume(self, storage: Storage) -> None:
        """Use the loaded index; see `Sampler`."""
        if self._saved is not None:
            self._new_index(storage)

    def _resume(self, index: EpisodeIndex, state: Mapping[str, Any]) -> None:
        """Resume from a `state_dict` whose contents are available."""
        index.restore(state["index"])
        for length, numbers in state["members"].items():
            self._new_eligible(index, length).restore(numbers)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_index": None, "_eligible": {}}

    def __repr__(self) -> str:
        shape = f"num_slices={self.num_slices}" if self.slice_len is None else f"slice_len={self.slice_len}"
        keys = f"traj_key={self.traj_key and plain(self.traj_key)!r}, end_key={self.end_key and plain(self.end_key)!r}"
        return f"{type(self).__name__}({shape}, {keys}, uniform_over={self.uniform_over!r})"


def _faces(truncated: Tensor, lasts: Numbers, *flags: Tensor | None) -> Any:
    """Places in a sample and its flags, in the form that is fastest to index: numpy arrays on the CPU, else tensors."""
    every = truncated, *flags
    if truncated.is_cpu and all(one is None or one.dtype is torch.bool for one in every):
        return lasts, *[None if one is None else one.numpy() for one in every]
    return torch.from_numpy(lasts).to(truncated.device), *[None if one is None else indexable(one) for one in every]


def _too_short(index: EpisodeIndex, length: int) -> CallOrderError:
    """The error text if no trajectory is long enough for slices of this length."""
    lengths = index.table.lengths(index.table.alive())
    if len(lengths):
        found = f"the longest in the buffer has {counted(lengths.max(), 'frame')}; write more, ask for shorter slices, or give "
        return CallOrderError(
            f"slices: expected trajectories of at least {counted(length, 'frame')}, {found}strict_length=False"
        )
    if not index.storage.columns_in_use:
        return CallOrderError(EMPTY)
    return CallOrderError(
        "slices: expected trajectories, found no frame that belongs to one: all are masked, come after an "
        "unfinished write, or were overwritten while they were read; with writers as fast as that, use a larger buffer"
    )


def _as_key(key: NestedKey | None) -> Key | None:
    return None if key is None else as_key(key)
