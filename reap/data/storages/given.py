"""`TensorStorage`: a storage that uses the memory of existing tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from reap.data.storages.items import as_given, leaves_of, whole
from reap.data.storages.next_values.side_store import Sparse
from reap.data.storages.ring.ring import Ring
from reap.data.storages.tensors import TensorRing
from reap.errors import OptionError
from reap.keys import Key
from reap.option_values import positive, switch
from reap.recording.layout import Layout
from reap.system.memory import available_memory


class TensorStorage(TensorRing):
    """Frames in the memory of existing tensors: the storage is full from the start, and writes change these tensors.

    Tensors that are not contiguous are copied.

    Args:
        storage: `[*rows, time, *item]`: a TensorDict, tensorclass or tensor, or dicts, tuples and lists of tensors.
        max_size: its first dimension, if given.
        device: the device of the tensors; "auto" or theirs.
        ndim: number of batch dimensions, time last.
        compilable: the default of its buffer's `compilable`; see `ReplayBuffer`.

    Raises:
        OptionError: no data, or a different size or device.

    Example:
        >>> import torch
        >>> storage = TensorStorage(torch.arange(3))
        >>> storage[1:], len(storage)
        (tensor([1, 2]), 3)
    """

    def __init__(
        self,
        storage: Any,
        max_size: int | None = None,
        *,
        device: Any = "auto",
        ndim: int = 1,
        compilable: bool = False,
    ) -> None:
        if storage is None:
            raise OptionError("TensorStorage: expected data, got None; LazyTensorStorage(max_size) gets them later")
        data = whole(storage, positive(ndim, "ndim"))
        shape = tuple(data.shape[:ndim])
        if len(shape) < ndim or not all(shape):
            raise OptionError(f"TensorStorage: expected data with {ndim} dimensions that are not empty, got {list(data.shape)}")
        if max_size is not None and max_size != shape[0]:
            raise OptionError(f"TensorStorage: expected max_size={shape[0]}, as the data have, got max_size={max_size}")
        self._start(int(np.prod(shape)), ndim=ndim, device=device)
        self.compilable, self._given = switch(compilable, "compilable"), leaves_of(data)
        streams = self.ring.new_streams(1)
        origins = np.full(shape[-1], 2 * streams, np.int32)
        origins[0] |= 1
        self.append(data, origins)
        self._given = {}

    def _start(self, max_size: int, *, ndim: int = 1, device: Any = "cpu", observations_once: bool = False) -> None:
        """Initialise an empty storage; called by the constructors of all kinds."""
        TensorRing.__init__(self, max_size, ndim=ndim, device=device, observations_once=observations_once)

    @property
    def place(self) -> str:
        """A description of its memory."""
        return "tensors that were given"

    def _allocate(self, layout: Layout, lead: tuple[int, ...]) -> Mapping[Key, Tensor]:
        return {key: self._given[key].contiguous() for key in layout}

    def _sparse(self, start: int, nbytes: int) -> Sparse:
        return Sparse(nbytes, available_memory, None, start)

    def flatten(self) -> TensorStorage:
        """A storage of one dimension over the same frames; itself if it has one already.

        Raises:
            CallOrderError: nothing was written yet.
        """
        if self.ndim == 1:
            return self
        flat: Any = whole(self.contents(), self.ndim).flatten(0, self.ndim - 1)
        return TensorStorage(as_given(flat))

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self.schema is not None:
            self._ring = Ring(self.control, self._columns_for(self.rows))
