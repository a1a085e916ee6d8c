"""Sends values through Ray with tensors as separate memory next to the pickle, which Ray moves as it is.

By default a tensor is pickled with its whole storage; a view of a rollout, for example, with the whole rollout.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from reap.workers.pickling import ByValuePickler

Memory = Sequence[NDArray[np.uint8]]


def taken_apart(value: Any) -> tuple[bytes, Memory]:
    """Split a value into its pickle and the memory that this refers to.

    Example:
        >>> body, memory = taken_apart({"a": torch.arange(3)})
        >>> [one.nbytes for one in memory], put_together(body, memory)
        ([24], {'a': tensor([0, 1, 2])})
    """
    buffers: list[pickle.PickleBuffer] = []
    with io.BytesIO() as file:
        _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(value)
        return file.getvalue(), [np.frombuffer(one.raw(), np.uint8) for one in buffers]


def put_together(body: bytes, memory: Memory) -> Any:
    """Rebuild the value in new memory, because memory in Ray's store must not be written to."""
    return pickle.loads(body, buffers=[one.copy() for one in memory])


class _Pickler(ByValuePickler):
    """cloudpickle's pickler, with plain host tensors as separate memory."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is torch.Tensor and obj.device.type == "cpu" and obj.layout == torch.strided and not obj.requires_grad:
            memory = obj.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
            return _tensor, (pickle.PickleBuffer(memory.data), obj.dtype, tuple(obj.shape))
        return super().reducer_override(obj)


def _tensor(memory: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    array = np.frombuffer(memory, np.uint8)
    return torch.frombuffer(array, dtype=dtype).reshape(shape) if array.nbytes else torch.empty(shape, dtype=dtype)
