"""`BufferWriter`: writes a worker's rollouts to the replay buffer.

collector                                         worker
  ConnectBuffer(buffer, postproc)  ------------>  its end of the buffer
  Collect(slot)                    ------------>  records
                                   <------------  Done
  Write(slot, columns)             ------------>  the columns of its slot -> marked, split, postproc -> extend
                                   <------------  written: the slot is free again

No frame passes through the collector, which only tells how many columns of which slot to write. So no rollout exceeds the
budget, and columns that a failed worker left are in the slot before it is written.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import torch
from tensordict import TensorDict

from reap.collectors.delivery.steps import break_trajectories, delivery_steps, take
from reap.collectors.options.collector import CollectorOptions
from reap.collectors.worker.commands import ConnectBuffer
from reap.keys import is_private
from reap.recording.buffers import Slot
from reap.recording.layout import sizes_of
from reap.recording.pool import as_batch
from reap.workers.pickling import dumps


class BufferWriter:
    """Writes the rollouts of one worker.

    Args:
        command: the buffer, and what is done before a write.
        tally: a counter of written frames, updated at the moment at which the buffer has them.
    """

    def __init__(self, command: ConnectBuffer, tally: memoryview) -> None:
        postproc = pickle.loads(command.postproc)
        self._buffer = pickle.loads(command.buffer)
        self._buffer.storage.control.tally = tally
        options = replace(command.options, replay_buffer=self._buffer, postproc=postproc)
        self._steps, self._device = delivery_steps(options), options.storing_device
        # It may keep what it gets, and the slot is recorded in again.
        self._gives_away = postproc is not None

    def write(self, slot: Slot, columns: int) -> None:
        """Write the first columns of a slot: views of it, from which the buffer makes one copy per key."""
        batch: Any = views_of(slot, self._device)
        if columns < slot.columns:
            batch = batch[..., :columns]
        if self._gives_away:
            batch = batch.clone()
        take(self._steps, batch, self._buffer)

    def break_trajectories(self) -> None:
        """Note that the next write does not continue the previous one."""
        break_trajectories(self._buffer)


def write_to(options: CollectorOptions, buffer: Any, postproc: Any) -> ConnectBuffer:
    """The command that connects a worker with these options to the buffer.

    Raises:
        OptionError: the buffer, or postproc, cannot be pickled.
    """
    return ConnectBuffer(options, dumps(buffer, "replay_buffer"), dumps(postproc, "postproc"))


def views_of(slot: Slot, device: torch.device | None) -> TensorDict:
    """Views of a slot's contents, `[*batch_shape, T]`, without private values."""
    shape = (*slot.batch_shape, slot.columns)
    leaves = {key: slot.tensor(key) for key in slot.fields if not is_private(key)}
    return as_batch(leaves, shape, device, sizes_of(slot.fields))
