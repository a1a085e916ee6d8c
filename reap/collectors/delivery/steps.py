"""From a recorded batch to what the user gets: a tuple of functions fixed at construction, each TensorDict to TensorDict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from tensordict import TensorDict, TensorDictBase

from reap.collectors.options.collector import CollectorOptions
from reap.errors import OptionError
from reap.keys import as_key
from reap.recording.buffers import DONE, MARKED, MASK, after
from reap.recording.split import split_trajectories

Step = Callable[[TensorDictBase], Any]


class Extendable(Protocol):
    """The methods that a replay buffer must have."""

    def extend(self, data: Any) -> Any:
        """Write items along the first dimension."""
        ...

    def add(self, data: Any) -> Any:
        """Write one item."""
        ...


def mark_truncated(batch: TensorDictBase) -> TensorDictBase:
    """Mark the last valid frame of each row truncated and done, those flags below the root too; flags that are set stay."""
    mask = batch.get(MASK, None)
    last = torch.zeros(batch.shape, dtype=torch.bool, device=batch.get(after(DONE)).device)
    if mask is None:
        last[..., -1] = True
    else:
        last |= mask & (mask.flip(-1).cumsum(-1).flip(-1) == 1)
    following = batch.get("next")
    for key in following.keys(include_nested=True, leaves_only=True):
        flag = following.get(key)
        if as_key(key)[-1] in MARKED and flag.dtype is torch.bool:
            flag.logical_or_(last.view(*last.shape, *[1] * (flag.ndim - last.ndim)))
    return batch


def split(batch: TensorDictBase) -> TensorDictBase:
    """The trajectories of a batch, as ordinary tensors even in inference mode."""
    with torch.inference_mode(mode=False):
        return split_trajectories(batch)


def write_batch(buffer: Extendable, batch: TensorDictBase) -> None:
    """Write a whole batch to a buffer."""
    buffer.extend(batch)


def write_columns(buffer: Extendable, batch: TensorDictBase) -> None:
    """Write a batch to a buffer, one column after the other."""
    if 1 < batch.ndim <= (ndim_of(buffer) or 1):  # the buffer keeps rows apart: a column is a batch of one time step
        for column in batch.split(1, -1):
            buffer.extend(column)
        return
    for column in batch.unbind(-1):
        buffer.extend(column) if column.ndim else buffer.add(column)


def ndim_of(buffer: Any) -> int | None:
    """The number of dimensions of a buffer's storage; None if unknown."""
    return getattr(getattr(buffer, "storage", None), "ndim", None)


def feeders_of(buffer: Any) -> Any:
    """The registry of background feeders of a buffer; None if it has none."""
    return getattr(buffer, "feeders", None)


def register_feeder(buffer: Any, feeder: Any) -> None:
    """Register a background feeder with a buffer, if the buffer has a registry."""
    feeders = feeders_of(buffer)
    if feeders is not None:
        feeders.add(feeder)


def in_parts(steps: Sequence[Step]) -> Step:
    """A step that applies these steps to each entry of a batch's first dimension."""

    def each(batch: TensorDictBase) -> None:
        for part in batch.unbind(0):
            take(steps, part)

    return each


def take(steps: Sequence[Step], batch: Any, buffer: Any = None) -> Any:
    """Apply these steps to a batch; if one fails, tell this buffer that the batch is lost."""
    try:
        for step in steps:
            batch = step(batch)
    except BaseException as error:
        try:
            break_trajectories(buffer)
        except Exception as failure:  # noqa: BLE001  a buffer elsewhere, which may be what failed in the first place
            error.add_note(f"reap: the replay buffer could not record that a batch was lost: {failure!r}")
        raise
    return batch


def break_trajectories(buffer: Any) -> None:
    """Tell a buffer, if it tracks trajectories, that the next write does not continue any earlier one."""
    breaks = getattr(buffer, "break_trajectories", None)
    if breaks is not None:
        breaks()


def delivery_steps(options: CollectorOptions) -> tuple[Step, ...]:
    """The steps for these options; absent options add none.

    Raises:
        OptionError: a replay buffer without `extend`, or without `add` if columns are written; memory that cannot be pinned.
    """
    steps: list[Step] = []
    if options.set_truncated:
        steps.append(mark_truncated)
    if options.split_trajs:
        steps.append(split)
    if options.postproc is not None:
        steps.append(options.postproc)
    if options.storing_device is not None and not options.stores_here:
        steps.append(partial(_to_device, options.storing_device))
    if options.pin_memory:
        _refuse_to_pin(options)
        steps.append(_pinned)
    if options.replay_buffer is not None:
        wanted = ("extend",) if options.extend_buffer else ("extend", "add")
        if not all(callable(getattr(options.replay_buffer, name, None)) for name in wanted):
            raise OptionError(
                f"replay_buffer: expected an object with {' and '.join(wanted)}, got {type(options.replay_buffer).__name__}"
            )
        steps.append(partial(write_batch if options.extend_buffer else write_columns, options.replay_buffer))
        if options.reset_at_each_iter:
            steps.append(lambda _: break_trajectories(options.replay_buffer))
    return tuple(steps)


def _refuse_to_pin(options: CollectorOptions) -> None:
    if not torch.cuda.is_available():
        raise OptionError("pin_memory: memory is page-locked for CUDA devices, and torch finds none here")
    if not options.stores_here:
        raise OptionError(f"pin_memory: expected batches in the host's memory, got storing_device={options.storing_device}")
    if options.replay_buffer is not None:
        raise OptionError("pin_memory: batches go to the replay buffer, which has an option pin_memory for its samples")


def _pinned(batch: TensorDictBase) -> TensorDictBase:
    with torch.inference_mode(mode=False):
        return batch.pin_memory()


def _to_device(device: torch.device, batch: TensorDict) -> TensorDictBase:
    with torch.inference_mode(mode=False):
        return batch.to(device)
