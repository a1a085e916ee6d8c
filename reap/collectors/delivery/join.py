"""How the results of several workers become one batch: stacked, or joined along a dimension.

worker w   [*P, T]
"stack"    [W, *P, T]    unequal workers: padded with zeros, marked in the mask
d          joined along dimension d of [*P, T]
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase, is_non_tensor

from reap.errors import OptionError
from reap.keys import Key, as_key, nested
from reap.recording.buffers import IDS, MASK
from reap.recording.objects import stacked, unstacked
from reap.recording.trajectories import NO_ID
from reap.tensordicts import make_tensordict, sizes_in

Shape = tuple[int, ...]


class Joiner(Protocol):
    """Makes one batch from the workers' results."""

    def __call__(self, results: Sequence[TensorDictBase]) -> TensorDictBase:
        """The batch."""
        ...


def checked_dim(cat_results: str | int, shapes: Sequence[Shape]) -> int | None:
    """The dimension along which results of these shapes are joined, counted from 0; None for a stack.

    Raises:
        OptionError: results differ in their number of dimensions or in other dimensions, or there is no such dimension.
    """
    ranks = {len(shape) for shape in shapes}
    if len(ranks) > 1:
        raise OptionError(f"the workers' results have shapes {list(shapes)}: give all of them batched envs, or none")
    rank = ranks.pop()
    if isinstance(cat_results, str):
        return None
    if not -rank <= cat_results < rank:
        raise OptionError(
            f"cat_results={cat_results}: expected a dimension of the workers' results, from {-rank} to {rank - 1}, for their "
            f"shape is {shapes[0]}"
        )
    dim = cat_results % rank
    fits = [d for d in range(rank) if len({shape[:d] + shape[d + 1 :] for shape in shapes}) == 1]
    if dim not in fits:
        other = f"; {' or '.join(map(str, fits))} would" if fits else ""
        raise OptionError(
            f"cat_results={cat_results}: results of shapes {list(shapes)} do not fit together along it{other}; "
            '"stack" pads them and sets a mask'
        )
    return dim


def joined_shape(dim: int | None, shapes: Sequence[Shape]) -> Shape:
    """The shape of a batch of these results."""
    if dim is None:
        return (len(shapes), *np.max(np.asarray(shapes), axis=0).tolist())
    length = sum(shape[dim] for shape in shapes)
    return (*shapes[0][:dim], length, *shapes[0][dim + 1 :])


def real_rows(shapes: Sequence[Shape]) -> torch.Tensor | None:
    """The rows of a stack of these results that hold data; None if all do."""
    is_real = np.zeros(joined_shape(None, shapes)[:-1], bool)
    for worker, shape in enumerate(shapes):
        is_real[(worker, *map(slice, shape[:-1]))] = True
    return None if is_real.all() else torch.from_numpy(np.flatnonzero(is_real))


def joiner(dim: int | None, shapes: Sequence[Shape]) -> Joiner:
    """A function that joins results of these shapes, by copying them."""
    return partial(_padded, joined_shape(None, shapes)) if dim is None else partial(_joined, dim)


def _joined(dim: int, results: Sequence[TensorDictBase]) -> TensorDictBase:
    batch: Any = TensorDict.cat([result.copy() for result in results], dim)
    batch.names = [*[None] * (batch.ndim - 1), "time"]
    return batch


def _padded(shape: Shape, results: Sequence[TensorDictBase]) -> TensorDictBase:
    keys = list(results[0].keys(include_nested=True, leaves_only=True, is_leaf=lambda kind: not issubclass(kind, TensorDict)))
    places = [(w, *map(slice, result.shape)) for w, result in enumerate(results)]
    leaves: dict[Key, Any] = {}
    for key in keys:
        values = [result.get(key) for result in results]
        pad = _pad_objects if is_non_tensor(values[0]) else _pad_tensors
        leaves[as_key(key)] = pad(shape, places, values)
    names = [*[None] * (len(shape) - 1), "time"]
    tree = nested(leaves, sizes_in(results[0], results[0].ndim))
    batch: Any = make_tensordict(tree, torch.Size(shape), names=names)
    is_valid = torch.zeros(shape, dtype=torch.bool)
    for place, result in zip(places, results, strict=True):
        is_valid[place] = result.get(MASK, torch.ones(result.shape, dtype=torch.bool))
    batch.set(MASK, is_valid)
    batch.get(IDS)[~is_valid] = NO_ID
    return batch


def _pad_tensors(shape: Shape, places: Sequence[Any], values: Sequence[torch.Tensor]) -> torch.Tensor:
    rank = len(shape) - 1
    whole = values[0].new_zeros((*shape, *values[0].shape[rank:]))
    for place, value in zip(places, values, strict=True):
        whole[place] = value
    return whole


def _pad_objects(shape: Shape, places: Sequence[Any], values: Sequence[Any]) -> Any:
    whole = np.empty(shape, object)
    for place, value in zip(places, values, strict=True):
        whole[place] = unstacked(value, whole[place].shape)
    return stacked(whole)
