"""Cuts a batch of frames into trajectories, one per row, padded with zeros or as nested tensors.

The cut is planned once on the ids, then every leaf follows the plan with one index:

    ids      0 0 1 | 2 0 0        two rows of three columns; trajectory 0 continues in the second row
    runs     0 0   | 1 | 2 | 0 0  neighbours of one id; sorting runs is cheaper than sorting frames
    order    0 1 4 5 | 2 | 3      flat positions, trajectory after trajectory
    padded   0 1 4 5              the result, [trajectories, longest]
             2 . . .
             3 . . .

A frame is left out where its mask is False or its id is -1: nothing was collected there.
Frames of one trajectory keep their order in the batch (row-major). So rows or batches that were stacked, concatenated or
flattened in the order of collection give whole trajectories.
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

import torch
from tensordict import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    TensorDictBase,
    UnbatchedTensor,
    is_non_tensor,
    is_tensorclass,
    lazy_stack,
)
from torch import Tensor

from reap.errors import OptionError, SpecMismatch
from reap.keys import Key, NestedKey, as_key, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["split_trajectories"]

NO_TRAJECTORY = -1
LAYOUTS = (torch.strided, torch.jagged)
# Zeros are written through an integer of the same width: torch cannot fill some dtypes (uint16, float8).
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def split_trajectories(
    rollout_tensordict: TensorDictBase,
    *,
    prefix: NestedKey | None = None,
    trajectory_key: NestedKey | None = None,
    done_key: NestedKey | None = None,
    as_nested: bool | torch.layout = False,
) -> TensorDictBase:
    """Gives every trajectory of a batch a row of its own.

    Frames are grouped by trajectory id wherever they are; without ids each row of the batch is cut after its done
    frames. Trajectories come in the order of their first frame, frames in the order of the batch (row-major).
    Invalid frames (mask False or id -1) are dropped. The input is not modified and shares no tensor with the result.

    Args:
        rollout_tensordict: frames of batch size `[..., T]`, time last.

    Keyword Args:
        prefix: where ids and mask are: `(prefix, "traj_ids")` and `(prefix, "mask")`. Default: `"collector"` if the
            batch has such an entry, else the root.
        trajectory_key: the ids themselves, integer `[..., T]`; the mask is next to them. Overrides `prefix`.
        done_key: the flag that ends a trajectory if there are no ids, looked up under `"next"`: bool `[..., T]` or
            `[..., T, 1]`. Default: `"done"`.
        as_nested: True or a layout (`torch.strided`, the default one, or `torch.jagged`): nested tensors instead of
            padding.

    Returns:
        Batch size `[n_traj, T_max]`, last dim named `"time"`, padded with zeros (None in columns of Python objects),
        with a bool mask `[n_traj, T_max]` next to the ids, and ids 0, 1, ... (int64) if there were none. With
        `as_nested`: batch size `[n_traj, -1]` and the same keys, the mask True everywhere.

    Raises:
        SpecMismatch: no time dim, rows of unequal length, neither ids nor done, or ids, done or mask of a wrong shape
            or dtype.
        OptionError: `as_nested` is neither a bool nor one of the two layouts.

    Example:
        >>> ids = torch.tensor([7, 7, 9, 7, 9])
        >>> batch = TensorDict({"observation": torch.arange(1, 6), "collector": {"traj_ids": ids}}, [5])
        >>> split = split_trajectories(batch)
        >>> split["observation"]
        tensor([[1, 2, 4],
                [3, 5, 0]])
        >>> split["collector", "mask"]
        tensor([[ True,  True,  True],
                [ True,  True, False]])
        >>> [t.tolist() for t in split_trajectories(batch, as_nested=True)["observation"].unbind()]
        [[1, 2, 4], [3, 5]]
    """
    given: Any = rollout_tensordict
    if not isinstance(given, TensorDictBase) and not is_tensorclass(given):
        raise SpecMismatch(_not_a_batch(given))
    new_form = _form_for(as_nested)
    _check_time_dim(rollout_tensordict)
    ids_key, mask_key, ends_key = _keys(rollout_tensordict, prefix, trajectory_key, done_key)
    mask = _entry(rollout_tensordict, mask_key)
    valid = None if mask is None else _per_frame(rollout_tensordict, mask_key, mask, "bool")
    ids = _entry(rollout_tensordict, ids_key)
    batch = rollout_tensordict.copy()
    if ids is not None:
        positions, labels = _by_ids(_per_frame(batch, ids_key, ids, "integer"), valid)
    else:
        done = _entry(batch, ends_key)
        if done is None:
            raise SpecMismatch(_nothing_to_split_by(batch, ids_key, ends_key))
        positions, labels = _by_done(_per_frame(batch, ends_key, done, "bool"), valid, batch.shape[-1])
        numbers = labels.new_zeros(batch.shape.numel()).index_copy_(0, positions, labels)
        batch.set(plain(ids_key), numbers.reshape(batch.shape))
    batch.set(plain(mask_key), torch.ones(batch.shape, dtype=torch.bool, device=labels.device))
    with torch.no_grad():
        return _split(batch, batch.ndim, new_form(*_grouped(positions, labels)))


# What to read


def _not_a_batch(given: Any) -> str:
    hint = "; a collector with a replay buffer yields None: sample from the buffer" if given is None else ""
    return f"split_trajectories: expected a TensorDict of batch size [..., T], got {type(given).__name__}{hint}"


def _keys(
    batch: TensorDictBase, prefix: NestedKey | None, trajectory_key: NestedKey | None, done_key: NestedKey | None
) -> tuple[Key, Key, Key]:
    """The keys of ids, mask and done."""
    if trajectory_key is None:
        if prefix is None:
            prefix = () if batch.get("collector", None) is None else "collector"
        ids_key = (*as_key(prefix), "traj_ids")
    else:
        ids_key = as_key(trajectory_key)
    ends_key = as_key("done" if done_key is None else done_key)
    return ids_key, (*ids_key[:-1], "mask"), ends_key if ends_key[0] == "next" else ("next", *ends_key)


def _entry(batch: TensorDictBase, key: Key) -> Any:
    return batch.get(plain(key), None)


def _per_frame(batch: TensorDictBase, key: Key, value: Any, kind: str) -> Tensor:
    """One value per frame, `[N]`, checked."""
    if isinstance(value, Tensor) and value.shape in (batch.shape, (*batch.shape, 1)):
        is_bool = value.dtype == torch.bool
        is_integer = not (is_bool or value.is_floating_point() or value.is_complex())
        if is_bool if kind == "bool" else is_integer:
            return value.detach().reshape(-1)
    found = f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
    raise SpecMismatch(
        f"split_trajectories: expected one {kind} per frame, {list(batch.shape)}, under {plain(key)!r}, found {found}. "
        "Name another entry with trajectory_key= (the mask is next to the ids) or done_key=."
    )


def _check_time_dim(batch: TensorDictBase) -> None:
    if not batch.ndim:
        raise SpecMismatch("split_trajectories: expected a batch of size [..., T], found batch size [].")
    if -1 in batch.shape:
        raise SpecMismatch(
            f"split_trajectories: expected rows of equal length, found batch size {list(batch.shape)}. "
            "Split the rows one by one, or join rows with ids along time first: torch.cat(batch.unbind(0), -1)."
        )


def _nothing_to_split_by(batch: TensorDictBase, ids_key: Key, ends_key: Key) -> str:
    present = sorted((key if isinstance(key, str) else tuple(key) for key in batch.keys(True, True)), key=str)
    return (
        f"split_trajectories: found neither ids under {plain(ids_key)!r} nor a done flag under {plain(ends_key)!r}; "
        f"the tensors of the batch are {present}. Name one of them with trajectory_key= or done_key=."
    )


# Where the trajectories are


def _by_ids(ids: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """Flat positions of the valid frames, `[M]`, and the id of each, int64 `[M]`."""
    ids = ids.to(torch.int64)
    collected = ids != NO_TRAJECTORY
    positions = (collected if valid is None else collected & valid).nonzero().squeeze(1)
    return positions, ids[positions]


def _by_done(done: Tensor, valid: Tensor | None, columns: int) -> tuple[Tensor, Tensor]:
    """Like `_by_ids`, with ids that increase by one after each done frame and at the end of each row."""
    everything = torch.ones_like(done) if valid is None else valid
    positions = everything.nonzero().squeeze(1)
    rows = positions // max(columns, 1)
    begins = torch.zeros_like(positions)
    begins[1:] = (rows[1:] != rows[:-1]) | done[positions[:-1]]
    return positions, begins.cumsum(0)


def _grouped(positions: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Flat positions, trajectory after trajectory, `[M]`, and the length of each trajectory, `[n]`."""
    if not len(labels):
        return positions, positions
    frames = torch.arange(len(labels), device=labels.device)
    is_first = torch.ones_like(labels, dtype=torch.bool)
    is_first[1:] = labels[1:] != labels[:-1]
    starts = frames[is_first]  # [R], one entry per run
    sizes = torch.diff(starts, append=frames[-1:] + 1)
    distinct, group = torch.unique(labels[starts], return_inverse=True)
    runs = frames[: len(starts)]
    first_run = runs.new_full(distinct.shape, len(starts)).scatter_reduce_(0, group, runs, "amin")
    trajectory = first_run.argsort().argsort()[group]
    by_trajectory = trajectory.argsort(stable=True)
    starts, sizes_in_order = starts[by_trajectory], sizes[by_trajectory]
    shift = starts - (sizes_in_order.cumsum(0) - sizes_in_order)
    order = frames + shift.repeat_interleave(sizes_in_order)
    return positions[order], sizes.new_zeros(distinct.shape).index_add_(0, trajectory, sizes)


# The two forms of a result


class _Form:
    """The order of the frames `[M]`, and the number of frames of each trajectory, `[n]`."""

    def __init__(self, order: Tensor, lengths: Tensor) -> None:
        self._order, self._lengths = order, lengths.tolist()
        self.batch_size = torch.Size([len(lengths), -1])

    def tensor(self, frames: Tensor) -> Tensor:
        """The frames `[N, *shape]` of one leaf, by trajectory."""
        raise NotImplementedError

    def rows(self, frames: Sequence[Any], blank: Callable[[], Any]) -> list[list[Any]]:
        """Frames that are Python objects, by trajectory; `blank()` makes the padding."""
        picked = iter(self._order.tolist())
        longest = self.batch_size[1]
        return [
            [frames[next(picked)].clone() for _ in range(length)] + [blank() for _ in range(longest - length)]
            for length in self._lengths
        ]


class _Padded(_Form):
    """Trajectories as rows of `[n, longest]`, zeros after their end.

    If there is little padding, it is gathered with the frames and then filled with zeros, in one pass. If there is much, the
    frames are scattered into fresh zeros, so that the padding is never touched.
    """

    def __init__(self, order: Tensor, lengths: Tensor) -> None:
        super().__init__(order, lengths)
        longest = max(self._lengths, default=0)
        self.batch_size = torch.Size([len(lengths), longest])
        places = self.batch_size.numel()
        gaps = longest - lengths  # the padding before trajectory k is the sum of gaps[:k]
        self._target = torch.arange(len(order), device=order.device)
        self._target += (gaps.cumsum(0) - gaps).repeat_interleave(lengths)
        self._scatters = places > 2 * len(order)
        if not self._scatters:
            source = order.new_full((places,), NO_TRAJECTORY).index_copy_(0, self._target, order)
            self._blank = (source == NO_TRAJECTORY).nonzero().squeeze(1)
            self._source = source.clamp_(min=0)

    def tensor(self, frames: Tensor) -> Tensor:
        shape = (*self.batch_size, *frames.shape[1:])
        if not math.prod(shape):
            return frames.new_zeros(shape)
        as_bits = BITS.get(frames.itemsize, frames.dtype)
        if self._scatters:
            out = frames.new_zeros((self.batch_size.numel(), *frames.shape[1:]))
            picked = frames.index_select(0, self._order.to(frames.device))
            out.view(as_bits).index_copy_(0, self._target.to(frames.device), picked.view(as_bits))
        else:
            out = frames.index_select(0, self._source.to(frames.device))
            out.view(as_bits).index_fill_(0, self._blank.to(frames.device), 0)
        return out.reshape(shape)


class _Strided(_Form):
    """Trajectories as nested tensors of layout `torch.strided`, `[n, -1]`."""

    def tensor(self, frames: Tensor) -> Tensor:
        pieces = frames.index_select(0, self._order.to(frames.device)).split(self._lengths) if self._lengths else ()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The PyTorch API of nested tensors is in prototype stage", UserWarning)
            return torch.nested.nested_tensor(list(pieces), dtype=frames.dtype, device=frames.device)


class _Jagged(_Form):
    """Trajectories as nested tensors of layout `torch.jagged`, `[n, -1]`, with one table of offsets for all leaves."""

    def __init__(self, order: Tensor, lengths: Tensor) -> None:
        super().__init__(order, lengths)
        self._offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        self._bounds = (min(self._lengths), max(self._lengths)) if self._lengths else (0, 0)

    def tensor(self, frames: Tensor) -> Tensor:
        shortest, longest = self._bounds
        values = frames.index_select(0, self._order.to(frames.device))
        offsets = self._offsets.to(frames.device)
        return torch.nested.nested_tensor_from_jagged(values, offsets, min_seqlen=shortest, max_seqlen=longest)


def _form_for(as_nested: object) -> Callable[[Tensor, Tensor], _Form]:
    if as_nested is False:
        return _Padded
    if as_nested is True or as_nested == torch.strided:
        return _Strided
    if as_nested == torch.jagged:
        return _Jagged
    raise OptionError(f"split_trajectories: as_nested must be a bool or one of {LAYOUTS}, found {as_nested!r}.")


# Every value by the plan


def _split(value: Any, dims: int, form: _Form) -> Any:
    """`value`, whose first `dims` dims are the batch's, in the form of the result."""
    if isinstance(value, UnbatchedTensor):
        shared: Any = value.clone()
        shared.batch_size = torch.Size([*form.batch_size, *value.batch_size[dims:]])
        return shared
    if isinstance(value, Tensor):
        shape = value.shape[dims:]
        return form.tensor(value.detach().reshape(math.prod(value.shape[:dims]), *shape))
    if is_non_tensor(value) or (isinstance(value, LazyStackedTensorDict) and _signature(value) is None):
        return _split_objects(value, dims, form)
    if is_tensorclass(value):
        return type(value).from_tensordict(_split(value.to_tensordict(retain_none=True), dims, form))
    # Not the public constructor: it takes neither jagged leaves nor nested ones of equal lengths for [n, -1].
    names: Any = [None, "time", *value.names[dims:]]
    return TensorDict._new_unsafe(  # pyright: ignore[reportPrivateUsage]
        {key: _split(entry, dims, form) for key, entry in value.items()},
        batch_size=torch.Size([*form.batch_size, *value.batch_size[dims:]]),
        device=value.device,
        names=names,
    )


def _split_objects(value: Any, dims: int, form: _Form) -> Any:
    """Columns of Python objects and of tensors whose shape differs from frame to frame."""
    batch_size = torch.Size([*form.batch_size, *value.batch_size[dims:]])
    if isinstance(value, NonTensorData):  # one object for the whole batch
        return type(value)(value.data, batch_size=batch_size, device=value.device)
    frames = [value]
    for _ in range(dims):
        frames = [part for frame in frames for part in frame.unbind(0)]
    is_object = isinstance(value, NonTensorStack)

    def blank() -> Any:
        return NonTensorData(None, batch_size=frames[0].batch_size) if is_object else torch.zeros_like(frames[0])

    rows = form.rows(frames, blank)
    if not rows:
        return NonTensorData(None, batch_size=batch_size) if is_object else TensorDict({}, batch_size=batch_size)
    return lazy_stack([lazy_stack(row) for row in rows])


def _signature(value: Any) -> Any:
    """Shapes and dtypes of the entries of a lazy stack; None if its parts differ, so that they do not fit in one tensor."""
    if isinstance(value, LazyStackedTensorDict) and not is_non_tensor(value):
        parts = [_signature(part) for part in value.tensordicts]
        return parts[0] if parts and all(part == parts[0] for part in parts) else None
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    if not isinstance(value, TensorDictBase) or is_non_tensor(value):
        return type(value)
    entries = {key: _signature(entry) for key, entry in value.items()}
    return None if None in entries.values() else entries
