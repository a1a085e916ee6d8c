"""Specs from gymnasium spaces."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from gymnasium import spaces

from reap.errors import OptionError
from reap.specs.base import Spec
from reap.specs.binary import Binary
from reap.specs.composite import Composite
from reap.specs.continuous import Bounded, Unbounded
from reap.specs.indices import Categorical, MultiCategorical
from reap.specs.nontensor import NonTensor
from reap.specs.onehot import MultiOneHot, OneHot

if TYPE_CHECKING:
    import numpy as np


def spec_from_space(space: object, *, categorical: bool = False, dtype: torch.dtype | None = None) -> Spec:
    """The spec of a gymnasium space's values, on the CPU.

    Args:
        space: a `gymnasium.Space`; nested Dict and Tuple spaces become nested Composites (Tuple: keys `"0"`, `"1"`).
        categorical: indices instead of one-hot vectors for Discrete and MultiDiscrete. Both count from 0, whatever
            the space's `start` is.
        dtype: the dtype of float Boxes; None: the Box's own.

    Raises:
        OptionError: not a gymnasium space, or one of a dtype that torch cannot compute with.

    Example:
        >>> spec_from_space(spaces.Discrete(3))
        OneHot(n=3, shape=(3,), dtype=int64)
        >>> spec_from_space(spaces.Discrete(3), categorical=True)
        Categorical(n=3, shape=(), dtype=int64)
        >>> spec_from_space(spaces.Box(0, 255, (2, 2), "uint8"))
        Bounded(low=0, high=255, shape=(2, 2), dtype=uint8)
    """
    convert = partial(spec_from_space, categorical=categorical, dtype=dtype)
    match space:
        case spaces.Dict():
            return Composite({key: convert(inner) for key, inner in space.spaces.items()})
        case spaces.Tuple():
            return Composite({str(place): convert(inner) for place, inner in enumerate(space.spaces)})
        case spaces.Box():
            return _numbers(space, dtype)
        case spaces.Discrete() | spaces.MultiDiscrete():
            return _indices(space) if categorical else _one_hot(space)
        case _:
            return _other(space)


def _numbers(space: spaces.Box, dtype: torch.dtype | None) -> Spec:
    own = _torch_dtype(space.dtype)
    dtype = dtype if dtype is not None and own.is_floating_point else own
    if not (space.bounded_below.any() or space.bounded_above.any()):
        return Unbounded(space.shape, "cpu", dtype)
    return Bounded(space.low, space.high, space.shape, "cpu", dtype)


def _indices(space: spaces.Discrete[Any] | spaces.MultiDiscrete[Any]) -> Spec:
    if isinstance(space, spaces.Discrete):
        return Categorical(int(space.n), device="cpu")
    return MultiCategorical(space.nvec.tolist(), device="cpu")


def _one_hot(space: spaces.Discrete[Any] | spaces.MultiDiscrete[Any]) -> Spec:
    if isinstance(space, spaces.Discrete):
        return OneHot(int(space.n), device="cpu", dtype=torch.int64)
    return MultiOneHot(space.nvec.tolist(), device="cpu", dtype=torch.int64)


def _other(space: object) -> Spec:
    if isinstance(space, spaces.MultiBinary):
        return Binary(shape=space.shape, device="cpu")
    if isinstance(space, spaces.Text):
        return NonTensor((), example_data=space.characters[:1] * space.min_length)
    if isinstance(space, spaces.Space):
        return NonTensor(())
    kind = type(space)
    advice = "Give the env's observation_space or action_space."
    if kind.__module__.partition(".")[0] == "gym":
        advice = "It is of the old gym package: make the env with gymnasium.make, or convert it with shimmy."
    name = f"{kind.__module__}.{kind.__qualname__}"
    raise OptionError(f"spec_from_space: expected a gymnasium.Space, found {space!r} of {name}. {advice}")


def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    found = getattr(torch, dtype.name, None)
    if not isinstance(found, torch.dtype):
        raise OptionError(
            f"spec_from_space: expected a Box of a dtype that torch has, found {dtype}. Wrap the env in "
            "gymnasium.wrappers.TransformObservation with a Box of float32."
        )
    return found
