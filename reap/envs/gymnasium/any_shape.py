"""Observations of changing shape: the values of a Box whose shape is left open."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from reap.errors import OptionError
from reap.recording.layout import Array
from reap.recording.objects import tensor_of
from reap.specs.fits import as_array, as_dtype

MASK_NAME = "action_mask"
"""The observation of this name has the shape of the action, which is fixed."""


class AnyShape(gym.Space[Any]):
    """A space for the numbers of a Box in arrays of any shape, which are recorded as objects, each a tensor.

    Args:
        box: the space that an env declares.
        dtype: the tensors' dtype if the Box holds floats; None means the Box's own.
    """

    def __init__(self, box: spaces.Box, dtype: torch.dtype | None) -> None:
        super().__init__(None, box.dtype)
        self._number = np.dtype(box.dtype)
        own = getattr(torch, self._number.name, None)
        if not isinstance(own, torch.dtype):
            raise OptionError(f"{box}: expected a dtype that torch has, found {box.dtype}; convert it in a wrapper of the env")
        self.torch_dtype = dtype if dtype is not None and own.is_floating_point else own

    def contains(self, x: Any) -> bool:
        """Whether the value is an array of numbers that fit the dtype, by the rule for arrays of one shape."""
        array = as_array(x)
        fitting = None if array is None or array.dtype.kind not in "biuf" else as_dtype(array, self._number)
        return fitting is not None and not (fitting.dtype.kind == "f" and bool(np.isnan(fitting).any()))

    def cell(self, value: Any) -> Array:
        """The value as a new tensor, for an array of objects."""
        written = np.empty(1, object)
        with torch.inference_mode(mode=False):
            written[0] = tensor_of(as_array(value), self.torch_dtype)  # a tensor with a graph, or of a dtype that numpy lacks
        return written

    def __repr__(self) -> str:
        return f"numbers of dtype {self._number} in an array of any shape"


def with_any_shape(space: gym.Space[Any], dtype: torch.dtype | None, name: str = "") -> gym.Space[Any]:
    """The space with the shapes of its Boxes left open, except for action masks."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict([(key, with_any_shape(sub, dtype, key)) for key, sub in space.spaces.items()])
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([with_any_shape(sub, dtype) for sub in space.spaces])
    return AnyShape(space, dtype) if isinstance(space, spaces.Box) and name != MASK_NAME else space
